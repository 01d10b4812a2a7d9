"""Whether MFCVAE's clusters stay where they are on MNIST, with a prior over neighbors and without;
and on Fashion-MNIST (--dataset fashion-mnist), with the settings that were chosen on MNIST.

    python -m lab.benchmarks.neighbor_prior --data-root DATA --seed 0 --out runs/held
    python -m lab.benchmarks.neighbor_prior --data-root DATA --seed 0 --without --out runs/let_go

The digit facet first learns the clusters of a graph of neighbors as known clusters, which is a
bound on log p(x, clusters). Then they are the model's own: for --epochs epochs it is trained on the
bound that the neighbors' prior gives, or on that of the mixture alone. Accuracy is measured by the
way (the largest class of each cluster), of test images by themselves and, at the end, with their
neighbors among the training images; the clock stands meanwhile. No label takes part in anything
else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyro

from facetvae.datasets import DATASETS, Dataset
from guides import VaDEGuide
from inference import (
    NeighborGraph,
    ProgressiveFadeIn,
    SVIRunner,
    cluster_posterior,
    fit_mixtures,
    fit_neighbors,
    image_graph,
    image_variants,
    oriented_gradients,
)
from inference.metrics import cluster_accuracy
from lab.protocols.scoring import probe_facets
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, NeighborMixture

COMPONENTS, STYLE_DIM, DIGIT_DIM = 25, 5, 10
# As in the code of MFCVAE's authors: the style facet tells less of the digit.
DECODER: dict[str, Any] = {"merge": "gated_add", "layers_after_merge": 1}
# The digit facet's components begin far apart: that is how it learns known clusters in few epochs.
SCALE = 0.05
BATCH, FIRST_RATE, RATE = 256, 2e-3, 5e-4
USE = ("kl_", "mutual_information_")


def the_only(labels: Mapping[str, np.ndarray]) -> np.ndarray:
    (found,) = labels.values()
    return found


class Watch:
    """Seconds of work, and what is measured while the clock stands."""

    def __init__(self, data: Dataset, guide: VaDEGuide, out: Path) -> None:
        self.data, self.guide, self.out = data, guide, out
        self.seconds, self.started = 0.0, time.perf_counter()
        self.measured: list[dict[str, float]] = []

    def stand(self) -> None:
        self.seconds += time.perf_counter() - self.started

    def go_on(self) -> None:
        self.started = time.perf_counter()

    def look(self, epoch: int, **more: float) -> None:
        found = {
            f"accuracy_{split}": cluster_accuracy(
                the_only(getattr(self.data, f"{split}_labels")),
                self.guide.predict(getattr(self.data, split))["digit"],
            )
            for split in ("train", "test")
        }
        self.measured.append({"epoch": epoch, "seconds": self.seconds, **found, **more})
        line = json.dumps(self.measured[-1])
        print(line, flush=True)
        with (self.out / "metrics.jsonl").open("a") as metrics:
            metrics.write(line + "\n")


def with_neighbors(watch: Watch, graph: NeighborGraph, q: np.ndarray) -> float:
    """The accuracy of test images, each given its neighbors among the training images."""
    images = watch.data.test.reshape(-1, *watch.data.image_shape)
    forms = [oriented_gradients(each) for each in (images, *image_variants(images))]
    counts = graph.counts_for(forms[0], q, forms[1:])
    told = watch.guide.predict(watch.data.test, neighbors={"digit": counts})["digit"]
    return cluster_accuracy(the_only(watch.data.test_labels), told)


def told(runner: SVIRunner) -> dict[str, float]:
    """The ELBO in training, and how much each facet is used, in nats per datum."""
    record = runner.history[-1]
    return {name: record[name] for name in record if name == "elbo" or name.startswith(USE)}


def train(data: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    pyro.set_rng_seed(args.seed)
    facets = {
        "style": GaussianMixture(COMPONENTS, STYLE_DIM),
        "digit": NeighborMixture(GaussianMixture(COMPONENTS, DIGIT_DIM, scale=SCALE)),
    }
    model = MFCVAE(data.train.shape[1:], facets, network=MLPLadder(**DECODER))
    guide = VaDEGuide(model)
    watch = Watch(data, guide, args.out)
    graph = image_graph(data.train.reshape(-1, *data.image_shape), seed=args.seed)
    clusters = graph.clusters(COMPONENTS, args.seed)
    fit_mixtures(guide, data.train, seed=args.seed, facets=["style"])
    how = {"batch_size": BATCH, "progress": False, "log_every": args.every}
    fade_in = ProgressiveFadeIn((1, args.first_epochs - 1), args.fade_steps)
    first = SVIRunner(
        model, guide, lr=FIRST_RATE, schedule=fade_in, seed=args.seed, precision="bf16"
    )
    first.fit(data.train, args.first_epochs, label={"digit": clusters}, **how)
    watch.stand()
    watch.look(0, **told(first))
    watch.go_on()
    runner = SVIRunner(model, guide, lr=RATE, seed=args.seed + 1, precision="bf16")
    while runner.epoch < args.epochs:
        if args.without:
            runner.fit(data.train, args.every, **how)
        else:
            fit_neighbors(runner, data.train, graph, args.every, every=args.every, **how)
        watch.stand()
        strength = model.mixtures["digit"].strength.item()
        watch.look(runner.epoch, strength=strength, **told(runner))
        watch.go_on()
    on_clusters = cluster_accuracy(the_only(data.train_labels), clusters)
    scores: dict[str, Any] = {"graph": on_clusters}
    q = cluster_posterior(guide, data.train, graph, "digit")
    scores["train_posterior"] = cluster_accuracy(the_only(data.train_labels), q.argmax(1))
    scores["test_with_neighbors"] = with_neighbors(watch, graph, q)
    scores["probes"] = probe_facets(guide, data, args.seed)
    return scores | {"first": watch.measured[0], "last": watch.measured[-1]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist"), default="mnist")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first-epochs", type=int, default=8, help="with known clusters")
    parser.add_argument(
        "--fade-steps",
        type=int,
        default=700,
        help="in which the style facet is let in, after an epoch: from the start on it would die",
    )
    parser.add_argument("--epochs", type=int, default=60, help="afterwards")
    parser.add_argument("--every", type=int, default=5, help="epochs between measurements")
    parser.add_argument("--without", action="store_true", help="the neighbors' prior")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    if (args.out / "metrics.jsonl").exists():
        parser.error(f"{args.out} has a run: give another --out, or remove it")
    args.out.mkdir(parents=True, exist_ok=True)
    scores = train(DATASETS[args.dataset](args.data_root), args)
    (args.out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
