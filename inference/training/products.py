"""Matrix products of a recorded program, by the library that is faster on this processor.

The layers themselves do so where no program is recorded (``ppl_models.networks.dense``).
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from ppl_models.networks.dense import (
    LARGE_PRODUCT,
    is_narrow,
    mkl_is_slower,
    takes_half_precision,
)

aten = torch.ops.aten
# Multiplications in half precision from which on it pays that the product takes the ReLU.
FUSED_PRODUCT = 2**20


def use_faster_products(graph: Graph) -> None:
    """Take a program's large products in single precision by oneDNN, where that is faster, and
    ReLUs with their products, in half precision as well.
    """
    if not (mkl_is_slower() or takes_half_precision()):
        return
    for node in list(graph.nodes):
        if node.target is aten.addmm.default and not node.kwargs and _is_vector(node.args[0]):
            bias, rows, columns = node.args
        elif node.target is aten.mm.default:
            bias, (rows, columns) = None, node.args
        else:
            continue
        if _is_faster(node, _multiplications(node, rows)):
            _replace(node, rows, columns, bias)
    operation = torch.ops.mkldnn._linear_pointwise.default
    for product in graph.find_nodes(op="call_function", target=operation):
        if (relu := _relu_of(product)) is not None:
            product.args = (*product.args[:3], "relu", [], "")
            relu.replace_all_uses_with(product)
            graph.erase_node(relu)


def _is_faster(node: Node, multiplications: int) -> bool:
    """Whether oneDNN takes a product faster than PyTorch; which takes those in half precision by
    oneDNN as well, but a ReLU afterwards, and none transposed.
    """
    result = node.meta["val"]
    if result.device.type != "cpu":
        return False
    if result.dtype == torch.bfloat16:
        pays = _relu_of(node) is not None or _is_turned(node)
        return pays and multiplications >= FUSED_PRODUCT and takes_half_precision()
    return result.dtype == torch.float32 and multiplications >= LARGE_PRODUCT and mkl_is_slower()


def _multiplications(product: Node, rows: Node) -> int:
    return prod(product.meta["val"].shape) * rows.meta["val"].shape[-1]


def _is_turned(node: Node) -> bool:
    """Whether a product is better taken transposed."""
    return node.target is aten.mm.default and is_narrow(*node.meta["val"].shape)


def _replace(node: Node, rows: Node, columns: Node, bias: Node | None) -> None:
    """By ``rows @ columns + bias``, or its transpose."""
    call, operation = node.graph.call_function, torch.ops.mkldnn._linear_pointwise.default
    with node.graph.inserting_before(node):
        if _is_turned(node):
            turned = call(operation, (_transposed(node, columns), rows, None, "none", [], ""))
            faster = call(aten.t.default, (turned,))
            as_stored: dict[str, Any] = {"memory_format": torch.contiguous_format}
            faster = call(aten.clone.default, (faster,), as_stored)
        else:
            weight = _transposed(node, columns)
            faster = call(operation, (rows, weight, bias, "none", [], ""))
    faster.meta = dict(node.meta)
    node.replace_all_uses_with(faster)
    node.graph.erase_node(node)


def _relu_of(product: Node) -> Node | None:
    """The ReLU of a product's result, if nothing else uses that."""
    users = list(product.users)
    return users[0] if len(users) == 1 and users[0].target is aten.relu.default else None


def _transposed(node: Node, columns: Node) -> Node:
    if columns.target is aten.t.default:
        return columns.args[0]  # type: ignore[return-value]
    with node.graph.inserting_before(node):
        return node.graph.call_function(aten.t.default, (columns,))


def _is_vector(bias: Node) -> bool:
    return bias.meta["val"].dim() == 1
