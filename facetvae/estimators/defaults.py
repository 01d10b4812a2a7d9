"""Default settings: networks, latents, length of training, numbers of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

import numpy as np

from ppl_models import MLP, ConvLadder, MLPLadder
from ppl_models.networks import Architecture

# Optimizer steps of estimators without phases, if no number of epochs is given.
STEPS = 4000
# Share of a further facet's phase in which it is faded in.
FADE = 0.6
# How often the width of a network doubles from level to level.
DOUBLINGS = 2


@dataclass(frozen=True)
class Lengths:
    """Epochs of each facet's phase without mixtures, the deepest facet's first (``alone``), and of
    the phase with them; steps in which a further facet is faded in.
    """

    alone: tuple[int, ...]
    fade_steps: int
    together: int


def epochs_of(steps: int, n: int, batch_size: int) -> int:
    """The number of passes over ``n`` data that has about this many steps."""
    return max(1, round(steps / -(-n // batch_size)))


def default_batch_size(n: int) -> int:
    """A power of 2 near a twentieth of the data, between 16 and 512."""
    return int(np.clip(2 ** round(log2(max(n / 20, 1))), 16, 512))


def default_dims(x_shape: Sequence[int], num_facets: int) -> int:
    """Latents of a facet: 5, or fewer for data of few entries."""
    return int(np.clip(prod(x_shape) // num_facets, 1, 5))


def default_network(x_shape: Sequence[int], num_facets: int) -> Architecture:
    """A ladder whose last rungs are the facets'; convolutional for ``(C, H, W)`` of 16 or more."""
    if num_facets > prod(x_shape):
        raise ValueError(
            f"facets={num_facets} is too many: a sample of X has {prod(x_shape)} feature(s), and "
            "the default network takes at most as many facets"
        )
    levels = max(num_facets, 2)
    rungs = list(range(levels - num_facets, levels))
    if len(x_shape) == 3 and all(
        n >= 2 ** (levels + 1) and n % 2**levels == 0 and n >= 16 for n in x_shape[1:]
    ):
        return ConvLadder(_doubling(32, levels), rungs=rungs)
    return MLPLadder(_widths(x_shape, levels), rungs=rungs)


def default_plain_network(x_shape: Sequence[int], skip: bool = False) -> MLP:
    """Fully connected, without levels; with ``skip``, linear maps beside the hidden layers."""
    return MLP(_widths(x_shape, 2), dropout=0, skip=skip)


def _widths(x_shape: Sequence[int], levels: int) -> list[int]:
    """About three units for each entry on the first level, between 64 and 512."""
    return _doubling(int(np.clip(2 ** ceil(log2(3 * prod(x_shape))), 64, 512)), levels)


def _doubling(first: int, levels: int) -> list[int]:
    """Widths that double up to the third level."""
    return [first * 2 ** min(level, DOUBLINGS) for level in range(levels)]
