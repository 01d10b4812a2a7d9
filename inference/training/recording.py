"""A function of tensors as a recorded program: its operations alone, without the Python between.

The operations are recorded once, by running the function on examples, and simplified without
changing a rounding. The program is then replayed by the fastest executor that can run it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from inference.randomness import seeded
from inference.training.products import use_faster_products

__all__ = ["Program", "agree", "inductor", "record", "replay"]

#: Maps a function's tensors to its results.
Program = Callable[..., Sequence[Tensor]]

# Of a program against the function that it was recorded from, in single precision.
RELATIVE_ERROR = 1e-2

aten = torch.ops.aten
# Give back their first argument if its shape and type are as wanted.
RESHAPING = {aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.alias.default}
# Give back their argument: the program has no gradients.
PASSING = {aten.detach.default, aten.alias.default}
# Give back their first argument if the second is 1.
NEUTRAL_AT_ONE = {
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.pow.Tensor_Scalar,
}


def record(function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> GraphModule:
    """The operations of ``function`` on tensors like ``examples``.

    :raises RuntimeError: if the function reads a tensor's value.
    """
    program = make_fx(function)(*_copies(examples))
    _simplify(program.graph)
    _join_layers(program.graph)
    program.graph.eliminate_dead_code(_has_an_effect)
    program.recompile()
    return program


def replay(program: GraphModule, examples: Sequence[Tensor]) -> Program:
    """Run the operations one after the other: in C++ if TorchScript repeats them, else from Python.

    TorchScript does not know the arguments of all operations, and moves some draws.
    """
    program = copy.deepcopy(program)
    use_faster_products(program.graph)
    program.graph.eliminate_dead_code(_has_an_effect)
    program.recompile()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # TorchScript is no longer developed
            script = torch.jit.trace(
                lambda *tensors: tuple(program(*tensors)), _copies(examples), check_trace=False
            )
    except RuntimeError:
        return program
    return script if agree(program, script, examples) else program


def inductor(program: GraphModule, examples: Sequence[Tensor]) -> Program:
    """Compile the operations into fused loops, which takes from seconds to a minute.

    :raises Exception: if there is no compiler.
    """
    compiled = torch.compile(program, options={"fallback_random": True})
    compiled(*_copies(examples))
    return compiled


def agree(function: Program, program: Program, examples: Sequence[Tensor]) -> bool:
    """Whether a program has a function's results, and changes its tensors alike, on one random
    stream, up to rounding.
    """
    results = []
    for run in (function, program):
        given = _copies(examples)
        with seeded(1, examples[0].device):
            results.append([*run(*given), *given])
    return all(_close(one, other) for one, other in zip(*results, strict=True))


def _close(one: Tensor, other: Tensor) -> bool:
    a, b = one.detach().double(), other.detach().double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    apart = (a - b).nan_to_num(0.0, 0.0, 0.0).norm()
    return bool(apart <= RELATIVE_ERROR * a.nan_to_num(0.0, 0.0, 0.0).norm())


def _copies(examples: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As a program may change its tensors, such as running averages."""
    return tuple(tensor.detach().clone() for tensor in examples)


def _simplify(graph: Graph) -> None:
    """Remove operations that change nothing, and repeated ones."""
    mutated = {each for node in graph.nodes if _mutates(node) for each in node.all_input_nodes}
    fixed = mutated | {user for node in mutated for user in node.users}
    seen: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "get_attr") or node in fixed or _mutates(node):
            continue
        same = _unchanged(node) if node.op == "call_function" else None
        if same is None and not _is_random(node):
            same = seen.setdefault(_key(node), node)
        if same is not None and same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _join_layers(graph: Graph) -> None:
    """Make a layer's product one operation, which TorchScript does not take apart."""
    for node in list(graph.nodes):
        if node.target is not aten.addmm.default or node.kwargs:
            continue
        bias, rows, weight = node.args
        if weight.target is aten.t.default and bias.meta["val"].dim() == 1:
            with graph.inserting_before(node):
                layer = graph.call_function(aten.linear.default, (rows, weight.args[0], bias))
            layer.meta = dict(node.meta)
            node.replace_all_uses_with(layer)
            graph.erase_node(node)


def _unchanged(node: Node) -> Node | None:
    """The argument that an operation only gives back, if it does."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if node.target in PASSING or (node.target in RESHAPING and _alike(node, first)):
        return first
    neutral = node.target in NEUTRAL_AT_ONE and _is_one(node.args[1]) and _alike(node, first)
    return first if neutral else None


def _is_one(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 1


def _alike(one: Node, other: Node) -> bool:
    a, b = one.meta.get("val"), other.meta.get("val")
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    )


def _key(node: Node) -> Hashable:
    """Equal for operations that give equal results."""
    return node.op, node.target, _hashable(node.args), _hashable(node.kwargs)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(_hashable(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in sorted(value.items()))
    return type(value), value  # 1, 1.0 and True differ


def _mutates(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _has_an_effect(node: Node) -> bool:
    """Whether an operation matters though its result is not used: draws move the random stream."""
    return node.is_impure() or _is_random(node)


def _is_random(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags
