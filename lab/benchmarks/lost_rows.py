"""Where a model loses images that the clusters of its graph of neighbors had right, and what would
bring them back: MFCVAE of `lab.benchmarks.neighbor_prior` with one thing changed at a time.

    python -m lab.benchmarks.lost_rows --dataset digits --seeds 0 5 --out runs/lost.jsonl
    python -m lab.benchmarks.lost_rows --dataset mnist --data-root DATA --seeds 0 5 \\
        --out runs/lost_mnist.jsonl --figure runs/lost_mnist.png

On the 8x8 digits, and on the first 20,000 training images of MNIST, of which 4,000 are held out; no
other image is read. Labels only measure. An image is right if most images of its cluster, among
those that are measured together, are of its class. One line of JSON for each change and seed; those
that the file has are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from facetvae.datasets import Dataset, digits, mnist
from guides import Refined
from inference import NeighborGraph, SVIRunner, cluster_posterior
from inference.metrics import cluster_map
from lab.benchmarks.neighbor_prior import (
    LABEL_WEIGHT,
    Setting,
    Trained,
    Watch,
    by_neighbors,
    learned,
    let_go,
    moved,
    own_latents,
    scores,
    told_by,
    train,
)
from lab.figures.comparisons import paired_changes
from lab.protocols.neighbors import graph_of
from lab.run_lines import parser_of, run_all
from lab.summarize import print_table

ROWS, HELD_OUT = 16_000, 4_000
# Shorter than in the records of both, with two posteriors.
LENGTHS: dict[str, dict[str, Any]] = {
    "digits": {"first_epochs": 40, "epochs": 40, "every": 20, "batch_size": 64},
    "mnist": {"first_epochs": 13, "epochs": 8, "every": 4},
}
# Images whose posteriors are improved, and how.
IMPROVED = 300
IMPROVING = partial(Refined, num_steps=10, rate=0.2, num_points=30)
# Share of an image's neighbors in its own cluster, by weight, below which it lies at a border.
BORDER = 0.8


def moved_soft(data: Dataset, run: Trained, setting: Setting) -> Callable[..., SVIRunner]:
    return by_neighbors(data, run, setting, augment=partial(moved, data))


def hard(data: Dataset, run: Trained, setting: Setting) -> Callable[..., SVIRunner]:
    return by_neighbors(data, run, setting, hard=True)


def rebuilt(data: Dataset, run: Trained, setting: Setting) -> Callable[..., SVIRunner]:
    """By the neighbors that are nearest in the facet's own latents, found anew each time."""
    own = replace(run, graph=NeighborGraph(*own_latents(run.guide, data.train)))
    return (learned if setting.label_weight else by_neighbors)(data, own, setting)


LEARNED = {"way": learned, "label_weight": LABEL_WEIGHT}
USUAL, BEST = "as it is", "learned from moved images"
# What is changed, by name.
CHANGES: dict[str, dict[str, Any]] = {
    USUAL: {},
    "networks twice as wide": {"widths": (1000, 4000)},
    "full covariances": {"covariance": "full"},
    "no style facet": {"style": False},
    "no fade-in": {"fade_steps": 0},
    "no neighbors after the start": {"way": let_go},
    "neighbors with a strength of 6": {"strength": 6.0},
    "graph rebuilt from latents": {"way": rebuilt},
    "15 clusters": {"components": 15},
    "label weight": {"label_weight": LABEL_WEIGHT},
    "moved images": {"way": moved_soft},
    "clusters with neighbors, learned": {"way": hard, "label_weight": LABEL_WEIGHT},
    BEST: LEARNED,
    "learned, graph rebuilt": {**LEARNED, "way": rebuilt},
    "learned, full covariances": {**LEARNED, "covariance": "full"},
    "learned, 15 clusters": {**LEARNED, "components": 15},
}


def images(name: str, root: Path | None) -> Dataset:
    if name == "digits":
        return digits()
    data = mnist(root)
    alone = replace(data, test=data.train, test_labels=data.train_labels)
    return alone.rows(slice(ROWS), slice(ROWS, ROWS + HELD_OUT))


