"""Products of matrices by the library that is faster on this processor.

PyTorch takes products in single precision by MKL, which does not use AVX-512 on AMD's processors;
oneDNN, which is part of PyTorch as well, does. What that gains depends on the machine: on two of
them a replayed step of MFCVAE's size for MNIST took 0.53 and 0.93 of a plain loop's.
"""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph
from torch.nn.functional import linear

aten = torch.ops.aten
#: Multiplications from which on a call of oneDNN, which costs more, pays.
LARGE_PRODUCT = 2**21


class Linear(nn.Linear):
    """PyTorch's layer, with its large products in single precision by oneDNN where MKL is slower.

    The two round differently. Within ``torch.func``'s transforms, ``torch.compile`` and recorded
    programs the layer is PyTorch's.
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


def use_faster_products(graph: Graph) -> None:
    """Take a recorded program's large products in single precision by oneDNN, where MKL is slower.

    :param graph: of operations, with an example of each result as ``meta["val"]``.
    """
    for node in list(graph.nodes) if mkl_is_slower() else ():
        if node.target is aten.addmm.default and not node.kwargs:
            bias, rows, columns = node.args
        elif node.target is aten.mm.default:
            bias, (rows, columns) = None, node.args
        else:
            continue
        result, times = node.meta["val"], rows.meta["val"].shape[-1]
        here = result.dtype == torch.float32 and result.device.type == "cpu"
        vector = bias is None or bias.meta["val"].dim() == 1
        if here and vector and prod(result.shape) * times >= LARGE_PRODUCT:
            with graph.inserting_before(node):
                weight = graph.call_function(aten.t.default, (columns,))
                given: tuple[Any, ...] = (rows, weight, bias, "none", [], "")
                faster = graph.call_function(torch.ops.mkldnn._linear_pointwise.default, given)
            faster.meta = dict(node.meta)
            node.replace_all_uses_with(faster)
            graph.erase_node(node)


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Whether both are tensors in single precision on the CPU, which PyTorch's modes and
    transforms do not follow. Some of its names are not public: without them, assume that they do.
    """
    single = rows.dtype == weight.dtype == torch.float32
    here = rows.device.type == weight.device.type == "cpu"
    compiling = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if not (single and here) or compiling or torch.is_autocast_enabled("cpu"):
        return False
    try:
        from torch._C._functorch import is_functorch_wrapped_tensor
        from torch.fx.experimental.proxy_tensor import get_proxy_mode
    except ImportError:
        return False
    return get_proxy_mode() is None and not any(map(is_functorch_wrapped_tensor, (rows, weight)))


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
