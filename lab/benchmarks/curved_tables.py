"""Linear maps and deep networks on labelings that are mixed by networks of one to three layers.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.curved_tables --seeds 50000 50010 \
        --out runs/curved.jsonl

Tables of `lab.benchmarks.numbers_found`, a fifth of the rows held out, fitted with
`network="linear"`, `"deep"` and by default: the mean over a table's labelings of the normalized
mutual information with the facet that shares most, of training rows, of held-out rows, and of
held-out rows that take the most frequent cluster of the training rows which are nearest in a
facet's latents; their bound and seconds. The linear fit's clusters are what the deep one starts
from.

One line of JSON for each table and network; those that the file has are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import normalized_mutual_info_score
from sklearn.neighbors import KNeighborsClassifier

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks.numbers_found import table
from lab.run_lines import parser_of, run_all
from lab.summarize import print_table

LAYERS = (1, 2, 3)
NETWORKS = {"linear": "linear", "deep": "deep", "default": None}
# One row of so many is held out.
HELD_OUT = 5
NEIGHBORS = 10


def measure(layers: int, seed: int, network: str) -> dict[str, Any]:
    drawn = table(seed).draw(seed, num_layers=layers)
    test = np.arange(len(drawn.x)) % HELD_OUT == 0
    started = time.perf_counter()
    found = MultiFacetClustering(network=NETWORKS[network], random_state=0).fit(drawn.x[~test])
    seconds = time.perf_counter() - started
    scores = {
        "training": shared(drawn.labels, ~test, found.labels_),
        "NMI": shared(drawn.labels, test, found.predict(drawn.x[test])),
        "with_nearest": shared(drawn.labels, test, nearest(found, drawn.x, test)),
        "bound": found.score(drawn.x[test]),
        "seconds": seconds,
    }
    return {"scores": scores, "model": found.settings_["model"]}


def shared(labels: Sequence[np.ndarray], rows: np.ndarray, facets: np.ndarray) -> float:
    """The mean over labelings of their NMI with the facet ``[N, J]`` that shares most.

    :param rows: of the labelings, which the facets are of.
    """
    best = [
        max(normalized_mutual_info_score(label[rows], own) for own in facets.T) for label in labels
    ]
    return float(np.mean(best))


def nearest(found: MultiFacetClustering, x: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Clusters ``[N, J]`` of the test rows by the training rows near them, facet by facet."""
    dims = [found.settings_["n_latents"][name] for name in found.facet_names_]
    latents = np.split(found.transform(x), np.cumsum(dims)[:-1], axis=1)
    each = [
        KNeighborsClassifier(NEIGHBORS).fit(z[~test], cluster).predict(z[test])
        for z, cluster in zip(latents, found.labels_.T, strict=True)
    ]
    return np.stack(each, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 50000, 50010)
    args = parser.parse_args(arguments)
    seeds = range(*args.seeds)
    runs = [(n, seed, how) for n in LAYERS for seed in seeds for how in NETWORKS]
    lines = run_all(args.out, runs, ("layers", "seed", "network"), {}, measure)
    for layers in LAYERS:
        for network in NETWORKS:
            own = {"layers": layers, "network": network}.items()
            print(f"{layers} layers, {network}")
            print_table([line["scores"] for line in lines if own <= line.items()])


if __name__ == "__main__":
    main()
