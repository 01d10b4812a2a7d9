"""One model, every guide: what each posterior gives, and what each estimator of the same objective
costs.

    python -m examples.compare_guides                              # the bundled 8x8 digits
    python -m examples.compare_guides --dataset mnist --data-root DATA --seeds 0

Each guide trains its own model in the same way, warm start included; a first table compares the
fitted posteriors. A second table takes one of them, with its cluster given by a network and its
latents given the cluster, and handles that cluster in every available way: same posterior, same
batch, so bias, noise and time are the estimator's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pyro
import torch
from elbocheck import compare_estimators, importance_weighted_bounds, pareto_k
from elbocheck.pytorch import Program
from pyro.infer import ELBO

from examples.common import Table, format_table, load_data, parse, score_facets, write_json
from facetvae import (
    AmortizedGuide,
    Annealed,
    GaussianMixture,
    GumbelSoftmax,
    ImportanceWeighted_ELBO,
    Loss,
    MarginalGuide,
    Normal,
    ScoreFunction,
    SharedMLP,
    SVIRunner,
    VaDE,
    VaDEGuide,
    elbo,
    mutual_information,
    warm_start,
)
from facetvae.datasets import Dataset
from inference.evaluation import log_importance_weights

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
    importance_draws: int = 1000  # for each of 200 test data
    gradient_draws: int = 500


MNIST = Settings(widths=(256, 256), batch_size=256, warm_epochs=4, epochs=12, gradient_draws=200)
SMOKE = Settings(3, 2, (8, 8), 0.15, 128, 1e-3, 1, 1, importance_draws=100, gradient_draws=10)


def guides(steps: int) -> dict[str, tuple[Callable, ELBO | None]]:
    """Every guide by name, with the objective it is trained by (its own where None)."""

    def network(discrete: Callable | None = None, *options: Any) -> Callable:
        """A guide with a network for the cluster, whose discrete part is made anew each time."""
        return lambda model: AmortizedGuide(
            model, discrete=discrete and discrete(*options), conditional=True
        )

    def gumbel(hard: bool) -> GumbelSoftmax:
        return GumbelSoftmax(Annealed(1.0, TEMPERATURE, steps), hard=hard)  # falls over the run

    return {
        "responsibilities": (VaDEGuide, None),
        "responsibilities, L = 5": (lambda model: VaDEGuide(model, 5), None),
        "marginal": (MarginalGuide, None),
        "marginal, IWAE of 10": (MarginalGuide, ImportanceWeighted_ELBO(10)),
        "network, mean field": (AmortizedGuide, None),
        "network, enumerated": (network(), None),
        "network, Gumbel soft": (network(gumbel, False), None),
        "network, straight-through": (network(gumbel, True), None),
        "network, score": (network(ScoreFunction, "none"), None),
        "network, score, average": (network(ScoreFunction, "average"), None),
        "network, score, learned": (network(ScoreFunction, "learned"), None),
    }


def train(
    data: Dataset, s: Settings, build: Callable, objective: ELBO | None, seed: int, device: str
) -> SVIRunner:
    """A model of its own for one guide: warm start, mixture, then both together."""
    pyro.set_rng_seed(seed)
    prior = GaussianMixture(s.num_components, s.dim)
    model = VaDE(data.train.shape[1:], prior, Normal(s.scale), SharedMLP(s.widths), name=FACET)
    guide = build(model)
    how: dict[str, Any] = {"batch_size": s.batch_size, "log_every": 10**6, "progress": False}
    warm = SVIRunner(model, guide, lr=s.lr, seed=seed, device=device)
    warm_start(warm, data.train, s.warm_epochs, seed=seed, restarts=3, **how)
    runner = SVIRunner(model, guide, objective, lr=s.lr, seed=seed, device=device)
    return runner.fit(data.train, s.epochs, **how)


def judge(runner: SVIRunner, data: Dataset, draws: int) -> dict[str, float]:
    """A row of the first table; the importance-weighted bound is of 200 test data."""
    guide, rows = runner.guide, data.test[:: max(len(data.test) // 200, 1)][:200]
    pyro.set_rng_seed(runner.seed)
    log_weights = log_importance_weights(guide, rows, draws)
    scores = score_facets(guide, data)[FACET][FACET]
    return {
        "ELBO": elbo(runner.model, guide, data.test, num_draws=10)[0],
        "IWAE": importance_weighted_bounds(log_weights, [draws])[draws],
        "k > 0.7": float((pareto_k(log_weights) > 0.7).mean()),
        "I(x; c)": mutual_information(guide, data.test)[FACET],
        "accuracy": scores["accuracy_train_map"],
        "NMI": scores["nmi"],
        "ms a step": 1e3 * runner.history[-1]["seconds"] / runner.step,
    }


def compare(guide: AmortizedGuide, data: Dataset, draws: int, seed: int) -> dict[str, Any]:
    """The second table, on one batch of 16, enumeration being the reference."""
    device = guide.model.gates.device

    def handled(discrete: Any = None) -> Loss:
        twin = AmortizedGuide(guide.model, discrete=discrete, conditional=True)
        twin.encoder, twin.shifts = guide.encoder, guide.shifts
        return Loss(guide.model, twin.to(device))

    losses = {
        "enumerated": handled(),
        "Gumbel soft": handled(GumbelSoftmax(TEMPERATURE)),
        "straight-through": handled(GumbelSoftmax(TEMPERATURE, hard=True)),
        "score": handled(ScoreFunction("none")),
        "score, average": handled(ScoreFunction("average")),
        "score, learned": handled(ScoreFunction("learned")),
    }
    x = torch.as_tensor(data.train[:16]).to(device)
    for name in ("score, average", "score, learned"):
        teach_baseline(losses[name], x, seed)
    programs = {name: Program(loss, x) for name, loss in losses.items()}
    return compare_estimators(programs, programs["enumerated"], draws * 10, seed)


def teach_baseline(loss: Loss, x: torch.Tensor, seed: int, steps: int = 300) -> None:
    """Let a baseline learn the costs of this posterior, which itself stays as it is."""
    parameters = list(loss.guide.discrete.baselines.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2) if parameters else None
    pyro.set_rng_seed(seed)
    loss.train()
    for _ in range(steps):
        value = loss(x)
        if optimizer is not None:
            optimizer.zero_grad()
            value.backward(inputs=parameters)
            optimizer.step()
    loss.eval()


def main(argv: list[str] | None = None) -> None:
    args = parse("compare_guides", __doc__, argv, ("digits", "mnist"), seeds=(0, 1, 2))
    settings = SMOKE if args.smoke else MNIST if args.dataset == "mnist" else Settings()
    data = load_data(args)
    steps = settings.epochs * -(-len(data.train) // settings.batch_size)
    posteriors: Table = defaultdict(lambda: defaultdict(list))
    noise: Table = defaultdict(lambda: defaultdict(list))
    for seed in args.seeds:
        for name, (build, objective) in guides(steps).items():
            runner = train(data, settings, build, objective, seed, args.device)
            row = judge(runner, data, settings.importance_draws)
            for column, value in row.items():
                posteriors[name][column].append(value)
            print(f"seed {seed}, {name}: ELBO {row['ELBO']:.2f}", flush=True)
            if name != "network, enumerated":
                continue
            reports = compare(runner.guide, data, settings.gradient_draws, seed)
            for estimator, report in reports.items():
                for column, value in asdict(report).items():
                    noise[estimator][column].append(value)
    write_json(args.out / "results.json", {"posteriors": posteriors, "estimators": noise})
    print(f"\n{format_table('fitted posterior', posteriors)}\n\n{format_table('estimator', noise)}")


if __name__ == "__main__":
    main()
