"""Matrix products of a recorded program, by the library that is faster on this processor.

The layers themselves do so where no program is recorded (``ppl_models.networks.dense``).
"""

from __future__ import annotations

from math import prod

import torch
from torch.fx import Graph, Node

from ppl_models.networks.dense import LARGE_PRODUCT, mkl_is_slower

__all__ = ["use_faster_products"]

aten = torch.ops.aten


def use_faster_products(graph: Graph) -> None:
    """Take the large products in a program by oneDNN, where that is faster, and ReLUs with them."""
    if not mkl_is_slower():
        return
    for node in list(graph.nodes):
        if node.target is aten.addmm.default and not node.kwargs and _is_vector(node.args[0]):
            bias, rows, columns = node.args
        elif node.target is aten.mm.default:
            bias, (rows, columns) = None, node.args
        else:
            continue
        if _is_large(node, rows):
            _replace(node, rows, _transposed(node, columns), bias)
    operation = torch.ops.mkldnn._linear_pointwise.default
    for product in graph.find_nodes(op="call_function", target=operation):
        _join_relu(product)


def _replace(node: Node, rows: Node, weight: Node, bias: Node | None) -> None:
    """By ``rows @ weight.T + bias``."""
    with node.graph.inserting_before(node):
        operation = torch.ops.mkldnn._linear_pointwise.default
        faster = node.graph.call_function(operation, (rows, weight, bias, "none", [], ""))
    faster.meta = dict(node.meta)
    node.replace_all_uses_with(faster)
    node.graph.erase_node(node)


def _join_relu(product: Node) -> None:
    """Let a product take the ReLU of its result, if nothing else uses it."""
    users = list(product.users)
    if len(users) == 1 and users[0].target is aten.relu.default:
        product.args = (*product.args[:3], "relu", [], "")
        users[0].replace_all_uses_with(product)
        product.graph.erase_node(users[0])


def _transposed(node: Node, columns: Node) -> Node:
    if columns.target is aten.t.default:
        return columns.args[0]  # type: ignore[return-value]
    with node.graph.inserting_before(node):
        return node.graph.call_function(aten.t.default, (columns,))


def _is_vector(bias: Node) -> bool:
    return bias.meta["val"].dim() == 1


def _is_large(node: Node, rows: Node) -> bool:
    out, first = node.meta["val"], rows.meta["val"]
    single = out.dtype == torch.float32 and out.device.type == "cpu"
    return single and prod(out.shape) * first.shape[-1] >= LARGE_PRODUCT
