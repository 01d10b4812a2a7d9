"""One model, every guide: what each posterior gives, and what each estimator of the same objective
costs.

    python -m examples.compare_guides                              # the bundled 8x8 digits
    python -m examples.compare_guides --dataset mnist --data-root DATA

Each guide trains its own model in the same way, warm start included; a first table compares the
fitted posteriors. A second table takes one of them, with its cluster given by a network and its
latents given the cluster, and handles that cluster in every available way: same posterior, same
batch, so bias, noise and time are the estimator's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import ELBO

from facetvae.datasets import Dataset
from guides import (
    AmortizedGuide,
    Annealed,
    FacetGuide,
    GumbelSoftmax,
    MarginalGuide,
    ScoreFunction,
    VaDEGuide,
)
from guides.discrete import Discrete
from inference import ImportanceWeighted_ELBO, Loss, SVIRunner, elbo, mutual_information, warm_start
from inference.diagnostics import (
    EstimatorReport,
    compare_estimators,
    importance_weighted_bounds,
    log_importance_weights,
    pareto_k,
)
from lab.figures.comparisons import guide_comparison
from lab.protocols.common import (
    add_setting_flags,
    build_parser,
    checkpointing,
    load_data,
    open_run_folder,
    refuse_several,
    resolve,
    score_facets,
    write_json,
)
from ppl_models import FacetModel, GaussianMixture, Normal, SharedMLP, VaDE

FACET = "digit"  # and the label that it is scored by
# What an annealed temperature ends at, and what the second table draws relaxed clusters at.
TEMPERATURE = 0.3


@dataclass(frozen=True)
class Settings:
    """One facet on the shared architecture; Normal likelihood, as in the quickstart."""

    num_components: int = 15
    dim: int = 5
    widths: tuple[int, ...] = (200, 400)
    scale: float = 0.15  # of the likelihood; pixels are within [0, 1]
    batch_size: int = 64
    lr: float = 1e-3
    warm_epochs: int = 60
    epochs: int = 60
    repeats: int = 3  # seeds
    importance_draws: int = 1000  # for each of 200 test data
    gradient_draws: int = 500


MNIST = Settings(
    widths=(256, 256), batch_size=256, warm_epochs=4, epochs=12, repeats=1, gradient_draws=200
)
SMOKE = Settings(
    num_components=3,
    dim=2,
    widths=(8, 8),
    batch_size=128,
    warm_epochs=1,
    epochs=1,
    repeats=1,
    importance_draws=100,
    gradient_draws=10,
)


def guides(steps: int) -> dict[str, tuple[Callable[[FacetModel], FacetGuide], ELBO | None]]:
    """Every guide by name, with the objective it is trained by (its own where None).

    :param steps: over which an annealed temperature falls.
    """

    def network(
        discrete: Callable[[], Discrete] | None = None,
    ) -> Callable[[FacetModel], FacetGuide]:
        return lambda model: AmortizedGuide(
            model, discrete=discrete() if discrete else None, conditional=True
        )

    def gumbel(hard: bool) -> Callable[[], Discrete]:
        return lambda: GumbelSoftmax(Annealed(1.0, TEMPERATURE, steps), hard=hard)

    return {
        "responsibilities": (VaDEGuide, None),
        "responsibilities, L = 5": (lambda model: VaDEGuide(model, 5), None),
        "marginal": (MarginalGuide, None),
        "marginal, IWAE of 10": (MarginalGuide, ImportanceWeighted_ELBO(10)),
        "network, mean field": (AmortizedGuide, None),
        "network, enumerated": (network(), None),
        "network, Gumbel soft": (network(gumbel(hard=False)), None),
        "network, straight-through": (network(gumbel(hard=True)), None),
        "network, score": (network(lambda: ScoreFunction("none")), None),
        "network, score, average": (network(lambda: ScoreFunction("average")), None),
        "network, score, learned": (network(lambda: ScoreFunction("learned")), None),
    }


def train(
    data: Dataset,
    settings: Settings,
    build: Callable,
    objective: ELBO | None,
    seed: int,
    device: str,
    kept: Path,
) -> SVIRunner:
    """A model of its own for one guide: warm start, mixture, then both together."""
    pyro.set_rng_seed(seed)
    prior = GaussianMixture(settings.num_components, settings.dim)
    model = VaDE(
        data.train.shape[1:], prior, Normal(settings.scale), SharedMLP(settings.widths), name=FACET
    )
    guide = build(model)
    options: dict[str, Any] = {"batch_size": settings.batch_size, "progress": False}
    warm = SVIRunner(model, guide, lr=settings.lr, seed=seed, device=device)
    warm_start(
        warm,
        data.train,
        settings.warm_epochs,
        seed=seed,
        restarts=3,
        log_every=settings.warm_epochs,
        checkpoints=checkpointing(kept, "warm-start"),
        **options,
    )
    runner = SVIRunner(model, guide, objective, lr=settings.lr, seed=seed, device=device)
    options["checkpoints"] = checkpointing(kept, "training")
    # Steps alone are timed, and a checkpoint a minute.
    return runner.fit(data.train, settings.epochs, log_every=settings.epochs, **options)


def judge(
    runner: SVIRunner, data: Dataset, settings: Settings
) -> tuple[dict[str, float], dict[int, float]]:
    """A row of the first table, and the importance-weighted bounds by number of draws."""
    guide, rows = runner.guide, data.test[:: max(len(data.test) // 200, 1)][:200]
    pyro.set_rng_seed(runner.seed)
    log_weights = log_importance_weights(guide, rows, settings.importance_draws)
    bounds = importance_weighted_bounds(
        log_weights, [n for n in (1, 10, 100, 1000) if n <= settings.importance_draws]
    )
    scores = score_facets(guide, data)[FACET][FACET]
    value, _ = elbo(runner.model, guide, data.test, num_draws=10)
    row = {
        "ELBO": value,
        "IWAE": bounds[max(bounds)],
        "k > 0.7": float((pareto_k(log_weights) > 0.7).mean()),
        "I(x; c)": mutual_information(guide, data.test)[FACET],
        "accuracy": scores["accuracy_train_map"],
        "NMI": scores["nmi"],
        "ms a step": 1e3 * runner.history[-1]["seconds"] / runner.step,
    }
    return row, bounds


def estimators(guide: AmortizedGuide) -> dict[str, Loss]:
    """The same posterior with its cluster handled in every way there is."""

    def handled(discrete: Discrete | None) -> Loss:
        twin = AmortizedGuide(guide.model, discrete=discrete, conditional=True)
        twin.encoder, twin.shifts = guide.encoder, guide.shifts
        return Loss(guide.model, twin.to(guide.model.gates.device))

    return {
        "enumerated": handled(None),
        "Gumbel soft": handled(GumbelSoftmax(TEMPERATURE)),
        "straight-through": handled(GumbelSoftmax(TEMPERATURE, hard=True)),
        "score": handled(ScoreFunction("none")),
        "score, average": handled(ScoreFunction("average")),
        "score, learned": handled(ScoreFunction("learned")),
    }


def compare(
    guide: AmortizedGuide, data: Dataset, settings: Settings, seed: int
) -> dict[str, EstimatorReport]:
    """The second table: one batch of 16, enumeration being the reference."""
    x = torch.as_tensor(data.train[:16]).to(guide.model.gates.device)
    losses = estimators(guide)
    for name in ("score, average", "score, learned"):
        _teach_baseline(losses[name], x, seed)
    return compare_estimators(
        losses, x, losses["enumerated"], settings.gradient_draws * 10, seed, chunk=32
    )


def _teach_baseline(loss: Loss, x: torch.Tensor, seed: int, steps: int = 300) -> None:
    """Let a baseline learn the costs of this posterior, which itself stays as it is."""
    baselines = loss.guide.discrete.baselines
    parameters = list(baselines.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2) if parameters else None
    pyro.set_rng_seed(seed)
    loss.train()
    for _ in range(steps):
        value = loss(x)
        if optimizer is not None:
            gradients = torch.autograd.grad(value, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    loss.eval()


def format_table(title: str, rows: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Rows of means, with sample deviations in brackets where there are several values."""
    columns = list(next(iter(rows.values())))
    lines = [f"{title:26s}" + "".join(f"{column:>19s}" for column in columns)]
    for name, values in rows.items():
        lines.append(
            f"{name:26s}"
            + "".join(f"{_mean_and_spread(values[column]):>19s}" for column in columns)
        )
    return "\n".join(lines)


