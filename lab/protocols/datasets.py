"""Further data sets of images with labels. Nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

import facetvae.datasets
from facetvae.datasets import Dataset, Labels, data_root, digits, mnist
from lab.protocols import shapes
from lab.protocols.cifar import read_cifar10
from lab.protocols.image_files import grouped_images, read_faces
from ppl_models.given.checks import check_count, check_one_of, check_size

__all__ = [
    "DATASETS",
    "cifar10",
    "colored",
    "drawn_shapes",
    "folders",
    "load",
    "shapes3d",
    "svhn",
    "yale_faces",
]


def yale_faces(root: str | Path | None = None, seed: int = 0) -> Dataset:
    """Faces under many lights, 64x64 in gray, from the folder ``CroppedYale``; 80 % train, 20 %
    test.

    :param seed: of the split, which is stratified by person.
    :raises FileNotFoundError: as :func:`~lab.protocols.image_files.read_faces`.
    :raises ValueError: as there.
    """
    x, known = read_faces(data_root(root) / "CroppedYale")
    train, test = train_test_split(
        np.arange(len(x)), test_size=0.2, random_state=seed, stratify=known["person"]
    )
    return _split("yale", x, known, train, test)


def folders(root: str | Path | None = None, seed: int = 0) -> Dataset:
    """Images of your own, 64x64 in color, in a folder for each group (a person, an object): 80 %
    train, 20 % test.

    :param root: the folder of the groups' folders.
    :param seed: of the split, which takes a fifth of each group, or one image where that is none.
    :raises FileNotFoundError: as :func:`~lab.protocols.image_files.grouped_images`.
    :raises ValueError: as there.
    """
    x, group = grouped_images(data_root(root))
    order = np.random.default_rng(seed).permutation(len(x))
    of_group = [order[group[order] == k] for k in np.unique(group)]
    test = np.sort(np.concatenate([rows[: max(1, len(rows) // 5)] for rows in of_group]))
    train = np.setdiff1d(order, test)
    return _split("folders", x, {"group": group}, train, test)


def svhn(root: str | Path | None = None) -> Dataset:
    """Street View House Numbers, 32x32 in color as uint8, read by torchvision; without the "extra"
    images.

    :raises FileNotFoundError: if it is not there, saying what is needed.
    :raises ValueError: if a file is damaged or another.
    """
    folder = data_root(root)
    names = ("train_32x32.mat", "test_32x32.mat")
    if not all((folder / name).is_file() for name in names):
        raise FileNotFoundError(
            f"no SVHN in {folder}: {' and '.join(names)} are needed\n  Try one of:\n"
            "  - --data-root FOLDER, or FACETVAE_DATA=FOLDER, where they are\n"
            "  - torchvision.datasets.SVHN(FOLDER, split, download=True) for each split, where "
            "there is a network\n"
            "  - --dataset color-mnist or color-digits, which stand in for it"
        )
    try:
        train, test = (torchvision_datasets().SVHN(folder, split) for split in ("train", "test"))
    except RuntimeError as error:
        raise ValueError(
            f"{' or '.join(names)} in {folder} is not what it should be: get both files anew"
        ) from error
    return Dataset(
        "svhn", train.data, test.data, {"digit": train.labels}, {"digit": test.labels}, (3, 32, 32)
    )


def cifar10(root: str | Path | None = None) -> Dataset:
    """CIFAR-10, 32x32 in color as uint8: 50,000 photographs to train on and 10,000 to test, of ten
    kinds of ``object``.

    :raises FileNotFoundError: as :func:`~lab.protocols.cifar.read_cifar10`.
    :raises ValueError: as there.
    """
    (train, of_train), (test, of_test) = read_cifar10(data_root(root))
    return Dataset("cifar-10", train, test, {"object": of_train}, {"object": of_test}, (3, 32, 32))


def shapes3d(configuration: int, root: str | Path | None = None) -> Dataset:
    """MFCVAE's two configurations of 3DShapes (D.1): 4,800 images, 32x32 in color; 80 % train, 20
    % test.

    The first varies the floor's hue, the second the wall's; both vary scale, shape and orientation.
    The original images where ``root`` has ``3dshapes.h5`` (which takes ``pip install h5py``), and
    else our drawing of them, which is not the same data set: the name says which it is.

    :raises ValueError: for another configuration, or if that file cannot be read.
    """
    if configuration not in (1, 2):
        raise ValueError(f"3DShapes has the configurations 1 and 2 here, got {configuration!r}")
    fixed = {"wall": 5, "object": 6} if configuration == 1 else {"floor": 0, "object": 6}
    factors = shapes.factor_grid(**fixed)
    original = data_root(root) / "3dshapes.h5"
    images = _original_shapes(original, factors) if original.is_file() else shapes.draw(factors)
    x = np.ascontiguousarray(np.moveaxis(shapes.halve(images), -1, 1))
    train, test = train_test_split(np.arange(len(x)), test_size=0.2, random_state=0)
    known = {name: factors[:, j] for j, name in enumerate(shapes.FACTORS) if name not in fixed}
    name = f"shapes3d-{configuration}" + ("" if original.is_file() else "-drawn")
    return _split(name, x, known, train, test)


def drawn_shapes(root: str | Path | None = None, rows: int = 20_000, seed: int = 0) -> Dataset:
    """Our shapes with every factor at random, 32x32 in color; 75 % train, 25 % test.

    :param root: not needed.
    :param rows: of both splits together.
    :raises ValueError: for fewer than 4.
    """
    if check_size("rows", rows) < 4:
        raise ValueError(f"rows are split into train and test and must be 4 or more, got {rows}")
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(count, size=rows) for count in shapes.FACTORS.values()], 1)
    parts = [
        shapes.halve(shapes.draw(part)) for part in np.array_split(factors, max(1, rows // 2048))
    ]
    x = np.ascontiguousarray(np.moveaxis(np.concatenate(parts), -1, 1))
    known, cut = dict(zip(shapes.FACTORS, factors.T, strict=True)), round(0.75 * rows)
    return _split("shapes", x, known, slice(cut), slice(cut, None))


def _split(name: str, x: np.ndarray, known: Labels, train: Any, test: Any) -> Dataset:
    """The images ``[N, C, H, W]`` at some rows to train on, and those at others to test on."""
    labels = ({of: values[rows] for of, values in known.items()} for rows in (train, test))
    return Dataset(name, x[train], x[test], *labels, x.shape[1:])


def _original_shapes(path: Path, factors: np.ndarray) -> np.ndarray:
    """The images of these factors from the original file, whose rows run through all combinations
    in order.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            f"reading {path} takes h5py: pip install h5py, or move the file away for our drawing"
        ) from error
    rows = np.ravel_multi_index(factors.T, tuple(shapes.FACTORS.values()))
    order = np.argsort(rows)
    try:
        with h5py.File(path) as file:
            # Rows beside each other are read at once: a list of single ones takes seconds.
            runs = np.split(rows[order], np.flatnonzero(np.diff(rows[order]) > 1) + 1)
            found = np.concatenate([file["images"][run[0] : run[-1] + 1] for run in runs])
            if len(found) < len(rows):
                raise ValueError(f"its images end at row {len(file['images'])}")
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not the original 3DShapes, or not whole: {error}") from error
    return found[np.argsort(order)]


