"""Does VaDE keep the true sources if it begins with them, and which posterior it takes for that.

    python -m lab.benchmarks.start_at_truth --mixings 0 1 2 --out runs/truth.jsonl

Mixed sources as in `lab.protocols.identifiability`; each mixing, with its segments, is one data
set. Two starts: cold, from random networks and the mixture's usual start; and truth, from networks
that were fitted to the true sources: the decoder maps them to x, the encoder's q(z given x) is the
likeliest one for sources of which x is a noisy image, and the mixture is fitted to its means. Then
both are trained on the bound alone. By the way are measured, on held-out rows: MCC with the sources
(as in the example), the ELBO, log p(x) by 1,000 importance-weighted draws of each of 500 rows, and
how many clusters the rows use.

One line of JSON a run; runs that the file has already are left out, so that a stopped benchmark
goes on.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from elbocheck import importance_weighted_bounds
from pyro.infer import ELBO
from torch.nn.init import xavier_uniform_

from guides import Diagonal, Family, FullCovariance, InverseAutoregressive, MarginalGuide, Refined
from inference import ImportanceWeighted_ELBO, SVIRunner, elbo, fit_mixtures
from inference.callbacks import Evaluate
from inference.evaluation import log_importance_weights
from inference.metrics import held_out_correlation
from lab.protocols.identifiability import DIM, NUM_SEGMENTS
from lab.protocols.sources import Segments, time_contrastive
from lab.run_lines import described_by, run_all
from ppl_models import MLP, GaussianMixture, Normal, VaDE

HELD_OUT = 100  # rows of each segment
WEIGHED, DRAWS = 500, 1000
LEARNED, FIRST_SCALE = "learned", 0.1
RUN = ("mixing", "scale", "way", "start")
FIRST_STEPS, BATCH, RATE = 6000, 256, 1e-3


@dataclass(frozen=True)
class Way:
    """How z is inferred: the posterior's family, and an objective if it is not the ELBO."""

    family: Callable[[], Family]
    objective: Callable[[], ELBO] | None = None


WAYS: dict[str, Way] = {
    "diagonal": Way(Diagonal),
    "full": Way(FullCovariance),
    "flow": Way(partial(InverseAutoregressive, 3, (64,), 16)),
    "refined": Way(lambda: Refined(FullCovariance(), num_steps=5, num_points=8)),
    "iwae": Way(Diagonal, partial(ImportanceWeighted_ELBO, 10)),
}


def build(way: Way, scale: float | str, components: int, width: int, seed: int) -> MarginalGuide:
    pyro.set_rng_seed(seed)
    network = MLP((width, width), init="glorot_uniform", dropout=0)
    prior = GaussianMixture(components, DIM, scale=1.0)
    xavier_uniform_(prior.loc.data)
    likelihood = Normal(FIRST_SCALE, learned=True) if scale == LEARNED else Normal(float(scale))
    model = VaDE((DIM,), prior, likelihood, network, name="source")
    return MarginalGuide(model, family=way.family())


def teach(guide: MarginalGuide, data: Segments, steps: int, seed: int) -> None:
    """Fit the networks to the true sources, then the mixture to what the encoder makes of x."""
    scale = guide.model.likelihood.scale.item()
    sources, x = (torch.as_tensor(each, dtype=torch.float32) for each in (data.sources, data.x))
    optimizer = torch.optim.Adam(guide.parameters(), RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    stream = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=stream)
        s, seen = sources[rows], x[rows]
        decoded = guide.model.decode({"source": s}).mean
        noisy = seen + scale * torch.randn(seen.shape, generator=stream)
        loss = (decoded - seen).square().sum() / (2 * scale**2)
        q = guide.latent_posterior("source", guide.encoder_output(noisy)["source"])
        loss = (loss - q.log_prob(s).sum()) / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
    fit_mixtures(guide, data.x, seed=seed, n_init=3)


def measured(guide: MarginalGuide, test: Segments) -> dict[str, float]:
    z = guide.embed(test.x)["source"]
    log_weights = log_importance_weights(guide, test.x[:WEIGHED], DRAWS)
    clusters = np.bincount(guide.predict(test.x)["source"])
    return {
        "mcc": held_out_correlation(test.sources, z).out_of_sample,
        "test_elbo": elbo(guide.model, guide, test.x[:WEIGHED], num_draws=100)[0],
        "log_p": importance_weighted_bounds(log_weights, [DRAWS])[DRAWS],
        "clusters": int((clusters > len(z) / 1000).sum()),
    }


def train(
    mixing: int, scale: float | str, way: str, start: str, args: argparse.Namespace
) -> dict[str, Any]:
    rows = time_contrastive(args.per_segment + HELD_OUT, NUM_SEGMENTS, DIM, seed=mixing)
    data, test = rows.split(HELD_OUT)
    inference, began = WAYS[way], time.perf_counter()
    guide = build(inference, scale, args.components, args.width, mixing)
    if start == "truth":
        teach(guide, data, args.first_steps, mixing)
    first = measured(guide, test) if start == "truth" else {}
    objective = inference.objective() if inference.objective else None
    runner = SVIRunner(guide.model, guide, objective=objective, lr=RATE, seed=mixing)
    every = max(1, round(args.steps / args.records / -(-len(data.x) // BATCH)))
    look = Evaluate(lambda run: measured(guide, test), every)
    how = {"log_every": every, "progress": False, "callbacks": [look]}
    runner.fit(data.x, every * args.records, BATCH, **how)
    told = ("step", "elbo", "mcc", "test_elbo", "log_p", "clusters")
    curve = [{key: record[key] for key in told} for record in runner.history]
    return {
        "untouched": held_out_correlation(test.sources, test.x).out_of_sample,
        "first": first,
        "curve": curve,
        "mcc": curve[-1]["mcc"],
        "seconds": time.perf_counter() - began,
    }


def scale(text: str) -> float | str:
    return text if text == LEARNED else float(text)


def main(argv: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--scales", nargs="+", type=scale, default=[0.1, 0.03, 0.01, LEARNED])
    parser.add_argument("--starts", nargs="+", choices=["truth", "cold"], default=["truth", "cold"])
    parser.add_argument("--mixings", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--per-segment", type=int, default=1000, help="rows to train on")
    parser.add_argument("--components", type=int, default=40)
    parser.add_argument("--width", type=int, default=64, help="of the networks' two layers")
    parser.add_argument("--first-steps", type=int, default=FIRST_STEPS, help="on the true sources")
    parser.add_argument("--steps", type=int, default=10_000, help="on the bound")
    parser.add_argument("--records", type=int, default=10, help="over these")
    parser.add_argument("--out", type=Path, required=True, help="a file of lines of JSON")
    args = parser.parse_args(argv)
    runs = itertools.product(args.mixings, args.scales, args.ways, args.starts)
    names = ("per_segment", "components", "width", "first_steps", "steps", "records")
    settings = {name: getattr(args, name) for name in names}
    run_all(args.out, runs, RUN, settings, partial(train, args=args))


if __name__ == "__main__":
    main()
