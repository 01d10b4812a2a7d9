"""Data frames of mixed columns: which likelihood each gets, and its values as codes and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from inference.describing.columns import FEW_VALUES, are_counts, are_names
from inference.estimators.tables import is_frame
from ppl_models import (
    Bernoulli,
    Categorical,
    Columns,
    Likelihood,
    NegativeBinomial,
    Normal,
    Ordinal,
)
from ppl_models.categories import CodedLikelihood
from ppl_models.checks import check_kind
from ppl_models.configurable import from_config, to_config
from ppl_models.likelihood_base import rebuilt

__all__ = ["Column", "Table", "is_mixed", "read_table"]

# How much a number must vary beside its size for single precision, and the magnitudes it holds.
VARIES, SMALLEST, LARGEST = 1e-6, 1e-15, 1e15
# Single precision holds all whole numbers below.
LARGEST_WHOLE = 2**24


@dataclass(frozen=True)
class Column:
    """A column of numbers, as they are.

    :ivar name: its name.
    :ivar whole: whether its numbers are whole, so that imputed ones are rounded.

    :cvar held: what it holds, for messages.
    """

    held: ClassVar[str] = "numbers"

    name: str
    whole: bool = False

    def codes(self, values: Any) -> np.ndarray:
        """Numbers ``[N]``, NaN in gaps.

        :raises ValueError: if there are others.
        """
        try:
            return values.to_numpy(dtype=float, na_value=np.nan)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"column {self.name!r} held {self.held} in the training data, but now its dtype is "
                f"{values.dtype}, with values that are no {self.held}: convert it"
            ) from error

    def values(self, codes: np.ndarray) -> Any:
        """What the user's column holds for these codes ``[N]``."""
        return np.round(codes) if self.whole else codes

    def completed(self, likelihood: Likelihood) -> Likelihood:
        """The likelihood with what this column knows of it.

        :raises ValueError: if it does not suit the column.
        """
        return likelihood


@dataclass(frozen=True)
class TruthColumn(Column):
    """A column of bools."""

    held = "bools"

    def codes(self, values: Any) -> np.ndarray:
        numbers = super().codes(values)
        if (wrong := numbers[~np.isnan(numbers) & ~np.isin(numbers, (0, 1))]).size:
            raise ValueError(
                f"column {self.name!r} held {self.held} in the training data, but now has the "
                f"value {wrong[0]:g}: convert it"
            )
        return numbers

    def values(self, codes: np.ndarray) -> Any:
        return _with_gaps(codes > 0.5, codes)


@dataclass(frozen=True)
class CodedColumn(Column):
    """A column of categories.

    :ivar levels: the categories in the order of their codes.
    """

    levels: tuple[Any, ...] = ()

    def codes(self, values: Any) -> np.ndarray:
        objects, gaps = values.astype(object).to_numpy(), values.isna().to_numpy()
        place = {level: code for code, level in enumerate(self.levels)}
        if unknown := [each for each in objects[~gaps] if each not in place]:
            raise ValueError(
                f"column {self.name!r} has the category {unknown[0]!r}, but the training data had "
                f"{_some(self.levels)}: leave these rows out, or mark it as missing (NaN)"
            )
        codes = np.full(len(objects), np.nan)
        codes[~gaps] = [place[each] for each in objects[~gaps]]
        return codes

    def values(self, codes: np.ndarray) -> Any:
        levels = np.empty(len(self.levels), object)
        levels[:] = self.levels
        places = np.nan_to_num(codes).round().astype(int).clip(0, len(levels) - 1)
        return _with_gaps(levels[places], codes)

    def completed(self, likelihood: Likelihood) -> Likelihood:
        number = max(2, len(self.levels))
        if isinstance(likelihood, CodedLikelihood) and likelihood.num_categories is None:
            return rebuilt(likelihood, num_categories=number)
        if likelihood.support != (0.0, number - 1.0):
            raise ValueError(
                f"columns gives column {self.name!r} {likelihood!r}, but it has {number} "
                f"categories, {_some(self.levels)}: give Categorical() or Ordinal()"
            )
        return likelihood


