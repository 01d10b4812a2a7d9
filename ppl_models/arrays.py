"""Arrays as they come from a user, checked and brought to tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = [
    "as_groups",
    "as_integers",
    "as_labels",
    "as_mask",
    "as_numbers",
    "as_vectors",
    "draw_labels",
    "group_sizes",
]


def as_labels(
    name: str, values: ArrayLike | Tensor, n: int, num_classes: int, unknown: bool = False
) -> Tensor:
    """Classes ``[n]``, integers from 0 to ``num_classes - 1``.

    :param name: the keyword that they were given by.
    :param unknown: whether -1 may stand for a class that is not known.
    :raises ValueError: for another length, other numbers than integers, or classes that there are
        not.
    """
    labels = as_integers(name, values, n, "class")
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < (-1 if unknown else 0) or high >= num_classes:
        marked = ", and -1 where it is not known" if unknown else ""
        raise ValueError(
            f"{name} has classes from {low} to {high}, but the model was built for 0 to "
            f"{num_classes - 1}{marked}"
        )
    return labels


def draw_labels(
    n: int, num_classes: int, device: torch.device, given: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Classes of ``n`` data that are drawn, each as likely; or the given ones, checked.

    :raises ValueError: as :func:`as_labels`, or if something else is given.
    """
    beside = dict(given or {})
    label = beside.pop("label", None)
    if beside:
        raise ValueError(f"only label= can be given beside the latents, got {' and '.join(beside)}")
    if label is None:
        return {"label": torch.randint(num_classes, (n,), device=device)}
    return {"label": as_labels("label", label, n, num_classes).to(device)}


def as_groups(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Groups ``[n]`` numbered from 0 on, of integers of any values.

    :param name: the keyword that they were given by.
    :raises ValueError: for another length, or other numbers than integers.
    """
    return as_integers(name, values, n, "group").unique(return_inverse=True)[1]


def group_sizes(group: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """How many rows each of B slots has, for groups ``[B]`` numbered from 0 on: ``[B]``, 0 for
    slots not used.

    There are as many slots as rows, so that nothing has to be counted on the host.
    """
    ones = torch.ones(len(group), dtype=dtype, device=group.device)
    return torch.zeros_like(ones).index_add(0, group, ones)


def as_mask(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Truth values ``[n]``.

    :param name: the keyword that they were given by.
    :raises ValueError: for another length, or other values.
    """
    mask = as_numbers(values, name)
    if tuple(mask.shape) != (n,) or mask.dtype != torch.bool:
        raise ValueError(
            f"{name} must hold {n} truth values, one per datum, got {mask.dtype} {list(mask.shape)}"
        )
    return mask


def as_integers(name: str, values: ArrayLike | Tensor, n: int, what: str) -> Tensor:
    """Integers ``[n]``.

    :param name: the keyword that they were given by.
    :param what: what each of them stands for.
    :raises ValueError: for another length, or other numbers than integers.
    """
    integers = as_numbers(values, name)
    if tuple(integers.shape) != (n,):
        raise ValueError(
            f"{name} has shape {list(integers.shape)}, but there are {n} data: one {what} per "
            "datum is needed"
        )
    if integers.is_floating_point() or integers.is_complex() or integers.dtype == torch.bool:
        raise ValueError(
            f"{name} must hold integers, got {integers.dtype}: convert them, if each stands for a "
            f"{what}"
        )
    return integers.long()


def as_vectors(
    name: str, values: ArrayLike | Tensor, n: int, dim: int, dtype: torch.dtype
) -> Tensor:
    """Real vectors ``[n, dim]``, of ``dtype``.

    :param name: the keyword that they were given by.
    :raises ValueError: for another shape, or numbers that are not finite.
    """
    vectors = as_numbers(values, name).to(dtype)
    if tuple(vectors.shape) != (n, dim):
        raise ValueError(
            f"{name} has shape {list(vectors.shape)}, but {[n, dim]} is needed: a vector of {dim} "
            f"for each of {n} data"
        )
    if not vectors.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity: drop those rows from it and from x")
    return vectors


def as_numbers(x: ArrayLike | Tensor, name: str = "x") -> Tensor:
    """Numbers as a tensor of their own type.

    :param name: the keyword that they were given by.
    :raises ValueError: for what is no array of numbers.
    """
    if isinstance(x, Tensor):
        return x
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{name} must be an array, with rows that are alike: {error}") from error
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} must hold numbers, got {type(x).__name__} of dtype {array.dtype}")
    if not array.dtype.isnative:
        raise ValueError(
            f"{name} has the byte order of another machine: give x.astype({array.dtype.name!r})"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable"
        )  # nothing here writes to data
        # Torch knows no steps backwards.
        return torch.from_numpy(array.copy() if any(step < 0 for step in array.strides) else array)
