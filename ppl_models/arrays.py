"""Check arrays that a user gives and convert them to tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_models.plain import dense_tensor, is_masked, plain_array, with_unknown
from ppl_models.turns import exclusive

# Bytes of the longest number that torch has.
LONGEST = 8


def as_labels(
    name: str, values: ArrayLike | Tensor, n: int, num_classes: int, unknown: bool = False
) -> Tensor:
    """Classes ``[n]``, integers from 0 to ``num_classes - 1``.

    :param name: the keyword, for messages.
    :param unknown: whether -1 may mark an unknown class; masked entries, ``pandas.NA``, None, and
        NaN among whole numbers are then unknown as well.
    :raises ValueError: if the length is wrong, or values are not integers or are out of range.
    """
    labels = as_integers(name, with_unknown(values, name) if unknown else values, n, "class")
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < (-1 if unknown else 0) or high >= num_classes:
        marked = ", or -1 where unknown" if unknown else ""
        raise ValueError(
            f"{name} has classes from {low} to {high}, but the model was built for 0 to "
            f"{num_classes - 1}{marked}"
        )
    return labels


def draw_labels(
    n: int, num_classes: int, device: torch.device, given: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The given classes of ``n`` samples, checked; drawn uniformly if not given.

    :raises ValueError: as :func:`as_labels`, or if something else is given.
    """
    beside = dict(given or {})
    label = beside.pop("label", None)
    if beside:
        raise ValueError(
            f"only label= can be given besides the latents, got {' and '.join(beside)}"
        )
    if label is None:
        return {"label": torch.randint(num_classes, (n,), device=device)}
    return {"label": as_labels("label", label, n, num_classes).to(device)}


def as_groups(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Groups ``[n]``, given as any integers and renumbered from 0.

    :param name: the keyword, for messages.
    :raises ValueError: if the length is wrong or values are not integers.
    """
    return as_integers(name, values, n, "group").unique(return_inverse=True)[1]


def group_sizes(group: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Number of rows in each of B slots, for groups ``[B]`` numbered from 0: ``[B]``, 0 for unused
    slots.

    There are as many slots as rows, so that no count has to be copied to the host.
    """
    ones = torch.ones(len(group), dtype=dtype, device=group.device)
    return torch.zeros_like(ones).index_add(0, group, ones)


def as_mask(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Booleans ``[n]``.

    :param name: the keyword, for messages.
    :raises ValueError: if the length is wrong or values are not booleans.
    """
    mask = as_numbers(values, name)
    if tuple(mask.shape) != (n,) or mask.dtype != torch.bool:
        raise ValueError(
            f"{name} must hold {n} booleans, one per sample, got {mask.dtype} {list(mask.shape)}"
        )
    return mask


def as_integers(name: str, values: ArrayLike | Tensor, n: int, what: str) -> Tensor:
    """Integers ``[n]``.

    :param name: the keyword, for messages.
    :param what: what each integer stands for, for messages.
    :raises ValueError: if the length is wrong, or values are not integers of 64 bits or are masked.
    """
    if is_masked(values):
        raise ValueError(f"{name} has masked entries: give one {what} for each sample")
    integers = as_numbers(values, name)
    if tuple(integers.shape) != (n,):
        raise ValueError(
            f"{name} has shape {list(integers.shape)}, but there are {n} samples: "
            f"give one {what} per sample"
        )
    if integers.is_floating_point() or integers.is_complex() or integers.dtype == torch.bool:
        raise ValueError(
            f"{name} must hold integers, got {integers.dtype}: convert it if each value is a {what}"
        )
    if integers.dtype == torch.uint64 and (integers.long() < 0).any():
        raise ValueError(f"{name} holds integers beyond 2**63 - 1: renumber them")
    return integers.long()


def as_vectors(
    name: str, values: ArrayLike | Tensor, n: int, dim: int, dtype: torch.dtype
) -> Tensor:
    """Real vectors ``[n, dim]`` of type ``dtype``.

    :param name: the keyword, for messages.
    :raises ValueError: if the shape is wrong or numbers are not finite.
    """
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

    Longer floats than 64 bits become float64.

    :param name: the keyword, for messages.
    :raises ValueError: if it is not an array of real numbers.
    """
    if isinstance(x, Tensor):
        return dense_tensor(x, name)
    array = plain_array(x, name)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} must hold numbers, got {type(x).__name__} of dtype {array.dtype}")
    if not array.dtype.isnative:
        raise ValueError(
            f"{name} has the byte order of another machine: give x.astype({array.dtype.name!r})"
        )
    if array.dtype.itemsize > LONGEST:
        array = within_float64(array, name)
    with exclusive(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable"
        )  # nothing here writes to data
        # Torch has no negative strides.
        return torch.from_numpy(array.copy() if any(step < 0 for step in array.strides) else array)


def within_float64(array: np.ndarray, name: str) -> np.ndarray:
    """Longer floats as float64.

    :raises ValueError: if a value is too large or too small for that.
    """
    with np.errstate(over="ignore", under="ignore"):
        found = array.astype(np.float64)
    if np.isinf(found[np.isfinite(array)]).any() or (found[array != 0] == 0).any():
        raise ValueError(
            f"{name} holds values of {array.dtype} that float64 cannot represent: scale them first"
        )
    return found
