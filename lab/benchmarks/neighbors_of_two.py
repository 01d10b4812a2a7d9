"""What a prior over neighbors does where they share the clusters of one grouping and not of
another.

    python -m lab.benchmarks.neighbors_of_two --seeds 10 --out runs/of_two.json

Tables of 1,000 rows and six columns, with two independent groupings of three clusters: the strong
one in three columns, the weak one in the others. Each facet first learns the spectral clusters of
its own columns; then both are trained on, in one of five ways:

- alone: no neighbors;
- own: each facet has the graph of its own columns;
- all: both facets have the graph of all columns;
- other: both facets have the graph of the strong grouping's columns, in which neighbors say
  nothing about the weak grouping;
- forced: the same at a strength of 3 in both facets, where the others find theirs by
  pseudo-likelihood.

The accuracy is that of each grouping's own facet, of rows by themselves and of the posterior with
their neighbors; the strength is what the model says about it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro

from guides import VaDEGuide
from inference import NeighborGraph, SVIRunner, cluster_posterior, fit_neighbors
from inference.metrics import cluster_accuracy
from ppl_models import MFCVAE, GaussianMixture, NeighborMixture, Normal, SharedMLP

ROWS, CLUSTERS, COLUMNS = 1000, 3, 3
# Distances of the clusters' centers, in deviations of a column within them.
DISTANCE = {"strong": 6.0, "weak": 3.0}
FORCED = 3.0
FIRST_EPOCHS, EPOCHS, BATCH, RATE = 60, 60, 100, 3e-3


def table(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns and clusters of each grouping."""
    rng = np.random.default_rng(seed)
    columns, clusters = {}, {}
    for name, distance in DISTANCE.items():
        centers = np.linalg.qr(rng.normal(size=(COLUMNS, CLUSTERS)))[0].T * distance / 2**0.5
        clusters[name] = rng.integers(CLUSTERS, size=ROWS)
        columns[name] = centers[clusters[name]] + rng.normal(size=(ROWS, COLUMNS))
    return columns, clusters


def built(columns: dict[str, np.ndarray], seed: int) -> tuple[SVIRunner, np.ndarray]:
    """A runner whose facets have learned the clusters of their own columns, and the rows."""
    x = np.concatenate(list(columns.values()), 1)
    x = (x - x.mean(0)) / x.std(0)
    pyro.set_rng_seed(seed)
    priors = {name: NeighborMixture(GaussianMixture(CLUSTERS, 2, scale=0.5)) for name in columns}
    model = MFCVAE(x.shape[1:], priors, Normal(0.5), SharedMLP((64, 64)))
    runner = SVIRunner(model, VaDEGuide(model), lr=RATE, seed=seed)
    known = {name: NeighborGraph(own).clusters(CLUSTERS, seed) for name, own in columns.items()}
    runner.fit(x, FIRST_EPOCHS, BATCH, log_every=FIRST_EPOCHS, progress=False, label=known)
    return runner, x


def own(columns: dict[str, np.ndarray]) -> dict[str, NeighborGraph]:
    return {name: NeighborGraph(each) for name, each in columns.items()}


def of_all(columns: dict[str, np.ndarray]) -> dict[str, NeighborGraph]:
    return dict.fromkeys(columns, NeighborGraph(np.concatenate(list(columns.values()), 1)))


def of_strong(columns: dict[str, np.ndarray]) -> dict[str, NeighborGraph]:
    return dict.fromkeys(columns, NeighborGraph(columns["strong"]))


# The graphs, and the strength if it is not found.
WAYS: dict[str, tuple[Callable[..., dict[str, NeighborGraph]] | None, float | None]] = {
    "alone": (None, None),
    "own": (own, None),
    "all": (of_all, None),
    "other": (of_strong, None),
    "forced": (of_strong, FORCED),
}


def scores(seed: int, way: str) -> dict[str, Any]:
    columns, clusters = table(seed)
    runner, x = built(columns, seed)
    how = {"batch_size": BATCH, "log_every": EPOCHS, "progress": False}
    make, strength = WAYS[way]
    graphs = make(columns) if make else {}
    if graphs:
        for prior in runner.model.mixtures.values():
            prior.strength.fill_(strength or 0.0)
        fit_neighbors(runner, x, graphs, EPOCHS, learn_strength=strength is None, **how)
    else:
        runner.fit(x, EPOCHS, **how)
    alone = runner.guide.predict(x)
    found: dict[str, Any] = {"seed": seed, "way": way}
    for name, theirs in clusters.items():
        found[f"{name}_alone"] = cluster_accuracy(theirs, alone[name])
        if name in graphs:
            q = cluster_posterior(runner.guide, x, graphs[name], name)
            found[f"{name}_posterior"] = cluster_accuracy(theirs, q.argmax(1))
            found[f"{name}_strength"] = runner.model.mixtures[name].strength.item()
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many, counted from 0")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file of all figures")
    args = parser.parse_args(argv)
    found = []
    for seed in range(args.seeds):
        for way in WAYS:
            found.append(scores(seed, way))
            print(json.dumps(found[-1]), flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
