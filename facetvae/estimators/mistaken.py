"""Columns of numbers that are probably not what they are read as, of which a fit warns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from facetvae.table_rules.rows import some_rows
from ppl_models.given.frames import Given, Kind

# Whole numbers of so many rows that all differ are ids if chance would make so many pairs equal.
FEWEST_IDS, PAIRS_OF_IDS = 100, 20
# Rows, and share of them, beyond which a number may stand for a missing one, and others' fewest.
BY_MISTAKE, SHARE_OF_MISSING, FEWEST_OTHERS = 2, 0.01, 10
# Fewest columns of counts, most of which are 0.
FEWEST_COUNTS = 32


def warn_of_ids(columns: Iterable[Given]) -> None:
    """Warn of columns of whole numbers that all differ, though by chance some would be the same."""
    for column in columns:
        there, n = column.there, len(column.there)
        if column.kind != Kind.NUMBERS or n < FEWEST_IDS or (there != np.floor(there)).any():
            continue
        expected = n * (n - 1) / 2 / (float(there.max()) - float(there.min()) + 1)
        if expected > PAIRS_OF_IDS and len(np.unique(there)) == n:
            warnings.warn(
                f"column {column.name!r} holds a different whole number in each row, as ids do, "
                "which say nothing of clusters: drop it, or make it the index",
                stacklevel=2,
            )


def warn_of_mistaken(X: np.ndarray, names: Sequence[Any] | None) -> None:
    """Warn of numbers that stand for missing ones, and of counts that are read as real numbers.

    :param X: ``[N, D]``, NaN where missing.
    :param names: of the columns, if they have any.
    """
    rows = some_rows(X)
    for d, code in enumerate(codes_of_missing(rows)):
        if not np.isnan(code):
            column = d if names is None else repr(str(names[d]))
            warnings.warn(
                f"column {column} of X has {code:g} in {int((rows[:, d] == code).sum())} rows, "
                "farther from its other values than these are from each other: if it stands for a "
                "missing value, give NaN in its place",
                stacklevel=6,
            )
    if are_counts_of_many(rows):
        warnings.warn(
            "X holds whole numbers that are mostly 0, as counts of words or genes are, and is read "
            "as real numbers: if they are counts, give scipy.sparse.csr_array(X)",
            stacklevel=6,
        )


def codes_of_missing(X: np.ndarray) -> np.ndarray:
    """Of each column of ``X`` ``[N, D]`` its least or largest number, if more rows have it than by
    mistake and it is farther from all others than these are apart, as -999 is; else NaN ``[D]``.
    """
    codes, most = np.full(X.shape[1], np.nan), max(BY_MISTAKE, SHARE_OF_MISSING * len(X))
    for sign in (1.0, -1.0):
        x = sign * X.astype(float)
        least = np.fmin.reduce(x)
        there = x == least
        others = np.where(there, np.nan, x)
        low, high = np.fmin.reduce(others), np.fmax.reduce(others)
        with np.errstate(invalid="ignore"):
            far = (low - least > high - low) & (there.sum(0) > most)
        far[far] = [len(np.unique(x[:, d])) > FEWEST_OTHERS for d in np.flatnonzero(far)]
        codes[far] = sign * least[far]
    return codes


def are_counts_of_many(X: np.ndarray) -> bool:
    """Whether rows of many columns hold whole numbers, mostly 0, and of the others 1 most often."""
    if X.shape[1] < FEWEST_COUNTS or not (X >= 0).all() or (np.floor(X) != X).any():
        return False
    positive = X[X > 0]
    numbers, rows = np.unique(positive, return_counts=True)
    few = len(positive) < X.size / 2 and len(numbers) > 1
    return bool(few and numbers[rows.argmax()] == 1)
