"""N-VAE with few labels, the label's weight chosen on held-out labels, beside a classifier alone.

python -m lab.benchmarks.few_labels --data-root DATA --labels 100 --seeds 0 1 2 --out OUT

For each number of labels and each seed: N-VAE is trained with four fifths of the labels and each
weight of log q(y given x); the weight with the lowest error on the other fifth (on a tie the
largest) is taken with all labels. The same is trained on from a model that has seen all labels:
if it stays there with the better bound, what is missing from the other is a start; if it
goes, the objective does not want it. Finished parts are read from the folder, and a stopped run
goes on.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from facetvae.datasets import Dataset
from guides import ClassifierGuide
from inference import SVIRunner, elbo
from lab.protocols import nvae
from lab.protocols.common import checkpointing, once
from lab.protocols.datasets import load
from lab.run_lines import described_by

DRAWS = 3  # of each bound


def trained(
    data: Dataset, settings: nvae.Settings, seed: int, folder: Path, start: Path | None = None
) -> Path:
    """Train N-VAE with the first ``settings.labels`` labels of the seed's order, or all for 0.

    :param start: run folder of a model whose weights it starts from.
    :returns: the run folder.
    """
    about = {"data": data.name, "seed": seed, "start": str(start), **asdict(settings)}
    label = data.train_labels["digit"]
    if settings.labels:
        rows, label, _ = nvae.some_labels(label, settings.labels, settings.labeled_share, seed)
        data = data.rows(rows)
    run = ("nvae", data, label, settings, seed, folder, about, checkpointing(folder))
    return nvae.trained(*run, start=start)


def error(guide: ClassifierGuide, x: np.ndarray, label: np.ndarray) -> float:
    return float((guide.predict(x)["class"] != label).mean())


def chosen_weight(
    data: Dataset, settings: nvae.Settings, weights: list[float], seed: int, out: Path
) -> tuple[float, dict[str, float]]:
    """The weight with the lowest error on a fifth of the labels, and every weight's."""
    label = data.train_labels["digit"]
    learned = 4 * settings.labels // 5
    held = nvae.some_labels(label, settings.labels, settings.labeled_share, seed)[2][learned:]
    errors = {}
    for weight in sorted(weights):
        part = replace(settings, labels=learned, label_weight=weight)
        guide = SVIRunner.load(trained(data, part, seed, out / f"weight-{weight:g}")).guide
        errors[weight] = error(guide, data.train[held], label[held])
    best = min(errors, key=lambda weight: (errors[weight], -weight))
    return best, {f"{weight:g}": value for weight, value in errors.items()}


def measure(
    data: Dataset, settings: nvae.Settings, weights: list[float], seed: int, out: Path
) -> dict[str, Any]:
    """Test errors, and bounds of the test images in nats per datum."""
    x, label = data.test, data.test_labels["digit"]
    place = out / f"labels-{settings.labels}" / f"seed-{seed}"
    weight, errors = chosen_weight(data, settings, weights, seed, place)
    chosen = replace(settings, label_weight=weight)
    truth = trained(data, replace(settings, labels=0), seed, out / f"all-labels-{seed}")
    runs = {
        "cold": trained(data, chosen, seed, place / "cold"),
        "from_truth": trained(data, chosen, seed, place / "from-truth", truth),
        "truth": truth,
    }
    found: dict[str, Any] = {"weight": weight, "held_out_errors": errors}
    for name, run in runs.items():
        guide = SVIRunner.load(run).guide
        found[f"error_{name}"] = error(guide, x, label)
        found[f"elbo_{name}"] = elbo(guide.model, guide, x, num_draws=DRAWS)[0]
    known = nvae.some_labels(
        data.train_labels["digit"], settings.labels, settings.labeled_share, seed
    )[2]
    alone = nvae.classifier_alone(
        data.train[known], data.train_labels["digit"][known], settings, seed
    )
    found["error_alone"] = float(1 - alone.score(nvae.flat(x), label))
    return found


def main(argv: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--data-root", type=Path, help="where MNIST lies")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 600, 3000])
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 5.0, 20.0, 100.0])
    parser.add_argument("--epochs", type=int, default=nvae.Settings.epochs)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    args = parser.parse_args(argv)
    data = load(args.dataset, args.data_root)
    for labels in args.labels:
        settings = nvae.Settings(epochs=args.epochs, labels=labels, precision=args.precision)
        about = {"weights": args.weights, **asdict(settings)}
        for seed in args.seeds:
            make = partial(measure, data, settings, args.weights, seed, args.out)
            place = args.out / f"labels-{labels}" / f"seed-{seed}" / "scores.json"
            found = once(place, about, make)
            shown = {name: value for name, value in found.items() if isinstance(value, float)}
            print(
                f"{labels} labels, seed {seed}: "
                + ", ".join(f"{name} {value:.4g}" for name, value in shown.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
