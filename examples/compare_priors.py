"""One model, every prior: how well each describes held-out digits, and which clusters it finds.

    python -m examples.compare_priors     # the bundled 8x8 digits; needs no files

The model is an MFCVAE with two facets, style and digit; both facets have the same kind of prior,
and nothing else differs. The start is the same as well: for each seed the networks are trained once
under standard normal priors (a warm start). Training with every prior continues from them, after
its mixtures are fitted to their latents. So no prior starts from clusters that another method
found, and the standard normal, which has no clusters, gets as much training. Seeds are trained side
by side. Labels are used only for the scores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import pyro
from elbocheck import importance_weighted_bounds
from matplotlib.figure import Figure

from examples.common import Table, format_table, load_data, parse, score_facets, write_json
from facetvae import (
    MFCVAE,
    DirichletWeights,
    GaussianMixture,
    MLPLadder,
    Normal,
    Prior,
    ProgressiveFadeIn,
    StandardNormal,
    SVIRunner,
    VaDEGuide,
    VampPrior,
    elbo,
    fit_mixtures,
    fit_together,
    mutual_information,
)
from facetvae.datasets import Dataset
from inference.evaluation import log_importance_weights

LABEL = "digit"  # which both facets are scored by
FIRST, LAST = "diagonal", "standard normal"  # what all are compared with; what all start from


@dataclass(frozen=True)
class Settings:
    """Two facets on the quickstart's networks; the digit facet is deep, the style facet shallow."""

    num_components: tuple[int, int] = (8, 25)  # style, digit
    dim: int = 5
    widths: tuple[int, int] = (200, 400)
    scale: float = 0.15  # of the likelihood; pixels are within [0, 1]
    batch_size: int = 128
    lr: float = 2e-3
    warm_epochs: tuple[int, int] = (40, 110)  # the digit facet alone, and both
    fade_steps: int = 1000
    epochs: int = 100
    restarts: int = 3  # of each fit of a mixture
    importance_draws: int = 1000


SMOKE = Settings((2, 3), 2, (8, 8), warm_epochs=(1, 2), fade_steps=4, epochs=2, importance_draws=10)


def priors(data: Dataset) -> dict[str, Callable[[int, int], Prior]]:
    """Every prior by name, from the number of components and of dimensions."""
    weights = DirichletWeights(len(data.train))
    return {
        FIRST: GaussianMixture,
        "full covariance": lambda K, d: GaussianMixture(K, d, covariance="full"),
        "uniform weights": lambda K, d: GaussianMixture(K, d, weights="uniform"),
        "Dirichlet weights": lambda K, d: GaussianMixture(K, d, weights=weights),
        "VampPrior": lambda K, d: VampPrior(K, d, data.train.shape[1:], support=(0, 1)),
        LAST: lambda K, d: StandardNormal(d),
    }


def build(name: str, data: Dataset, settings: Settings, seed: int) -> VaDEGuide:
    """The guide of a model whose facets all have this prior."""
    pyro.set_rng_seed(seed)
    num_styles, num_digits = settings.num_components
    prior = priors(data)[name]
    facets = {"style": prior(num_styles, settings.dim), "digit": prior(num_digits, settings.dim)}
    network = MLPLadder(settings.widths)
    return VaDEGuide(MFCVAE(data.train.shape[1:], facets, Normal(settings.scale), network))


def warm_started(
    data: Dataset, settings: Settings, args: argparse.Namespace
) -> tuple[list[SVIRunner], float]:
    """A run for each seed, trained under standard normal priors; and the seconds of each."""
    schedule = ProgressiveFadeIn(settings.warm_epochs, settings.fade_steps)
    runners = []
    for seed in args.seeds:
        guide = build(LAST, data, settings, seed)
        how = {"lr": settings.lr, "schedule": schedule, "seed": seed, "device": args.device}
        runners.append(SVIRunner(guide.model, guide, **how))
    return runners, train(runners, data, sum(settings.warm_epochs), settings)


