"""Which model finds the true sources: VaDE, four iVAEs, a flow over a mixture, over many mixings.

    python -m benchmarks.recovery --mixings 0 20 --out runs/recovery.jsonl
    python -m benchmarks.recovery --protocol reference --mixings 0 20 --out runs/recovery.jsonl

Each mixing, with its segments, is one data set; a run is one model on all of them, with several
seeds each, trained side by side as one program. The iVAEs differ in the prior, which has a mean
for each segment or the mean 0, and in the posterior, q(z given x, u) or q(z given x). Two
protocols:

- held out: as in `examples.identifiability`: four orthogonal layers, and the score is that of
  posterior means on held-out rows, matched on one half and scored on the other;
- reference: as in the iVAE authors' code: three layers, the first nonlinearity on the sources;
  the score is the best of a draw, the mean, and FastICA of the mean, matched and scored on rows
  that were trained on (20,000 at most). Segments' means vary, as in the paper; in that code, as it
  is run, they do not.

`x` and `FastICA` are the data themselves and their independent components, scored in the same way.
One line of JSON a run; runs that the file has are left out, so that a stopped benchmark goes on.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
from sklearn.decomposition import FastICA
from torch.nn.init import xavier_uniform_

from benchmarks.run_lines import run_all
from examples.identifiability import DIM, NUM_SEGMENTS, Settings, flow, given, vade
from examples.sources import Segments, time_contrastive
from guides import ConditionalGuide, FacetGuide
from inference import SVIRunner, elbo, fit_together
from inference.callbacks import ReduceOnPlateau
from inference.metrics import held_out_correlation, mean_correlation
from ppl_models import IVAE, MLP, Normal

HELD_OUT, BATCH, RATE = 200, 256, 1e-3
ROWS = 20_000  # that were trained on and are scored, at most


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged: the best that it has
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


def train(protocol: str, per_segment: int, model: str, args: argparse.Namespace) -> dict[str, Any]:
    """One model on every mixing, all seeds: one program. Figures are by mixing, then by seed."""
    rules, began = PROTOCOLS[protocol], time.perf_counter()
    sets = [data_of(rules, per_segment, mixing) for mixing in range(*args.mixings)]
    if model in FLOORS:
        return {"mcc": [[rules.score(FLOORS[model], first(data), test)] for data, test in sets]}
    settings = replace(Settings(), flow_layers=args.flow_layers)
    runners = []
    for mixing, seed in itertools.product(range(*args.mixings), range(args.seeds)):
        pyro.set_rng_seed(1000 * mixing + seed)
        guide = MODELS[model](settings)
        runners.append(SVIRunner(guide.model, guide, lr=RATE, seed=1000 * mixing + seed))
    each = [one for one in sets for _ in range(args.seeds)]
    steps = args.flow_steps if model == "flow" else args.steps
    epochs = max(1, round(steps / -(-len(each[0][0].x) // BATCH)))
    beside = [given(run.guide, data) for run, (data, _) in zip(runners, each, strict=True)]
    fit_together(
        runners,
        np.stack([data.x for data, _ in each]),
        epochs,
        BATCH,
        log_every=max(1, epochs // 20),
        callbacks=lambda runner: [ReduceOnPlateau(0.1, 5)],
        progress=False,
        **{name: np.stack([of[name] for of in beside]) for name in beside[0]},
    )
    scores, bounds = [], []
    for runner, (data, test) in zip(runners, each, strict=True):
        guide, rows = runner.guide, first(data)
        bounds.append(elbo(guide.model, guide, rows.x, num_draws=5, **given(guide, rows))[0])
        scores.append(rules.score(partial(of_guide, guide), rows, test))
    return {
        "mcc": np.reshape(scores, (-1, args.seeds)).tolist(),
        "elbo": np.reshape(bounds, (-1, args.seeds)).tolist(),
        "seconds": time.perf_counter() - began,
    }


def data_of(rules: Protocol, per_segment: int, mixing: int) -> tuple[Segments, Segments]:
    """Rows to train on, and others, each in random order."""
    rows = time_contrastive(
        per_segment + HELD_OUT,
        NUM_SEGMENTS,
        DIM,
        rules.num_layers,
        seed=mixing,
        bends_sources=rules.bends_sources,
    )
    return rows.split(HELD_OUT)


def first(data: Segments) -> Segments:
    """As many of them as are scored."""
    return replace(data, x=data.x[:ROWS], sources=data.sources[:ROWS], segment=data.segment[:ROWS])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--protocol", choices=list(PROTOCOLS), default="held out")
    every = [*FLOORS, *MODELS]
    parser.add_argument("--models", nargs="+", choices=every, default=every)
    parser.add_argument(
        "--mixings",
        nargs=2,
        type=int,
        default=[0, 20],
        help="the first, and one after the last",
    )
    parser.add_argument("--per-segment", nargs="+", type=int, default=[1000], help="rows")
    parser.add_argument("--seeds", type=int, default=3, help="of each model on each data set")
    parser.add_argument("--steps", type=int, default=15_000, help="of the VAEs")
    parser.add_argument("--flow-steps", type=int, default=5000)
    parser.add_argument("--flow-layers", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True, help="a file of lines of JSON")
    args = parser.parse_args(argv)
    runs = itertools.product([args.protocol], args.per_segment, args.models)
    names = ("protocol", "per_segment", "model")
    told = ("mixings", "seeds", "steps", "flow_steps", "flow_layers")
    settings = {name: getattr(args, name) for name in told}
    run_all(args.out, runs, names, settings, partial(train, args=args))


if __name__ == "__main__":
    main()
