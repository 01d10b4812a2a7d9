"""How an estimator reads arrays and frames of numbers, how a start views them, and how results are
returned; the base of readers and views of other data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from narwhals.stable.v2.dependencies import is_polars_lazyframe
from scipy.sparse import issparse
from torch import Tensor

from facetvae.estimators.defaults import default_plain_network
from facetvae.estimators.encoding import Encoding, encoding_of
from facetvae.estimators.gaps import drawn, fitted_fill, means
from facetvae.estimators.words import reads_as_number
from facetvae.table_rules.components import residual_scale
from facetvae.table_rules.levels import has_steps, levels_of, levels_of_one, spread
from facetvae.table_rules.linear_model import FilledRows
from facetvae.table_rules.rows import has_missing, some_rows
from ppl_models import Bernoulli, FactorFill, Incomplete, Likelihood, Normal
from ppl_models.given.arrays import (
    array_of_tensor,
    check_told_apart,
    is_of_objects,
    plain_array,
    within_float64,
)
from ppl_models.given.frames import (
    Form,
    Given,
    Kind,
    columns_given,
    is_frame,
    native_columns,
    replaced,
)
from ppl_models.given.labels import with_unknown
from ppl_models.likelihood_base import rebuilt
from ppl_models.networks import Architecture

# What to do with columns that hold no numbers.
ADVICE = {
    Kind.DATES: "dates as numbers, such as days since the first",
    Kind.DURATIONS: "durations in seconds",
    Kind.TIMES: "times in minutes since midnight",
    Kind.CATEGORIES: "categories by OneHotEncoder",
    Kind.STRINGS: "text by OneHotEncoder",
    Kind.OBJECTS: "objects as numbers",
}


@dataclass(frozen=True)
class View:
    """Encoded data as a start sees them: complete numbers.

    :ivar gaps: what fills gaps, of a table of numbers that has any.
    :ivar dims: principal components to look for facets in; ``None`` for those beyond chance.

    :cvar linear: whether encoders read these numbers themselves.
    """

    linear: ClassVar[bool] = True

    gaps: FactorFill | None = field(default=None, kw_only=True)
    dims: int | None = field(default=None, kw_only=True)

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Complete numbers ``[N, F]``."""
        return self.completed(x)

    def completed(self, x: np.ndarray) -> np.ndarray:
        """Encoded data with draws in their gaps, given what is there, where they are numbers."""
        return x if self.gaps is None else drawn(self.gaps, x).astype(x.dtype)

    def filled(self, x: np.ndarray) -> FilledRows:
        """Encoded data as a linear model looks at them."""
        seen = x if self.gaps is None else means(self.gaps, x)
        return FilledRows(self.completed(x).astype(float), seen.astype(float), ~np.isnan(x))

    def smooth(self, x: np.ndarray, seed: int) -> np.ndarray:
        """The same, with a density whose modes can be counted: columns of few steps are spread over
        the gaps around their values, and columns that are levels of one category, each of which
        would be a cluster, are noise.
        """
        numbers, rng = self.numbers(x).astype(float), np.random.default_rng(seed)
        there = ~np.isnan(x)
        levels = np.array([levels_of(x[own, d]) for d, own in enumerate(there.T)])
        for column, own, number in zip(numbers.T, there.T, levels, strict=True):
            if number:  # draws that fill gaps are none of the levels
                column[~own], own = rng.choice(column[own], (~own).sum()), slice(None)
            if number or has_steps(column[own]):
                before = column.std()
                column[own] = spread(column[own], rng)
                if number:  # rare ones are far from all others, and would be spread as far
                    column *= before / max(column.std(), np.finfo(float).tiny)
        for one in levels_of_one(x == np.fmax.reduce(x), levels):
            numbers[:, one] = rng.normal(size=(len(x), len(one)))
        return numbers

    def table(self, x: np.ndarray, seed: int) -> tuple[np.ndarray, list[int]]:
        """Numbers and codes ``[N, D]``, NaN where missing, and each column's categories, or 0."""
        values, rng, levels = x.astype(float), np.random.default_rng(seed), []
        for column in values.T:
            there = ~np.isnan(column)
            levels.append(levels_of(column[there]))
            if levels[-1]:
                column[there] = np.unique(column[there], return_inverse=True)[1]
            elif has_steps(column[there]):
                column[there] = spread(column[there], rng)
        return values, levels

    def residual_scale(self, x: np.ndarray, dim: int) -> float:
        """Deviation of what ``dim`` linear latents leave of the numbers."""
        return residual_scale(x if self.linear else self.numbers(x), dim)


