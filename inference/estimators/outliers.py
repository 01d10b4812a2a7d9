"""Rows that lie far from all others: no cluster should be fitted to them."""

from __future__ import annotations

import numpy as np
from sklearn.neighbors import LocalOutlierFactor

__all__ = ["Outliers"]

# Neighbours of each row, or a tenth of the rows if these are fewer; with less than five there is
# too little to compare.
NEIGHBORS, FEWEST_NEIGHBORS = 20, 5
# How many times as far from its neighbours as these are from theirs an outlying row is. In drawn
# clusters of normals it is at most 2.1 for every row.
FACTOR = 2.5
# The rows that others are compared with.
MOST_ROWS = 10_000


class Outliers:
    """Tells outlying rows from those that lie among others (local outlier factor; Breunig et al.,
    2000).

    Rows are compared with their neighbours, so clusters may differ in density. A group of more than
    20 rows that lie together is no outlier. Equal rows count once: copies would be infinitely
    dense.

    :param x: ``[N, ...]``, encoded; missing entries count as 0.
    """

    def __init__(self, x: np.ndarray) -> None:
        rows = np.unique(_flat(_some(x)), axis=0)
        self._detector = None
        if (k := min(NEIGHBORS, len(rows) // 10)) < FEWEST_NEIGHBORS:
            return
        factors = -LocalOutlierFactor(n_neighbors=k).fit(rows).negative_outlier_factor_
        if (usual := rows[factors <= FACTOR]).shape[0] > k:
            self._detector = LocalOutlierFactor(n_neighbors=k, novelty=True).fit(usual)

    def among(self, x: np.ndarray) -> np.ndarray:
        """Which rows of ``x`` are outlying: ``[N]``."""
        if self._detector is None:
            return np.zeros(len(x), bool)
        return -self._detector.score_samples(_flat(x)) > FACTOR


def _flat(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(x.reshape(len(x), -1).astype(float))


def _some(x: np.ndarray) -> np.ndarray:
    if len(x) <= MOST_ROWS:
        return x
    return x[np.random.default_rng(0).choice(len(x), MOST_ROWS, replace=False)]
