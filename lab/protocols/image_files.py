"""Images in files: one, a folder of them for each group, and faces under many lights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

#: What the names of images end with, in small letters.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".webp")
#: Pixels of a side of grouped images and faces.
SIDE = 64
# The light's azimuth and elevation, degrees, in a file's name.
LIGHT = re.compile(r"_P00A([+-]\d{3})E([+-]\d{2})\.pgm$")
WIDEST = 100
FEWEST = 2  # images of a group: one to train on and one to test on


def read_image(
    path: Path, mode: str, prepare: Callable[[Image.Image], Image.Image] | None = None
) -> np.ndarray:
    """An image ``[C, H, W]`` as uint8.

    :param mode: Pillow's: ``"RGB"``, or ``"L"`` for gray.
    :param prepare: what is done with it first, such as making it smaller.
    :raises ValueError: if it cannot be read.
    """
    try:
        with Image.open(path) as image:
            x = np.asarray((prepare(image) if prepare else image).convert(mode))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return np.moveaxis(x, -1, 0) if x.ndim == 3 else x[None]


def image_paths(folder: Path) -> list[Path]:
    """The images in this folder's own folders, in order; what is hidden is left out.

    :raises FileNotFoundError: if there are none, saying what is needed.
    """
    found = [
        path
        for path in sorted(folder.glob("[!.]*/[!.]*"))
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]
    if not found:
        raise FileNotFoundError(
            f"no images in {folder}: a folder for each group is needed, as in NAME/0001.png; what "
            f"ends with {', '.join(SUFFIXES)} is read"
        )
    return found


def grouped_images(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images ``[N, 3, 64, 64]`` as uint8, and the group ``[N]`` of each: the number of its folder,
    in the order of their names.

    Turned as their cameras noted, cut to the square in the middle and made so large. A folder with
    one image is left out: there would be nothing to test with.

    :raises FileNotFoundError: as :func:`image_paths`.
    :raises ValueError: if no folder has two images, or one cannot be read.
    """
    paths = image_paths(folder)
    names, group, count = np.unique(
        [path.parent.name for path in paths], return_inverse=True, return_counts=True
    )
    kept = np.flatnonzero(count[group] >= FEWEST)
    if not len(kept):
        raise ValueError(
            f"{folder} has {len(names)} folders with one image each: groups of {FEWEST} or more "
            "are needed"
        )
    images = np.stack([read_image(paths[row], "RGB", as_square) for row in kept])
    return images, np.unique(group[kept], return_inverse=True)[1]


def as_square(image: Image.Image) -> Image.Image:
    return ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (SIDE, SIDE))


def read_faces(folder: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The cropped Extended Yale Face Database B (Lee, Ho and Kriegman, 2005): images
    ``[N, 1, 64, 64]`` as uint8, and labels ``[N]``: ``person`` from 0 on, ``azimuth`` and
    ``elevation``.

    Files are ``yaleBxx/yaleBxx_P00A+aaaE+ee.pgm``. As in N-VAE, those lit from 100 degrees or more
    are left out; so are ambient light and damaged files (``.bad``).

    :raises FileNotFoundError: if there are none, saying what is needed.
    :raises ValueError: if an image cannot be read.
    """
    found = [(path, LIGHT.search(path.name)) for path in sorted(folder.glob("yaleB*/*.pgm"))]
    lit = [(path, int(match[1]), int(match[2])) for path, match in found if match]
    lit = [each for each in lit if max(map(abs, each[1:])) < WIDEST]
    if not lit:
        raise FileNotFoundError(
            f"no faces in {folder}: the cropped Extended Yale Face Database B is needed, a folder "
            "for each person, as "
            "in yaleB01/yaleB01_P00A+000E+00.pgm\n"
            "  Try: --data-root FOLDER, or FACETVAE_DATA=FOLDER, where the folder CroppedYale is"
        )
    paths, azimuth, elevation = zip(*lit, strict=True)
    person = np.unique([path.parent.name for path in paths], return_inverse=True)[1]
    labels = {"person": person, "azimuth": np.array(azimuth), "elevation": np.array(elevation)}
    return np.stack([read_image(path, "L", small) for path in paths]), labels


def small(image: Image.Image) -> Image.Image:
    return image.convert("L").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
