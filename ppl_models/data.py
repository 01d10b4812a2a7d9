"""Data as it comes from a user, checked once at the door."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

if TYPE_CHECKING:
    from ppl_models.base import FacetModel

__all__ = ["as_data"]


def as_data(x: ArrayLike | Tensor, model: FacetModel) -> Tensor:
    """A tensor ``[N, *x_shape]`` that ``model`` can take: uint8 stays uint8, other numbers take the model's dtype.

    :raises ValueError: if ``x`` is empty, is not numeric, has the wrong shape, holds NaN or infinity, or lies outside
        the support of the model's likelihood; the message says what was given and what is needed.
    """
    data = _as_tensor(x)
    expected = "[N, " + ", ".join(map(str, model.x_shape)) + "]"
    if data.ndim == 0 or tuple(data.shape[1:]) != model.x_shape:
        raise ValueError(
            f"x has shape {list(data.shape)}, but the model was built for {expected}: {_shape_advice(data, model)}"
        )
    if len(data) == 0:
        raise ValueError(f"x is empty (shape {list(data.shape)}): at least one datum is needed")
    if data.dtype == torch.uint8:
        model.likelihood.check(data)
        return data
    data = data.to(model.gates.dtype)
    bad = ~data.isfinite()
    if bad.any():
        first = [int(i) for i in bad.nonzero()[0]]
        raise ValueError(
            f"x holds {int(bad.sum())} values that are NaN or infinite, the first at index {first}: "
            "drop those rows or fill them in"
        )
    model.likelihood.check(data)
    return data


def _shape_advice(data: Tensor, model: FacetModel) -> str:
    if tuple(data.shape) == model.x_shape:
        return "for a single datum give x[None]"
    if len(data.shape) > 1 and prod(data.shape[1:]) == prod(model.x_shape):
        return f"reshape it, for example x.reshape(len(x), {', '.join(map(str, model.x_shape))})"
    return f"build the model with x_shape={tuple(data.shape[1:])}, or look for what is wrong with the data"


def _as_tensor(x: ArrayLike | Tensor) -> Tensor:
    if isinstance(x, Tensor):
        return x
    array = np.asarray(x)
    if array.dtype.kind not in "buif":
        raise ValueError(f"x must hold numbers, got {type(x).__name__} of dtype {array.dtype}")
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
