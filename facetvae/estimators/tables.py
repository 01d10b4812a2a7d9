"""What users give to an estimator, in a form that scikit-learn's checks accept, or refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from narwhals.stable.v2.dependencies import is_polars_lazyframe
from torch import Tensor

from facetvae.estimators.words import reads_as_number
from ppl_models.given.arrays import (
    array_of_tensor,
    check_told_apart,
    is_of_objects,
    plain_array,
    within_float64,
)
from ppl_models.given.frames import Given, Kind, columns_given, is_frame, native_columns, replaced
from ppl_models.given.labels import with_unknown

# What to do with columns that hold no numbers.
ADVICE = {
    Kind.DATES: "dates as numbers, such as days since the first",
    Kind.DURATIONS: "durations in seconds",
    Kind.TIMES: "times in minutes since midnight",
    Kind.CATEGORIES: "categories by OneHotEncoder",
    Kind.STRINGS: "text by OneHotEncoder",
    Kind.OBJECTS: "objects as numbers",
}


def plain_table(X: Any) -> Any:
    """Data without masks, NA or tensors; a data frame stays one, with its names.

    :raises ValueError: if columns of a data frame are not numbers, which are named, or a tensor is
        not dense and real.
    """
    if isinstance(X, Tensor):
        return array_of_tensor(X, "X")
    if is_frame(X):
        return _plain_frame(X)
    if is_polars_lazyframe(X):
        raise ValueError("X is a LazyFrame, which has no rows yet: give X.collect()")
    objects = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and is_of_objects(X))
    return plain_array(X, "X") if objects or isinstance(X, np.ma.MaskedArray) else X


def real_numbers(X: np.ndarray) -> np.ndarray:
    """Checked data of a dtype of real numbers of at most 64 bits.

    :raises ValueError: if they are of another kind, such as dates, out of float64's range, or
        integers that floats do not tell apart.
    """
    if X.dtype.kind not in "buif":
        raise ValueError(f"X must hold numbers, got dtype {X.dtype}: convert or drop it")
    if X.dtype.kind in "ui":
        check_told_apart(X, "X")
    return within_float64(X, "X") if X.dtype.itemsize > np.dtype(float).itemsize else X


def plain_labels(y: Any) -> Any:
    """Labels, -1 where they are masked, NA, or None or NaN among whole numbers or strings; integers
    in an array of objects become integers.

    :raises ValueError: if a tensor is not dense and real.
    """
    y = with_unknown(array_of_tensor(y, "y") if isinstance(y, Tensor) else y, "y")
    return plain_array(y, "y") if is_of_objects(y) or isinstance(y, list | tuple) else y


def with_numbers(X: Any, numbers: np.ndarray) -> Any:
    """The frame ``X``, with numbers ``[N, D]`` in place of the columns that hold strings."""
    columns = columns_given(X)
    return replaced(X, {i: numbers[:, i] for i, c in enumerate(columns) if c.kind == Kind.STRINGS})


def check_kinds(columns: Sequence[Given], kinds: Collection[str]) -> None:
    """:raises ValueError: if columns hold something else, with advice."""
    wrong = [each for each in columns if each.kind not in kinds and not each.gaps.all()]
    for each in wrong:
        if each.kind == "objects" and len(each.types) > 1:
            raise ValueError(
                f"column {each.name!r} mixes {' and '.join(each.types)}: make them all strings, or "
                "all numbers"
            )
    if wrong:
        dtypes = ", ".join(sorted({each.dtype for each in wrong}))
        advice = " and ".join(dict.fromkeys(ADVICE[each.kind] for each in wrong))
        allowed = "numbers, categories or bools" if Kind.CATEGORIES in kinds else "numbers"
        raise ValueError(
            f"X must hold {allowed}, but the columns {[each.name for each in wrong]} have the "
            f"dtype {dtypes}: encode {advice}, or drop them"
        )


def _plain_frame(X: Any) -> Any:
    """A frame whose columns are NumPy's numbers, or what is like them; text is read as such.

    :raises ValueError: if it is none.
    """
    columns = columns_given(X)
    words = [word for each in columns if each.kind == Kind.STRINGS for word in each.there]
    numeric = all(map(reads_as_number, words))
    check_kinds(
        columns, (Kind.NUMBERS, Kind.BOOLS, Kind.STRINGS) if numeric else (Kind.NUMBERS, Kind.BOOLS)
    )
    plain = {}
    for i, (given, (_, own)) in enumerate(zip(columns, native_columns(X), strict=True)):
        if not isinstance(getattr(own, "dtype", None), np.dtype) or is_of_objects(own):
            text = given.kind not in (Kind.NUMBERS, Kind.BOOLS)
            plain[i] = given.values.astype(float) if text else given.values
    return replaced(X, plain) if plain else X
