"""Several tensors of one type as few, so that what is done to each is done to a few."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

# Entries of a tensor that stays as it is.
LARGE = 2**14
# Entries of a row.
ROW = 16


class Vectors:
    """Where some tensors are: the small ones within one vector, the large ones as they are.

    In the vector each tensor begins a row, and zeros fill its last row, so that norms of all come
    from sums of rows.

    :param shapes: of the tensors.
    :ivar small: places of the small ones among all.
    :ivar large: of the others.
    :ivar sizes: numbers of entries, of the small ones.
    :ivar ends: numbers of entries and zeros, of the small ones.
    :ivar rows: rows of each small one, ``[tensors, most rows]``, and then the number of all rows.
    :ivar order: places of all among the small ones followed by the large ones.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self.shapes = [tuple(shape) for shape in shapes]
        self.small = [i for i, shape in enumerate(shapes) if prod(shape) < LARGE]
        self.large = [i for i, shape in enumerate(shapes) if prod(shape) >= LARGE]
        self.sizes = [prod(self.shapes[i]) for i in self.small]
        counts = np.array([-(-size // ROW) for size in self.sizes], dtype=int)
        self.ends = [int(ROW * count) for count in counts]
        starts, most = counts.cumsum() - counts, np.arange(counts.max(initial=0))
        own = most < counts[:, None]
        self.rows = np.where(own, starts[:, None] + most, counts.sum())
        self.order = np.argsort([*self.small, *self.large])

    def vector(self, like: Tensor) -> Tensor:
        """Zeros, for the small ones."""
        return like.new_zeros(sum(self.ends))

    def views(self, vector: Tensor) -> list[Tensor]:
        """The small ones within their vector."""
        parts = zip(vector.split(self.ends), self.sizes, self.small, strict=True)
        return [part[:size].view(self.shapes[i]) for part, size, i in parts]

    def apart(self, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The small ones and the large ones of all."""
        return [tensors[i] for i in self.small], [tensors[i] for i in self.large]