def _mean_and_spread(values: list[float]) -> str:
    spread = f" ({stdev(values):.2g})" if len(values) > 1 else ""
    return (
        f"{mean(values):.3g}{spread}" if abs(mean(values)) < 1e3 else f"{mean(values):.2e}{spread}"
    )


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "compare_guides")
    parser.add_argument("--dataset", choices=("digits", "mnist"), default="digits")
    flags = {
        "epochs": {"help": "after the warm start"},
        "lr": {"help": "Adam's rate"},
        "repeats": {"help": "seeds, from --seed on"},
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    return args, resolve(args, MNIST if args.dataset == "mnist" else Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    refuse_several()
    args, settings = parse(argv)
    data = load_data("digits" if args.smoke else args.dataset, args)
    out = open_run_folder(args, settings, data)
    steps = settings.epochs * -(-len(data.train) // settings.batch_size)
    posteriors: dict[str, dict[str, list[float]]] = {}
    bounds: dict[str, dict[int, list[float]]] = {}
    noise: dict[str, dict[str, list[float]]] = {}
    for seed in range(args.seed, args.seed + settings.repeats):
        for name, (build, objective) in guides(steps).items():
            place = f"{_slug(name)}-{seed}"
            runner = train(
                data, settings, build, objective, seed, args.device, out / "checkpoints" / place
            )
            runner.save(out / "guides" / place)
            row, curve = judge(runner, data, settings)
            _append(posteriors, name, row)
            _append(bounds, name, curve)
            if name == "network, enumerated":
                for estimator, report in compare(runner.guide, data, settings, seed).items():
                    _append(noise, estimator, asdict(report))
            print(f"seed {seed}, {name}: ELBO {row['ELBO']:.2f}", flush=True)
    results = {"posteriors": posteriors, "bounds": bounds, "estimators": noise}
    write_json(out / "results.json", results)
    write_figure(out / "figures", bounds, noise)
    print(f"\n{format_table('fitted posterior', posteriors)}\n\n{format_table('estimator', noise)}")


def write_figure(folder: Path, bounds: Mapping, noise: Mapping) -> None:
    folder.mkdir(exist_ok=True)
    figure = guide_comparison(
        {name: {n: float(np.mean(v)) for n, v in curve.items()} for name, curve in bounds.items()},
        {
            name: (mean(r["milliseconds"]), mean(r["gradient_variance"]))
            for name, r in noise.items()
        },
    )
    figure.savefig(folder / "comparison.png", dpi=150)


def _append(table: dict, name: str, row: Mapping) -> None:
    for key, value in row.items():
        table.setdefault(name, {}).setdefault(key, []).append(value)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


if __name__ == "__main__":
    main()
