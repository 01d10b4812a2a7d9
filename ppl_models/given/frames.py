"""Columns as users have them, in data frames of any library that narwhals reads (pandas, polars,
PyArrow and others) or alone: as numbers or objects with gaps, and back in the user's own dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import StrEnum
from numbers import Number
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2.dependencies import get_pandas, is_into_dataframe, is_into_series

from ppl_models.given.arrays import as_objects, check_told_apart, gaps_in, plain_array


class Kind(StrEnum):
    """What a column holds; nothing if its dtype has no values but gaps."""

    NUMBERS = "numbers"
    BOOLS = "bools"
    STRINGS = "strings"
    CATEGORIES = "categories"
    DATES = "dates"
    DURATIONS = "durations"
    TIMES = "times"
    OBJECTS = "objects"
    NOTHING = "nothing"


# What columns hold by the type of all their objects, the first that is right.
KINDS: tuple[tuple[Any, Kind], ...] = (
    (bool | np.bool_, Kind.BOOLS),
    (str, Kind.STRINGS),
    (complex | np.complexfloating, Kind.OBJECTS),
    (timedelta | np.timedelta64, Kind.DURATIONS),
    (Number | np.bool_, Kind.NUMBERS),
    (date | np.datetime64, Kind.DATES),
    (time, Kind.TIMES),
)


@dataclass(frozen=True)
class Given:
    """A column as a user gives it.

    :ivar name: its name.
    :ivar kind: what it holds.
    :ivar values: ``[N]``: real numbers or bools, floats with NaN if there are gaps; of other kinds
        objects, None in gaps.
    :ivar gaps: which entries are missing ``[N]``.
    :ivar dtype: in the words of the user's library.
    :ivar order: the categories in their order, if they have one.
    """

    name: str
    kind: Kind
    values: np.ndarray
    gaps: np.ndarray
    dtype: str = "object"
    order: tuple[Any, ...] = ()

    @property
    def there(self) -> np.ndarray:
        """The values that are not missing."""
        there = self.values[~self.gaps]
        return there.astype(bool) if self.kind == Kind.BOOLS else there

    @property
    def types(self) -> list[str]:
        """Names of the types of what is there."""
        return sorted({type(each).__name__ for each in self.there.tolist()})

    def levels(self) -> list[Any]:
        """The different values that are there: in their order if they have one, else sorted."""
        found = set(self.there.tolist())
        if self.order:
            return [each for each in self.order if each in found]
        return sorted(found, key=lambda each: (type(each).__name__, each))


def is_frame(X: Any) -> bool:
    """Whether ``X`` is a data frame that narwhals reads."""
    return bool(is_into_dataframe(X))


def column_name(name: Any) -> str:
    """A column's name as text; that of several levels is a tuple of Python's own values."""
    if isinstance(name, tuple):
        name = tuple(each.item() if isinstance(each, np.generic) else each for each in name)
    return str(name)


def native_columns(X: Any) -> list[tuple[str, Any]]:
    """Names and columns of a frame, as its library has them."""
    if hasattr(X, "iloc"):  # of pandas, whose names may be no text, or the same
        return [(column_name(name), X.iloc[:, i]) for i, name in enumerate(X.columns)]
    return [(each.name, each.to_native()) for each in nw.from_native(X).iter_columns()]


def check_names(names: Iterable[str]) -> None:
    """:raises ValueError: if two are the same."""
    if twice := [name for name, number in Counter(names).items() if number > 1]:
        raise ValueError(f"two columns are called {twice[0]!r}: rename one of them")


def columns_given(X: Any) -> list[Given]:
    """The columns of a frame, of which there is one at least."""
    if not (columns := native_columns(X)):
        raise ValueError(f"X is a data frame without columns (shape {X.shape})")
    return [given(name, each) for name, each in columns]


def given(name: str, values: Any) -> Given:
    """A column of a frame, or other values ``[N]``; floats have to tell its integers apart."""
    pandas = get_pandas()
    if pandas is not None and isinstance(values, pandas.api.extensions.ExtensionArray):
        values = pandas.Series(values)
    dtype = str(getattr(values, "dtype", getattr(values, "type", "object")))
    if is_into_series(values):
        series = nw.from_native(values, series_only=True)
        if series.dtype != nw.Unknown:
            return _of_series(name, series, dtype)
        if (gaps := np.asarray(series.is_null().to_numpy(), bool)).all():
            return Given(name, Kind.NOTHING, np.full(len(gaps), None), gaps, dtype)
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.False_
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.dtype.kind not in "biufO":
        array = as_objects(array.tolist() if array.dtype.kind in "UT" else list(array))
    return _of_array(name, array, np.broadcast_to(mask, array.shape), dtype)


def _of_series(name: str, series: Any, dtype: str) -> Given:
    gaps = np.asarray(series.is_null().to_numpy(), bool)
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:
        there = np.asarray(series.drop_nulls().to_numpy())
        there = there if there.dtype.kind in "biuf" else plain_array(there, f"column {name!r}")
        return _of_numbers(name, there, gaps, dtype)
    objects = as_objects(series.to_list())
    objects[gaps] = None
    if series.dtype in (nw.Categorical, nw.Enum):
        return Given(name, Kind.CATEGORIES, objects, gaps, dtype, _order(series))
    return _of_array(name, objects, gaps, dtype)


def _of_array(name: str, array: np.ndarray, gaps: np.ndarray, dtype: str) -> Given:
    """Numbers or objects ``[N]``, some of which are known to be missing."""
    if array.dtype.kind != "O":
        return _of_numbers(name, array[~gaps], gaps, dtype)
    gaps = gaps | gaps_in(array)
    there = array[~gaps]
    all_are = (kind for types, kind in KINDS if all(isinstance(each, types) for each in there))
    kind = next(all_are, Kind.OBJECTS) if len(there) else Kind.OBJECTS
    numbers = plain_array(there, f"column {name!r}")
    if kind in (Kind.NUMBERS, Kind.BOOLS) and numbers.dtype.kind in "biuf":
        return _of_numbers(name, numbers, gaps, dtype)
    objects = as_objects(array.tolist())
    objects[gaps] = None
    return Given(name, kind, objects, gaps, dtype)


def _of_numbers(name: str, there: np.ndarray, gaps: np.ndarray, dtype: str) -> Given:
    """:param there: numbers that are no gaps."""
    if there.dtype.kind in "iu":
        check_told_apart(there, f"column {name!r}")
    values = there
    if gaps.any():
        values = np.full(len(gaps), np.nan, there.dtype if there.dtype.kind == "f" else float)
        values[~gaps] = there
    found = np.isnan(values) if values.dtype.kind == "f" else gaps
    return Given(
        name, Kind.BOOLS if there.dtype.kind == "b" else Kind.NUMBERS, values, found, dtype
    )


def _order(series: Any) -> tuple[Any, ...]:
    """The categories of a dtype in their order, if it has one: Enum, and Arrow's dictionaries."""
    if series.dtype == nw.Enum:
        return tuple(series.dtype.categories)
    native = series.to_native()
    kind = getattr(getattr(native, "dtype", native), "pyarrow_dtype", getattr(native, "type", None))
    if not getattr(kind, "ordered", False):
        return ()
    chunks = native.array.__arrow_array__() if hasattr(native, "array") else native
    return tuple(chunks.unify_dictionaries().chunk(0).dictionary.to_pylist())


