"""Products of matrices by the library that is faster on this processor.

PyTorch takes products in single precision by MKL, which does not use AVX-512 on AMD's processors;
oneDNN, which is part of PyTorch as well, does. What that gains depends on the machine: on two of
them a replayed step of MFCVAE's size for MNIST took 0.53 and 0.93 of a plain loop's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

#: Multiplications from which on a call of oneDNN, which costs more, pays.
LARGE_PRODUCT = 2**21


class Linear(nn.Linear):
    """PyTorch's layer, with its large products in single precision by oneDNN where MKL is slower.

    The two round differently. Within ``torch.func``'s transforms and ``torch.compile`` the layer is
    PyTorch's.
    """

    def forward(self, rows: Tensor) -> Tensor:
        plain = mkl_is_slower() and _is_plain(rows, self.weight)  # an export has no sizes
        if plain and rows.numel() * self.out_features >= LARGE_PRODUCT:
            return _Layer.apply(rows, self.weight, self.bias)
        return super().forward(rows)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        flat, inputs = (each.reshape(-1, each.shape[-1]) for each in (gradient, rows))
        # With create_graph=True, by operations that have derivatives themselves.
        times = linear if torch.is_grad_enabled() else product
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        return (
            times(flat, weight.t()).reshape(rows.shape) if for_rows else None,
            times(flat.t(), inputs.t()) if for_weight else None,
            flat.sum(0) if for_bias else None,
        )


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``rows @ weight.T + bias`` by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Whether both are tensors in single precision on the CPU, and no transform of PyTorch's
    follows them, as is assumed where its own name for that is missing.
    """
    single = rows.dtype == weight.dtype == torch.float32
    here = rows.device.type == weight.device.type == "cpu"
    compiling = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if not (single and here) or compiling or torch.is_autocast_enabled("cpu"):
        return False
    try:
        from torch._C._functorch import is_functorch_wrapped_tensor
    except ImportError:
        return False
    return not any(map(is_functorch_wrapped_tensor, (rows, weight)))


@cache
def mkl_is_slower() -> bool:
    """Whether this is a processor on which MKL does not use AVX-512 and oneDNN does."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    try:
        vendor = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and "AuthenticAMD" in vendor and hasattr(torch.ops.mkldnn, "_linear_pointwise")
