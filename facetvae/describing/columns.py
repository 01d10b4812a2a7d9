"""Columns as a user has them: numbers or categories, and what groups say of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from scipy.stats import nbinom, norm

from facetvae.describing.effects import (
    Effect,
    associated,
    mean_difference,
    share_intervals,
    variance_explained,
)
from ppl_models import Bernoulli, Categorical, Columns, Likelihood
from ppl_models.given.arrays import plain_array
from ppl_models.given.checks import check_one_of
from ppl_models.given.frames import (
    Given,
    Kind,
    check_names,
    column_name,
    given,
    is_frame,
    native_columns,
)

# A mean of more deviations is far from 0, and a gain of more standard errors from chance.
FAR = 3
# The least share by which the variance of a negative binomial variable exceeds its mean.
OVERDISPERSED = 1e-3


@dataclass(frozen=True)
class _Column:
    """A column's numbers ``[N]``, or codes, NaN in gaps, and what these say of groups of rows."""

    name: str
    values: np.ndarray

    @property
    def observed(self) -> np.ndarray:
        """Rows without a gap ``[N]``."""
        return ~np.isnan(self.values)


@dataclass(frozen=True)
class Numbers(_Column):
    """Numbers, in their own units."""

    kind: ClassVar[str] = "numbers"

    def effect(self, group: np.ndarray) -> Effect | None:
        """How much groups ``[N]`` say of it; -1 is no group."""
        rows = self.observed & (group >= 0)
        return variance_explained(self.values[rows], group[rows])

    def overall(self, rows: np.ndarray) -> dict[str, Any]:
        """What it holds in these rows ``[N]``."""
        there = self.values[rows & self.observed]
        spread = float(there.std(ddof=1)) if len(there) > 1 else None
        return {"mean": float(there.mean()) if len(there) else None, "deviation": spread}

    def of_group(self, ours: np.ndarray, others: np.ndarray) -> dict[str, Any]:
        """What it holds in the rows of a group, beside others."""
        here, there = (self.values[rows & self.observed] for rows in (ours, others))
        value, interval = mean_difference(here, there)
        return {
            "observed": len(here),
            "mean": float(here.mean()) if len(here) else None,
            "difference": value,
            "interval": None if interval is None else list(interval),
        }


@dataclass(frozen=True)
class Categories(_Column):
    """Categories, whose ``levels`` are their names in the order of the codes."""

    kind: ClassVar[str] = "categories"
    levels: tuple[str, ...] = ()

    def table(self, group: np.ndarray) -> np.ndarray:
        """Rows of each category in each group ``[levels, groups]``."""
        rows = self.observed & (group >= 0)
        table = np.zeros((len(self.levels), int(group.max(initial=0)) + 1), int)
        np.add.at(table, (self.values[rows].astype(int), group[rows]), 1)
        return table

    def effect(self, group: np.ndarray) -> Effect | None:
        return associated(self.table(group))

    def overall(self, rows: np.ndarray) -> dict[str, Any]:
        counts = self._counts(rows)
        return {"shares": self._by_level(counts / max(1, counts.sum()))}

    def of_group(self, ours: np.ndarray, others: np.ndarray) -> dict[str, Any]:
        counts = self._counts(ours)
        n = int(counts.sum())
        intervals = self._by_level(share_intervals(counts, n)) if n else None
        return {"observed": n, **self.overall(ours), "intervals": intervals}

    def _counts(self, rows: np.ndarray) -> np.ndarray:
        codes = self.values[rows & self.observed].astype(int)
        return np.bincount(codes, minlength=len(self.levels))

    def _by_level(self, values: np.ndarray) -> dict[str, Any]:
        return dict(zip(self.levels, values.tolist(), strict=True))


Column = Numbers | Categories


def kinds_of(likelihood: Likelihood, names: Sequence[str] | None = None) -> dict[str, str]:
    """Kinds of the columns whose likelihood says what they are, by name: its own, or others."""
    if not isinstance(likelihood, Columns):
        return {}
    return {
        name: Categories.kind if each.discrete else Numbers.kind
        for name, each in zip(names or likelihood.names, likelihood, strict=True)
        if not each.discrete or isinstance(each, Bernoulli | Categorical)
    }


def are_counts(values: np.ndarray) -> bool:
    """Whether whole numbers ``[n]``, none below 0, vary at least as much as a Poisson variable, are
    near 0 beside their deviation and likelier as a negative binomial variable than as a normal one,
    as ages are not, and are not all multiples of some number, as a mass is that was read to 25
    grams.
    """
    mean, deviation = values.mean(), values.std()
    # Far from 0 a Poisson variable is nearly normal, too.
    if values.var() < mean or mean > FAR * deviation:
        return False
    p = mean / max(deviation**2, mean * (1 + OVERDISPERSED))
    counted = nbinom.logpmf(values, mean * p / (1 - p), p)
    if counted.mean() < norm.logpdf(values, mean, deviation).mean():
        return False
    return int(np.gcd.reduce(values.astype(np.int64))) == 1


def is_multiplied(values: np.ndarray) -> bool:
    """Whether numbers ``[n]`` above 0 are likelier log-normal than normal, beyond chance, as
    incomes are.
    """
    if not np.isfinite(values).all() or not values.std():
        return False
    log = np.log(values)
    gain = norm.logpdf(log, log.mean(), log.std()) - log
    gain -= norm.logpdf(values, values.mean(), values.std())
    return bool(gain.mean() > FAR * gain.std() / np.sqrt(len(gain)))


