"""One model, every prior: how well each describes held-out digits, and which clusters it finds.

    python -m examples.compare_priors     # the bundled 8x8 digits; needs no files

The model is an MFCVAE with two facets, style and digit; both facets have the same kind of prior,
and nothing else differs. The start is the same as well: for each seed the networks are trained once
under standard normal priors (a warm start). Training with every prior continues from them, after
its mixtures are fitted to their latents. So no prior starts from clusters that another method
found, and the standard normal, which has no clusters, gets as much training. Seeds are trained side
by side. Labels are used only for the scores. Results already in the run folder, made with the same
settings, are reused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

import pyro

from facetvae.datasets import Dataset
from facetvae.selection import clusters_in_use, effective_clusters
from guides import FacetGuide, VaDEGuide
from inference import (
    ProgressiveFadeIn,
    SVIRunner,
    elbo,
    fit_mixtures,
    fit_together,
    mutual_information,
)
from inference.callbacks import Evaluate, JSONLines
from inference.diagnostics import importance_weighted_bounds, log_importance_weights
from lab.figures.comparisons import grouped_curves, score_panels
from lab.protocols.common import (
    add_setting_flags,
    build_parser,
    checkpointing,
    load_data,
    once,
    open_run_folder,
    refuse_several,
    resolve,
    score_facets,
    write_json,
)
from ppl_models import (
    MFCVAE,
    DirichletWeights,
    GaussianMixture,
    MLPLadder,
    Normal,
    StandardNormal,
    VampPrior,
)
from ppl_models.priors import Prior

FACETS = ("style", "digit")
LABEL = "digit"  # which both facets are scored by
FIRST, LAST = "diagonal", "standard normal"  # what all are compared with; what all start from


@dataclass(frozen=True)
class Settings:
    """Two facets on the quickstart's networks; the digit facet is deep, the style facet shallow.

    ``warm_epochs`` are those of the digit facet alone, and of both facets.
    """

    num_components: tuple[int, int] = (8, 25)  # style, digit
    dim: int = 5
    widths: tuple[int, int] = (200, 400)
    scale: float = 0.15  # of the likelihood; pixels are within [0, 1]
    batch_size: int = 128
    lr: float = 2e-3
    warm_epochs: tuple[int, int] = (40, 110)
    fade_steps: int = 1000
    epochs: int = 100
    evaluate_every: int = 5
    restarts: int = 3  # of each fit of a mixture
    repeats: int = 5  # seeds
    importance_draws: int = 1000


SMOKE = Settings(
    (2, 3),
    2,
    (8, 8),
    batch_size=128,
    warm_epochs=(1, 2),
    fade_steps=4,
    epochs=2,
    evaluate_every=1,
    repeats=2,
    importance_draws=10,
)


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


def build(name: str, data: Dataset, settings: Settings) -> VaDEGuide:
    """The guide of a model whose facets all have this prior."""
    prior = priors(data)[name]
    facets = {
        facet: prior(K, settings.dim)
        for facet, K in zip(FACETS, settings.num_components, strict=True)
    }
    network = MLPLadder(settings.widths)
    return VaDEGuide(MFCVAE(data.train.shape[1:], facets, Normal(settings.scale), network))


def warm_started(
    data: Dataset, settings: Settings, args: argparse.Namespace
) -> tuple[list[SVIRunner], float]:
    """A run for each seed, trained under standard normal priors; and the seconds of each."""
    schedule = ProgressiveFadeIn(settings.warm_epochs, settings.fade_steps)
    runners = []
    for seed in range(args.seed, args.seed + settings.repeats):
        pyro.set_rng_seed(seed)
        guide = build(LAST, data, settings)
        runners.append(
            SVIRunner(
                guide.model, guide, lr=settings.lr, schedule=schedule, seed=seed, device=args.device
            )
        )
    kept = args.out / "warm-start"
    return runners, train(runners, data, sum(settings.warm_epochs), settings, args.out, kept)


def continued(
    name: str, warm: Sequence[SVIRunner], data: Dataset, settings: Settings
) -> list[SVIRunner]:
    """The same networks with this prior, its mixtures fitted to their latents; not yet trained."""
    runners = []
    for before in warm:
        pyro.set_rng_seed(before.seed)
        guide = build(name, data, settings).to(before.device)
        guide.encoder.load_state_dict(before.guide.encoder.state_dict())
        guide.model.decoder.load_state_dict(before.model.decoder.state_dict())
        if guide.model.mixtures:
            fit_mixtures(guide, data.train, seed=before.seed, n_init=settings.restarts)
        runners.append(SVIRunner(guide.model, guide, lr=settings.lr, seed=before.seed))
    return runners


def train(
    runners: Sequence[SVIRunner],
    data: Dataset,
    epochs: int,
    settings: Settings,
    out: Path,
    folder: Path,
) -> float:
    """Train the seeds side by side; each seed's share of the processor time, in seconds.

    That time includes the records, and the held-out bounds in them; a run that was resumed has it
    from there on.
    """

    def held_out(runner: SVIRunner) -> dict[str, float]:
        return {"held_out": elbo(runner.model, runner.guide, data.test, num_draws=2)[0]}

    def callbacks(runner: SVIRunner) -> list[Any]:
        place = folder / f"seed-{runner.seed}"
        place.mkdir(parents=True, exist_ok=True)
        return [
            Evaluate(held_out, settings.evaluate_every),
            JSONLines(place / "metrics.jsonl"),
        ]

    before = process_time()
    fit_together(
        runners,
        data.train,
        epochs,
        batch_size=settings.batch_size,
        log_every=settings.evaluate_every,
        callbacks=callbacks,
        progress=False,
        checkpoints=checkpointing(out, folder.name),
    )
    return (process_time() - before) / len(runners)


def judge(runner: SVIRunner, data: Dataset, settings: Settings) -> dict[str, Any]:
    """Scores of one run on the test split; those of clusters by facet, where it has clusters."""
    pyro.set_rng_seed(runner.seed)
    guide, draws = runner.guide, settings.importance_draws
    log_weights = log_importance_weights(guide, data.test, draws)
    scores: dict[str, Any] = {
        "elbo": elbo(runner.model, guide, data.test, num_draws=20)[0],
        "bound": importance_weighted_bounds(log_weights, [draws])[draws],
    }
    return scores | judge_clusters(guide, data)


def judge_clusters(guide: FacetGuide, data: Dataset) -> dict[str, dict[str, float]]:
    """Clusters in use and their effective number, I(x; c), and scores against the label."""
    proba, information = guide.predict_proba(data.test), mutual_information(guide, data.test)
    known = score_facets(guide, data)
    return {
        facet: {
            "in_use": clusters_in_use(each),
            "effective": effective_clusters(each),
            "information": information[facet],
            "nmi": known[facet][LABEL]["nmi"],
            "accuracy": known[facet][LABEL]["accuracy_train_map"],
        }
        for facet, each in proba.items()
    }


def run(
    name: str,
    warm: Sequence[SVIRunner],
    data: Dataset,
    settings: Settings,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Everything about one prior: scores of every seed, held-out bounds by epoch, seconds."""
    runners = continued(name, warm, data, settings)
    folder = args.out / _slug(name)
    seconds = train(runners, data, settings.epochs, settings, args.out, folder)
    for runner in runners:
        runner.save(folder / f"seed-{runner.seed}")
    curve = {
        str(record["epoch"]): [each.history[i]["held_out"] for each in runners]
        for i, record in enumerate(runners[0].history)
        if "held_out" in record
    }
    scores = [judge(runner, data, settings) for runner in runners]
    return {"seconds": seconds, "scores": scores, "curve": curve}