@dataclass(frozen=True)
class NumberedColumn(CodedColumn):
    """A column of few numbers, each of which is a category."""

    def codes(self, values: Any) -> np.ndarray:
        numbers = Column.codes(self, values)
        places = np.searchsorted(self.levels, numbers).clip(0, len(self.levels) - 1)
        known = np.isnan(numbers) | (np.asarray(self.levels)[places] == numbers)
        if not known.all():
            raise ValueError(
                f"column {self.name!r} has the value {numbers[~known][0]:g}, but the training data "
                f"had {_some(self.levels)}: leave these rows out, mark it as missing (NaN), or "
                f'fit with columns={{"{self.name}": Normal()}}'
            )
        return np.where(np.isnan(numbers), np.nan, places)


@dataclass(frozen=True)
class Table:
    """The columns of a data frame, and the way to codes and back.

    :ivar columns: in the frame's order.
    :ivar empty: the frame without its rows, which has the dtypes, categories and order.
    :ivar described: the columns' :class:`~ppl_models.columns.Columns`, in JSON types.
    """

    columns: Sequence[Column]
    empty: Any
    described: Any

    def likelihood(self) -> Columns:
        """A new one, of all columns."""
        return from_config(self.described)

    def chosen(self) -> dict[str, str]:
        """Each column's likelihood, in words."""
        columns = self.likelihood()
        return {name: repr(each) for name, each in zip(columns.names, columns, strict=True)}

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def codes(self, X: Any) -> Any:
        """A frame of numbers with the same columns and rows, NaN in gaps; columns may come in any
        order.

        :raises ValueError: if it is no frame, columns are missing or unknown, or a value is.
        """
        if not is_frame(X):
            raise ValueError(
                f"X must be a data frame with the columns {_some(self.names)}, as the training "
                f"data were, got {type(X).__name__}"
            )
        given = _named(X)
        missing = [name for name in self.names if name not in given]
        unknown = [name for name in given if name not in self.names]
        if missing or unknown:
            raise ValueError(_differing(missing, unknown))
        codes = {column.name: column.codes(given[column.name]) for column in self.columns}
        return type(X)(codes, index=X.index)

    def frame(self, codes: np.ndarray, index: Any = None) -> Any:
        """The user's columns of codes ``[N, D]``, with the dtypes of the training data; where there
        are gaps that a dtype does not have, with a wider one.
        """
        values = {
            i: column.values(each)
            for i, (column, each) in enumerate(zip(self.columns, codes.T, strict=True))
        }
        frame = type(self.empty)(values, index=index)
        for i, dtype in enumerate(self.empty.dtypes):
            holds_gaps = not isinstance(dtype, np.dtype) or dtype.kind not in "biu"
            if holds_gaps or not frame[i].isna().any():
                frame[i] = _within(frame[i], dtype).astype(dtype)
        return frame.set_axis(self.empty.columns, axis=1)

    def filled(self, codes: np.ndarray, X: Any) -> Any:
        """The frame ``X``, its columns in the order of the training data, with codes ``[N, D]`` in
        its gaps. What is observed stays as it is.
        """
        given, frame = _named(X), self.frame(codes, X.index)
        for i, name in enumerate(self.names):
            own, gaps = given[name], given[name].isna()
            if not gaps.any():
                frame.isetitem(i, own)
            elif _may_differ(own.dtype):
                frame.isetitem(i, frame.iloc[:, i].astype(own.dtype).where(gaps, own))
        return frame


def _may_differ(dtype: Any) -> bool:
    """Whether it is a dtype of floats, or NumPy's of objects: these hold what none expects."""
    return dtype.kind == "f" or dtype == np.dtype(object)


def _within(values: Any, dtype: Any) -> Any:
    """Numbers of a column as an integer dtype holds them, whole and within its limits; others as
    they are.
    """
    own = getattr(dtype, "numpy_dtype", dtype)
    if not isinstance(own, np.dtype) or own.kind not in "iu":
        return values
    limits = np.iinfo(own)
    return values.round().clip(limits.min, limits.max)


def is_mixed(X: Any) -> bool:
    """Whether a frame has columns that are not numbers, or bools beside others."""
    truths = [_is_of_truths(each) for each in _series(X)]
    if any(truths) and not all(truths):
        return True
    return any(
        str(each.dtype) == "category" or (_is_text(each) and not _is_numeric_text(each))
        for each in _series(X)
    )


