"""Rows with gaps, whose posterior is improved before anything is read from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from facetvae.table_rules.rows import is_missing
from guides import FacetGuide, Refined

# Chosen on drawn tables with gaps.
IMPROVED = partial(Refined, num_steps=20, num_points=8, rate=0.4)
# Entries that are improved at once.
ENTRIES = 2**17


class ImprovedInGaps:
    """A fitted guide as a reader of rows: where a row has a gap, its posterior is improved by steps
    on the row's own bound (:class:`~guides.Refined`). An encoder sees too few rows of each pattern
    of gaps to be as good there as elsewhere.

    A row with gaps takes as long as some hundred rows without.

    :param guide: of a model of columns.
    """

    def __init__(self, guide: FacetGuide) -> None:
        self.guide, self.model = guide, guide.model
        self.improved = copy.copy(guide)
        self.improved.family = IMPROVED(guide.family)

    def embed(self, x: np.ndarray, **given: Any) -> dict[str, np.ndarray]:
        """As the guide's: ``{name: [N, d]}``."""
        found = self.guide.embed(x, **given)
        for rows in self._improved_at_once(x):
            for name, z in self.improved.embed(x[rows]).items():
                found[name][rows] = z
        return found

    def reconstruct(self, x: np.ndarray, **given: Any) -> np.ndarray:
        """As the guide's: ``[N, *x_shape]``."""
        found = self.guide.reconstruct(x, **given)
        for rows in self._improved_at_once(x):
            found[rows] = self.improved.reconstruct(x[rows])
        return found

    def _improved_at_once(self, x: np.ndarray) -> Iterator[np.ndarray]:
        rows = rows_with_gaps(x)
        most = max(1, ENTRIES // x[:1].size)
        return (rows[start : start + most] for start in range(0, len(rows), most))


def rows_with_gaps(x: np.ndarray) -> np.ndarray:
    """The numbers of the rows of ``x`` ``[N, ...]`` that miss an entry."""
    return np.flatnonzero(is_missing(x).reshape(len(x), -1).any(1))


#: What rows are read by: their latents, and what these reconstruct.
Reads = FacetGuide | ImprovedInGaps
