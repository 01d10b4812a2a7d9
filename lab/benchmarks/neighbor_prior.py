"""Whether MFCVAE's clusters stay where they are on MNIST, with a prior over neighbors and without,
and whether they get better where the encoder learns to tell them; and on Fashion-MNIST (--dataset
fashion-mnist), with the settings that were chosen on MNIST.

    python -m lab.benchmarks.neighbor_prior --data-root DATA --seed 0 --out runs/held
    python -m lab.benchmarks.neighbor_prior --data-root DATA --seed 0 --way let_go --out runs/let_go
    python -m lab.benchmarks.neighbor_prior --data-root DATA --seed 0 --way learned --epochs 30 \
        --every 10 --out runs/learned

The digit facet first learns the clusters of a graph of neighbors as known clusters, which is a
bound on log p(x, clusters). Then they are the model's own: for --epochs epochs it is trained on the
bound that the neighbors' prior gives (held), or on that of the mixture alone (let_go); or, from
moved images, with the posterior's most probable clusters as known ones (learned), which the encoder
learns by a weight. Accuracy is measured by the way (the largest class of each cluster), of test
images by themselves and, at the end, with their neighbors among the training images: those of the
graph, and those that are nearest in the digit facet's latents. The clock stands meanwhile. No label
takes part in anything else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro

from facetvae.datasets import Dataset
from guides import VaDEGuide
from inference import (
    NeighborGraph,
    ProgressiveFadeIn,
    SVIRunner,
    cluster_posterior,
    fit_mixtures,
    fit_neighbors,
    image_variants,
    oriented_gradients,
    random_affine,
)
from inference.metrics import cluster_accuracy
from lab.protocols.datasets import DATASETS
from lab.protocols.neighbors import ENOUGH_PIXELS, graph_of
from lab.protocols.scoring import probe_facets
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, NeighborMixture

NAMES = ("mnist", "fashion-mnist", "digits", "color-digits")
COMPONENTS, STYLE_DIM, DIGIT_DIM = 25, 5, 10
# As in the code of MFCVAE's authors: the style facet tells less of the digit.
DECODER: dict[str, Any] = {"merge": "gated_add", "layers_after_merge": 1}
# The digit facet's components begin far apart: that is how it learns known clusters in few epochs.
SCALE = 0.05
FIRST_RATE, RATE = 2e-3, 5e-4
USE = ("elbo", "objective", "kl_", "mutual_information_")
# Of log q(c given x) of known clusters, if these are learned.
LABEL_WEIGHT = 10.0


def told_by(labels: Mapping[str, np.ndarray]) -> np.ndarray:
    """The digit, or the only label."""
    return labels["digit"] if "digit" in labels else next(iter(labels.values()))


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
                told_by(getattr(self.data, f"{split}_labels")),
                self.guide.predict(getattr(self.data, split))["digit"],
            )
            for split in ("train", "test")
        }
        self.measured.append({"epoch": epoch, "seconds": self.seconds, **found, **more})
        line = json.dumps(self.measured[-1])
        print(line, flush=True)
        with (self.out / "metrics.jsonl").open("a") as metrics:
            metrics.write(line + "\n")


def with_neighbors(
    watch: Watch, near: NeighborGraph, q: np.ndarray, forms_of: Callable[[np.ndarray], Any]
) -> float:
    """The accuracy of test images, each given its neighbors among the training images."""
    first, *others = forms_of(watch.data.test)
    counts = near.counts_for(first, q, others)
    told = watch.guide.predict(watch.data.test, neighbors={"digit": counts})["digit"]
    return cluster_accuracy(told_by(watch.data.test_labels), told)


def gradients(data: Dataset, x: np.ndarray) -> list[Any]:
    """What the graph is made from: gradients of each image and of its variants, or pixels."""
    images = x.reshape(-1, *data.image_shape)
    if images.shape[-1] < ENOUGH_PIXELS:
        return [x]
    return [oriented_gradients(each) for each in (images, *image_variants(images))]


def own_latents(guide: VaDEGuide, x: np.ndarray) -> list[Any]:
    return [guide.embed(x)["digit"]]


def moved(data: Dataset, x: np.ndarray, seed: int) -> Any:
    """Images as they may have been drawn as well."""
    return random_affine(x.reshape(-1, *data.image_shape), seed).reshape(x.shape)


def told(runner: SVIRunner) -> dict[str, float]:
    """The objective in training, and how much each facet is used, in nats per datum."""
    record = runner.history[-1]
    return {name: value for name, value in record.items() if name.startswith(USE)}


def train(data: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    pyro.set_rng_seed(args.seed)
    facets = {
        "style": GaussianMixture(COMPONENTS, STYLE_DIM),
        "digit": NeighborMixture(GaussianMixture(COMPONENTS, DIGIT_DIM, scale=SCALE)),
    }
    model = MFCVAE(data.train.shape[1:], facets, network=MLPLadder(**DECODER))
    guide = VaDEGuide(model, label_weight=LABEL_WEIGHT * (args.way == "learned"))
    watch = Watch(data, guide, args.out)
    graph = graph_of(data, args.seed)
    clusters = graph.clusters(COMPONENTS, args.seed)
    fit_mixtures(guide, data.train, seed=args.seed, facets=["style"])
    how = {"batch_size": args.batch_size, "progress": False, "log_every": args.every}
    fade_in = ProgressiveFadeIn((1, args.first_epochs - 1), args.fade_steps)
    runs = partial(SVIRunner, model, guide, precision="bf16", device=args.device)
    first = runs(lr=FIRST_RATE, schedule=fade_in, seed=args.seed)
    first.fit(data.train, args.first_epochs, label={"digit": clusters}, **how)
    watch.stand()
    watch.look(0, **told(first))
    watch.go_on()
    runner = runs(lr=RATE, seed=args.seed + 1)
    go_on = WAYS[args.way](data, graph, args.every)
    while runner.epoch < args.epochs:
        go_on(runner, data.train, **how)
        watch.stand()
        strength = model.mixtures["digit"].strength.item()
        watch.look(runner.epoch, strength=strength, **told(runner))
        watch.go_on()
    labels = told_by(data.train_labels)
    q = cluster_posterior(guide, data.train, graph, "digit")
    own = partial(own_latents, guide)
    scores: dict[str, Any] = {
        "graph": cluster_accuracy(labels, clusters),
        "train_posterior": cluster_accuracy(labels, q.argmax(1)),
        "test_with_neighbors": with_neighbors(watch, graph, q, partial(gradients, data)),
        "test_with_own": with_neighbors(watch, NeighborGraph(*own(data.train)), q, own),
        "probes": probe_facets(guide, data, args.seed),
    }
    return scores | {"first": watch.measured[0], "last": watch.measured[-1]}


# How training goes on for some epochs, from the images and their graph.
WAYS: dict[str, Callable[[Dataset, NeighborGraph, int], Callable[..., Any]]] = {
    "held": lambda data, graph, n: partial(fit_neighbors, graph=graph, epochs=n, every=n),
    "let_go": lambda data, graph, n: partial(SVIRunner.fit, epochs=n),
    "learned": lambda data, graph, n: partial(
        fit_neighbors, graph=graph, epochs=n, every=n, hard=True, augment=partial(moved, data)
    ),
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--dataset", choices=NAMES, default="mnist")
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
    parser.add_argument("--way", choices=tuple(WAYS), default="held", help="of these epochs")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", help='such as "cuda"')
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    if (args.out / "metrics.jsonl").exists():
        parser.error(f"{args.out} has a run: give another --out, or remove it")
    args.out.mkdir(parents=True, exist_ok=True)
    scores = train(DATASETS[args.dataset](args.data_root), args)
    (args.out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