def read_table(X: Any, chosen: Mapping[str, Likelihood]) -> Table:
    """The table of a frame.

    :param chosen: likelihoods that the user gave, by column; for others the dtype decides.
    :raises ValueError: if a column is not understood, has no values, or does not suit its
        likelihood.
    """
    given = _named(X)
    check_kind("columns", chosen, Mapping, 'likelihoods by column, such as {"age": Normal()}')
    chosen = {str(name): likelihood for name, likelihood in chosen.items()}
    if unknown := [name for name in chosen if name not in given]:
        raise ValueError(
            f"columns names {unknown[0]!r}, but X has {_some(list(given))}: is that a misspelling?"
        )
    _check_dtypes(given)
    read = {name: _column(name, each, chosen.get(name)) for name, each in given.items()}
    fitted = {
        name: _fitted(column, likelihood, column.codes(given[name]))
        for name, (column, likelihood) in read.items()
    }
    return Table([column for column, _ in read.values()], X.iloc[:0], to_config(Columns(fitted)))


def _column(name: str, values: Any, likelihood: Likelihood | None) -> tuple[Column, Likelihood]:
    """How to read a column, and its likelihood.

    :raises ValueError: if it has no values, or mixes kinds.
    """
    if values.isna().all():
        raise ValueError(f"column {name!r} has no values, all are missing: drop it")
    if likelihood is not None:
        check_kind(f"columns[{name!r}]", likelihood, Likelihood, "a likelihood, such as Normal()")
    column, default = _by_dtype(name, values, isinstance(likelihood, CodedLikelihood))
    return column, column.completed(default if likelihood is None else likelihood)


def _by_dtype(name: str, values: Any, coded: bool) -> tuple[Column, Likelihood]:
    """:param coded: whether the user wants codes, also of numbers."""
    dtype = values.dtype
    if str(dtype) == "category":
        likelihood = Ordinal() if dtype.ordered else Categorical()
        return CodedColumn(name, levels=tuple(dtype.categories)), likelihood
    if _is_of_truths(values):
        return TruthColumn(name), Bernoulli()
    if _is_text(values) and (_is_written(values) or not _is_numeric_text(values)):
        return _of_words(name, values, coded), Categorical()
    numbers = Column(name).codes(values)
    there = numbers[~np.isnan(numbers)]
    # Floats may be whole, too: pandas makes floats of integers with gaps.
    whole = bool(((there == np.floor(there)) & (np.abs(there) < LARGEST_WHOLE)).all())
    if whole and not coded and np.isin(there, (0, 1)).all():
        return Column(name, whole), Bernoulli()
    levels = np.unique(there)
    if coded or (whole and 2 <= len(levels) <= FEW_VALUES):
        return NumberedColumn(name, levels=tuple(levels.tolist())), Ordinal()
    return Column(name, whole), _of_numbers(there, whole)


def _of_words(name: str, values: Any, coded: bool) -> CodedColumn:
    """:raises ValueError: if the strings read as numbers and the user did not want categories."""
    if _is_numeric_text(values) and not coded:
        raise ValueError(
            f"column {name!r} holds strings that read as numbers, such as "
            f"{values[~values.isna()].iloc[0]!r}: convert it to numbers (astype(float)), or give "
            f'columns={{"{name}": Categorical()}} if they are categories'
        )
    return CodedColumn(name, levels=_words(name, values))


def _of_numbers(values: np.ndarray, whole: bool) -> Likelihood:
    """Counts vary at least as much as a Poisson variable; other whole numbers are numbers."""
    return NegativeBinomial() if whole and are_counts(values) else Normal()


def _fitted(column: Column, likelihood: Likelihood, codes: np.ndarray) -> Likelihood:
    there = torch.as_tensor(codes[~np.isnan(codes)])
    if not isinstance(column, CodedColumn | TruthColumn):
        _check_precision(column.name, there.numpy())
    try:
        likelihood.check(there)
    except ValueError as error:
        raise ValueError(f"column {column.name!r}: {error}") from error
    return likelihood.fitted(there)


