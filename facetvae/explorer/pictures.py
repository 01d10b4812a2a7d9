"""Any datum as a small picture: images as they are, other data as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inference.figures.drawing import check_image_shape, is_image, pixels

# Bars of a datum that is not an image: height and approximate width of the picture, in pixels.
BAR_HEIGHT, BARS_WIDTH = 48, 96
INK, GROUND, AXIS = (31, 94, 102), (255, 255, 255), (205, 205, 200)


@dataclass(frozen=True)
class Pictures:
    """Draws data of one kind on one scale, so that pictures can be compared.

    :ivar shape: ``(H, W)`` or ``(C, H, W)`` with one or three channels; ``None`` of other data.
    :ivar low: value that is drawn black, or as no bar.
    :ivar high: value that is drawn white, or as the highest bar.

    Example:
        >>> import numpy as np
        >>> from facetvae.explorer import Pictures
        >>> x = np.random.default_rng(0).random((20, 64))
        >>> Pictures.of(x, shape=(8, 8))(x[:3]).shape
        (3, 8, 8)
    """

    shape: tuple[int, ...] | None
    low: float
    high: float

    @classmethod
    def of(cls, x: np.ndarray, shape: Sequence[int] | None = None) -> Pictures:
        """Pictures for data ``[N, *x_shape]`` on the scale [0, 1], or on theirs if they exceed it.

        :param shape: of an image; by default that of a datum, if it is an image's.
        :raises ValueError: if the data cannot have this shape.
        """
        if shape is None:
            shape = x.shape[1:] if is_image(x.shape[1:]) else None
        else:
            shape = check_image_shape(shape, x.shape[1:])
        values = pixels(x)
        there = values[~np.isnan(values)]  # gaps have no value
        low, high = (float(there.min()), float(there.max())) if there.size else (0.0, 1.0)
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        return cls(shape, low, high if high > low else low + 1)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """8-bit pictures ``[n, H, W]`` in gray, or ``[n, H, W, 3]``, of data ``[n, *x_shape]``.

        What is missing looks like 0.
        """
        values = ((pixels(x) - self.low) / (self.high - self.low)).clip(0, 1).reshape(len(x), -1)
        zero = float(np.clip(-self.low / (self.high - self.low), 0, 1))
        values = np.nan_to_num(values, nan=zero)
        if self.shape is None:
            return _bars(values, zero)
        images = (255 * values).round().astype(np.uint8).reshape(-1, *self.shape)
        if len(self.shape) == 2:
            return images
        return images[:, 0] if self.shape[0] == 1 else np.moveaxis(images, 1, -1)


def _bars(values: np.ndarray, zero: float) -> np.ndarray:
    """Values ``[n, D]`` in [0, 1] as bars from a line at ``zero``: pictures ``[n, H, W, 3]``."""
    n, D = values.shape
    width = max(1, BARS_WIDTH // D)
    gap = int(width > 2)
    # Of each row of pixels, from top to bottom.
    level = (np.arange(BAR_HEIGHT)[::-1, None] + 0.5) / BAR_HEIGHT
    low, high = np.minimum(values, zero)[:, None], np.maximum(values, zero)[:, None]
    bars = (level >= low) & (level <= high)  # [n, H, D]
    bars = bars.repeat(width, 2).reshape(n, BAR_HEIGHT, D, width)
    bars[..., width - gap :] = False
    pictures = np.full((n, BAR_HEIGHT, D * width, 3), GROUND, np.uint8)
    pictures[:, np.abs(level[:, 0] - zero).argmin()] = AXIS
    pictures[bars.reshape(n, BAR_HEIGHT, D * width)] = INK
    return pictures
