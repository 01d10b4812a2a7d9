"""Are the true sources found? VaDE, iVAE and a flow over a mixture, on mixed sources (Willetts and
Paige, 2021; 4.1, D).

python -m lab.protocols.identifiability --steps 70000 --flow-steps 70000

Ten seeds of each model are trained side by side on mixed sources, for data sets of several sizes.
The measure, chosen before any run: mean absolute correlation (Pearson's) of posterior means with
the true sources on held-out rows, without a linear map; coordinates are matched (with signs) on one
half of these rows and scored on the other. Results already in the run folder, made with the same
settings, are reused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyro
from torch.nn.init import xavier_uniform_

from guides import ConditionalGuide, FacetGuide, FlowGuide, MarginalGuide
from inference import SVIRunner, elbo, fit_together
from inference.callbacks import Evaluate, JSONLines, ReduceOnPlateau
from inference.metrics import held_out_correlation, mean_correlation
from inference.randomness import usable_device
from lab.figures.comparisons import grouped_boxes, grouped_curves, grouped_points
from lab.identifiability import KeepIdentifiable
from lab.protocols.common import (
    add_setting_flags,
    begin,
    build_parser,
    checkpointing,
    once,
    reader,
    refuse_several,
    resolve,
    write_json,
)
from lab.protocols.sources import Segments, time_contrastive
from ppl_models import IVAE, MLP, AutoregressiveFlow, GaussianMixture, GMMFlow, Normal, VaDE
from ppl_models.given.checks import check_count

NUM_SEGMENTS, DIM = 20, 5


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the steps: it has 70,000.

    What the paper leaves open: layers of ten units and a likelihood of variance 0.01, as in the
    iVAE authors' code; the flow's widths, its steps and when a rate falls are ours. Means of
    the mixture start as in the paper (Glorot's uniform), its standard deviations all at 1, where
    the paper draws log-variances in the same way.
    """

    per_segment: tuple[int, ...] = (100, 200, 500, 1000, 2000)
    seeds: int = 10
    widths: tuple[int, ...] = (10, 10)
    num_components: int = 40
    flow_components: int = 50
    flow_layers: int = 10
    flow_widths: tuple[int, ...] = (32, 32)
    steps: int = 15_000
    flow_steps: int = 5_000
    batch_size: int = 256
    lr: float = 1e-3
    held_out: int = 200  # rows of each segment
    records: int = 60  # over a run
    data_seed: int = 1


# Settings that the other kind of model has no use for.
OF_THE_FLOW = {"flow_components", "flow_layers", "flow_widths", "flow_steps"}
OF_THE_VAES = {"widths", "num_components", "steps"}

SMOKE = Settings(
    (20, 30),
    2,
    (8,),
    flow_components=12,
    flow_layers=2,
    steps=60,
    flow_steps=20,
    held_out=10,
    records=2,
)


def ivae(settings: Settings) -> FacetGuide:
    network = MLP(settings.widths, init="glorot_uniform", dropout=0)
    return ConditionalGuide(
        IVAE((DIM,), NUM_SEGMENTS, DIM, Normal(0.1), network, scale=1.0, name="source")
    )


def vade(settings: Settings) -> FacetGuide:
    network = MLP(settings.widths, init="glorot_uniform", dropout=0)
    prior = GaussianMixture(settings.num_components, DIM, scale=1.0)
    return MarginalGuide(VaDE((DIM,), prior, Normal(0.1), network, name="source"))  # its Eq. 6


def flow(settings: Settings) -> FacetGuide:
    prior = GaussianMixture(settings.flow_components, DIM, scale=1.0)
    layers = AutoregressiveFlow(settings.flow_widths, num_layers=settings.flow_layers)
    return FlowGuide(GMMFlow((DIM,), prior, layers, name="source"))


MODELS: dict[str, Callable[[Settings], FacetGuide]] = {"VaDE": vade, "iVAE": ivae, "GMM-flow": flow}


def build(name: str, settings: Settings, seed: int, device: str = "cpu") -> SVIRunner:
    """A run with networks and mixture drawn from ``seed``."""
    pyro.set_rng_seed(seed)
    guide = MODELS[name](settings)
    for prior in guide.model.mixtures.values():
        xavier_uniform_(prior.loc.data)
    return SVIRunner(guide.model, guide, lr=settings.lr, seed=seed, device=device)


def latents(guide: FacetGuide, data: Segments) -> np.ndarray:
    return guide.embed(data.x, **given(guide, data))["source"]


def given(guide: FacetGuide, data: Segments) -> dict[str, np.ndarray]:
    """What the guide's model takes beside x."""
    return {name: data.segment for name in guide.takes}


def primary(guide: FacetGuide, test: Segments) -> float:
    return held_out_correlation(test.sources, latents(guide, test)).out_of_sample


def split(per_segment: int, settings: Settings) -> tuple[Segments, Segments]:
    """Rows to train on and rows to test on."""
    rows = time_contrastive(
        per_segment + settings.held_out, NUM_SEGMENTS, DIM, seed=settings.data_seed
    )
    return rows.split(settings.held_out)


