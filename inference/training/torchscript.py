"""A recorded program as TorchScript, whose interpreter runs operations without Python between."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node


def torchscript(program: GraphModule) -> Callable[..., list[Tensor]]:
    """The program, its operations called by their names.

    Tracing it would be shorter, but takes some operations apart and leaves others out.

    :raises RuntimeError: if TorchScript does not know an operation, or its arguments.
    """
    constants = [getattr(program, n.target) for n in program.graph.nodes if n.op == "get_attr"]
    (returned,) = program.graph.find_nodes(op="output")
    unit, results = torch.jit.CompilationUnit(source(program)), len(returned.args[0])

    def run(*tensors: Tensor) -> list[Tensor]:
        return unit.program(*constants, *tensors)[:results]

    return run


def source(program: GraphModule) -> str:
    """The program as a function of its constants and its tensors.

    TorchScript drops an operation that changes the tensors of a list, such as an optimizer's, if
    that list is not used afterwards: so an element of each such list is returned as well.
    """
    kinds: dict[str, list[Node]] = {kind: [] for kind in ("get_attr", "placeholder", "output")}
    lines, kept = [], []
    for node in program.graph.nodes:
        if node.op != "call_function":
            kinds[node.op].append(node)
            continue
        arguments = [_text(each) for each in node.args]
        for i in _lists_changed_by(node):
            kept.append(f"{node.name}_{i}")
            lines.append(f"{kept[-1]} = {arguments[i]}")
            arguments[i] = kept[-1]
        lines.append(f"{node.name} = {_call(node, arguments)}")
    given = ", ".join(f"{n.name}: Tensor" for n in (*kinds["get_attr"], *kinds["placeholder"]))
    returned: Any = kinds["output"][0].args[0]
    results = ", ".join([*map(_text, returned), *(f"{name}[0]" for name in kept)])
    body = "".join(f"    {line}\n" for line in lines)
    return f"def program({given}) -> List[Tensor]:\n{body}    return [{results}]\n"


def _lists_changed_by(node: Node) -> list[int]:
    """Places of the lists whose tensors an operation changes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments[: len(node.args)]
    return [
        i
        for i, (argument, value) in enumerate(zip(arguments, node.args, strict=True))
        if isinstance(value, list | tuple) and value and _is_written(argument)
    ]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _call(node: Node, arguments: list[str]) -> str:
    if node.target is getitem:
        return f"{arguments[0]}[{arguments[1]}]"
    if not isinstance(node.target, torch._ops.OpOverload):
        raise RuntimeError(f"{node.target} is no operation of PyTorch")
    space, name = node.target._schema.name.split("::")
    named = [f"{name}={_text(value)}" for name, value in node.kwargs.items()]
    return f"torch.ops.{space}.{name}({', '.join(arguments + named)})"


def _text(value: Any) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(each) for each in value)}]"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and not isfinite(value):
        return f"float({str(value)!r})"
    return repr(value) if isinstance(value, str | bool | int | float | None) else str(value)
