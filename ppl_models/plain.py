"""Arrays as users have them (masked, nullable, sparse, quantised), as plain numbers or refused."""

from __future__ import annotations

import sys
from math import nan
from numbers import Number
from typing import Any, cast

import narwhals.stable.v2 as nw
import numpy as np
import torch
from narwhals.stable.v2.dependencies import is_into_series
from numpy.typing import ArrayLike
from torch import Tensor

# Not every larger integer is a float.
LARGEST_EXACT = 2**53


def dense_tensor(x: Tensor, name: str) -> Tensor:
    """``x`` if it is a dense tensor of real numbers.

    :param name: the keyword, for messages.
    :raises ValueError: if it is not; the message says how to convert it.
    """
    kinds = {
        f"nested; give a padded tensor: torch.nested.to_padded_tensor({name}, ...)": x.is_nested,
        f"of layout {x.layout}; give {name}.to_dense()": x.layout != torch.strided,
        f"quantised; give {name}.dequantize()": x.is_quantized,
        f"complex; give its parts: torch.view_as_real({name})": x.is_complex(),
        "on the device 'meta', without values; give one with values": x.is_meta,
    }
    if found := [kind for kind, applies in kinds.items() if applies]:
        raise ValueError(f"{name} must be a dense tensor of real numbers, but is {found[0]}")
    return x


def array_of_tensor(x: Tensor, name: str) -> np.ndarray:
    """A dense tensor as an array; NumPy has no floats of 8 bits and no bfloat16.

    :param name: the keyword, for messages.
    :raises ValueError: if it is not dense and real.
    """
    dense = dense_tensor(x, name).detach().cpu().resolve_neg()
    short = dense.is_floating_point() and dense.dtype not in (torch.float32, torch.float64)
    return (dense.float() if short else dense).numpy()


def plain_array(x: ArrayLike, name: str) -> np.ndarray:
    """``x`` as a plain array, NaN where it is masked or ``pandas.NA``.

    Numbers in an array of objects are converted; other objects stay.

    :param name: the keyword, for messages.
    :raises ValueError: if rows differ in shape, a number is too large, or it is sparse.
    """
    if hasattr(x, "todense"):
        raise ValueError(f"{name} is sparse ({type(x).__name__}): give {name}.toarray()")
    try:
        array = _unmasked(np.ma.stack(cast(Any, x)) if _has_masked_rows(x) else x)
    except ValueError as error:
        raise ValueError(f"{name} must be an array, with rows of equal shape: {error}") from error
    return _without_objects(array, name) if is_of_objects(array) else array


def check_told_apart(integers: np.ndarray, name: str) -> None:
    """Refuse integers of which different ones are the same float, as those beyond 2**53 may be.

    :param name: for messages.
    :raises ValueError: if there are such; the message says what to do.
    """
    large = integers.size and max(int(integers.max()), -int(integers.min())) > LARGEST_EXACT
    if large and len(np.unique(integers.astype(float))) < len(np.unique(integers)):
        raise ValueError(
            f"{name} holds different integers beyond 2**53, such as {integers.max()}, that are the "
            "same float: subtract the smallest of its column first, or drop it if these are ids"
        )


def is_masked(x: Any) -> bool:
    """Whether ``x`` has masked entries."""
    return isinstance(x, np.ma.MaskedArray) and bool(np.ma.getmaskarray(x).any())


def is_of_objects(x: Any) -> bool:
    """Whether ``x`` has a dtype, and that is NumPy's dtype of objects."""
    return bool(getattr(x, "dtype", None) == np.dtype(object))


def hidden(x: Any) -> np.ndarray:
    """Which entries are masked or ``pandas.NA``; a single False if none can be."""
    if isinstance(x, np.ma.MaskedArray):
        return np.ma.getmaskarray(x)
    if hasattr(x, "isna") and not isinstance(getattr(x, "dtype", None), np.dtype):
        return np.asarray(x.isna())
    if not isinstance(x, list | tuple) and not is_of_objects(x):
        return np.zeros(1, bool)
    missing = _na()
    try:
        objects = np.asarray(x, dtype=object)
    except ValueError:  # rows differ in shape, which the check of numbers says
        return np.zeros(1, bool)
    return np.array([value is missing for value in objects.ravel()], bool).reshape(objects.shape)