def colored(data: Dataset, name: str, num_hues: int = 6, seed: int = 0) -> Dataset:
    """Digits in ink of one hue on a background of another, 32x32: three groupings, all known.

    A stand-in for SVHN where that cannot be had, and not SVHN: pale ink on a dark ground, hues
    drawn for each image.

    :param data: digits ``[N, H * W]``, at most 32 pixels a side.
    :param num_hues: of ink and of background.
    :raises ValueError: for larger digits.
    """
    check_count("num_hues", num_hues)
    if max(data.image_shape) > 32:
        raise ValueError(
            f"digits of {data.image_shape} pixels are larger than 32 x 32: give smaller ones"
        )
    rng = np.random.default_rng(seed)
    splits = [
        _colored_split(x, labels["digit"], data.image_shape, num_hues, rng)
        for x, labels in ((data.train, data.train_labels), (data.test, data.test_labels))
    ]
    (train, train_labels), (test, test_labels) = splits
    return Dataset(name, train, test, train_labels, test_labels, (3, 32, 32))


def _colored_split(
    x: np.ndarray,
    digit: np.ndarray,
    shape: tuple[int, ...],
    num_hues: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, Labels]:
    gray = x.reshape(-1, *shape) / (255 if x.dtype == np.uint8 else 1)
    gray = np.kron(gray, np.ones((1, 32 // shape[0], 32 // shape[1])))  # small digits become large
    margins = [((32 - side) // 2, (33 - side) // 2) for side in gray.shape[1:]]
    gray = np.pad(gray, [(0, 0), *margins]).astype(np.float32)[:, None]
    labels = {
        "digit": digit,
        "ink": rng.integers(num_hues, size=len(x)),
        "background": rng.integers(num_hues, size=len(x)),
    }
    inks, grounds = (
        shapes.palette(num_hues, saturation=0.45),
        shapes.palette(num_hues, saturation=0.9, value=0.5),
    )
    ink = inks.astype(np.float32)[labels["ink"]][:, :, None, None]
    ground = grounds.astype(np.float32)[labels["background"]][:, :, None, None]
    return (255 * (gray * ink + (1 - gray) * ground)).round().astype(np.uint8), labels


DATASETS: dict[str, Callable[[str | Path | None], Dataset]] = {
    **facetvae.datasets.DATASETS,
    "yale": yale_faces,
    "folders": folders,
    "svhn": svhn,
    "cifar-10": cifar10,
    "shapes": drawn_shapes,
    "shapes3d-1": partial(shapes3d, 1),
    "shapes3d-2": partial(shapes3d, 2),
    "color-digits": lambda root: colored(digits(), "color-digits"),
    "color-mnist": lambda root: colored(mnist(root), "color-mnist"),
}


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A data set by its name in ``DATASETS``.

    :raises ValueError: for another name.
    """
    return DATASETS[check_one_of("name", name, DATASETS)](root)


def torchvision_datasets() -> ModuleType:
    """torchvision's data sets, also where torchvision was built for CUDA and torch for the CPU.

    That pair stops at ``import torchvision``, because two image operators were never registered. No
    data set needs them, so their names are declared, without code, and the import goes through.
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