def continued(
    name: str, warm: Sequence[SVIRunner], data: Dataset, settings: Settings
) -> list[SVIRunner]:
    """The same networks with this prior, its mixtures fitted to their latents; not yet trained."""
    runners = []
    for before in warm:
        guide = build(name, data, settings, before.seed).to(before.device)
        guide.encoder.load_state_dict(before.guide.encoder.state_dict())
        guide.model.decoder.load_state_dict(before.model.decoder.state_dict())
        if guide.model.mixtures:
            fit_mixtures(guide, data.train, seed=before.seed, n_init=settings.restarts)
        runners.append(SVIRunner(guide.model, guide, lr=settings.lr, seed=before.seed))
    return runners


def train(runners: Sequence[SVIRunner], data: Dataset, epochs: int, settings: Settings) -> float:
    """Train the seeds side by side; each seed's share of the processor time, in seconds."""
    before = process_time()
    size = settings.batch_size
    fit_together(runners, data.train, epochs, batch_size=size, log_every=5, progress=False)
    return (process_time() - before) / len(runners)


def judge(runner: SVIRunner, data: Dataset, draws: int) -> dict[str, float]:
    """Bounds on the test split, and of each facet with clusters how many are in use, I(x; c),
    and scores against the label.
    """
    pyro.set_rng_seed(runner.seed)
    guide = runner.guide
    log_weights = log_importance_weights(guide, data.test, draws)
    scores = {
        "elbo": elbo(runner.model, guide, data.test, num_draws=20)[0],
        "bound": importance_weighted_bounds(log_weights, [draws])[draws],
    }
    information, known = mutual_information(guide, data.test), score_facets(guide, data)
    for facet, proba in guide.predict_proba(data.test).items():
        of_label = known[facet][LABEL]
        scores |= {
            f"{facet} in_use": int((np.bincount(proba.argmax(-1)) > 0.01 * len(proba)).sum()),
            f"{facet} information": information[facet],
            f"{facet} nmi": of_label["nmi"],
            f"{facet} accuracy": of_label["accuracy_train_map"],
        }
    return scores


def draw(table: Table) -> Figure:
    """Each prior's held-out ELBO and NMI of its clusters with the digit, a point for each seed."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = {"elbo": "held-out ELBO, nats per datum", "digit nmi": "NMI of clusters and digit"}
    axes = figure.subplots(1, len(panels), sharey=True)
    for ax, (score, label) in zip(axes, panels.items(), strict=True):
        for name, row in table.items():
            ax.plot(row.get(score, []), [name] * len(row.get(score, [])), ".", color="tab:blue")
        ax.set_xlabel(label)
    return figure


def main(argv: list[str] | None = None) -> None:
    args = parse("compare_priors", __doc__, argv, seeds=(0, 1, 2, 3, 4))
    settings, data = SMOKE if args.smoke else Settings(), load_data(args)
    warm, seconds = warm_started(data, settings, args)
    print(f"warm start: {seconds:.1f} s of processor time a seed", flush=True)
    table: dict[str, Any] = {}
    for name in priors(data):
        runners = continued(name, warm, data, settings)
        seconds = train(runners, data, settings.epochs, settings)
        runs = [judge(runner, data, settings.importance_draws) for runner in runners]
        table[name] = row = {score: [run[score] for run in runs] for score in runs[0]}
        pairs = zip(row["elbo"], table[FIRST]["elbo"], strict=True)
        row |= {"gain": [one - other for one, other in pairs], "seconds": [seconds]}
        print(f"{name}: {len(runs)} seeds", flush=True)
    write_json(args.out / "results.json", table)
    draw(table).savefig(args.out / "priors.png", dpi=150)
    by_score = {
        score: {name: row.get(score, []) for name, row in table.items()} for score in table[FIRST]
    }
    print("\n" + format_table("mean (sample deviation)", by_score))


if __name__ == "__main__":
    main()
