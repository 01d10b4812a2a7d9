"""Fully connected layers, by the library that is faster on this processor.

PyTorch takes products in single precision by MKL, which does not use AVX-512 on AMD's processors;
oneDNN, which is part of PyTorch as well, does, and takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

#: Multiplications from which on a call of oneDNN, which costs more, pays.
LARGE_PRODUCT = 2**21
#: Rows for each column of a result from which on it is narrow.
NARROW = 16


class Linear(nn.Linear):
    """PyTorch's layer, with its large products in single precision by oneDNN where MKL is slower.

    The two round differently. Within ``torch.func``'s transforms, ``torch.compile`` and recorded
    programs the layer is PyTorch's.
    """

    def forward(self, rows: Tensor) -> Tensor:
        if mkl_is_slower() and _is_plain(rows, self.weight) and _is_large(rows, self.weight):
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
        flat = gradient.reshape(-1, gradient.shape[-1])
        inputs = rows.reshape(-1, rows.shape[-1])
        # With create_graph=True, by operations that have derivatives themselves.
        times = linear if torch.is_grad_enabled() else product
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        return (
            times(flat, weight.t()).reshape(rows.shape) if for_rows else None,
            _weight_gradient(times, flat, inputs) if for_weight else None,
            flat.sum(0) if for_bias else None,
        )


def _weight_gradient(
    times: Callable[[Tensor, Tensor], Tensor], gradient: Tensor, inputs: Tensor
) -> Tensor:
    """``gradient.T @ inputs``; of few inputs, from the other side."""
    if is_narrow(gradient.shape[1], inputs.shape[1]):
        return times(inputs.t(), gradient.t()).t().contiguous()
    return times(gradient.t(), inputs.t())


def is_narrow(rows: int, columns: int) -> bool:
    """Whether oneDNN takes a product with a result of this shape faster transposed: a fifth to a
    tenth of the time where a few latents join hundreds of units.
    """
    return rows >= NARROW * columns


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``rows @ weight.T + bias`` by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def _is_large(rows: Tensor, weight: Tensor) -> bool:
    return rows.numel() * weight.shape[0] >= LARGE_PRODUCT


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Whether both are tensors in single precision on the CPU, and PyTorch's modes are off."""
    single = rows.dtype == weight.dtype == torch.float32
    here = rows.device.type == weight.device.type == "cpu"
    compiling = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if not (single and here) or compiling or torch.is_autocast_enabled("cpu"):
        return False
    return not _is_followed(rows, weight)


def _is_followed(*tensors: Tensor) -> bool:
    """Whether a transform of ``torch.func`` or a recording follows what is done with the tensors.
    PyTorch says so by names that are not public: without them, assume that one does.
    """
    try:
        from torch._C._functorch import is_functorch_wrapped_tensor
        from torch.fx.experimental.proxy_tensor import get_proxy_mode
    except ImportError:
        return True
    return get_proxy_mode() is not None or any(map(is_functorch_wrapped_tensor, tensors))


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


@cache
def takes_half_precision() -> bool:
    """Whether oneDNN takes products in bfloat16 on this processor."""
    needed = ("_is_mkldnn_bf16_supported", "_linear_pointwise")
    if not all(hasattr(torch.ops.mkldnn, name) for name in needed):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