@dataclass(frozen=True)
class Reader:
    """Arrays, tensors and frames of numbers: read as they are, and returned as arrays or frames.

    :ivar form: of a frame, without its rows.
    :ivar as_columns: whether values within bounds are read as real columns, too.

    :cvar accepts: what scikit-learn's check is to accept besides arrays.
    """

    accepts: ClassVar[dict[str, Any]] = {}

    form: Form | None = field(default=None, kw_only=True)
    as_columns: bool = field(default=False, kw_only=True)

    def numbers(self, X: Any) -> Any:
        """What scikit-learn's check accepts: ``[N, ...]``.

        :raises ValueError: if columns of later data, whose names are no strings, as scikit-learn
            looks at, are in another order.
        """
        if self.form is not None and is_frame(X):
            ours, theirs = ([n for n, _ in native_columns(each)] for each in (self.form.empty, X))
            named = all(isinstance(name, str) for name in X.columns)
            if not named and ours != theirs and sorted(ours) == sorted(theirs):
                raise ValueError(
                    f"X has the columns {theirs}, but the training data had them in the order "
                    f"{ours}: give X[{ours}]"
                )
        return plain_table(X)

    def encoding(self, X: np.ndarray, likelihood: Likelihood | None, rows: Any = None) -> Encoding:
        """How checked training data are converted; of ``rows`` ``[N]``, by default all."""
        return encoding_of(X, likelihood, rows, self.as_columns)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        """That of encoded data, where the user gave none, for ``dim`` latents in all."""
        if encoding.values == "binary":
            return Bernoulli()
        return Normal(residual_scale(x / 255 if x.dtype == np.uint8 else x, dim))

    def completed(
        self, likelihood: Likelihood, x: np.ndarray, encoding: Encoding, fill: FactorFill | None
    ) -> Likelihood:
        """The user's or the default one, with what encoded data add to it: in gaps encoders see the
        mean given a row's other entries, or in images that of all entries.

        :param fill: fitted to these data, if it is.
        """
        if likelihood.takes_missing or not encoding.missing:
            return likelihood
        if encoding.of_real_columns:
            return Incomplete(likelihood, rebuilt(fill or fitted_fill(x)))
        mean = np.nan_to_num(np.nanmean(some_rows(x), dtype=float))
        return Incomplete(likelihood, float(np.clip(mean, *likelihood.support)))

    def network(self, shape: tuple[int, ...]) -> Architecture:
        """That of data of a shape whose facets are subspaces, where the user gave none."""
        return default_plain_network(shape, skip=True)

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        """How a start sees encoded data, if these differ."""
        if not (np.fmax.reduce(x) > np.fmin.reduce(x)).any():  # of what is there, gaps aside
            raise ValueError("the rows of X do not differ: there is nothing to cluster")
        return View(gaps=fitted_fill(x) if encoding.missing and x.ndim == 2 else None)

    def beyond(self, x: np.ndarray) -> np.ndarray:
        """Which encoded rows ``[N]`` have entries that are no part of their columns."""
        return np.zeros(len(x), bool)

    def settings(self) -> dict[str, Any]:
        """What was chosen, for ``settings_``."""
        return {}

    def in_words(self) -> list[dict[str, Any]]:
        """What codes stand for, of each column that has such, in JSON types."""
        return []

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        """:raises ValueError: if later data have gaps that the model does not know."""
        if not likelihood.takes_missing and has_missing(X):
            raise ValueError(
                "X has missing entries (NaN), but the training data had none: fit to some that "
                "have, or give a likelihood=Incomplete(...)"
            )

    def shown(self, X: Any, checked: Any, names: Any) -> Any:
        """The columns to describe: a frame with the user's own, in which text that was read as
        numbers is numbers; else what was read, by name if the training data had names.

        :param checked: the same rows as a fitted estimator has checked them ``[N, ...]``.
        """
        if is_frame(X):
            columns = enumerate(columns_given(X))
            return replaced(X, {i: checked[:, i] for i, c in columns if c.kind == Kind.STRINGS})
        rows = checked.toarray() if issparse(checked) else checked
        return rows if names is None else dict(zip(map(str, names), rows.T, strict=True))

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        """Decoded values in the user's form, of the same rows as ``like`` if that is given."""
        if self.form is None or not (like is None or is_frame(like)):
            return values
        if like is None:
            return self.form.frame(list(values.T))
        return self.form.filled(list(values.T), [own for _, own in native_columns(like)], like)


