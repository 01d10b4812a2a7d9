"""Matrix products of a recorded program, by the library that is faster on this processor.

On AMD's processors MKL, which torch takes products in single precision by, does not use AVX-512;
oneDNN, which is part of torch as well, does, and takes half the time.
"""

from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import Graph, Node

__all__ = ["product", "use_faster_products"]

aten = torch.ops.aten
# Multiplications of a product from which on the call's greater cost is made up for.
LARGE = 2**20
SOURCE = """
def product(rows, weight, bias: Optional[Tensor]):
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
"""


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``rows @ weight.T + bias`` by oneDNN."""
    if torch.jit.is_tracing():  # which does not know the empty list
        return _scripted()(rows, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def use_faster_products(graph: Graph) -> None:
    """Take the large products in a program by oneDNN, where that is faster."""
    if not _mkl_is_slower():
        return
    for node in list(graph.nodes):
        if node.target is aten.linear.default and _is_large(node, node.args[0]):
            rows, weight, bias = node.args
            _replace(graph, node, rows, weight, bias)
        elif node.target is aten.mm.default and _is_large(node, node.args[0]):
            rows, columns = node.args
            with graph.inserting_before(node):
                weight = (
                    columns.args[0]
                    if columns.target is aten.t.default
                    else graph.call_function(aten.t.default, (columns,))
                )
            _replace(graph, node, rows, weight, None)


def _replace(graph: Graph, node: Node, rows: Node, weight: Node, bias: Node | None) -> None:
    with graph.inserting_before(node):
        faster = graph.call_function(product, (rows, weight, bias))
    faster.meta = dict(node.meta)
    node.replace_all_uses_with(faster)
    graph.erase_node(node)


def _is_large(node: Node, rows: Node) -> bool:
    out, first = node.meta["val"], rows.meta["val"]
    single = out.dtype == torch.float32 and out.device.type == "cpu"
    return single and prod(out.shape) * first.shape[-1] >= LARGE


@cache
def _mkl_is_slower() -> bool:
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    try:
        vendor = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and "AuthenticAMD" in vendor and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _scripted() -> torch.jit.ScriptFunction:
    return torch.jit.CompilationUnit(SOURCE).product
