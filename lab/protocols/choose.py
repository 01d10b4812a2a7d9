"""How many facets J, and how many clusters K in each? Candidates compared on held-out data, without
labels.

    python -m lab.protocols.choose                      # the bundled 8x8 digits
    python -m lab.protocols.choose --dataset drawn      # two known labelings, in two subspaces

Candidates have 1, 2 or 3 facets, and the same number of clusters in each facet. Everything else is
the same for all, so that only the grouping is compared: one likelihood, one ladder of three levels,
of which the deepest have facets, and one number of latent dimensions, divided among the facets.
They are ordered by their total number of clusters, J K.

The start of the mixtures does not depend on K: for each J, networks are trained once under standard
normal priors, and training with every K continues from them. Seeds are trained side by side. Labels
are used only after the choice, to say whether it is right.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyro
from sklearn.metrics import adjusted_rand_score

from facetvae.datasets import Dataset
from facetvae.selection import select_model
from facetvae.selection.candidates import Selection
from guides import VaDEGuide
from inference import (
    ProgressiveFadeIn,
    SVIRunner,
    fit_mixtures,
    fit_together,
    standard_normal_priors,
)
from lab.protocols.common import (
    add_setting_flags,
    build_parser,
    checkpointing,
    load_data,
    open_run_folder,
    refuse_several,
    resolve,
    write_json,
)
from lab.protocols.sources import labelings
from ppl_models import MFCVAE, DirichletWeights, GaussianMixture, MLPLadder, Normal


@dataclass(frozen=True)
class Settings:
    """The grid of candidates and what they share.

    ``num_components`` are the K; ``dim`` is that of all facets together. ``warm_epochs`` are
    those of the deepest facet alone, and of all others together, which come in one after the other.
    """

    num_facets: tuple[int, ...] = (1, 2, 3)
    num_components: tuple[int, ...] = (5, 10, 20)
    weights: str = "learned"
    dim: int = 10
    widths: tuple[int, int, int] = (64, 128, 256)
    scale: float = 0.15  # of the likelihood; pixels are within [0, 1]
    batch_size: int = 128
    lr: float = 2e-3
    warm_epochs: tuple[int, int] = (40, 170)
    fade_steps: int = 1000
    epochs: int = 40
    repeats: int = 5  # seeds


DRAWN = Settings(
    num_components=(2, 4, 6, 12), dim=4, widths=(64, 64, 64), scale=0.5, warm_epochs=(100, 260)
)
SMOKE = Settings(
    num_components=(2, 3),
    dim=4,
    widths=(8, 8, 8),
    batch_size=128,
    warm_epochs=(1, 4),
    fade_steps=4,
    epochs=1,
    repeats=2,
)
# What the simulated labelings are: the second varies more than the first, so that the deepest facet
# may find it alone.
CLUSTERS, DIMS, SCALES = (3, 4), (2, 2), (1.0, 1.5)


def drawn(train_rows: int = 1000, test_rows: int = 500) -> Dataset:
    """Two labelings, of 3 and of 4 clusters in a plane each, turned at random in 10 dimensions, of
    unit deviation.
    """
    n = train_rows + test_rows
    made = labelings(n, CLUSTERS, DIMS, scales=SCALES, noise=0.5)
    x = (made.x / made.x[:train_rows].std()).astype(np.float32)
    known = {f"{K} clusters": label for K, label in zip(CLUSTERS, made.labels, strict=True)}
    train, test = slice(train_rows), slice(train_rows, None)
    labels = ({name: label[rows] for name, label in known.items()} for rows in (train, test))
    return Dataset("drawn", x[train], x[test], *labels, (1, x.shape[1]))


def candidates(settings: Settings) -> list[tuple[int, int]]:
    """J and K of each, by their clusters altogether, and by facets where these are as many."""
    grid = [(J, K) for J in settings.num_facets for K in settings.num_components]
    return sorted(grid, key=lambda each: (each[0] * each[1], each[0]))


def build(J: int, K: int, data: Dataset, settings: Settings) -> VaDEGuide:
    """A guide of J facets, the last one deepest."""
    weights = (
        DirichletWeights(len(data.train)) if settings.weights == "dirichlet" else settings.weights
    )
    levels = range(len(settings.widths) - J, len(settings.widths))
    share, left = divmod(settings.dim, J)
    dims = {
        f"facet_{j}": share + (left if j == 1 else 0) for j in range(J, 0, -1)
    }  # what is left goes to the deepest
    facets = {name: GaussianMixture(K, dim, weights=weights) for name, dim in dims.items()}
    network = MLPLadder(settings.widths, rungs=list(levels))
    return VaDEGuide(MFCVAE(data.train.shape[1:], facets, Normal(settings.scale), network))


def begun(J: int, data: Dataset, settings: Settings, args: argparse.Namespace) -> list[SVIRunner]:
    """A run for each seed, trained under standard normal priors."""
    first, others = settings.warm_epochs
    phases = (first, *[others // (J - 1)] * (J - 1)) if J > 1 else (first + others,)
    runners = []
    for seed in range(args.seed, args.seed + settings.repeats):
        pyro.set_rng_seed(seed)
        guide = build(J, settings.num_components[0], data, settings)
        schedule = ProgressiveFadeIn(phases, settings.fade_steps)
        runners.append(
            SVIRunner(
                guide.model, guide, lr=settings.lr, schedule=schedule, seed=seed, device=args.device
            )
        )
    with ExitStack() as stack:
        for runner in runners:
            stack.enter_context(standard_normal_priors(runner.model))
        train(runners, data, sum(phases), settings, args.out, f"{J}-facets")
    return runners


def finished(
    K: int, warm: Sequence[SVIRunner], data: Dataset, settings: Settings, args: argparse.Namespace
) -> list[SVIRunner]:
    """The same with mixtures of K clusters: fitted to the latents, then trained with the
    networks.
    """
    J = len(warm[0].model.facets)
    runners = []
    for before in warm:
        pyro.set_rng_seed(before.seed)
        guide = build(J, K, data, settings).to(before.device)
        guide.encoder.load_state_dict(before.guide.encoder.state_dict())
        guide.model.decoder.load_state_dict(before.model.decoder.state_dict())
        fit_mixtures(guide, data.train, seed=before.seed, n_init=3)
        runners.append(SVIRunner(guide.model, guide, lr=settings.lr, seed=before.seed))
    train(runners, data, settings.epochs, settings, args.out, f"{J}x{K}")
    return runners


def train(
    runners: Sequence[SVIRunner],
    data: Dataset,
    epochs: int,
    settings: Settings,
    out: Path,
    phase: str,
) -> None:
    kept = checkpointing(out, phase)
    how: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "log_every": epochs,
        "checkpoints": kept,
    }
    fit_together(runners, data.train, epochs, progress=False, **how)


def found_labels(
    selection: Selection, labels: dict[str, np.ndarray]
) -> dict[str, dict[str, list[float]]]:
    """How well each label is found: by candidate, the ARI of the facet that matches it best, of
    every seed.
    """
    return {
        name: {
            label: [
                max(adjusted_rand_score(known, part) for part in run.partitions.values())
                for run in runs
            ]
            for label, known in labels.items()
        }
        for name, runs in selection.runs.items()
    }


def results(selection: Selection, found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """All that the tables say, in JSON types; what is not defined, such as the redundancy of one
    facet, is NaN.
    """
    rows = {
        name: {
            "elbo": selection.elbo(name),
            "elbo_by_seed": [float(run.elbo.mean()) for run in runs],
            "difference": selection.differences[name],
            "stability": selection.stability(name),
            "redundancy": selection.redundancy(name),
            "found_by_seed": found[name],
            **{what: selection.by_facet(name, what) for what in ("in_use", "mutual_information")},
        }
        for name, runs in selection.runs.items()
    }
    return {"chosen": selection.chosen, "best": selection.best, "candidates": rows}


def format_found(selection: Selection, found: dict[str, dict[str, list[float]]]) -> str:
    """How well labels are found, a line for each candidate."""
    labels = list(next(iter(found.values())))
    lines = [
        "what the choice did not look at: ARI of each label with the facet that matches it best, "
        "mean (deviation),"
    ]
    lines.append("and in the seed of the highest held-out ELBO")
    lines.append(f"{'':14s}" + "".join(f"{label:>24s}" for label in labels))
    for name, row in found.items():
        best = int(np.argmax([run.elbo.mean() for run in selection.runs[name]]))
        cells = "".join(
            f"{_mean_and_deviation(row[label]):>16s}; {row[label][best]:6.2f}" for label in labels
        )
        lines.append(f"{'*' if name == selection.chosen else ' '} {name:12s}{cells}")
    return "\n".join(lines)


def _mean_and_deviation(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ({stdev(values):.2f})" if len(values) > 1 else "")


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "choose")
    parser.add_argument("--dataset", choices=("digits", "drawn"), default="digits")
    flags: dict[str, dict[str, Any]] = {
        "epochs": {"help": "after the warm start"},
        "lr": {"help": "Adam's rate"},
        "repeats": {"help": "seeds, from --seed on"},
        "weights": {
            "help": "of the clusters",
            "choices": ("learned", "dirichlet"),
            "metavar": None,
        },
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    settings = DRAWN if args.dataset == "drawn" else Settings()
    return args, resolve(args, settings, replace(SMOKE, scale=settings.scale))


def main(argv: list[str] | None = None) -> None:
    refuse_several()
    args, settings = parse(argv)
    data = drawn() if args.dataset == "drawn" else load_data("digits", args)
    out = open_run_folder(args, settings, data)
    fitted = {}
    for J in settings.num_facets:
        warm = begun(J, data, settings, args)
        for K in settings.num_components:
            fitted[J, K] = finished(K, warm, data, settings, args)
            print(f"{J} facets of {K} clusters: {settings.repeats} seeds trained", flush=True)
    selection = select_model(
        {f"{J} x {K}": fitted[J, K] for J, K in candidates(settings)}, data.test
    )
    found = found_labels(selection, data.test_labels)
    write_json(out / "results.json", results(selection, found))
    for runner in fitted[candidates(settings)[list(selection.runs).index(selection.chosen)]]:
        runner.save(out / "chosen" / f"seed-{runner.seed}")
    print(f"\n{selection}\n\n{format_found(selection, found)}")


if __name__ == "__main__":
    main()
