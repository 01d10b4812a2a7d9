"""What a fitted estimator's program needs besides its guide: the conversion of a user's array as a
module of tensors, and what a reader of its file is to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from facetvae.estimators.data import Encoding
from facetvae.estimators.frames import Table
from facetvae.table_rules.skewness import Unskewed


class EncodingModule(nn.Module):
    """What :meth:`Encoding.encode <facetvae.estimators.data.Encoding.encode>` does to numbers, in
    float64, without its checks.

    :param encoding: of a fitted estimator.
    """

    factor: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.scales = encoding.scales
        self.register_buffer("factor", _doubles(np.ldexp(1.0, -np.asarray(encoding.exponent))))
        self.register_buffer("loc", _doubles(encoding.loc))
        self.register_buffer("scale", _doubles(encoding.scale))
        self.unskewed = None if encoding.unskewed is None else UnskewedModule(encoding.unskewed)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, *x_shape]``: 8-bit values as they are, others as float32."""
        if x.dtype == torch.uint8:
            return x
        x = x.double()
        if self.scales:
            x = (x * self.factor - self.loc) / self.scale
        if self.unskewed is not None:
            x = self.unskewed(x)
        return x.float()


class UnskewedModule(nn.Module):
    """What :meth:`Unskewed.apply <facetvae.table_rules.skewness.Unskewed.apply>` does: Yeo and
    Johnson's powers (2000, Eq. 2.1), then standardised.
    """

    power: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(self, unskewed: Unskewed) -> None:
        super().__init__()
        self.register_buffer("power", _doubles(unskewed.power))
        self.register_buffer("loc", _doubles(unskewed.loc))
        self.register_buffer("scale", _doubles(unskewed.scale))

    def forward(self, x: Tensor) -> Tensor:
        power = torch.where(x < 0, 2 - self.power, self.power)
        straight = power == 0  # whose limit is the logarithm
        size = x.abs().log1p()
        bent = torch.expm1(power * size) / torch.where(straight, 1.0, power)
        return (torch.copysign(torch.where(straight, size, bent), x) - self.loc) / self.scale


def _doubles(values: np.ndarray) -> Tensor:
    return torch.as_tensor(np.atleast_1d(values), dtype=torch.float64)


def columns_in_words(table: Table) -> list[dict[str, Any]]:
    """Each column's name and categories, in the order of their codes, in JSON types."""
    return [
        {"name": each.name, "categories": plain_values(getattr(each, "levels", ()))}
        for each in table.columns
    ]


def plain_values(values: Iterable[Any]) -> list[Any]:
    """Values as JSON has them: numbers, text and truth values as they are, others in words."""
    plain = [getattr(value, "item", lambda value=value: value)() for value in values]
    return [each if isinstance(each, str | int | float | bool) else str(each) for each in plain]