def summary(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By prior and score every seed's value; ``gain`` is the ELBO less the first prior's of the
    same seed.
    """
    table: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        runs = result["scores"]
        table[name] = row = {score: [each[score] for each in runs] for score in ("elbo", "bound")}
        against = table[FIRST]["elbo"]
        row["gain"] = [one - other for one, other in zip(row["elbo"], against, strict=True)]
        for facet in FACETS:
            scores = runs[0].get(facet, {})
            row |= {f"{facet} {score}": [run[facet][score] for run in runs] for score in scores}
        row["seconds"] = [result["seconds"]]
    return table


def format_table(table: Mapping[str, Mapping[str, list[float]]]) -> str:
    """A line for each score and a column for each prior: mean, and in brackets the deviation."""
    width = 2 + max(map(len, table))
    lines = [f"{'mean (sample deviation)':26s}" + "".join(f"{name:>{width}s}" for name in table)]
    for score in table[FIRST]:
        cells = (_mean_and_deviation(row.get(score, [])) for row in table.values())
        lines.append(f"{score:26s}" + "".join(f"{cell:>{width}s}" for cell in cells))
    return "\n".join(lines)


def _mean_and_deviation(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return f"{mean(values):.2f}" + (f" ({stdev(values):.2f})" if len(values) > 1 else "")


def write_figures(
    folder: Path,
    table: Mapping[str, Mapping[str, list[float]]],
    results: Mapping[str, Mapping[str, Any]],
    draws: int,
) -> None:
    folder.mkdir(exist_ok=True)

    def of_facets(score: str) -> dict[str, dict[str, list[float]]]:
        return {
            facet: {name: row.get(f"{facet} {score}", []) for name, row in table.items()}
            for facet in FACETS
        }

    def of_both(score: str) -> dict[str, dict[str, list[float]]]:
        return {"both facets": {name: row[score] for name, row in table.items()}}

    figure = score_panels(
        {
            "held-out ELBO, nats per datum": of_both("elbo"),
            f"the same with {draws} draws (importance-weighted)": of_both("bound"),
            "effective number of clusters": of_facets("effective"),
            "NMI of clusters and written digit": of_facets("nmi"),
        }
    )
    figure.savefig(folder / "priors.png", dpi=150)
    curves = {
        name: ([int(epoch) for epoch in result["curve"]], list(map(mean, result["curve"].values())))
        for name, result in results.items()
    }
    figure = grouped_curves(
        {"mean of the seeds": curves}, "epochs after the warm start", "held-out ELBO"
    )
    figure.savefig(folder / "training.png", dpi=150)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "compare_priors")
    flags = {
        "warm_epochs": {"help": "with standard normal priors, the digit facet alone and both"},
        "epochs": {"help": "after the warm start"},
        "lr": {"help": "Adam's rate"},
        "repeats": {"help": "seeds, from --seed on"},
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    settings = resolve(args, Settings(), SMOKE)
    if not all(settings.warm_epochs):  # 0 means none elsewhere; here all priors start from it
        parser.error(
            f"--warm-epochs {' '.join(map(str, settings.warm_epochs))}: 1 or more each is needed, "
            "since every prior starts from this training"
        )
    return args, settings


def main(argv: list[str] | None = None) -> None:
    refuse_several()
    args, settings = parse(argv)
    data = load_data("digits", args)
    out = open_run_folder(args, settings, data)
    described = {**asdict(settings), "first_seed": args.seed, "data": data.name}

    @cache
    def warm() -> list[SVIRunner]:
        runners, seconds = warm_started(data, settings, args)
        print(f"warm start: {seconds:.1f} s of processor time a seed", flush=True)
        return runners

    results = {}
    for name in priors(data):
        results[name] = once(
            out / _slug(name) / "results.json",
            described,
            lambda name=name: run(name, warm(), data, settings, args),
        )
        print(f"{name}: {settings.repeats} seeds", flush=True)
    table = summary(results)
    write_json(out / "results.json", table)
    write_figures(out / "figures", table, results, settings.importance_draws)
    print(f"\n{format_table(table)}")


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


if __name__ == "__main__":
    main()
