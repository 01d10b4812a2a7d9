"""Columns of numbers that are probably not what they are read as, of which a fit warns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from facetvae.estimators.encoding import Encoding, are_whitened
from facetvae.table_rules.rows import some_rows
from ppl_models.given.frames import Given, Kind
from ppl_models.warn import warn

# Whole numbers of so many rows that all differ are ids if chance would make so many pairs equal.
FEWEST_IDS, PAIRS_OF_IDS = 100, 20
# Rows, and share of them, beyond which a number may stand for a missing one; of the others the
# fewest numbers, and the least share of rows, as words' counts are mostly 0.
BY_MISTAKE, SHARE_OF_MISSING, FEWEST_OTHERS, SHARE_OF_OTHERS = 2, 0.01, 10, 0.1
# Most rows that are looked at.
MAX_ROWS = 2000
# Fewest columns of counts, most of which are 0.
FEWEST_COUNTS = 32
# Share of a turn at each end of angles, and fewest rows there.
END, FEWEST_AT_AN_END = 1 / 36, 5
# Difference of the sums of rows of shares, as a share of these.
ROUNDED = 1e-3


def warn_of_ids(columns: Iterable[Given]) -> None:
    """Warn of columns of whole numbers that all differ, though by chance some would be the same."""
    for column in columns:
        there, n = column.there, len(column.there)
        if column.kind != Kind.NUMBERS or n < FEWEST_IDS or (there != np.floor(there)).any():
            continue
        expected = n * (n - 1) / 2 / (float(there.max()) - float(there.min()) + 1)
        if expected > PAIRS_OF_IDS and len(np.unique(there)) == n:
            warn(
                f"column {column.name!r} holds a different whole number in each row, as ids do, "
                "which say nothing of clusters: drop it, or make it the index"
            )


def warn_of_mistaken(X: np.ndarray, encoding: Encoding, names: Sequence[Any] | None) -> None:
    """Warn of numbers ``[N, D]`` that are probably something else than they are read as.

    :param names: of the columns, if they have any.
    """
    if encoding.values not in ("real", "columns", "unit interval"):
        return
    rows = some_rows(X, most=MAX_ROWS).astype(float)
    if encoding.values != "unit interval":
        angles = []
        for d, column in enumerate(rows.T):
            name = str(d) if names is None else repr(str(names[d]))
            if (code := code_of_missing(column)) is not None:
                warn(
                    f"column {name} of X has {code:g} in {int((X[:, d] == code).sum())} rows, "
                    "farther from its other values than these are from each other: if it stands "
                    "for a missing value, give NaN in its place"
                )
            if are_angles(column):
                angles.append(name)
        if angles:
            warn(
                f"the columns {', '.join(angles)} of X hold angles, it seems, of which the least "
                "and the largest are next to each other: give each one's cosine and sine in its "
                "place"
            )
    if encoding.of_real_columns and are_counts_of_many(rows):
        warn(
            "X holds whole numbers that are mostly 0, as counts of words or genes are, and is read "
            "as real numbers: if they are counts, give scipy.sparse.csr_array(X)"
        )
    complete = not (encoding.missing or np.any(encoding.exponent))
    if encoding.of_real_columns and complete and are_whitened(X):
        warn(
            "the columns of X are uncorrelated and of the same variance, as whitened principal "
            "components are, in which noise counts as much as groupings: give them without "
            "whiten=True, and do not scale them"
        )
    if encoding.values != "columns" and are_shares(rows):
        warn(
            "the rows of X have the same sum, as shares of a whole have, which hides groupings: "
            "give np.sqrt(X) if some shares are 0 or nearly, else log-ratios, "
            "np.log(X) - np.log(X).mean(1, keepdims=True)"
        )


def code_of_missing(values: np.ndarray) -> float | None:
    """The least or largest number of a column ``[N]``, NaN where missing, if more rows have it than
    by mistake and it is farther from all others than these are apart, as -999 is.
    """
    there = values[~np.isnan(values)]
    for code in (there.min(), there.max()) if len(there) else ():
        others = there[there != code]
        often = len(there) - len(others) > max(BY_MISTAKE, SHARE_OF_MISSING * len(values))
        numbers = len(np.unique(others)) > FEWEST_OTHERS
        usual = numbers and len(others) > SHARE_OF_OTHERS * len(values)
        if often and usual and np.abs(others - code).min() > np.ptp(others):
            return float(code)
    return None


def are_angles(values: np.ndarray) -> bool:
    """Whether numbers ``[N]``, NaN where missing, lie within a turn from 0 or from minus half of it
    on, in degrees or radians, and near both its ends at least half as often as elsewhere.
    """
    there = values[~np.isnan(values)]
    for turn, start in product((360.0, 2 * np.pi), (0.0, -0.5)):
        part = there / turn - start
        fewest = min((part < END).sum(), (part > 1 - END).sum())
        if ((part >= 0) & (part <= 1)).all() and fewest >= max(
            FEWEST_AT_AN_END, len(part) * END / 2
        ):
            return True
    return False


def are_shares(X: np.ndarray) -> bool:
    """Whether rows ``[N, D]`` of numbers from 0 on have the same sum, so that one share of a whole
    moves all others; those of one-hot columns are no shares.
    """
    largest = X.max()
    if X.shape[1] < 3 or not (X >= 0).all() or np.isin(X, (0, largest)).all():
        return False
    total = (X / largest).sum(1)
    return bool(np.ptp(total) <= ROUNDED * total.min())


def are_counts_of_many(X: np.ndarray) -> bool:
    """Whether rows of many columns hold whole numbers, mostly 0, and of the others 1 most often."""
    if X.shape[1] < FEWEST_COUNTS or not (X >= 0).all() or (np.floor(X) != X).any():
        return False
    positive = X[X > 0]
    numbers, rows = np.unique(positive, return_counts=True)
    few = len(positive) < X.size / 2 and len(numbers) > 1
    return bool(few and numbers[rows.argmax()] == 1)