def frame_like(X: Any, columns: Mapping[str, np.ndarray]) -> Any:
    """A frame of the same library as ``X``."""
    return nw.from_dict(dict(columns), backend=nw.from_native(X).implementation).to_native()


def replaced(X: Any, columns: Mapping[int, Any]) -> Any:
    """The frame ``X`` with other columns in some places, arrays or its library's own."""
    if hasattr(X, "iloc"):
        made = X.copy(deep=False)
        for place, values in columns.items():
            made.isetitem(place, values)
        return made
    frame = nw.from_native(X)
    kind, names = frame.implementation, frame.columns
    new = (
        nw.from_native(values, series_only=True).alias(names[i])
        if is_into_series(values)
        else nw.new_series(names[i], values, backend=kind)
        for i, values in columns.items()
    )
    return frame.with_columns(*new).to_native()


@dataclass(frozen=True)
class Form:
    """A frame without its rows, by which others get its kind, names and dtypes.

    :ivar empty: in the user's library.
    """

    empty: Any

    @classmethod
    def of(cls, X: Any) -> Form:
        """:raises ValueError: if two columns of the frame have one name."""
        check_names(name for name, _ in native_columns(X))
        rows = X.iloc[:0] if hasattr(X, "iloc") else nw.from_native(X).head(0).to_native()
        return cls(rows)

    def frame(self, columns: Sequence[np.ndarray], index: Any = None) -> Any:
        """A frame of columns ``[N]``, NaN or None in gaps. Numbers become what a dtype holds:
        whole, within its limits, with its decimal places, bools, or text. Where there are gaps that
        a dtype of NumPy does not have, it is a wider one.

        :param index: that of a frame of pandas.
        """
        own = native_columns(self.empty)
        held = [_held(values, each) for values, (_, each) in zip(columns, own, strict=True)]
        if not hasattr(self.empty, "iloc"):
            named = {name: values.tolist() for (name, _), values in zip(own, held, strict=True)}
            if hasattr(self.empty, "from_pydict"):  # of PyArrow
                return self.empty.from_pydict(named, schema=self.empty.schema)
            return type(self.empty)(named, schema=self.empty.schema, strict=False)
        frame = type(self.empty)(dict(enumerate(held)), index=index)
        for i, (_, each) in enumerate(own):
            if _kind(each) not in "biu" or not frame[i].isna().any():
                frame[i] = frame[i].astype(each.dtype)
        return frame.set_axis(self.empty.columns, axis=1)

    def filled(self, columns: Sequence[np.ndarray], own: Sequence[Any], X: Any) -> Any:
        """The frame ``X`` with ``columns`` ``[N]`` in its gaps. What is observed stays as it is.

        :param own: the columns of ``X`` in the order here.
        """
        frame, kept = self.frame(columns, getattr(X, "index", None)), {}
        if type(frame) is not type(X):  # of another library
            return frame
        for i, (old, (name, new)) in enumerate(zip(own, native_columns(frame), strict=True)):
            if not (gaps := given(name, old).gaps).any():
                kept[i] = old
            elif _may_differ(old):
                kept[i] = _merged(new, old, gaps)
        return replaced(frame, kept)


