"""Which model finds the true sources: VaDE, four iVAEs, a flow over a mixture, over many mixings.

    python -m lab.benchmarks.recovery --mixings 0 20 --out runs/recovery.jsonl
    python -m lab.benchmarks.recovery --protocol reference --mixings 0 20 --out runs/recovery.jsonl

Each mixing, with its segments, is one data set; a run is all seeds of one model on it, trained side
by side. The iVAEs differ in the prior, which has a mean for each segment or the mean 0, and in the
posterior, q(z given x, u) or q(z given x). Two protocols:

- held out: as in `lab.protocols.identifiability`: four orthogonal layers, and the score is that of
  posterior means on held-out rows, matched on one half and scored on the other;
- reference: as in the iVAE authors' code: three layers, with the first nonlinearity on the sources;
  the score is the best of a draw, the mean, and FastICA of the mean, matched and scored on the rows
  that were trained on. Segments' means vary, as in the paper; in that code, as it is run, they do
  not.

`x` and `FastICA` are the data themselves and their independent components, scored in the same way.
One line of JSON a run; runs that the file has are left out, so that a stopped benchmark goes on.
At the end a table compares each model with VaDE, paired over mixings.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
from matplotlib.figure import Figure
from scipy.stats import ttest_rel, wilcoxon
from sklearn.decomposition import FastICA
from torch.nn.init import xavier_uniform_

from guides import ConditionalGuide, FacetGuide
from inference import SVIRunner, elbo, fit_together
from inference.callbacks import ReduceOnPlateau
from inference.metrics import held_out_correlation, mean_correlation
from lab.figures.comparisons import grouped_curves
from lab.protocols.identifiability import DIM, NUM_SEGMENTS, Settings, flow, given, vade
from lab.protocols.sources import Segments, time_contrastive
from lab.run_lines import described_by, run_all, whole_lines
from ppl_models import IVAE, MLP, Normal

HELD_OUT, BATCH, RATE = 200, 256, 1e-3


def ivae(settings: Settings, means: bool, reads_label: bool) -> FacetGuide:
    """An iVAE with or without a mean for each segment, and with q(z given x, u) or q(z given x)."""
    network = MLP(settings.widths, init="glorot_uniform", dropout=0)
    model = IVAE((DIM,), NUM_SEGMENTS, DIM, Normal(0.1), network, scale=1.0, name="source")
    xavier_uniform_(model.priors["source"].loc.data)
    if not means:
        model.priors["source"].loc.requires_grad_(False).zero_()
    return ConditionalGuide(model, reads_label=reads_label)


def mixture(settings: Settings, build: Callable[[Settings], FacetGuide]) -> FacetGuide:
    guide = build(settings)
    for prior in guide.model.mixtures.values():
        xavier_uniform_(prior.loc.data)
    return guide


MODELS: dict[str, Callable[[Settings], FacetGuide]] = {
    "VaDE": partial(mixture, build=vade),
    "iVAE": partial(ivae, means=True, reads_label=True),
    "iVAE, q(z|x)": partial(ivae, means=True, reads_label=False),
    "iVAE, mean 0": partial(ivae, means=False, reads_label=True),
    "iVAE, mean 0, q(z|x)": partial(ivae, means=False, reads_label=False),
    "flow": partial(mixture, build=flow),
}


# What stands for the sources of some rows, by name; "mean" is always there.
Found = Callable[[Segments], dict[str, np.ndarray]]


def of_guide(guide: FacetGuide, rows: Segments) -> dict[str, np.ndarray]:
    q = guide.posterior(rows.x, **given(guide, rows))["source"]
    return {"mean": q.mean.cpu().numpy(), "draw": q.sample().cpu().numpy()}


def components(x: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings(action="ignore"):  # not converged: the best that it has
        return FastICA(whiten="unit-variance", random_state=0, max_iter=1000).fit_transform(x)


FLOORS: dict[str, Found] = {
    "x": lambda rows: {"mean": rows.x},
    "FastICA": lambda rows: {"mean": components(rows.x)},
}


def held_out(found: Found, data: Segments, test: Segments) -> float:
    return held_out_correlation(test.sources, found(test)["mean"]).out_of_sample


def best_in_sample(found: Found, data: Segments, test: Segments) -> float:
    z = found(data)
    ways = (*z.values(), components(z["mean"]))
    return max(mean_correlation(data.sources, each) for each in ways)


@dataclass(frozen=True)
class Protocol:
    """How data are mixed, and how what is found is scored: from rows trained on, and others."""

    num_layers: int
    bends_sources: bool
    score: Callable[[Found, Segments, Segments], float]


PROTOCOLS = {
    "held out": Protocol(4, False, held_out),
    "reference": Protocol(3, True, best_in_sample),
}


def train(
    protocol: str, per_segment: int, mixing: int, model: str, args: argparse.Namespace
) -> dict[str, Any]:
    rules, began = PROTOCOLS[protocol], time.perf_counter()
    rows = time_contrastive(
        per_segment + HELD_OUT,
        NUM_SEGMENTS,
        DIM,
        args.layers or rules.num_layers,
        seed=mixing,
        bends_sources=rules.bends_sources,
    )
    data, test = rows.split(HELD_OUT)
    if model in FLOORS:
        return {"mcc": [rules.score(FLOORS[model], data, test)]}
    settings = replace(Settings(), flow_layers=args.flow_layers)
    runners = []
    for seed in range(args.seeds):
        pyro.set_rng_seed(1000 * mixing + seed)
        guide = MODELS[model](settings)
        runners.append(SVIRunner(guide.model, guide, lr=args.lr, seed=1000 * mixing + seed))
    steps = args.flow_steps if model == "flow" else args.steps
    epochs = max(1, round(steps / -(-len(data.x) // BATCH)))
    fit_together(
        runners,
        data.x,
        epochs,
        BATCH,
        log_every=max(1, epochs // 20),
        callbacks=lambda runner: [ReduceOnPlateau(0.1, 5)],
        progress=False,
        **given(runners[0].guide, data),
    )
    guides = [runner.guide for runner in runners]
    bounds = [elbo(g.model, g, data.x, num_draws=5, **given(g, data))[0] for g in guides]
    return {
        "mcc": [rules.score(partial(of_guide, guide), data, test) for guide in guides],
        "elbo": bounds,
        "seconds": time.perf_counter() - began,
    }


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Scores by protocol and size: mean and deviation over mixings, each the mean of its seeds, and
    what each model has beyond VaDE on the same mixings: mean, 95 % interval (t), p (Wilcoxon).
    """
    found: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
    for line in lines:
        models = found.setdefault((line["protocol"], line["per_segment"]), {})
        models.setdefault(line["model"], {})[line["mixing"]] = float(np.mean(line["mcc"]))
    rows = [f"{'':24s}MCC    (sd)    beyond VaDE"]
    for (protocol, size), models in found.items():
        rows.append(f"{protocol}, {size} rows a segment")
        for model, of in models.items():
            each = np.array([*of.values()])
            row = f"  {model:22s}{each.mean():.3f}  ({each.std(ddof=1):.3f})"
            both = sorted(set(of) & set(models.get("VaDE", ())))
            if model != "VaDE" and len(both) > 1:
                row += beyond(*(np.array([m[k] for k in both]) for m in (of, models["VaDE"])))
            rows.append(f"{row}, {len(each)} mixings")
    return "\n".join(rows)


