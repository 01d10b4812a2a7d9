"""Data sets of images with labels, split into train and test. Nothing is ever downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from ppl_models.given.checks import check_count

__all__ = [
    "DATASETS",
    "Dataset",
    "Labels",
    "data_root",
    "digits",
    "fashion_mnist",
    "mnist",
    "some_rows",
]

#: Integer labels ``[N]`` by factor.
Labels = dict[str, np.ndarray]


@dataclass(frozen=True)
class Dataset:
    """Images ``[N, *x_shape]`` of both splits, their integer labels ``[N]`` by factor, and the
    ``image_shape`` in which to draw one: ``(H, W)`` or ``(C, H, W)``.
    """

    name: str
    train: np.ndarray
    test: np.ndarray
    train_labels: Labels
    test_labels: Labels
    image_shape: tuple[int, ...]

    def rows(self, train: Any = slice(None), test: Any = slice(None)) -> Dataset:
        """Some images of each split: those at the indices, in the slice or under the mask."""
        return replace(
            self,
            train=self.train[train],
            test=self.test[test],
            train_labels={name: labels[train] for name, labels in self.train_labels.items()},
            test_labels={name: labels[test] for name, labels in self.test_labels.items()},
        )


def digits(root: str | Path | None = None, seed: int = 0) -> Dataset:
    """scikit-learn's 1,797 bundled handwritten digits, 8x8, scaled to [0, 1]; a fifth is for test.

    :param root: not needed.
    :param seed: of the split, which is stratified by digit.
    """
    bunch = load_digits()
    x = (bunch.data / 16).astype(np.float32)
    train, test, train_labels, test_labels = train_test_split(
        x, bunch.target, test_size=0.2, random_state=seed, stratify=bunch.target
    )
    return Dataset("digits", train, test, {"digit": train_labels}, {"digit": test_labels}, (8, 8))


def mnist(root: str | Path | None = None) -> Dataset:
    """MNIST, uint8, in torchvision's layout, from ``root`` (or the environment's FACETVAE_DATA).

    :raises FileNotFoundError: if it is not there, saying what is needed.
    """
    return _idx_files("MNIST", "digit", root)


def fashion_mnist(root: str | Path | None = None) -> Dataset:
    """Fashion-MNIST, as :func:`mnist`."""
    return _idx_files("FashionMNIST", "article", root)


def _idx_files(name: str, label: str, root: str | Path | None) -> Dataset:
    raw = data_root(root) / name / "raw"
    if not raw.is_dir():
        raise FileNotFoundError(
            f"no {name} in {data_root(root)}: the folder {name}/raw with the four idx files is "
            f"needed, as torchvision.datasets.{name} leaves it: give --data-root FOLDER, or "
            "FACETVAE_DATA=FOLDER, where it is"
        )
    try:
        (train, y), (test, test_y) = (_idx_split(raw, split) for split in ("train", "t10k"))
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(
            f"a file in {raw} is not what it should be, get all four anew: {error}"
        ) from error
    short = name.replace("MNIST", "-MNIST").lower().removeprefix("-")
    return Dataset(short, train, test, {label: y}, {label: test_y}, (28, 28))


def _idx_split(raw: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, 784]`` and labels ``[N]`` of idx files, in which the number of axes, their
    lengths and the values come after two zeros and the type.
    """
    found = []
    for what in ("images-idx3", "labels-idx1"):
        data = (raw / f"{split}-{what}-ubyte").read_bytes()
        shape = np.frombuffer(data, ">u4", data[3], 4)
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
        found.append(values.reshape(shape[0], -1).copy())
    images, labels = found
    if data[:3] != b"\0\0\x08" or labels.shape != (len(images), 1) or images.shape[1] != 784:
        raise ValueError(f"{len(images)} images and {len(labels)} labels")
    return images, labels[:, 0].astype(int)


#: What loads a data set from a folder, by name.
DATASETS: dict[str, Callable[[str | Path | None], Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
}


def some_rows(data: Dataset, rows: int, test_rows: int | None = None) -> Dataset:
    """The same data with at most so many training images, the same ones in every run.

    :param test_rows: at most so many test images, too.
    :raises ValueError: if ``rows`` or ``test_rows`` is below 1.
    """
    train, test = (np.random.default_rng(0).permutation(len(x)) for x in (data.train, data.test))
    some = data.rows(train[: check_count("rows", rows)])
    if test_rows is not None:
        some = some.rows(test=test[: check_count("test_rows", test_rows)])
    return some


def data_root(root: str | Path | None) -> Path:
    """The folder to look for data in: ``root``, else FACETVAE_DATA, else ``data``."""
    return Path(root or os.environ.get("FACETVAE_DATA", "data"))
