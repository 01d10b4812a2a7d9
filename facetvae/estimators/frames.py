"""Data frames of mixed columns: which likelihood each gets, and its values as codes and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from facetvae.describing.columns import are_counts, is_multiplied
from facetvae.estimators.arrays import Reader, View, check_kinds
from facetvae.estimators.columns_view import columns_view
from facetvae.estimators.encoding import Encoding
from facetvae.estimators.mistaken import warn_of_ids
from facetvae.estimators.words import check_words, plain_values, reads_as_number
from facetvae.table_rules.levels import FEW_VALUES
from facetvae.table_rules.outliers import has_all_variance
from facetvae.table_rules.rows import is_missing
from ppl_models import (
    Bernoulli,
    Categorical,
    Columns,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Normal,
    Ordinal,
)
from ppl_models.categories import CodedLikelihood
from ppl_models.configurable import from_config, to_config
from ppl_models.given.arrays import as_objects
from ppl_models.given.checks import check_kind
from ppl_models.given.frames import (
    Form,
    Given,
    Kind,
    check_names,
    column_name,
    columns_given,
    frame_like,
    is_frame,
    native_columns,
)
from ppl_models.likelihood_base import rebuilt
from ppl_models.warn import warn

# How much a number must vary beside its size for single precision, and the magnitudes it holds.
VARIES, SMALLEST, LARGEST = 1e-6, 1e-15, 1e15
# Single precision holds all whole numbers below.
LARGEST_WHOLE = 2**24
# What the columns of a frame of several kinds may hold.
UNDERSTOOD = (Kind.NUMBERS, Kind.BOOLS, Kind.STRINGS, Kind.CATEGORIES)


@dataclass(frozen=True)
class Column:
    """A column of numbers, as they are; imputed ones are rounded if these are ``whole``."""

    held: ClassVar[str] = "numbers"

    name: str
    whole: bool = False

    def codes(self, column: Given) -> np.ndarray:
        """Numbers ``[N]``, NaN in gaps; an error for a value that this column cannot hold."""
        if column.gaps.all():
            return np.full(len(column.gaps), np.nan)
        if column.kind not in (Kind.NUMBERS, Kind.BOOLS):
            raise ValueError(
                f"column {self.name!r} held {self.held} in the training data, but now its dtype is "
                f"{column.dtype}, with values that are no {self.held}: convert it"
            )
        return column.values.astype(float)

    def values(self, codes: np.ndarray) -> np.ndarray:
        """What the user's column holds for these codes ``[N]``."""
        return np.round(codes) if self.whole else codes

    def completed(self, likelihood: Likelihood) -> Likelihood:
        """The likelihood, if it suits, with what this column knows of it."""
        return likelihood


@dataclass(frozen=True)
class TruthColumn(Column):
    """A column of bools."""

    held = "bools"

    def codes(self, column: Given) -> np.ndarray:
        numbers = super().codes(column)
        if (wrong := numbers[~np.isnan(numbers) & ~np.isin(numbers, (0, 1))]).size:
            raise ValueError(
                f"column {self.name!r} held {self.held} in the training data, but now has the "
                f"value {wrong[0]:g}: convert it"
            )
        return numbers

    def values(self, codes: np.ndarray) -> np.ndarray:
        return _with_gaps(codes > 0.5, codes)


@dataclass(frozen=True)
class ConstantColumn(Column):
    """A column of one value, which tells nothing: later rows are read as if they had it."""

    value: float = 0.0

    def codes(self, column: Given) -> np.ndarray:
        return np.where(np.isnan(super().codes(column)), np.nan, self.value)


@dataclass(frozen=True)
class CodedColumn(Column):
    """A column of categories: those of the training data (``levels``), in the order of codes."""

    levels: tuple[Any, ...] = ()

    def codes(self, column: Given) -> np.ndarray:
        there = column.there.tolist()
        place = {level: code for code, level in enumerate(self.levels)}
        if unknown := [level for level in there if level not in place]:
            raise ValueError(
                f"column {self.name!r} has the category {unknown[0]!r}, but the training data had "
                f"{_some(self.levels)}: leave these rows out or, if the training data had gaps, "
                "mark it as missing (NaN)"
            )
        codes = np.full(len(column.gaps), np.nan)
        codes[~column.gaps] = [place[level] for level in there]
        return codes

    def values(self, codes: np.ndarray) -> np.ndarray:
        return _with_gaps(as_objects(self.levels)[self._places(codes)], codes)

    def _places(self, codes: np.ndarray) -> np.ndarray:
        return np.nan_to_num(codes).round().astype(int).clip(0, len(self.levels) - 1)

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
    """A column of few numbers, each a category; others are read as the nearest if not ``exact``."""

    exact: bool = False

    def codes(self, column: Given) -> np.ndarray:
        numbers, levels = Column.codes(self, column), np.asarray(self.levels)
        places = np.abs(np.nan_to_num(numbers)[:, None] - levels).argmin(1)
        known = np.isnan(numbers) | (levels[places] == numbers)
        if not known.all():
            had = (
                f"column {self.name!r} has the value {numbers[~known][0]:g}, but the training data "
                f"had {_some(self.levels)}: "
            )
            if self.exact:
                raise ValueError(f"{had}leave these rows out, or mark it as missing (NaN)")
            advice = f'fit with columns={{"{self.name}": Normal()}} if that will not do'
            warn(f"{had}it is read as the nearest of these; {advice}")
        return np.where(np.isnan(numbers), np.nan, places)

    def values(self, codes: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(codes), np.nan, np.asarray(self.levels)[self._places(codes)])


