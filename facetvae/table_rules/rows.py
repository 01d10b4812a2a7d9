"""Rows of large tables: a random part of them, or all of them a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

#: Rows that are enough to find facets, clusters and scales in, and most that are computed at once.
MANY = 20_000
#: Where a smaller share of the rows is distinct, they may be copies.
DISTINCT = 0.75


def some_rows(x: np.ndarray, seed: int = 0, most: float = np.inf) -> np.ndarray:
    """At most ``MANY`` rows of ``x`` ``[N, ...]``, and ``most``, drawn at random, in order; ``x``
    if it has no more.
    """
    most = int(min(most, MANY))
    if len(x) <= most:
        return x
    return x[np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))]


def without_copies(x: np.ndarray) -> np.ndarray:
    """Of at most ``MANY`` rows ``[N, D]`` those that differ, if many are copies: not where rows
    that differ share values, as few values and categories do.
    """
    if len(x) > MANY:
        return x
    first = np.unique(x, axis=0, return_index=True)[1]
    if len(first) > DISTINCT * len(x) or x.shape[1] < 2:
        return x
    copied = any(len(np.unique(column)) >= len(first) for column in x.T)
    return x[np.sort(first)] if copied else x


def parts(n: int) -> Iterator[slice]:
    """Slices of at most ``MANY`` rows that make up ``n``."""
    return (slice(start, min(start + MANY, n)) for start in range(0, n, MANY))


def in_parts(work: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """``work(x)``, on each row by itself, of ``MANY`` rows at a time."""
    if x.shape[0] <= MANY:
        return work(x)
    first, *others = parts(x.shape[0])
    values = work(x[first])
    result = np.empty((x.shape[0], *values.shape[1:]), values.dtype)
    result[first] = values
    for rows in others:
        result[rows] = work(x[rows])
    return result


def is_missing(X: np.ndarray) -> np.ndarray:
    """Which entries are missing, for numbers of any type; of sparse rows none, ``[N]``."""
    if not isinstance(X, np.ndarray):
        return np.zeros(X.shape[0], bool)
    return np.isnan(X) if X.dtype.kind == "f" else np.zeros(X.shape, bool)


def has_missing(X: np.ndarray) -> bool:
    """Whether any entry is missing."""
    return isinstance(X, np.ndarray) and any(is_missing(X[rows]).any() for rows in parts(len(X)))


class Arranged:
    """An array whose rows change their places in it, so that chosen ones lie together.

    :param x: ``[N, ...]``, which is changed; sparse rows, which share their entries, are not.

    :ivar order: the first place of the row that is now at each place ``[N]``.
    """

    def __init__(self, x: Any) -> None:
        self.x, self.order = x, np.arange(len(x))

    def first(self, *groups: np.ndarray) -> list[Any]:
        """Put these groups of rows, by their first places, ascending, one after the other before
        all others; returns a view of each group.
        """
        others = np.setdiff1d(np.arange(len(self.x)), np.concatenate(groups))
        order = np.concatenate([*groups, others])
        places = self.order.argsort()[order]
        if isinstance(self.x, np.ndarray):
            for entry in np.ndindex(self.x.shape[1:]):  # so that no more is copied at once
                self.x[:, *entry] = self.x[:, *entry][places]
        else:
            self.x = self.x[places]
        self.order = order
        ends = np.cumsum([0, *map(len, groups)])
        return [self.x[start:end] for start, end in pairwise(ends)]

    def back(self, values: np.ndarray) -> np.ndarray:
        """Values of the rows as they now lie ``[N, ...]``, in the first order."""
        found = np.empty_like(values)
        found[self.order] = values
        return found
