"""Does a classifier gain from generated images? (N-VAE, Fig. 9)

python -m lab.protocols.augmentation --dataset mnist --data-root DATA

N-VAE and a conditional VAE are trained; then a classifier, with a share of its images replaced by
generated ones of the same class, whose latents are drawn with a standard deviation of 1 or more.
Which ones, and by what, is drawn anew in every epoch (the paper has "probabilities of
substituting"), or once. The report is its error on the test images, mean and sample deviation over
repeats, each with its own generative model. Results already in the run folder, made with the same
settings, are reused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product, repeat
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn.neural_network import MLPClassifier

from facetvae.datasets import Dataset
from inference import SVIRunner
from inference.randomness import derive_seed, seeded
from lab.protocols import nvae
from lab.protocols.common import (
    add_setting_flags,
    build_parser,
    checkpointing,
    load_data,
    once,
    open_run_folder,
    refuse_several,
    resolve,
    write_json,
)
from ppl_models import CVAE, NVAE

MODELS = ("nvae", "cvae")

# Images to train a classifier on, from a seed.
Mix = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Settings:
    """Deviations (the paper's sigma, which its notation could also mean as a variance), shares and
    repeats are the paper's; it does not give its classifier, which is our choice.
    """

    scales: tuple[float, ...] = (1.0, 1.4, 2.0)
    shares: tuple[float, ...] = (0.4, 1.0)
    repeats: int = 3
    epochs: int = 40  # of the generative models
    precision: str = "float32"
    substitution: str = "anew"
    classifier_widths: tuple[int, ...] = (256,)
    classifier_epochs: int = 10
    classifier_rows: int = 0  # training images of the classifier, the first ones; 0 for all


SMOKE = replace(
    Settings(), scales=(1.0, 2.0), repeats=2, epochs=2, classifier_widths=(16,), classifier_epochs=3
)


def of_generators(settings: Settings) -> nvae.Settings:
    """The generative models' own settings."""
    return replace(nvae.Settings(), precision=settings.precision, epochs=settings.epochs)


def generator(
    model: str, data: Dataset, of: str, settings: Settings, seed: int, device: str, out: Path
) -> NVAE | CVAE:
    """The generative model of one repeat, trained, or loaded where it was."""
    chosen, label = of_generators(settings), data.train_labels[of]
    about = {"data": data.name, **asdict(chosen)}
    folder, kept = out / model / f"seed-{seed}", checkpointing(out, model, f"seed-{seed}")
    run = nvae.trained(model, data, label, chosen, seed, folder, about, kept, device)
    return SVIRunner.load(run).model  # type: ignore[return-value]


def mixed(
    x: np.ndarray, label: np.ndarray, model: NVAE | CVAE, share: float, scale: float, seed: int
) -> np.ndarray:
    """Images ``[N, D]``, of which about this share are generated anew, of the same class."""
    replaced = np.flatnonzero(np.random.default_rng(seed).random(len(x)) < share)
    made = x.copy()
    with seeded(seed, torch.device("cpu")):
        for rows in np.array_split(replaced, max(1, len(replaced) // 4096)):
            images = model.generate(
                len(rows), temperature=scale, label=torch.as_tensor(label[rows])
            )
            made[rows] = images.flatten(1).numpy()
    return made


def unmixed(x: np.ndarray, seed: int) -> np.ndarray:
    return x


# From what replaces images, by seed, to the images of each epoch.
SUBSTITUTIONS: dict[str, Callable[[Mix, int, int], Iterator[np.ndarray]]] = {
    "anew": lambda mix, seed, epochs: (mix(derive_seed(seed, each)) for each in range(epochs)),
    "once": lambda mix, seed, epochs: repeat(mix(seed), epochs),
}


def error(
    mix: Mix, label: np.ndarray, data: Dataset, of: str, settings: Settings, seed: int
) -> float:
    """Test error of a classifier that was trained on the images of ``mix``."""
    stream = np.random.RandomState(seed)  # a number would order the images alike in every epoch
    network = MLPClassifier(settings.classifier_widths, random_state=stream)
    substitute = SUBSTITUTIONS[settings.substitution]
    for x in substitute(mix, seed, settings.classifier_epochs):
        network.partial_fit(x, label, classes=np.unique(label))
    return float(1 - network.score(nvae.flat(data.test), data.test_labels[of]))


def cells(settings: Settings) -> Iterator[tuple[str, float, float]]:
    """What is compared: model, share and standard deviation."""
    yield "baseline", 0.0, 1.0
    yield from product(MODELS, settings.shares, settings.scales)


def measure(
    data: Dataset, of: str, settings: Settings, first_seed: int, device: str, out: Path
) -> dict[tuple, list[float]]:
    rows = slice(settings.classifier_rows or None)
    x, label = nvae.flat(data.train)[rows], data.train_labels[of][rows]
    varied = {"scales", "shares", "repeats"}
    sizes = {name: value for name, value in asdict(settings).items() if name not in varied}
    found: dict[tuple, list[float]] = {cell: [] for cell in cells(settings)}

    def make(model: str, share: float, scale: float, seed: int) -> dict[str, float]:
        mix: Mix = partial(unmixed, x)
        if model != "baseline":
            made_by = generator(model, data, of, settings, seed, device, out)
            mix = partial(mixed, x, label, made_by, share, scale)
        return {"error": error(mix, label, data, of, settings, seed)}

    for seed in range(first_seed, first_seed + settings.repeats):
        for model, share, scale in found:
            place = out / "cells" / f"{model}-{share:g}-{scale:g}-{seed}.json"
            cell = {"model": model, "share": share, "scale": scale, "seed": seed}
            kept = once(place, {"data": data.name, **cell, **sizes}, partial(make, **cell))
            found[model, share, scale].append(kept["error"])
    return found


def format_table(found: dict[tuple, list[float]]) -> str:
    lines = [f"{'images of':12s}{'share':>8s}{'deviation':>12s}{'test error, %':>20s}"]
    for (model, share, scale), errors in found.items():
        value = (
            f"{100 * mean(errors):.2f} ({100 * stdev(errors):.2f})"
            if len(errors) > 1
            else f"{100 * errors[0]:.2f}"
        )
        lines.append(f"{model:12s}{share:8.2g}{scale:12.2g}{value:>20s}")
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "augmentation")
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist", "digits"), default="mnist")
    flags: dict[str, dict[str, Any]] = {
        "epochs": {"help": "of the generative models"},
        "repeats": {"help": "of everything, from --seed on"},
        "precision": {"help": "of the generative models' networks", "choices": ("float32", "bf16")},
        "substitution": {
            "help": "when images are replaced: anew in every epoch, or once",
            "choices": tuple(SUBSTITUTIONS),
        },
        "classifier_epochs": {"help": "of the classifiers"},
        "classifier_rows": {"help": "their training images, the first ones (default: all)"},
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    return args, resolve(args, Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    refuse_several()
    args, settings = parse(argv)
    data = load_data("digits" if args.smoke else args.dataset, args)
    of = nvae.CLASS_OF[data.name]
    out = open_run_folder(args, settings, data)
    found = measure(data, of, settings, args.seed, args.device, out)
    named = {" ".join(map(str, cell)): errors for cell, errors in found.items()}
    write_json(out / "results.json", named)
    print(format_table(found))


if __name__ == "__main__":
    main()