@dataclass(frozen=True)
class FrameReader(Reader):
    """Data frames whose columns have a likelihood each: read as codes, and returned as frames.

    :ivar described: the :class:`~ppl_models.columns.Columns`, in JSON types.
    """

    columns: Sequence[Column]
    described: Any

    @property
    def likelihoods(self) -> Columns:
        """New ones, of all columns."""
        return from_config(self.described)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def numbers(self, X: Any) -> Any:
        """A frame of codes with the same columns, in any order, and rows; NaN in gaps."""
        if not is_frame(X):
            raise ValueError(
                f"X must be a data frame with the columns {_some(self.names)}, as the training "
                f"data were, got {type(X).__name__}"
            )
        given = _named(X)
        if missing := [name for name in self.names if name not in given]:
            raise ValueError(f"X lacks the columns {_some(missing)}: add or rename them")
        if unknown := [name for name in given if name not in self.names]:
            raise ValueError(
                f"X has the columns {_some(unknown)}, which the training data had not: drop them"
            )
        return frame_like(X, {c.name: c.codes(given[c.name]) for c in self.columns})

    def encoding(self, X: np.ndarray, likelihood: Likelihood | None, rows: Any = None) -> Encoding:
        """Codes stay as they are; columns are standardized in their likelihoods."""
        missing = float(is_missing(X).mean())
        return Encoding("columns", X.shape[1:], np.zeros(1), np.ones(1), missing)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        return self.likelihoods

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        view = columns_view(self.likelihoods, x)
        if not np.ptp(view.numbers(x), axis=0).any():
            raise ValueError(
                "no column of X tells its rows apart beyond chance: there is nothing to cluster"
            )
        return view

    def beyond(self, x: np.ndarray) -> np.ndarray:
        return has_all_variance(x[:, [_is_measured(column) for column in self.columns]])

    def settings(self) -> dict[str, Any]:
        columns = self.likelihoods
        return {"columns": dict(zip(columns.names, map(repr, columns), strict=True))}

    def in_words(self) -> list[dict[str, Any]]:
        """Each column's name and categories, in the order of their codes."""
        return [
            {"name": column.name, "categories": plain_values(getattr(column, "levels", ()))}
            for column in self.columns
        ]

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        gaps = is_missing(X)
        if not encoding.missing and gaps.any():
            raise ValueError(
                f"X has missing entries in column {self.names[int(gaps.any(0).argmax())]!r}, "
                "but the training data had none: fit to some that have"
            )

    def shown(self, X: Any, checked: Any, names: Any) -> Any:
        return X

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        """The user's columns of codes ``[N, D]``; of rows like given ones only gaps are filled."""
        made = [column.values(own) for column, own in zip(self.columns, values.T, strict=True)]
        assert self.form is not None
        if like is None:
            return self.form.frame(made)
        own = dict(native_columns(like))
        return self.form.filled(made, [own[name] for name in self.names], like)


def is_mixed(X: Any) -> bool:
    """Whether a frame has columns that are not numbers, or bools beside others."""
    columns = columns_given(X)
    for column in columns:
        if column.kind == Kind.NOTHING:
            raise ValueError(f"column {column.name!r} has no values, all are missing: drop it")
    check_kinds(columns, UNDERSTOOD)
    if 0 < sum(column.kind == Kind.BOOLS for column in columns) < len(columns):
        return True
    return any(
        column.kind == Kind.CATEGORIES
        or (column.kind == Kind.STRINGS and not all(map(reads_as_number, column.there)))
        for column in columns
    )


