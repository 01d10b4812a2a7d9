"""What writes down the operations on tensors that a function calls."""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.fx import Node
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from inference.training.program import FILLING, Program, empty, has_an_effect, is_random, mutates

aten, STRIDED = torch.ops.aten, torch.strided


class Tape(TorchDispatchMode):
    """Within this context, writes down each operation on tensors.

    :param given: the program's tensors.

    :ivar program: the operations, with an example of each result, without values, as
        ``meta["val"]``, and the result itself as ``meta["value"]`` where no given tensor matters.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.program = Program()
        self.graph = self.program.graph
        self.nodes = WeakTensorKeyDictionary()  # of those that exist
        # Memory that an operation has written to, by its address, which nothing else can then get.
        self.written: dict[int, UntypedStorage] = {}
        for i, tensor in enumerate(given):
            self._of(self.graph.placeholder(f"given_{i}"), tensor)

    def called(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Call an operation, and write it down."""
        if func is aten.lift_fresh.default:  # makes a new tensor in each call
            func = aten.lift_fresh_copy.default
        result = func(*args, **(kwargs or {}))
        given: list[Tensor] = []

        def noted(value: Any) -> Any:
            given.extend([value] if isinstance(value, Tensor) else [])
            return self.node(value)

        node = self.graph.call_function(func, *map_aggregate((args, kwargs or {}), noted))
        storages = [each.untyped_storage() for each in given if each.layout is STRIDED]
        memory = {each.data_ptr(): each for each in storages}
        if mutates(node):
            self.written |= memory
        moving = is_random(node) or not memory.keys().isdisjoint(self.written)
        known = all("value" in each.meta for each in node.all_input_nodes)
        fixed = func in FILLING or (known and not moving)
        reads = torch.Tag.data_dependent_output in func.tags or _shape_is_read(func, given)
        if reads and not fixed:
            raise RuntimeError(f"it reads a tensor's value, by {func}")
        several = result if isinstance(result, list | tuple) else [result]
        gives_tensors = any(isinstance(each, Tensor) for each in several)
        if not gives_tensors and not has_an_effect(node):
            self.graph.erase_node(node)
            return result
        self._of(node, result, fixed)
        return result

    def node(self, value: Any) -> Any:
        """A tensor's node; anything else as it is."""
        if isinstance(value, torch.Generator | UntypedStorage):
            raise RuntimeError(f"it calls an operation on a {type(value).__name__}")
        if not isinstance(value, Tensor):
            return value
        if value not in self.nodes:
            self._of(self.graph.get_attr(f"held_{len(self.graph.nodes)}"), value, fixed=True)
        return self.nodes[value]

    def _of(self, node: Node, result: Any, fixed: bool = False) -> None:
        """Note whose result it is, and its value, if it depends on no tensor that is given."""
        if isinstance(result, Tensor):
            node.meta["val"] = empty(result, "meta")
            if fixed:
                node.meta["value"] = result.detach()
            self.nodes[result] = node
        elif isinstance(result, list | tuple):
            node.meta["val"] = []
            for i, each in enumerate(result):
                part = self.graph.call_function(getitem, (node, i))
                self._of(part, each, fixed)
                node.meta["val"].append(part.meta.get("val"))


# PyTorch would wrap it when the class is made, to keep its compiler out of it, and import that one.
Tape.__torch_dispatch__ = Tape.called  # type: ignore[assignment, method-assign]


def _shape_is_read(func: Any, given: Sequence[Tensor]) -> bool:
    """Whether the result's shape depends on values; that of indexing, if a mask chooses."""
    if func is aten.index.Tensor:
        return any(each.dtype in (torch.bool, torch.uint8) for each in given[1:])
    return torch.Tag.dynamic_output_shape in func.tags
