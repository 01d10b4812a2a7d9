"""Descriptions of images in which small deformations count for little, for neighbors."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, pi

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample

from inference.initialization.graph import NeighborGraph
from ppl_models.given.arrays import as_numbers

# Directions that edges are told apart in, deviation of the blur in pixels, and pixels between
# places: a stroke may move by a pixel or two, and turn by a few degrees.
DIRECTIONS, BLUR, STRIDE = 8, 1.5, 2
# Other forms of an image: turned by so many radians, or sheared by so much.
TURN, SHEAR = 0.2, 0.3
# At random also moved by a share of the side, and scaled by a factor with this logarithm.
SHIFT, LOG_SCALE = 0.07, 0.15
# Images that are described at once.
AT_ONCE = 500
# Principal components of the descriptions.
DIM = 100


def image_graph(
    images: ArrayLike | Tensor, num_neighbors: int = 10, seed: int = 0
) -> NeighborGraph:
    """The graph of images whose edges, in the sense of gradients, lie in about the same places.

    Neighbors are found by how strong the edges of each direction are around each place, of images
    and their :func:`image_variants`.

    :param images: ``[N, H, W]`` or ``[N, C, H, W]``.
    :param num_neighbors: of each image, below N.
    :raises ValueError: as :class:`NeighborGraph` does.

    Example:
        >>> import numpy as np
        >>> from inference import image_graph
        >>> images = np.random.default_rng(0).random((20, 8, 8))
        >>> image_graph(images, num_neighbors=3).weights.shape
        (20, 20)
    """
    pixels = _pixels(images)
    forms = [oriented_gradients(each) for each in (pixels, *image_variants(pixels))]
    return NeighborGraph(forms[0], num_neighbors, DIM, forms[1:], seed)


def oriented_gradients(images: ArrayLike | Tensor) -> Tensor:
    """How strong the edges of each direction are around each place: ``[N, F]``.

    Gradients are split among eight directions, blurred, and their roots taken at every other pixel,
    much as in histograms of oriented gradients (Dalal and Triggs, 2005). Of several channels their
    mean counts, so that images of one shape in two colors are near to each other.
    """
    brightness = _pixels(images).mean(1, keepdim=True)
    return torch.cat([_described(part) for part in brightness.split(AT_ONCE)])


def image_variants(images: ArrayLike | Tensor) -> Iterator[Tensor]:
    """The images ``[N, C, H, W]`` turned to the left and right by 11 degrees, and sheared.

    :param images: ``[N, H, W]`` or ``[N, C, H, W]``.
    :raises ValueError: if they have another shape.

    Example:
        >>> import numpy as np
        >>> from inference import image_variants
        >>> [each.shape for each in image_variants(np.zeros((3, 8, 8)))]  # doctest: +ELLIPSIS
        [torch.Size([3, 1, 8, 8]), ...]
    """
    pixels = _pixels(images)
    for turn, shear in ((TURN, 0.0), (-TURN, 0.0), (0.0, SHEAR), (0.0, -SHEAR)):
        yield _moved(pixels, turn, shear)


def random_affine(images: ArrayLike | Tensor, seed: int = 0) -> Tensor:
    """Each image turned, by up to 11 degrees, sheared, by up to 0.3, scaled, by up to 16 %, and
    moved, by up to 7 % of its sides, at random.

    :param images: ``[N, H, W]`` or ``[N, C, H, W]``; 8-bit values are divided by 255.
    :param seed: of the draws.
    :returns: images of the same shape.
    :raises ValueError: if they have another shape.

    Example:
        >>> import numpy as np
        >>> from inference import random_affine
        >>> random_affine(np.zeros((3, 8, 8)), seed=1).shape
        torch.Size([3, 8, 8])
    """
    pixels, rng = _pixels(images), np.random.default_rng(seed)
    most = np.array([TURN, SHEAR, LOG_SCALE, 2 * SHIFT, 2 * SHIFT])  # a side is 2 long
    drawn = rng.uniform(-most, most, (len(pixels), len(most))).astype(np.float32)
    return _moved(pixels, *torch.from_numpy(drawn).unbind(1)).reshape(as_numbers(images).shape)


def _pixels(images: ArrayLike | Tensor) -> Tensor:
    pixels = as_numbers(images)
    if pixels.ndim not in (3, 4) or not pixels.numel():
        raise ValueError(
            f"images has shape {list(pixels.shape)}, but [N, H, W] or [N, C, H, W] is needed, not "
            "empty: reshape rows of pixels"
        )
    scale = 255.0 if pixels.dtype == torch.uint8 else 1.0
    return (pixels if pixels.ndim == 4 else pixels.unsqueeze(1)).float() / scale


def _moved(
    pixels: Tensor,
    turn: Tensor | float = 0.0,
    shear: Tensor | float = 0.0,
    log_scale: Tensor | float = 0.0,
    across: Tensor | float = 0.0,
    down: Tensor | float = 0.0,
) -> Tensor:
    """Images ``[N, C, H, W]``, each by its own map ``[N]`` or all by one."""
    given = map(torch.as_tensor, (turn, shear, log_scale, across, down))
    angle, tilt, log_size, x, y, _ = torch.broadcast_tensors(*given, torch.zeros(len(pixels)))
    size, cos, sin = log_size.exp(), angle.cos(), angle.sin()
    first = torch.stack([size * cos, size * (tilt * cos - sin), x], -1)
    second = torch.stack([size * sin, size * (tilt * sin + cos), y], -1)
    theta = torch.stack([first, second], 1).to(pixels)
    moved = []
    for images, maps in zip(pixels.split(AT_ONCE), theta.split(AT_ONCE), strict=True):
        grid = affine_grid(maps, list(images.shape), align_corners=False)
        moved.append(grid_sample(images, grid, align_corners=False))
    return torch.cat(moved)


def _described(pixels: Tensor) -> Tensor:
    sobel = pixels.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    filters = torch.stack([sobel, sobel.mT]).unsqueeze(1)
    across, down = conv2d(pixels.flatten(0, 1).unsqueeze(1), filters, padding=1).split(1, 1)
    strength = (across.square() + down.square()).sqrt()
    angle = torch.arange(DIRECTIONS, device=pixels.device)[:, None, None] * 2 * pi / DIRECTIONS
    along = (across * angle.cos() + down * angle.sin()).clamp_min(0)
    each_direction = along.square() / strength.clamp_min(torch.finfo(strength.dtype).tiny)
    height, width = pixels.shape[-2:]
    blurred = _blur(height, pixels) @ each_direction @ _blur(width, pixels).mT
    return blurred.sqrt().reshape(len(pixels), -1)


def _blur(size: int, like: Tensor) -> Tensor:
    """The weights of a line's pixels at every other place, which fall as a normal density."""
    offset = torch.arange(size) - torch.arange(0, size, STRIDE).unsqueeze(1)
    reach = torch.arange(-ceil(3 * BLUR), ceil(3 * BLUR) + 1)
    bell = torch.exp(-offset.square() / (2 * BLUR**2)) * (offset.abs() <= reach.max())
    return (bell / torch.exp(-reach.square() / (2 * BLUR**2)).sum()).to(like)