def frame_reader(X: Any, chosen: Mapping[str, Likelihood]) -> FrameReader:
    """The reader of a frame; where the user has not ``chosen`` a likelihood, the dtype decides."""
    given = _named(X)
    check_kind("columns", chosen, Mapping, 'likelihoods by column, such as {"age": Normal()}')
    chosen = {column_name(name): likelihood for name, likelihood in chosen.items()}
    if unknown := [name for name in chosen if name not in given]:
        raise ValueError(
            f"columns names {unknown[0]!r}, but X has {_some(list(given))}: is that a misspelling?"
        )
    check_kinds(list(given.values()), UNDERSTOOD)
    read = {name: _column(own, chosen.get(name)) for name, own in given.items()}
    fitted = {
        name: _fitted(column, likelihood, column.codes(given[name]))
        for name, (column, likelihood) in read.items()
    }
    warn_of_ids(own for name, own in given.items() if name not in chosen)
    columns = [column for column, _ in read.values()]
    return FrameReader(columns, to_config(Columns(fitted)), form=Form.of(X))


def _column(given: Given, likelihood: Likelihood | None) -> tuple[Column, Likelihood]:
    """How to read a column, and its likelihood."""
    if given.gaps.all():
        raise ValueError(f"column {given.name!r} has no values, all are missing: drop it")
    if likelihood is not None:
        what = f"columns[{given.name!r}]"
        check_kind(what, likelihood, Likelihood, "a likelihood, such as Normal()")
    column, default = _by_kind(given, isinstance(likelihood, CodedLikelihood))
    return column, column.completed(default if likelihood is None else likelihood)


def _by_kind(given: Given, coded: bool) -> tuple[Column, Likelihood]:
    """:param coded: whether the user wants codes, also of numbers."""
    name = given.name
    if given.kind == Kind.CATEGORIES:
        likelihood = Ordinal() if given.order else Categorical()
        return CodedColumn(name, levels=tuple(given.levels())), likelihood
    if given.kind == Kind.BOOLS:
        return TruthColumn(name), Bernoulli()
    if given.kind == Kind.STRINGS:
        if not coded:
            check_words(name, given.there.tolist())
        words = given.levels()
        words = sorted(words, key=float) if all(map(reads_as_number, words)) else words
        return CodedColumn(name, levels=tuple(words)), Categorical()
    there = given.there.astype(float)
    # Floats may be whole, too: pandas makes floats of integers with gaps.
    usual = there[~has_all_variance(there[:, None])]
    whole = bool((there == np.floor(there)).all() and (np.abs(usual) < LARGEST_WHOLE).all())
    levels = np.unique(there)
    if len(levels) == 1 and not coded:
        return ConstantColumn(name, whole, value=float(levels[0])), Normal()
    if whole and not coded and np.isin(there, (0, 1)).all():
        return Column(name, whole), Bernoulli()
    if coded or len(levels) == 2 or (whole and len(levels) <= FEW_VALUES):
        return NumberedColumn(name, levels=tuple(levels.tolist()), exact=coded), Ordinal()
    # Counts vary at least as much as a Poisson variable; other whole numbers are numbers.
    if whole and there.min() >= 0 and are_counts(usual):
        return Column(name, whole), NegativeBinomial()
    multiplied = there.min() > 0 and is_multiplied(usual)
    return Column(name, whole), LogNormal() if multiplied else Normal()


def _fitted(column: Column, likelihood: Likelihood, codes: np.ndarray) -> Likelihood:
    there = codes[~np.isnan(codes)]
    try:
        likelihood.check(torch.as_tensor(there))
    except ValueError as error:
        raise ValueError(f"column {column.name!r}: {error}") from error
    if _is_measured(column):
        _check_precision(column.name, there)
        there = there[~has_all_variance(there[:, None])]
    return likelihood.fitted(torch.as_tensor(there))


def _is_measured(column: Column) -> bool:
    return not isinstance(column, CodedColumn | TruthColumn)


def _check_precision(name: str, values: np.ndarray) -> None:
    """:raises ValueError: if single precision does not hold what varies in a column of numbers."""
    size = np.abs(values).max()
    if not size <= LARGEST:
        raise ValueError(
            f"column {name!r} has values up to {size:.3g}, more than {LARGEST:.0e}: give it in "
            "another unit, or drop the rows that are infinite"
        )
    spread = values.std()
    if 0 < spread < max(VARIES * size, SMALLEST):
        raise ValueError(
            f"column {name!r} varies by {spread:.3g} around {values.mean():.3g}, which single "
            "precision does not hold: subtract its mean, or give it in another unit"
        )


def _named(X: Any) -> dict[str, Given]:
    """The columns by name."""
    columns = columns_given(X)
    check_names(column.name for column in columns)
    return {column.name: column for column in columns}


def _with_gaps(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """``values``, ``None`` where codes are NaN."""
    if not (gaps := np.isnan(codes)).any():
        return values
    objects = values.astype(object)
    objects[gaps] = None
    return objects


def _some(names: Sequence[Any]) -> str:
    return str(list(names) if len(names) <= 8 else [*names[:8], "..."])