def _check_precision(name: str, values: np.ndarray) -> None:
    """:raises ValueError: if single precision does not hold what varies in a column of numbers."""
    size = np.abs(values).max()
    if not np.isfinite(size):
        raise ValueError(f"column {name!r} has infinite values: drop these rows or clip them")
    with np.errstate(over="ignore"):
        spread = values.std()
    if size > LARGEST:
        raise ValueError(
            f"column {name!r} has values up to {size:.3g}, more than {LARGEST:.0e}: give it in "
            "another unit"
        )
    if 0 < spread < max(VARIES * size, SMALLEST):
        raise ValueError(
            f"column {name!r} varies by {spread:.3g} around {values.mean():.3g}, which single "
            "precision does not hold: subtract its mean, or give it in another unit"
        )


def _named(X: Any) -> dict[str, Any]:
    """The columns by name.

    :raises ValueError: if there are none, or two have the same.
    """
    if not X.shape[1]:
        raise ValueError(f"X is a data frame without columns (shape {X.shape})")
    columns = _series(X)
    named = {str(each.name): each for each in columns}
    if len(named) < len(columns):
        raise ValueError(
            f"X has columns of the same name among {_some(list(X.columns))}: rename them"
        )
    return named


def _series(X: Any) -> list[Any]:
    return [X.iloc[:, i] for i in range(X.shape[1])]


def _check_dtypes(columns: Mapping[str, Any]) -> None:
    """:raises ValueError: if columns are of dates or the like."""
    wrong = [name for name, each in columns.items() if not _is_understood(each)]
    if wrong:
        dtypes = ", ".join(sorted({str(columns[name].dtype) for name in wrong}))
        raise ValueError(
            f"X must hold numbers, categories or bools, but the columns {wrong} have the dtype "
            f"{dtypes}: encode them as numbers (dates as a duration), or drop them"
        )


def _is_understood(column: Any) -> bool:
    dtype = column.dtype
    return str(dtype) == "category" or _is_text(column) or dtype.kind in "buif"


def _is_text(column: Any) -> bool:
    """Whether a column has a dtype of strings or objects."""
    return column.dtype == object or str(column.dtype).startswith("str")


def _is_numeric_text(column: Any) -> bool:
    """Whether strings or objects are all numbers, or read as such."""
    try:
        column[~column.isna()].astype(float)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _is_of_truths(column: Any) -> bool:
    """Whether a column is of bools, also as objects, which pandas makes of bools with gaps."""
    if str(column.dtype) in ("bool", "boolean"):
        return True
    there = column[~column.isna()] if column.dtype == object else ()
    return len(there) > 0 and all(isinstance(each, bool | np.bool_) for each in there)


def _is_written(column: Any) -> bool:
    """Whether a column of strings or objects holds strings alone."""
    return all(isinstance(each, str) for each in column[~column.isna()])


def _words(name: str, values: Any) -> tuple[str, ...]:
    """The strings of a column, in order; by number if they read as such.

    :raises ValueError: if it holds other things, too, or nearly every row has its own.
    """
    there = values[~values.isna()]
    kinds = sorted({type(each).__name__ for each in there})
    if len(kinds) == 1 and kinds != ["str"]:
        raise ValueError(
            f"column {name!r} holds objects of type {kinds[0]}: encode them as numbers (dates as a "
            "duration), or drop it"
        )
    if kinds != ["str"]:
        raise ValueError(
            f"column {name!r} mixes {' and '.join(kinds)}: make them all strings, or all numbers"
        )
    words = tuple(sorted(set(there), key=float if _is_numeric_text(there) else None))
    if are_names(len(words), len(there)):
        raise ValueError(
            f"column {name!r} has {len(words)} different strings in {len(there)} rows, which are "
            "names rather than categories: drop it, or make it a category"
        )
    return words


def _with_gaps(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """``values``, ``None`` where codes are NaN."""
    if not (gaps := np.isnan(codes)).any():
        return values
    found = values.astype(object)
    found[gaps] = None
    return found


def _differing(missing: Sequence[str], unknown: Sequence[str]) -> str:
    said = [f"lacks the columns {_some(missing)}"] if missing else []
    said += (
        [f"has the columns {_some(unknown)}, which the training data had not"] if unknown else []
    )
    fix = "rename them" if missing and unknown else "add them" if missing else "drop them"
    return f"X {' and '.join(said)}: {fix}"


def _some(names: Sequence[Any]) -> str:
    return str(list(names) if len(names) <= 8 else [*names[:8], "..."])
