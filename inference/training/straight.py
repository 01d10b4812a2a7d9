"""A recorded program as straight-line Python: its operations one after the other, each called
without what a module of PyTorch does around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node


def straight(program: GraphModule) -> Callable[..., Sequence[Tensor]]:
    """The program as one function of its tensors, which drops what it needs no more."""
    known: dict[str, Any] = {}
    last = {each: node for node in program.graph.nodes for each in node.all_input_nodes}
    dropped: dict[Node, list[str]] = defaultdict(list)
    for each, node in last.items():
        if each.op == "call_function":
            dropped[node].append(each.name)
    given, lines = [], []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            given.append(node.name)
        elif node.op == "get_attr":
            known[node.name] = getattr(program, str(node.target))
        elif node.op == "output":
            lines.append(f"return {_text(node.args[0], known)}")
        else:
            lines.append(f"{node.name} = {_call(node, known)}")
            lines += [f"del {', '.join(dropped[node])}"] if node in dropped else []
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def program({', '.join(given)}):\n{body}", known)
    return known["program"]


def _call(node: Node, known: dict[str, Any]) -> str:
    arguments = [_text(each, known) for each in node.args]
    if node.target is getitem:
        return f"{arguments[0]}[{arguments[1]}]"
    # The operation itself, where PyTorch has it under this name, rather than the object around it.
    name = _named(getattr(node.target, "_op", node.target), known)
    named = [f"{key}={_text(value, known)}" for key, value in node.kwargs.items()]
    return f"{name}({', '.join(arguments + named)})"


def _text(value: Any, known: dict[str, Any]) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(each, known) for each in value)}]"
    return repr(value) if isinstance(value, str | bool | int | None) else _named(value, known)


def _named(value: Any, known: dict[str, Any]) -> str:
    name = f"known_{len(known)}"
    known[name] = value
    return name
