"""Arrays as users have them (masked, nullable, sparse, quantized): as plain numbers or refused.

What does not fit is a ValueError, which names the keyword ``name`` and says what to do.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from math import nan
from numbers import Number
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_models.turns import exclusive


def as_vectors(
    name: str, values: ArrayLike | Tensor, n: int, dim: int, dtype: torch.dtype
) -> Tensor:
    """Real vectors ``[n, dim]`` of type ``dtype``."""
    vectors = as_numbers(values, name).to(dtype)
    if tuple(vectors.shape) != (n, dim):
        raise ValueError(
            f"{name} has shape {list(vectors.shape)}, but {[n, dim]} is needed: a vector of {dim} "
            f"for each of {n} samples"
        )
    if not vectors.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity: drop those rows from it and from x")
    return vectors


def as_numbers(x: ArrayLike | Tensor, name: str = "x") -> Tensor:
    """An array of numbers as a dense tensor of the same dtype, NaN where it is masked or NA.

    Longer floats than 64 bits become float64. What data were computed from gets no gradient.
    """
    if isinstance(x, Tensor):
        return dense_tensor(x, name).detach()
    array = plain_array(x, name)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} must hold numbers, got {type(x).__name__} of dtype {array.dtype}")
    if not array.dtype.isnative:
        raise ValueError(
            f"{name} has the byte order of another machine: give x.astype({array.dtype.name!r})"
        )
    if array.dtype.itemsize > 8:  # torch has no longer numbers
        array = within_float64(array, name)
    with exclusive(), warnings.catch_warnings():
        # Nothing here writes to data.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        # Torch has no negative strides.
        return torch.from_numpy(array.copy() if any(step < 0 for step in array.strides) else array)


def within_float64(array: np.ndarray, name: str) -> np.ndarray:
    """Longer floats as float64."""
    with np.errstate(over="ignore", under="ignore"):
        found = array.astype(np.float64)
    if np.isinf(found[np.isfinite(array)]).any() or (found[array != 0] == 0).any():
        raise ValueError(
            f"{name} holds values of {array.dtype} that float64 cannot represent: scale them first"
        )
    return found


# Not every larger integer is a float.
LARGEST_EXACT = 2**53


def dense_tensor(x: Tensor, name: str) -> Tensor:
    """``x`` if it is a dense tensor of real numbers."""
    kinds = {
        f"nested; give a padded tensor: torch.nested.to_padded_tensor({name}, ...)": x.is_nested,
        f"of layout {x.layout}; give {name}.to_dense()": x.layout != torch.strided,
        f"quantized; give {name}.dequantize()": x.is_quantized,
        f"complex; give its parts: torch.view_as_real({name})": x.is_complex(),
        "on the device 'meta', without values; give one with values": x.is_meta,
    }
    if found := [kind for kind, applies in kinds.items() if applies]:
        raise ValueError(f"{name} must be a dense tensor of real numbers, but is {found[0]}")
    return x


def array_of_tensor(x: Tensor, name: str) -> np.ndarray:
    """A dense tensor as an array; NumPy has no floats of 8 bits and no bfloat16."""
    dense = dense_tensor(x, name).detach().cpu().resolve_neg()
    short = dense.is_floating_point() and dense.dtype not in (torch.float32, torch.float64)
    return (dense.float() if short else dense).numpy()


def plain_array(x: ArrayLike, name: str) -> np.ndarray:
    """``x`` as a plain array, NaN where it is masked or ``pandas.NA``.

    Numbers in an array of objects are converted; other objects stay.
    """
    if hasattr(x, "todense"):
        raise ValueError(f"{name} is sparse ({type(x).__name__}): give {name}.toarray()")
    try:
        rows = x if isinstance(x, list | tuple) else ()
        masked = any(isinstance(row, np.ma.MaskedArray) for row in rows)
        array = _unmasked(np.ma.stack(cast(Any, x)) if masked else x)
    except ValueError as error:
        raise ValueError(f"{name} must be an array, with rows of equal shape: {error}") from error
    return numbers_of(array, name) if is_of_objects(array) else array


def check_told_apart(integers: np.ndarray, name: str) -> None:
    """Refuse integers of which different ones are the same float, as those beyond 2**53 may be."""
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


def gaps_in(x: Any) -> np.ndarray:
    """Which entries are masked, or gaps as of :func:`is_gap`; a single False if none can be."""
    masked = np.ma.getmaskarray(x) if isinstance(x, np.ma.MaskedArray) else np.zeros((), bool)
    dtype = getattr(x, "dtype", None)
    if isinstance(x, Tensor) or (isinstance(dtype, np.dtype) and dtype.kind not in "fO"):
        return masked
    try:
        objects = np.asarray(x, dtype=object)
    except ValueError:  # ragged rows
        return masked
    gaps = np.array([is_gap(each) for each in objects.ravel().tolist()], bool)
    return gaps.reshape(objects.shape) | masked


def is_gap(value: Any) -> bool:
    """Whether a value is None, NaN or the like, or ``pandas.NA``."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # of pandas' NA, nothing is known; arrays are objects
        return not np.ndim(value)


def _unmasked(x: Any) -> np.ndarray:
    """NaN where masked; integers become floats if any is masked."""
    if not is_masked(x):
        return np.asarray(x)
    fill = nan if x.dtype.kind in "buifO" else None
    return (x.astype(float) if x.dtype.kind in "bui" else x).filled(fill)


def numbers_of(array: np.ndarray, name: str) -> np.ndarray:
    """Numbers, NaN for ``pandas.NA``; the objects themselves if one is not a number."""
    missing = getattr(sys.modules.get("pandas"), "NA", object())
    values = [nan if value is missing else value for value in array.ravel().tolist()]
    if not all(isinstance(value, Number | np.bool_) for value in values):
        return as_objects(values).reshape(array.shape)
    found = np.array(values)
    if is_of_objects(found):  # decimals, fractions, integers beyond 64 bits
        try:
            found = np.array([float(value) for value in values])
        except OverflowError as error:
            raise ValueError(f"{name} holds an integer that is too large for a float") from error
    return found.reshape(array.shape)


def as_objects(values: Iterable[Any]) -> np.ndarray:
    """An array of these objects, whatever they are."""
    listed = list(values)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array
