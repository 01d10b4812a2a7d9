"""Rows that lie far from all others: no cluster should be fitted to them."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from inference.estimators.rows import MANY, in_parts
from inference.initialization.nearest import CellSearch

__all__ = ["Outliers"]

# Neighbours of each row, or a tenth of the rows if these are fewer; with less than five there is
# too little to compare.
NEIGHBORS, FEWEST_NEIGHBORS = 20, 5
# How many times as far from its neighbours as these are from theirs an outlying row is. In drawn
# clusters of normals it is at most 2.1 for every row.
FACTOR = 2.5
# The rows that others are compared with.
MOST_ROWS = 10_000
# The factor by approximate neighbours beyond which that by exact ones is computed. Neighbours that
# are missed make it larger.
SUSPECT = 2.2


class Outliers:
    """Tells outlying rows from those that lie among others (local outlier factor; Breunig et al.,
    2000).

    Rows are compared with their neighbours, so clusters may differ in density. A group of more than
    20 rows that lie together is no outlier. Equal rows count once: copies would be infinitely
    dense.

    Neighbours are sought among at most 10,000 rows, drawn at random. More than 20,000 rows are
    compared with approximate neighbours first, if faiss is installed (``facetvae[neighbors]``), and
    with exact ones only if they may be outlying.

    :param x: ``[N, ...]``, encoded; missing entries count as 0.
    :param usual: numbers of the rows of ``x`` to compare with, ascending; by default all.
    """

    def __init__(self, x: np.ndarray, usual: np.ndarray | None = None) -> None:
        rows = np.unique(_flat(_some(x, usual)), axis=0)
        self._rows = rows[:0]
        self._k = min(NEIGHBORS, len(rows) // 10)
        if self._k < FEWEST_NEIGHBORS:
            return
        factors = -LocalOutlierFactor(n_neighbors=self._k).fit(rows).negative_outlier_factor_
        if (inliers := rows[factors <= FACTOR]).shape[0] > self._k:
            self._rows = inliers.astype(x.dtype)

    @cached_property
    def _detector(self) -> LocalOutlierFactor:
        return LocalOutlierFactor(n_neighbors=self._k, novelty=True).fit(_flat(self._rows))

    def __getstate__(self) -> dict[str, Any]:  # its trees are as large again, and soon made
        return {name: each for name, each in vars(self).items() if name != "_detector"}

    def among(self, x: np.ndarray, shown: str | None = None) -> np.ndarray:
        """Which rows of ``x`` are outlying: ``[N]``.

        :param shown: what to call it beside a progress bar; ``None`` for no bar.
        """
        if not len(self._rows):
            return np.zeros(len(x), bool)
        if len(x) > MANY:
            with suppress(ImportError):
                return in_parts(_Screened(_flat(self._rows), self._detector).among, x, shown)
        return in_parts(lambda part: _outlying(self._detector, part), x, shown)


class _Screened:
    """The same by approximate neighbours, and by exact ones where these leave a doubt.

    :raises ImportError: if faiss is not installed.
    """

    def __init__(self, rows: np.ndarray, exact: LocalOutlierFactor) -> None:
        self._search, self._exact = CellSearch(rows.astype(np.float32)), exact
        self._k, self._number = exact.n_neighbors, len(rows)
        own = NearestNeighbors(n_neighbors=self._k + 1).fit(rows).kneighbors(rows)
        lof = LocalOutlierFactor(n_neighbors=self._k, metric="precomputed", novelty=True)
        self._approximate = lof.fit(self._graph(*own))

    def among(self, x: np.ndarray) -> np.ndarray:
        places = np.ascontiguousarray(_flat(x), np.float32)
        graph = self._graph(*self._search.nearest(places, self._k))
        found = -self._approximate.score_samples(graph) > SUSPECT
        found[found] = _outlying(self._exact, x[found]) if found.any() else False
        return found

    def _graph(self, distance: np.ndarray, neighbor: np.ndarray) -> csr_matrix:
        """Distances from rows to their neighbours, in the form that scikit-learn takes."""
        n, k = distance.shape
        ends = np.arange(0, n * k + 1, k)
        parts = (distance.ravel().astype(float), neighbor.ravel(), ends)
        return csr_matrix(parts, shape=(n, self._number))


def _outlying(detector: LocalOutlierFactor, x: np.ndarray) -> np.ndarray:
    return -detector.score_samples(_flat(x)) > FACTOR


def _flat(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(x.reshape(len(x), -1).astype(float))


def _some(x: np.ndarray, usual: np.ndarray | None) -> np.ndarray:
    n = len(x) if usual is None else len(usual)
    if n <= MOST_ROWS:
        return x if usual is None else x[usual]
    chosen = np.random.default_rng(0).choice(n, MOST_ROWS, replace=False)
    return x[chosen if usual is None else usual[chosen]]