def measure(
    data: Dataset,
    graphs: Callable[[int], NeighborGraph],
    lengths: dict[str, Any],
    change: str,
    seed: int,
) -> dict[str, Any]:
    watch, setting = Watch(), Setting(seed=seed, **lengths | CHANGES[change])
    run = train(data, setting, watch, lambda data, seed: graphs(seed))
    found = scores(data, run, watch)
    last = found["last"]
    shares = {
        "graph": found["graph"],
        "training": last["accuracy_train"],
        "training_with_neighbors": found["train_posterior"],
        "held_out": last["accuracy_test"],
        "held_out_with_nearest": found["test_with_own"],
    }
    told = {"bound": last["elbo"], "style": last.get("mutual_information_style", 0.0)}
    lost = by_row(data, run) if change in (USUAL, BEST) else {}
    return {"scores": {name: 100 * share for name, share in (shares | lost).items()} | told}


def by_row(data: Dataset, run: Trained) -> dict[str, float]:
    """Shares of the training images: lost and gained by the model alone; of the lost, those at a
    border, those that are right with their neighbors, and those that a better posterior of their
    own brings back; and the share right of some images, before and after that.
    """
    labels = told_by(data.train_labels)
    alone = run.guide.predict(data.train)["digit"]
    q = cluster_posterior(run.guide, data.train, run.graph, "digit")
    right, before = right_of(labels, alone), right_of(labels, run.clusters)
    lost = before & ~right
    near = run.graph.counts(np.eye(q.shape[1])[run.clusters])
    border = near[np.arange(len(near)), run.clusters] < BORDER * near.sum(1)
    meaning = cluster_map(labels, alone)
    better = copy.copy(run.guide)
    better.family = IMPROVING(better.family)

    def improved(rows: np.ndarray) -> np.ndarray:
        found = better.predict(data.train[rows])["digit"]
        return np.array([meaning.get(k) for k in found.tolist()]) == labels[rows]

    some = np.random.default_rng(0).choice(len(labels), min(IMPROVED, len(labels)), replace=False)
    rows = np.flatnonzero(lost)[:IMPROVED]
    return {
        "lost": lost.mean(),
        "gained": (right & ~before).mean(),
        "border": border.mean(),
        "lost_at_border": (lost & border).mean(),
        "lost_but_right_with_neighbors": (lost & right_of(labels, q.argmax(1))).mean(),
        "lost_but_right_improved": lost.mean() * improved(rows).mean() if len(rows) else 0.0,
        "some_right": right[some].mean(),
        "some_right_improved": improved(some).mean(),
    }


def right_of(labels: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    meaning = cluster_map(labels, clusters)
    return np.array([meaning[k] for k in clusters.tolist()]) == labels


MEASURES = {
    "training": "training images by themselves",
    "training_with_neighbors": "training images with neighbors",
    "held_out": "held-out images by themselves",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 0, 5)
    parser.add_argument("--dataset", choices=tuple(LENGTHS), required=True)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--changes", nargs="+", choices=tuple(CHANGES), default=tuple(CHANGES))
    parser.add_argument("--figure", type=Path, help="where to draw what each change gives")
    args = parser.parse_args(arguments)
    runs = [(change, seed) for seed in range(*args.seeds) for change in args.changes]
    data, lengths = images(args.dataset, args.data_root), LENGTHS[args.dataset]
    take = partial(measure, data, cache(partial(graph_of, data)), lengths)
    lines = run_all(args.out, runs, ("change", "seed"), lengths, take)
    found = {
        change: [line["scores"] for line in lines if line["change"] == change]
        for change in args.changes
    }
    for change, rows in found.items():
        print(change)
        print_table(rows)
    if args.figure is not None:
        gains = {
            what: {
                change: [
                    row[name] - usual[name] for row, usual in zip(rows, found[USUAL], strict=True)
                ]
                for change, rows in found.items()
                if change != USUAL
            }
            for name, what in MEASURES.items()
        }
        paired_changes(gains, "points more than as it is").savefig(args.figure, dpi=150)


if __name__ == "__main__":
    main()