def with_unknown(labels: Any, name: str) -> Any:
    """``labels``, with -1 in place of masked entries, ``pandas.NA``, and NaN among whole numbers,
    which is how pandas holds integers with gaps; in lists and arrays of objects also of None, and
    of either among strings.

    :param name: the keyword, for messages.
    :raises ValueError: if an integer needs 64 bits without a sign, or a tensor is not dense.
    """
    if is_into_series(labels) and not hasattr(labels, "iloc"):  # of polars or PyArrow
        labels = nw.from_native(labels, series_only=True).to_list()
    if isinstance(labels, Tensor) and labels.is_floating_point():
        labels = array_of_tensor(labels, name)
    if (whole := _whole_numbers(labels)) is not None:
        return whole
    where = hidden(labels) | _unnamed(labels)
    if not where.any():
        return labels
    found = np.array(labels, dtype=object)
    found[where] = -1
    plain = _without_objects(found, name)
    if plain.dtype.kind != "f":
        return plain
    if all(isinstance(label, int) for label in found.tolist()):
        raise ValueError(
            f"{name} has integers beyond 2**63 - 1, which cannot stand beside unknown ones: "
            "renumber them"
        )
    return plain.astype(np.int64) if _are_whole(plain) else plain


def _unnamed(labels: Any) -> np.ndarray:
    """Which entries of a list or an array of objects are None or NaN, where the numbers among them
    are whole; a single False if none can be. Text is made of them only later.
    """
    if not isinstance(labels, list | tuple) and not is_of_objects(labels):
        return np.zeros(1, bool)
    try:
        objects = np.asarray(labels, dtype=object)
    except ValueError:  # rows differ in shape, which the check of numbers says
        return np.zeros(1, bool)
    values = objects.ravel().tolist()
    numbers = np.array([each for each in values if isinstance(each, float | np.floating)], float)
    if not _are_whole(numbers[~np.isnan(numbers)]):
        return np.zeros(1, bool)
    missing = [
        each is None or (isinstance(each, float | np.floating) and bool(np.isnan(each)))
        for each in values
    ]
    return np.array(missing, bool).reshape(objects.shape)


def _whole_numbers(labels: Any) -> np.ndarray | None:
    """Floats that are whole or NaN as integers, -1 for NaN; ``None`` for anything else."""
    kind = getattr(labels, "dtype", None)
    if not isinstance(kind, np.dtype) or kind.kind != "f" or is_masked(labels):
        return None
    numbers = np.asarray(labels)
    gaps = np.isnan(numbers)
    if not gaps.any() or not _are_whole(numbers[~gaps]):
        return None
    return np.where(gaps, -1, numbers).astype(np.int64)


def _are_whole(numbers: np.ndarray) -> bool:
    """Whether all are integers of 64 bits."""
    return bool(((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**63)).all())


def _na() -> Any:
    """``pandas.NA``; an object that nothing else is, if pandas was not imported."""
    return getattr(sys.modules.get("pandas"), "NA", object())


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{name} holds an integer that is too large for a float") from error


def _has_masked_rows(x: Any) -> bool:
    return isinstance(x, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in x)


def _unmasked(x: Any) -> np.ndarray:
    """NaN where masked; integers become floats if any is masked."""
    if not is_masked(x):
        return np.asarray(x)
    return (x.astype(float) if x.dtype.kind in "bui" else x).filled(
        nan if x.dtype.kind in "buifO" else None
    )


def _without_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Numbers, NaN for ``pandas.NA``; the objects themselves if one is not a number."""
    missing = _na()
    values = [nan if value is missing else value for value in array.ravel().tolist()]
    if not all(isinstance(value, Number | np.bool_) for value in values):
        return _filled_objects(values, array.shape)
    found = np.array(values)
    if is_of_objects(found):  # decimals, fractions, integers beyond 64 bits
        found = np.array([_number(value, name) for value in values])
    return found.reshape(array.shape)


def _filled_objects(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects.reshape(shape)
