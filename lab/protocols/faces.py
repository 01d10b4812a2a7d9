"""Reader of the cropped Extended Yale Face Database B (Lee, Ho and Kriegman, 2005)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

from lab.protocols.image_files import read_image

__all__ = ["read_faces"]

# The light's azimuth and elevation, degrees, in a file's name.
LIGHT = re.compile(r"_P00A([+-]\d{3})E([+-]\d{2})\.pgm$")
SIDE, WIDEST = 64, 100


def read_faces(folder: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Images ``[N, 1, 64, 64]`` as uint8, and labels ``[N]``: ``person`` from 0 on, ``azimuth`` and
    ``elevation``.

    Files are ``yaleBxx/yaleBxx_P00A+aaaE+ee.pgm``. As in N-VAE, those lit from 100 degrees or more
    are left out; so are ambient light and damaged files (``.bad``).

    :raises FileNotFoundError: if there are none, saying what is needed.
    :raises ValueError: if an image cannot be read.
    """
    found = [(path, LIGHT.search(path.name)) for path in sorted(folder.glob("yaleB*/*.pgm"))]
    lit = [(path, int(match[1]), int(match[2])) for path, match in found if match]
    lit = [
        (path, azimuth, elevation)
        for path, azimuth, elevation in lit
        if max(abs(azimuth), abs(elevation)) < WIDEST
    ]
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