def plain_table(X: Any) -> Any:
    """Data without masks, NA or tensors; a data frame stays one, with its names."""
    if isinstance(X, Tensor):
        return array_of_tensor(X, "X")
    if is_frame(X):
        return _plain_frame(X)
    if is_polars_lazyframe(X):
        raise ValueError("X is a LazyFrame, which has no rows yet: give X.collect()")
    objects = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and is_of_objects(X))
    return plain_array(X, "X") if objects or isinstance(X, np.ma.MaskedArray) else X


def _plain_frame(X: Any) -> Any:
    """A frame whose columns are NumPy's numbers, or what is like them; text is read as such."""
    columns = columns_given(X)
    words = [word for column in columns if column.kind == Kind.STRINGS for word in column.there]
    numeric = (Kind.NUMBERS, Kind.BOOLS)
    check_kinds(columns, (*numeric, Kind.STRINGS) if all(map(reads_as_number, words)) else numeric)
    plain = {}
    for i, (given, (_, own)) in enumerate(zip(columns, native_columns(X), strict=True)):
        if not isinstance(getattr(own, "dtype", None), np.dtype) or is_of_objects(own):
            plain[i] = given.values if given.kind in numeric else given.values.astype(float)
    return replaced(X, plain) if plain else X


def check_kinds(columns: Sequence[Given], kinds: Collection[str]) -> None:
    """:raises ValueError: if columns hold something else, with advice."""
    wrong = [column for column in columns if column.kind not in kinds and not column.gaps.all()]
    for column in wrong:
        if column.kind == Kind.OBJECTS and len(column.types) > 1:
            raise ValueError(
                f"column {column.name!r} mixes {' and '.join(column.types)}: make them all "
                "strings, or all numbers"
            )
    if wrong:
        names, dtypes = [column.name for column in wrong], sorted({each.dtype for each in wrong})
        advice = " and ".join(dict.fromkeys(ADVICE[column.kind] for column in wrong))
        allowed = "numbers, categories or bools" if Kind.CATEGORIES in kinds else "numbers"
        raise ValueError(
            f"X must hold {allowed}, but the columns {names} have the dtype {', '.join(dtypes)}: "
            f"encode {advice}, or drop them"
        )


def real_numbers(X: np.ndarray) -> np.ndarray:
    """Checked data of a dtype of real numbers of at most 64 bits; an error for others."""
    if X.dtype.kind not in "buif":
        raise ValueError(f"X must hold numbers, got dtype {X.dtype}: convert or drop it")
    if X.dtype.kind in "ui":
        check_told_apart(X, "X")
    return within_float64(X, "X") if X.dtype.itemsize > np.dtype(float).itemsize else X


def plain_labels(y: Any) -> Any:
    """Labels, -1 where they are masked, NA, or None or NaN among whole numbers or strings; integers
    in an array of objects become integers.
    """
    y = with_unknown(array_of_tensor(y, "y") if isinstance(y, Tensor) else y, "y")
    return plain_array(y, "y") if is_of_objects(y) or isinstance(y, list | tuple) else y
