"""Rows that lie far from all others: no cluster should be fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from facetvae.table_rules.rows import in_parts, some_rows

# Neighbors of each row, or a tenth of the rows if these are fewer; with less than five there is
# too little to compare.
NEIGHBORS, FEWEST_NEIGHBORS = 20, 5
# How many times as far from its neighbors as these are from theirs an outlying row is (in drawn
# clusters of normals at most 2.1).
FACTOR = 2.5
# Standardized values beyond which rows are equally far.
FAR = 1e6
# The share of a column's variance that is nearly all.
ALL = 0.99
# The rows that others are compared with.
MOST_ROWS = 10_000


class Outliers:
    """Tells outlying rows from those that lie among others (local outlier factor; Breunig et al.,
    2000), by neighbors among at most 10,000 rows, of which equal ones count once.

    As many rows as there are neighbors that lie together, copies among them, are a group and no
    outliers: each is within 1 / 2.5 of its distance to the other rows, as is a later row so near to
    one of them.

    :param x: ``[N, ...]``, encoded; missing entries count as 0.
    :param usual: numbers of the rows of ``x`` to compare with, ascending; by default all.
    :param shared: numbers of further such rows, none of which is left out at random.
    """

    def __init__(
        self, x: np.ndarray, usual: np.ndarray | None = None, shared: Sequence[int] = ()
    ) -> None:
        usual = np.arange(len(x)) if usual is None else usual
        chosen = np.setdiff1d(some_rows(usual, most=MOST_ROWS), shared)
        looked_at = x[np.concatenate([chosen, np.asarray(shared, int)])]
        rows, copies = np.unique(_flat(looked_at), axis=0, return_counts=True)
        self._rows = self._groups = rows[:0].astype(x.dtype)
        self._k = min(NEIGHBORS, len(rows) // 10)
        if self._k < FEWEST_NEIGHBORS:
            return
        factors = -LocalOutlierFactor(n_neighbors=self._k).fit(rows).negative_outlier_factor_
        far = factors > FACTOR
        if (~far).sum() > self._k:
            self._rows = rows[~far].astype(x.dtype)
            if far.any():
                self._find_groups(rows[far], copies[far], rows[~far])

    def _find_groups(self, far: np.ndarray, copies: np.ndarray, others: np.ndarray) -> None:
        """Of rows that are far from others, those that are groups; and how far these reach."""
        reach = _nearest(others, 1, far)[0][:, 0] / FACTOR
        distance, neighbor = _nearest(far, min(self._k, len(far)), far)
        near = np.where(distance <= reach[:, None], copies[neighbor], 0).sum(1) >= self._k
        self._groups, self._reach = far[near].astype(self._groups.dtype), reach[near]

    @cached_property
    def _detector(self) -> LocalOutlierFactor:
        return LocalOutlierFactor(n_neighbors=self._k, novelty=True).fit(_flat(self._rows))

    def __getstate__(self) -> dict[str, Any]:  # its trees are as large again, and soon made
        return {name: value for name, value in vars(self).items() if name != "_detector"}

    def among(self, x: np.ndarray) -> np.ndarray:
        """Which rows of ``x`` are outlying: ``[N]``."""
        if not len(self._rows):
            return np.zeros(len(x), bool)

        def outlying(part: np.ndarray) -> np.ndarray:
            far = -self._detector.score_samples(_flat(part)) > FACTOR
            far[far] = ~self._in_group(part[far])
            return far

        return in_parts(outlying, x)

    def shared(self, x: np.ndarray, found: np.ndarray) -> np.ndarray:
        """Numbers of rows that are outlying among those compared, but that so many of all rows
        ``x`` are equal to that they are a group.
        """
        rows = np.flatnonzero(found)
        if not len(rows):
            return rows
        _, same, copies = np.unique(_flat(x[rows]), axis=0, return_inverse=True, return_counts=True)
        return rows[copies[same.reshape(-1)] >= self._k]

    def _in_group(self, x: np.ndarray) -> np.ndarray:
        if not len(self._groups) or not len(x):
            return np.zeros(len(x), bool)
        distance, group = _nearest(_flat(self._groups), 1, _flat(x))
        return distance[:, 0] <= self._reach[group[:, 0]]


def has_all_variance(x: np.ndarray) -> np.ndarray:
    """Which rows ``[N, D]``, fewer than are a group, have nearly all of a column's variance; NaN
    where missing.
    """
    found = np.zeros(len(x), bool)
    for column in x.T:
        there = np.flatnonzero(np.isfinite(column))
        found[there[_with_all_variance(column[there].astype(float))]] = True
    return found


def _with_all_variance(values: np.ndarray) -> np.ndarray:
    """Places of the fewest values ``[n]`` beside which the others vary hardly, but do."""
    most = min(NEIGHBORS, len(values) // 10)
    if most < FEWEST_NEIGHBORS or not np.ptp(values):
        return np.zeros(0, int)
    values = values / np.abs(values).max()  # squares of larger ones may overflow
    far, order = np.square(values - values.mean()), np.zeros(0, int)
    if most * far.max() > ALL * far.sum():  # else no rows so few can have it
        order = np.argsort(-np.abs(values - np.median(values)))
    for number in range(1, min(most, len(order))):
        others = values[order[number:]]
        if np.ptp(others) and others.var() < (1 - ALL) * values.var():
            return order[:number]
    return np.zeros(0, int)


def _nearest(among: np.ndarray, number: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances of each row of ``x`` to its nearest ones, and their numbers: ``[N, number]``."""
    return NearestNeighbors(n_neighbors=number).fit(among).kneighbors(x)


def _flat(x: np.ndarray) -> np.ndarray:
    rows = np.nan_to_num(x.reshape(len(x), -1).astype(float), copy=False)
    return rows.clip(-FAR, FAR, out=rows)