def _held(values: np.ndarray, own: Any) -> np.ndarray:
    """Values ``[N]`` as a column's dtype holds them, None in gaps; floats as they are."""
    dtype = nw.from_native(own, series_only=True).dtype
    if "O" in (values.dtype.kind, _kind(own)) or not (convert := _converter(dtype, own)):
        return values
    numbers = values.astype(float)
    if _kind(own) in "iu" and np.isnan(numbers).any():
        return numbers.round()  # NumPy's integers have no gaps
    return as_objects(None if np.isnan(each) else convert(each) for each in numbers.tolist())


def _converter(dtype: Any, own: Any) -> Callable[[float], Any] | None:
    """What makes a number one that a column's dtype holds, if it is not one of floats."""
    if dtype.is_integer():
        limits = np.iinfo(str(dtype).lower())
        return lambda value: min(max(round(value), int(limits.min)), int(limits.max))
    if dtype.is_decimal():
        kind: Any = getattr(own, "type", getattr(own, "dtype", None))
        kind = getattr(kind, "pyarrow_dtype", kind)
        most = 10.0 ** ((kind.precision or 38) - kind.scale) - 1  # polars may say none
        return lambda value: Decimal(f"{min(max(value, -most), most):.{kind.scale}f}")
    if dtype == nw.Boolean:
        return lambda value: value > 0.5
    return str if dtype == nw.String else None


def _kind(column: Any) -> str:
    """The kind of a dtype of NumPy's; V for others."""
    dtype = getattr(column, "dtype", None)
    return dtype.kind if isinstance(dtype, np.dtype) else "V"


def _may_differ(column: Any) -> bool:
    """Whether it holds floats, objects or text: these have what no training data had."""
    dtype = nw.from_native(column, series_only=True).dtype
    return bool(dtype.is_float() or dtype in (nw.Object, nw.String))


def _merged(new: Any, old: Any, gaps: np.ndarray) -> Any:
    """The column ``old``, with ``new`` in its gaps ``[N]``."""
    if hasattr(new, "iloc"):
        return new.astype(old.dtype).where(gaps, old)
    ours, theirs = (nw.from_native(each, series_only=True) for each in (new, old))
    mask = nw.new_series("gaps", gaps, backend=ours.implementation)
    return ours.cast(theirs.dtype).zip_with(mask, theirs).to_native()
