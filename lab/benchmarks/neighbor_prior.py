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

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

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
    random_affine,
)
from inference.initialization.image_features import oriented_gradients
from inference.metrics import cluster_accuracy
from lab.protocols.datasets import DATASETS
from lab.protocols.neighbors import ENOUGH_PIXELS, graph_of
from lab.protocols.scoring import probe_facets
from lab.run_lines import described_by
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, NeighborMixture

NAMES = ("mnist", "fashion-mnist", "digits", "color-digits")
STYLE_DIM, DIGIT_DIM = 5, 10
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
    """Seconds of work, and what is measured while the clock stands.

    :param out: a folder for the measures, or none.
    """

    def __init__(self, out: Path | None = None) -> None:
        self.out, self.seconds = out, 0.0
        self.measured: list[dict[str, float]] = []

    def go_on(self) -> None:
        self.started = time.perf_counter()

    def look(self, data: Dataset, guide: VaDEGuide, epoch: int, **more: float) -> None:
        self.seconds += time.perf_counter() - self.started
        found = {
            f"accuracy_{split}": cluster_accuracy(
                told_by(getattr(data, f"{split}_labels")),
                guide.predict(getattr(data, split))["digit"],
            )
            for split in ("train", "test")
        }
        self.measured.append({"epoch": epoch, "seconds": self.seconds, **found, **more})
        if self.out is not None:
            line = json.dumps(self.measured[-1])
            print(line, flush=True)
            with (self.out / "metrics.jsonl").open("a") as metrics:
                metrics.write(line + "\n")
        self.go_on()


def with_neighbors(
    data: Dataset,
    guide: VaDEGuide,
    near: NeighborGraph,
    q: np.ndarray,
    forms_of: Callable[[np.ndarray], Any],
) -> float:
    """The accuracy of test images, each given its neighbors among the training images."""
    first, *others = forms_of(data.test)
    counts = near.counts_for(first, q, others)
    found = guide.predict(data.test, neighbors={"digit": counts})["digit"]
    return cluster_accuracy(told_by(data.test_labels), found)


def gradients(data: Dataset, x: np.ndarray) -> list[Any]:
    """What the graph is made from: gradients of each image and of its variants, or pixels."""
    images = x.reshape(-1, *data.image_shape)
    if images.shape[-1] < ENOUGH_PIXELS:
        return [x]
    forms: list[Any] = [images, *image_variants(images)]
    return [oriented_gradients(each) for each in forms]


def own_latents(guide: VaDEGuide, x: np.ndarray) -> list[Any]:
    return [guide.embed(x)["digit"]]


def moved(data: Dataset, x: np.ndarray, seed: int) -> Any:
    """Images as they may have been drawn as well."""
    return random_affine(x.reshape(-1, *data.image_shape), seed).reshape(x.shape)


def told(runner: SVIRunner) -> dict[str, float]:
    """The objective in training, and how much each facet is used, in nats per datum."""
    record = runner.history[-1]
    return {name: value for name, value in record.items() if name.startswith(USE)}


def by_neighbors(
    data: Dataset, run: Trained, setting: Setting, **how: Any
) -> Callable[..., SVIRunner]:
    learn = setting.strength is None
    every = setting.every
    return partial(fit_neighbors, graph=run.graph, every=every, learn_strength=learn, **how)


def learned(data: Dataset, run: Trained, setting: Setting) -> Callable[..., SVIRunner]:
    return by_neighbors(data, run, setting, hard=True, augment=partial(moved, data))


def let_go(data: Dataset, run: Trained, setting: Setting) -> Callable[..., SVIRunner]:
    return SVIRunner.fit


#: From the images, a run and its setting to what goes on training a runner for some epochs.
Way = Callable[[Dataset, "Trained", "Setting"], Callable[..., SVIRunner]]
WAYS: dict[str, Way] = {"held": by_neighbors, "let_go": let_go, "learned": learned}


@dataclass
class Trained:
    """A run's model, in its guide, and the graph that it began from, with the graph's clusters."""

    guide: VaDEGuide
    prior: NeighborMixture  # of the digit facet
    graph: NeighborGraph
    clusters: np.ndarray


@dataclass(frozen=True)
class Setting:
    """What determines a run of these images."""

    seed: int = 0
    way: Way = by_neighbors
    first_epochs: int = 8
    fade_steps: int = 700
    epochs: int = 60
    every: int = 5
    batch_size: int = 256
    device: str | None = None
    label_weight: float = 0.0
    components: int = 25
    covariance: Literal["diag", "full"] = "diag"
    strength: float | None = None  # learned by default
    widths: tuple[int, int] = (500, 2000)
    style: bool = True  # whether there is such a facet


