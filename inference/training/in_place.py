"""Operations of a recorded program in the memory of an operand that is not needed afterwards.

Large results are dear for the memory that they are written to, not for what is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from inference.training.simplify import mutates, shares_memory

aten = torch.ops.aten
#: Numbers of a result from which on it pays.
LARGE_RESULT = 2**16
# Operations number by number, whose first operand may be written over.
IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.neg.default: aten.neg_.default,
    aten.relu.default: aten.relu_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.sub.Tensor: aten.sub_.Tensor,
}


def reuse_memory(graph: Graph) -> None:
    """Let large operations write over their first operand, where no other needs it later."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    own = {node for node in graph.nodes if _has_memory_of_its_own(node)}
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if not isinstance(first, Node) or first not in own:
            continue
        if not _may_be_written(node, first, place):
            continue
        if node.target in IN_PLACE:
            node.target = IN_PLACE[node.target]
        elif node.target is aten.threshold_backward.default:
            node.target = aten.threshold_backward.grad_input
            node.kwargs = {**node.kwargs, "grad_input": first}


def _may_be_written(node: Node, operand: Node, place: dict[Node, int]) -> bool:
    """Whether the result fits into the operand's memory, and nothing reads that any more."""
    layout = _layout_if_large(node)
    if layout is None or layout != _layout_if_large(operand):
        return False
    return not any(shares_memory(user) or place[user] > place[node] for user in operand.users)


def _layout_if_large(node: Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.numel() < LARGE_RESULT:
        return None
    return value.shape, value.stride(), value.dtype


def _has_memory_of_its_own(node: Node) -> bool:
    if node.op != "call_function" or node.target is aten._unsafe_view.default:
        return False
    return not (shares_memory(node) or mutates(node))
