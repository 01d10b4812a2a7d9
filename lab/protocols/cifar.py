"""Reader of CIFAR-10 (Krizhevsky, 2009): its binary version, or a folder of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.protocols.image_files import image_paths, read_image

# A split's images and classes: [N, 3, 32, 32] as uint8, and integers [N].
Split = tuple[np.ndarray, np.ndarray]

BINARY, IMAGES, PICKLED = "cifar-10-batches-bin", "cifar-10", "cifar-10-batches-py"
FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
SHAPE, NUM_CLASSES = (3, 32, 32), 10
# A byte for the class, then the image: all reds, all greens, all blues, row by row.
RECORD = 1 + 3 * 32 * 32


def read_cifar10(root: Path) -> tuple[Split, Split]:
    """Training and test split: images ``[N, 3, 32, 32]`` as uint8 and classes ``[N]``, 0 to 9.

    Either ``cifar-10-batches-bin`` with the six files of the binary version, or ``cifar-10`` with a
    folder for each class, as in ``cifar-10/train/airplane/0001.png``, whose classes are numbered
    alphabetically; the first that is there. The version for Python is pickled, and a pickle may run
    any code as it is read: it is not read.

    :raises FileNotFoundError: if neither is there, or a file is missing, saying what is needed.
    :raises ValueError: if a file is damaged, or the splits differ in their classes.
    """
    if (root / BINARY).is_dir():
        train, test = (_binary(root / BINARY, names) for names in FILES.values())
        return train, test
    if (root / IMAGES).is_dir():
        return _folders(root / IMAGES)
    pickled = (
        f"\n  {PICKLED} is there, but pickled, and a pickle may run any code: it is not read"
        if (root / PICKLED).exists()
        else ""
    )
    raise FileNotFoundError(
        f"no CIFAR-10 in {root}: the folder {BINARY} with data_batch_1.bin to data_batch_5.bin and "
        f"test_batch.bin is needed, or {IMAGES} with images as in train/airplane/0001.png and "
        f"test/airplane/0001.png{pickled}\n  Try one of:\n"
        "  - --data-root FOLDER, or FACETVAE_DATA=FOLDER, where one of them is\n"
        "  - the binary version from https://www.cs.toronto.edu/~kriz/cifar.html, unpacked there, "
        "where there is a network\n"
        "  - --dataset color-mnist or color-digits, which stand in for it"
    )


def _binary(folder: Path, names: list[str]) -> Split:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {' and '.join(missing)}: unpack the binary version of CIFAR-10 anew"
        )
    parts = [_records(folder / name) for name in names]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    return x, y


def _records(path: Path) -> Split:
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if not len(content) or len(content) % RECORD:
        raise ValueError(
            f"{path} has {len(content)} bytes, which is not a multiple of {RECORD}, an image with "
            "its class: it is cut, or another file; unpack the binary version of CIFAR-10 anew"
        )
    records = content.reshape(-1, RECORD)
    classes = records[:, 0].astype(np.int64)
    if classes.max() >= NUM_CLASSES:
        raise ValueError(
            f"{path} has a class {classes.max()}, but CIFAR-10's are 0 to 9: it is another file "
            "(CIFAR-100 has two bytes for a class); unpack the binary version of CIFAR-10 anew"
        )
    return records[:, 1:].reshape(-1, *SHAPE), classes


def _folders(root: Path) -> tuple[Split, Split]:
    found = {split: image_paths(root / split) for split in ("train", "test")}
    names = {split: sorted({path.parent.name for path in paths}) for split, paths in found.items()}
    if names["train"] != names["test"]:
        raise ValueError(
            f"{root} has other classes to train on, {names['train']}, than to test on, "
            f"{names['test']}: give both splits the same folders"
        )
    number = {name: k for k, name in enumerate(names["train"])}
    train, test = (
        (
            np.stack([_image(path) for path in paths]),
            np.array([number[p.parent.name] for p in paths]),
        )
        for paths in found.values()
    )
    return train, test


def _image(path: Path) -> np.ndarray:
    x = read_image(path, "RGB")
    if x.shape != SHAPE:
        raise ValueError(f"{path} has {x.shape[2]} x {x.shape[1]} pixels, CIFAR-10's have 32 x 32")
    return x