def begin(data: Dataset, graph: NeighborGraph, setting: Setting) -> Trained:
    """What a run begins from: the graph's clusters, and a model that does not know them."""
    K = setting.components
    style = {"style": GaussianMixture(K, STYLE_DIM)} if setting.style else {}
    mixture = GaussianMixture(K, DIGIT_DIM, setting.covariance, scale=SCALE)
    prior = NeighborMixture(mixture, setting.strength or 0.0)
    facets = {**style, "digit": prior}
    network = MLPLadder(setting.widths, rungs=(0, 1) if style else (1,), **DECODER)
    model = MFCVAE(data.train.shape[1:], facets, network=network)
    guide = VaDEGuide(model, label_weight=setting.label_weight)
    if style:
        fit_mixtures(guide, data.train, seed=setting.seed, facets=["style"])
    return Trained(guide, prior, graph, graph.clusters(K, setting.seed))


def train(
    data: Dataset,
    setting: Setting,
    watch: Watch,
    graph_of: Callable[[Dataset, int], NeighborGraph] = graph_of,
) -> Trained:
    pyro.set_rng_seed(setting.seed)
    watch.go_on()
    run = begin(data, graph_of(data, setting.seed), setting)
    how: Any = {"batch_size": setting.batch_size, "progress": False, "log_every": setting.every}
    runs = partial(SVIRunner, run.guide.model, run.guide, precision="bf16", device=setting.device)
    first = runs(lr=FIRST_RATE, schedule=fade_in(setting), seed=setting.seed)
    first.fit(data.train, setting.first_epochs, label={"digit": run.clusters}, **how)
    watch.look(data, run.guide, 0, **told(first))
    runner = runs(lr=RATE, seed=setting.seed + 1)
    while runner.epoch < setting.epochs:
        setting.way(data, run, setting)(runner, data.train, epochs=setting.every, **how)
        watch.look(
            data, run.guide, runner.epoch, strength=run.prior.strength.item(), **told(runner)
        )
    return run


def fade_in(setting: Setting) -> ProgressiveFadeIn | None:
    if not (setting.style and setting.fade_steps):
        return None
    return ProgressiveFadeIn((1, setting.first_epochs - 1), setting.fade_steps)


def scores(data: Dataset, run: Trained, watch: Watch) -> dict[str, Any]:
    guide, labels = run.guide, told_by(data.train_labels)
    q = cluster_posterior(guide, data.train, run.graph, "digit")
    own = partial(own_latents, guide)
    test = partial(with_neighbors, data, guide)
    return {
        "graph": cluster_accuracy(labels, run.clusters),
        "train_posterior": cluster_accuracy(labels, q.argmax(1)),
        "test_with_neighbors": test(run.graph, q, partial(gradients, data)),
        "test_with_own": test(NeighborGraph(*own(data.train)), q, own),
        "first": watch.measured[0],
        "last": watch.measured[-1],
    }


# Options that are numbers.
NUMBERS = {
    "seed": "of all draws",
    "first_epochs": "with known clusters",
    "fade_steps": "to let the style facet in, after an epoch: from the start on it would die",
    "epochs": "afterwards",
    "every": "epochs between measurements",
    "batch_size": "images of a step",
}


def main(argv: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--dataset", choices=NAMES, default="mnist")
    parser.add_argument("--way", choices=tuple(WAYS), default="held", help="of the later epochs")
    for option, what in NUMBERS.items():
        flag = f"--{option.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(Setting, option), help=what)
    parser.add_argument("--device", help='such as "cuda"')
    parser.add_argument("--out", type=Path, required=True)
    args = vars(parser.parse_args(argv))
    root, name, way, out = (args.pop(each) for each in ("data_root", "dataset", "way", "out"))
    if (out / "metrics.jsonl").exists():
        parser.error(f"{out} has a run: give another --out, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    weight = LABEL_WEIGHT if way == "learned" else 0.0
    setting = Setting(**args, way=WAYS[way], label_weight=weight)
    data, watch = DATASETS[name](root), Watch(out)
    run = train(data, setting, watch)
    found = scores(data, run, watch) | {"probes": probe_facets(run.guide, data, setting.seed)}
    (out / "scores.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
