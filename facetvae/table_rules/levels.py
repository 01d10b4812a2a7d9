"""Columns of few values: two answers, a scale from 1 to 5, levels of a category, rounded numbers,
an amount that is often exactly zero. Each value is a mode of the density, and none is a grouping.
"""

from __future__ import annotations

import numpy as np

#: Whole numbers of at most so many values are no counts, and no measurements.
FEW_VALUES = 10
# Rows for each value of a rounded column, at least.
PER_STEP = 8
# Rows that two columns of zeros and ones would share by chance, if they share none, from which on
# they are levels of one category.
BY_CHANCE = 12
# Share of the rows that a value of its own has at least, and how many times the next one's.
LEAST_ATOM, FAR_AHEAD = 0.05, 4


def levels_of(values: np.ndarray) -> int:
    """How many levels a column has that are no numbers: two, or a few of which most rows have one;
    else 0.
    """
    levels, counts = np.unique(values, return_counts=True)
    if not 1 < len(levels) <= FEW_VALUES:
        return 0
    return len(levels) if len(levels) == 2 or counts.max() > len(values) / 2 else 0


def has_steps(values: np.ndarray) -> bool:
    """Whether a column has few values, none in most rows, as what was rounded, answered on a scale
    or counted has; the steps between them differ where a skewness was removed.
    """
    levels, counts = np.unique(values, return_counts=True)
    return bool(2 < len(levels) <= len(values) / PER_STEP and counts.max() <= len(values) / 2)


def spread(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each value drawn anew, up to halfway to the next ones, or half the median step; but for one
    that stands apart (:func:`atom_of`).
    """
    if (atom := atom_of(values)) is not None:
        others = values != atom
        values = values.copy()
        values[others] = spread(values[others], rng)
        return values
    levels, level = np.unique(values, return_inverse=True)
    if len(levels) < 2:
        return values
    steps = np.diff(levels)
    steps = np.minimum(steps, np.median(steps)) / 2
    below, above = np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]])
    return values + rng.uniform(-below[level], above[level])


def levels_of_one(values: np.ndarray, levels: np.ndarray) -> list[np.ndarray]:
    """Sets of columns of zeros and ones that are levels of one category, as in one-hot coding: no
    row has two.

    :param values: ``[N, D]``: numbers, and codes of categories; NaN where missing.
    :param levels: of each column the number of its categories, 0 for numbers.
    """
    ones = np.nan_to_num(values) == 1
    waiting = sorted(np.flatnonzero(levels == 2), key=lambda d: -ones[:, d].sum())
    sets = []
    while waiting:
        first, *others = waiting
        own, covered = [first], ones[:, first]
        for d in others:
            by_chance = covered.mean() * ones[:, d].sum()
            if by_chance > BY_CHANCE and not (covered & ones[:, d]).any():
                own, covered = [*own, d], covered | ones[:, d]
        waiting = [d for d in others if d not in own]
        if len(own) > 1:
            sets.append(np.array(own))
    return sets


def atom_of(values: np.ndarray) -> float | None:
    """A number that many rows share, unlike all others, as customers share a spending of zero; of
    values ``[N]``, NaN where missing.
    """
    values = values[~np.isnan(values)]
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 3:
        return None
    second, first = np.sort(counts)[-2:]
    stands_apart = first >= LEAST_ATOM * len(values) and first > FAR_AHEAD * second
    return float(distinct[counts.argmax()]) if stands_apart else None
