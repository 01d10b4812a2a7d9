"""Columns that say what others say, or two things at once: copies, sums, the class of a number, a
category in a column a level; an amount that is often exactly zero. None of this is a grouping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from facetvae.table_rules.levels import atom_of, levels_of_one

# Share of a column's variance, or of the rows that are not at its commonest category, that others
# leave, below which they tell it.
TOLD = 0.01


@dataclass(frozen=True)
class Recoding:
    """How columns are read as what they say.

    :ivar levels: of each column the number of its categories, 0 for numbers; those of ``atoms``
        come last.
    :ivar sets: of columns that are levels of one category; it is read in the first, and the others
        as constants.
    :ivar atoms: by column of numbers, a value of its own: whether a row has it is a column more,
        and the number is missing.
    """

    levels: np.ndarray
    sets: Sequence[np.ndarray]
    atoms: Mapping[int, float]

    @classmethod
    def of(cls, values: np.ndarray, levels: np.ndarray) -> Recoding:
        """From values ``[N, D]``: numbers, and codes of categories; NaN where missing."""
        sets, whole = levels_of_one(values, levels), levels.copy()
        for own in sets:
            whole[own], whole[own[0]] = 1, len(own) + 1
        each = {int(d): atom_of(values[:, d]) for d in np.flatnonzero(levels == 0)}
        atoms = {d: atom for d, atom in each.items() if atom is not None}
        return cls(np.append(whole, np.full(len(atoms), 2)), sets, atoms)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        values = values.copy()
        for own in self.sets:
            code = values[:, own] @ np.arange(1, len(own) + 1)
            values[:, own], values[:, own[0]] = 0, code
        more = []
        for d, atom in self.atoms.items():
            own = values[:, d].copy()
            more.append(np.where(np.isnan(own), np.nan, own == atom))
            values[own == atom, d] = np.nan
        return np.column_stack([values, *more])


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
