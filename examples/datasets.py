"""Data for the examples: arrays and labels, split into train and test. Nothing is ever downloaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

__all__ = ["Dataset", "digits", "load", "mnist"]


@dataclass(frozen=True)
class Dataset:
    """Images ``[N, *x_shape]`` and integer labels ``[N]`` of both splits; ``image_shape`` is for drawing."""

    name: str
    train: np.ndarray
    test: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray
    image_shape: tuple[int, ...]


def digits(seed: int = 0) -> Dataset:
    """scikit-learn's 1,797 bundled handwritten digits, 8x8, scaled to [0, 1]; 80 % train, 20 % test.

    :param seed: of the split, which is stratified by digit.
    """
    bunch = load_digits()
    x = (bunch.data / 16).astype(np.float32)
    train, test, train_labels, test_labels = train_test_split(
        x, bunch.target, test_size=0.2, random_state=seed, stratify=bunch.target
    )
    return Dataset("digits", train, test, train_labels, test_labels, (8, 8))


def mnist(root: str | Path | None = None) -> Dataset:
    """MNIST from ``root`` (or the environment variable FACETVAE_DATA) in torchvision's layout, as uint8.

    :raises FileNotFoundError: if it is not there, saying what is needed.
    """
    folder = data_root(root)
    if not (folder / "MNIST" / "raw").is_dir():
        raise FileNotFoundError(
            f"no MNIST in {folder}: the folder MNIST/raw with the four idx files, in torchvision's layout, is needed\n"
            "  Try one of:\n  - --data-root FOLDER, or FACETVAE_DATA=FOLDER, where MNIST is\n"
            "  - torchvision.datasets.MNIST(FOLDER, download=True), once, where there is a network\n"
            "  - --dataset digits, which needs no files"
        )
    MNIST = _torchvision_datasets().MNIST
    train, test = MNIST(folder, train=True), MNIST(folder, train=False)
    return Dataset(
        "mnist",
        train.data.flatten(1).numpy(),
        test.data.flatten(1).numpy(),
        train.targets.numpy(),
        test.targets.numpy(),
        (28, 28),
    )


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A data set by its name: ``"digits"`` or ``"mnist"``."""
    return mnist(root) if name == "mnist" else digits()


def data_root(root: str | Path | None) -> Path:
    """The folder to look for data in: ``root``, else FACETVAE_DATA, else ``data``."""
    return Path(root or os.environ.get("FACETVAE_DATA", "data"))


def _torchvision_datasets():
    """torchvision's data sets, also where torchvision was built for CUDA and torch for the CPU.

    That pair stops at ``import torchvision``, because two image operators were never registered. No data set needs
    them, so their names are declared, without code, and the import goes through.
    """
    try:
        from torchvision import datasets
    except RuntimeError as error:
        if "nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import datasets
    return datasets