def columns_of(what: str, given: Any, kinds: Mapping[str, str] | None = None) -> list[Column]:
    """The columns of a data frame, of a mapping of names to columns, or of an array ``[N, ...]``,
    all of whose entries are numbers, named by their places.

    :param what: the argument's name, for messages.
    :param kinds: kinds of some columns by name; others follow their values.
    :raises ValueError: if a column is of dates or the like, or has infinite values; or if a kind or
        the column that it is given for is unknown.
    """
    kinds = {column_name(name): kind for name, kind in (kinds or {}).items()}
    for kind in kinds.values():
        check_one_of("a kind", kind, (Numbers.kind, Categories.kind))
    named = named_columns(given)
    if named is None:
        if kinds:
            raise ValueError(
                f"kinds are of columns with names: give {what} as a data frame or mapping"
            )
        return _entries(what, plain_array(given, what))
    if unknown := [name for name in kinds if name not in named]:
        raise ValueError(f"kinds: {what} has no column {unknown[0]!r}, but {list(named)}")
    return [_column(what, name, each, kinds.get(name)) for name, each in named.items()]


def named_columns(given: Any) -> dict[str, Any] | None:
    """Columns by name, which all differ, of a data frame, a series or a mapping; else ``None``."""
    if is_frame(given):
        columns = native_columns(given)
    elif hasattr(given, "to_frame"):
        columns = native_columns(given.to_frame())
    elif isinstance(given, Mapping):
        columns = [(column_name(name), each) for name, each in given.items()]
    else:
        return None
    check_names(name for name, _ in columns)
    return dict(columns)


def check_order(**arguments: Any) -> None:
    """:raises ValueError: if two frames or series have different indexes; others go by place."""
    indexes: dict[str, Any] = {}
    for what, one in arguments.items():
        named = isinstance(one, Mapping) and not issparse(one)
        parts = {f"{what}[{name!r}]": one[name] for name in one} if named else {what: one}
        found = {name: getattr(each, "index", None) for name, each in parts.items()}
        indexes |= {name: index for name, index in found.items() if hasattr(index, "equals")}
    first = next(iter(indexes), "")
    for what, index in indexes.items():
        if not index.equals(indexes[first]):
            raise ValueError(
                f"{what} has other rows than {first}, or has them in another order: give "
                f"{what}.loc[{first}.index], or {what}.set_axis({first}.index) if they are the "
                "same by place"
            )


def _entries(what: str, X: np.ndarray) -> list[Column]:
    if X.ndim < 2:
        raise ValueError(f"{what} must have a row for each datum, got shape {X.shape}")
    places = map(str, np.ndindex(*X.shape[1:]))
    names = [f"x{i}" if X.ndim == 2 else place.replace(" ", "") for i, place in enumerate(places)]
    flat = X.reshape(len(X), -1).astype(float)
    return [_column(what, name, flat[:, i], Numbers.kind) for i, name in enumerate(names)]


def _column(what: str, name: str, values: Any, kind: str | None) -> Column:
    """:param kind: by default strings, categories, truths, zeros and ones are categories."""
    if len(shape := np.shape(values)) != 1:
        raise ValueError(
            f"column {name!r} of {what} has shape {shape}, but one value a row is needed"
        )
    column, called = given(name, values), f"column {name!r} of {what}"
    if column.kind in (Kind.DATES, Kind.DURATIONS, Kind.TIMES) or "complex" in column.types:
        raise ValueError(
            f"{called} holds {column.kind} of the dtype {column.dtype}: give numbers, such as days "
            "or seconds since the first"
        )
    numbers = None if kind == Categories.kind else _numbers(column, kind is not None)
    if numbers is None:
        if kind == Numbers.kind:
            raise ValueError(f"{called} is no column of numbers: leave its kind out")
        return _categories(called, column)
    if np.isinf(numbers).any():
        raise ValueError(f"{called} has infinite values: drop these rows")
    gaps = np.isnan(numbers)
    if kind is None and np.isin(numbers[~gaps], (0, 1)).all():
        return _categories(called, Given(name, Kind.NUMBERS, numbers, gaps))
    return Numbers(name, numbers)


def _numbers(column: Given, asked: bool) -> np.ndarray | None:
    """Numbers ``[N]``, NaN in gaps; ``None`` if there are others.

    :param asked: whether bools, and text or categories that read as numbers, are wanted as such.
    """
    if not asked and column.kind != Kind.NUMBERS and not column.gaps.all():
        return None
    try:
        return column.values.astype(float)
    except (ValueError, TypeError):
        return None


def _categories(called: str, column: Given) -> Categories:
    there = column.there.tolist()
    try:
        order = column.levels()
    except TypeError as error:
        raise ValueError(f"{called} holds objects of type {column.types[0]}: drop it") from error
    place = {level: code for code, level in enumerate(order)}
    codes = np.full(len(column.gaps), np.nan)
    codes[~column.gaps] = [place[each] for each in there]
    levels = tuple(map(_said, order))
    if alike := [level for level in levels if levels.count(level) > 1]:
        raise ValueError(
            f"{called} has {alike[0]!r} as values of several types: make them all strings, or all "
            "numbers"
        )
    return Categories(column.name, codes, levels)


def _said(level: Any) -> str:
    number = isinstance(level, float | np.floating) and float(level).is_integer()
    return str(int(level)) if number else str(level)
