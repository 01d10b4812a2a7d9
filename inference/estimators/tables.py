"""What users give to an estimator, in a form that scikit-learn's checks accept, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ppl_models.arrays import within_float64
from ppl_models.plain import array_of_tensor, is_of_objects, plain_array, with_unknown

__all__ = ["is_frame", "plain_labels", "plain_table", "real_numbers", "with_numbers"]

# Kinds of dtypes that stand for numbers: booleans, integers, floats.
NUMBERS = "buif"


def plain_table(X: Any) -> Any:
    """Data without masks, NA or tensors; a data frame stays one, with its names.

    :raises ValueError: if columns of a data frame are not numbers, which are named, or a tensor is
        not dense and real.
    """
    if isinstance(X, Tensor):
        return array_of_tensor(X, "X")
    if is_frame(X):
        return _plain_frame(X)
    objects = isinstance(X, list | tuple) or (isinstance(X, np.ndarray) and is_of_objects(X))
    return plain_array(X, "X") if objects or isinstance(X, np.ma.MaskedArray) else X


def is_frame(X: Any) -> bool:
    """Whether ``X`` is a data frame, of pandas or like it."""
    return hasattr(X, "dtypes") and hasattr(X, "columns") and hasattr(X, "iloc")


def real_numbers(X: np.ndarray) -> np.ndarray:
    """Checked data of a dtype of real numbers of at most 64 bits.

    :raises ValueError: if they are of another kind, such as dates, or out of float64's range.
    """
    if X.dtype.kind not in NUMBERS:
        raise ValueError(f"X must hold numbers, got dtype {X.dtype}: convert or drop it")
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
    shown = X.copy(deep=False)
    for i in range(X.shape[1]):
        column = X.iloc[:, i]
        text = is_of_objects(column) or str(column.dtype).startswith("str")
        if text and any(isinstance(each, str) for each in column):
            shown.isetitem(i, numbers[:, i])
    return shown


def _plain_frame(X: Any) -> Any:
    """A frame whose columns of objects are numbers, and whose sparse columns are dense; strings
    that read as numbers are left for scikit-learn to read.
    """
    if not X.shape[1]:
        raise ValueError(f"X is a data frame without columns (shape {X.shape})")
    columns = [X.iloc[:, i] for i in range(X.shape[1])]
    if wrong := [str(c.name) for c in columns if not _is_numeric(c)]:
        dtypes = ", ".join(sorted({str(c.dtype) for c in columns if str(c.name) in wrong}))
        raise ValueError(
            f"X must hold numbers, but the columns {wrong} have the dtype {dtypes}: encode them as "
            "numbers (dates as a duration, categories by OneHotEncoder), or drop them"
        )
    if not any(is_of_objects(c) or hasattr(c, "sparse") for c in columns):
        return X
    return type(X)(
        {i: plain_array(np.asarray(c), f"column {c.name!r} of X") for i, c in enumerate(columns)},
        index=X.index,
    ).set_axis(X.columns, axis=1)


def _is_numeric(column: Any) -> bool:
    """Whether entries are numbers, or strings or objects that scikit-learn may read as such."""
    if is_of_objects(column) or str(column.dtype).startswith("str"):
        return not _holds_words(column)
    return column.dtype.kind in NUMBERS


def _holds_words(column: Any) -> bool:
    """Whether some entries are strings that do not read as numbers."""
    there = column[~column.isna()]
    try:
        there.astype(float)
    except (ValueError, TypeError):
        return any(isinstance(each, str) for each in there)
    except OverflowError:  # numbers, of which another check says more
        return False
    return False