def figure(lines: Iterable[dict[str, Any]]) -> Figure:
    """MCC by size, a panel for each protocol and a line for each model; means over mixings."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for line in lines:
        sizes = found.setdefault(line["protocol"], {}).setdefault(line["model"], {})
        sizes.setdefault(line["per_segment"], []).append(float(np.mean(line["mcc"])))
    curves = {
        protocol: {
            model: (sorted(sizes), [float(np.mean(sizes[size])) for size in sorted(sizes)])
            for model, sizes in models.items()
        }
        for protocol, models in found.items()
    }
    drawn = grouped_curves(curves, "rows a segment", "MCC with the true sources")
    for ax in drawn.axes:
        ax.set_xscale("log")
    return drawn


def beyond(scores: np.ndarray, others: np.ndarray) -> str:
    paired = ttest_rel(scores, others).confidence_interval()
    p = wilcoxon(scores, others).pvalue
    difference = (scores - others).mean()
    return f"  {difference:+.3f} ({paired.low:+.3f} to {paired.high:+.3f}), p = {p:.2g}"


def main(argv: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--protocol", choices=list(PROTOCOLS), default="held out")
    every = [*FLOORS, *MODELS]
    parser.add_argument("--models", nargs="+", choices=every, default=every)
    parser.add_argument(
        "--mixings", nargs=2, type=int, default=[0, 20], help="the first, and one after the last"
    )
    parser.add_argument("--per-segment", nargs="+", type=int, default=[1000], help="rows")
    parser.add_argument("--seeds", type=int, default=3, help="of each model on each data set")
    parser.add_argument("--steps", type=int, default=15_000, help="of the VAEs")
    parser.add_argument("--flow-steps", type=int, default=5000)
    parser.add_argument("--flow-layers", type=int, default=10)
    parser.add_argument("--lr", type=float, default=RATE)
    parser.add_argument("--layers", type=int, help="that mix the sources, if not the protocol's")
    parser.add_argument("--out", type=Path, required=True, help="a file of lines of JSON")
    parser.add_argument("--figure", type=Path, help="where to draw all runs of these settings")
    args = parser.parse_args(argv)
    runs = itertools.product([args.protocol], args.per_segment, range(*args.mixings), args.models)
    names = ("protocol", "per_segment", "mixing", "model")
    told = ("seeds", "steps", "flow_steps", "flow_layers")
    settings = {name: getattr(args, name) for name in told}
    others = {"lr": RATE, "layers": None}
    settings |= {
        name: getattr(args, name) for name in others if getattr(args, name) != others[name]
    }
    run_all(args.out, runs, names, settings, partial(train, args=args))
    lines = whole_lines(args.out.read_text())
    alike = [line for line in lines if line["settings"] == settings]
    if args.mixings[1] - args.mixings[0] > 1:
        print(table(alike))
    if args.figure is not None:
        figure(alike).savefig(args.figure, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
