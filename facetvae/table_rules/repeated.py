"""Columns that repeat others: copies, sums, the class of a number, a category in a column a level.
What they share with these is no grouping.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Share of a column's variance, or of the rows that are not at its commonest category, that others
# leave, below which they tell it.
TOLD = 0.01
# Rows that two columns of zeros and ones would share by chance, if they share none, from which on
# they are levels of one category.
BY_CHANCE = 12


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


def as_one_column(
    values: np.ndarray, levels: np.ndarray, sets: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """With the category that a set of columns codes in the first, and constants in the others."""
    values, levels = values.copy(), levels.copy()
    for own in sets:
        code = values[:, own] @ np.arange(1, len(own) + 1)
        values[:, own], levels[own] = 0, 1
        values[:, own[0]], levels[own[0]] = code, len(own) + 1
    return values, levels


def numbers_told(covariance: np.ndarray) -> np.ndarray:
    """Which numbers those before them tell, as copies and sums are told, or do not vary ``[m]``."""
    left, told = covariance.copy(), np.zeros(len(covariance), bool)
    for d in range(len(left)):
        told[d] = left[d, d] < TOLD
        if not told[d]:
            left -= np.outer(left[:, d], left[d]) / left[d, d]
    return told


def codes_told(values: np.ndarray, levels: np.ndarray, told: Sequence[int]) -> list[int]:
    """Which categories another column tells: each of its levels is in one of theirs, or, of a
    number, between two values.

    :param told: numbers that others tell.
    """
    found: list[int] = []
    for d in np.flatnonzero(levels > 1):
        others = [a for a in range(len(levels)) if a != d and a not in (*told, *found)]
        if any(_tells(values[:, a], values[:, d], bool(levels[a])) for a in others):
            found.append(int(d))
    return found


def _tells(teller: np.ndarray, code: np.ndarray, is_code: bool) -> bool:
    there = ~(np.isnan(teller) | np.isnan(code))
    if not there.any():
        return False
    teller, code = teller[there], code[there].astype(int)
    count = np.bincount(code)
    if is_code:
        table = np.zeros((int(teller.max()) + 1, len(count)))
        np.add.at(table, (teller.astype(int), code), 1)
        wrong = len(code) - table.max(1).sum()
    else:
        changes = np.count_nonzero(np.diff(code[np.argsort(teller, kind="stable")]))
        wrong = (changes - np.count_nonzero(count) + 1) / 2
    return bool(wrong <= TOLD * (len(code) - count.max()) and count.max() < len(code))