def train(
    name: str, per_segment: int, settings: Settings, first_seed: int, device: str, folder: Path
) -> dict[str, Any]:
    """All seeds of one model on one data set; scores and curves of each."""
    data, test = split(per_segment, settings)
    runners = [
        build(name, settings, seed, device)
        for seed in range(first_seed, first_seed + settings.seeds)
    ]
    steps = settings.flow_steps if name == "GMM-flow" else settings.steps
    epochs = max(1, round(steps / -(-len(data.x) // settings.batch_size)))

    def callbacks(runner: SVIRunner) -> list:
        place = folder / f"seed-{runner.seed}"
        place.mkdir(parents=True, exist_ok=True)
        measure = Evaluate(lambda runner: {"mcc": primary(runner.guide, test)})
        return [
            ReduceOnPlateau(0.1, 10),
            KeepIdentifiable(),
            measure,
            JSONLines(place / "metrics.jsonl"),
        ]

    fit_together(
        runners,
        data.x,
        epochs,
        settings.batch_size,
        log_every=max(1, epochs // settings.records),
        callbacks=callbacks,
        checkpoints=checkpointing(folder.parent, folder.name),
        **given(runners[0].guide, data),
    )
    for runner in runners:
        runner.save(folder / f"seed-{runner.seed}")
    return {
        "scores": [score(runner.guide, data, test) for runner in runners],
        "curves": [
            {key: [record[key] for record in runner.history] for key in ("step", "elbo", "mcc")}
            for runner in runners
        ],
        "condition": [
            [record["condition_source"] for record in runner.history] for runner in runners
        ],
    }


def score(guide: FacetGuide, data: Segments, test: Segments) -> dict[str, float]:
    """Every variant of the measure, the declared one as ``mcc``, and the ELBO of the training
    rows.
    """
    z = latents(guide, test)
    scores = {"mcc": primary(guide, test)}
    for method in ("pearson", "spearman"):
        for align in (False, True):
            found = held_out_correlation(test.sources, z, method, align)
            name = method + (", aligned" if align else "")
            scores |= {
                f"{name}, in sample": found.in_sample,
                f"{name}, out of sample": found.out_of_sample,
            }
    scores["pearson, training rows"] = mean_correlation(data.sources, latents(guide, data))
    scores["elbo"] = elbo(guide.model, guide, data.x, num_draws=10, **given(guide, data))[0]
    return scores


def collect(
    name: str, per_segment: int, settings: Settings, first_seed: int, device: str, out: Path
) -> dict[str, Any]:
    """What the run folder has of one model and data set, trained where it has nothing made with
    these settings.
    """
    folder = out / f"{name}-{per_segment}"
    others = OF_THE_VAES if name == "GMM-flow" else OF_THE_FLOW
    described = {**asdict(replace(settings, per_segment=(per_segment,))), "first_seed": first_seed}
    described = {setting: value for setting, value in described.items() if setting not in others}
    make = partial(train, name, per_segment, settings, first_seed, device, folder)
    return once(folder / "results.json", described, make)


def report(
    results: Mapping[str, Mapping[int, dict[str, Any]]], settings: Settings, out: Path
) -> None:
    """Medians as a table, with what the mixed data themselves would score, and the figures."""
    sizes = list(next(iter(results.values())))
    print(f"{'median MCC':12s}" + "".join(f"{size:>9d}" for size in sizes))
    mcc = {name: {n: _column(r, "mcc") for n, r in of.items()} for name, of in results.items()}
    for name, groups in mcc.items():
        print(f"{name:12s}" + "".join(f"{median(groups[size]):9.3f}" for size in sizes))
    tests = (split(size, settings)[1] for size in sizes)
    untouched = (held_out_correlation(test.sources, test.x).out_of_sample for test in tests)
    print(f"{'x itself':12s}" + "".join(f"{value:9.3f}" for value in untouched))
    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    label = "MCC with the true sources"
    grouped_boxes(mcc, "rows in each of 20 segments", label).savefig(
        folder / "recovery.png", dpi=150
    )
    curves = {
        name: {n: _median_curve(r["curves"]) for n, r in of.items()} for name, of in results.items()
    }
    grouped_curves(curves, "steps", f"median {label}").savefig(folder / "training.png", dpi=150)
    for name, of in results.items():
        points = {f"{n} rows": (_column(r, "elbo"), _column(r, "mcc")) for n, r in of.items()}
        figure = grouped_points(points, "ELBO, nats per datum", label)
        figure.savefig(folder / f"elbo_{name}.png", dpi=150)


def _column(result: Mapping[str, Any], name: str) -> list[float]:
    return [scores[name] for scores in result["scores"]]


def _median_curve(curves: list[dict[str, list[float]]]) -> tuple[list[float], list[float]]:
    return curves[0]["step"], np.median([curve["mcc"] for curve in curves], 0).tolist()


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "identifiability")
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="default: all"
    )
    flags = {
        "seeds": {"help": "runs of each model, from --seed on"},
        "steps": {"help": "of the two VAEs"},
        "flow_steps": {"help": "of the flow"},
        "lr": {"help": "Adam's rate at the start"},
        "widths": {"help": "hidden units of the two VAEs' networks"},
    }
    add_setting_flags(parser, Settings(), **flags)
    rows = reader("per_segment", int, check_count)
    parser.add_argument(
        "--per-segment",
        type=rows,
        nargs="+",
        default=argparse.SUPPRESS,
        help="rows, a data set each",
    )
    args = parser.parse_args(argv)
    return args, resolve(args, Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    refuse_several()
    args, settings = parse(argv)
    usable_device(args.device)  # before anything of an earlier run is gone
    begin(args.out, args.resume)
    gather = partial(
        collect, settings=settings, first_seed=args.seed, device=args.device, out=args.out
    )
    results = {
        name: {size: gather(name, size) for size in settings.per_segment} for name in args.models
    }
    report(results, settings, args.out)
    of_all = {name: {n: r["scores"] for n, r in of.items()} for name, of in results.items()}
    write_json(args.out / "results.json", of_all)


if __name__ == "__main__":
    main()
