"""A recorded program: operations on tensors, which straight-line Python repeats.

It gets fewer operations with the same results: what depends on no tensor is computed once; what
changes nothing or is repeated goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten
# Give back their first argument if it has the result's form, as detached tensors have: the program
# is not differentiated any more.
GIVING_BACK = {aten.detach.default, aten.alias.default, aten.expand.default, aten.view.default}
GIVING_BACK |= {aten._unsafe_view.default, aten.clone.default}
# Give back their first argument if the second is 1; of products, also the other way round.
NEUTRAL_AT_ONE = {aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar}
NEUTRAL_AT_ONE |= {aten.pow.Tensor_Scalar}
# Depend on their argument's shape alone.
FILLING = {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default}
BATCH_NORMS = {aten.native_batch_norm.default, aten.cudnn_batch_norm.default}
# Numbers of a constant that is kept rather than computed in each step.
LARGEST_CONSTANT = 2**20


class Program:
    """Operations of a graph. Nodes of other tensors than the given ones have these as their
    ``meta["value"]``.
    """

    def __init__(self) -> None:
        self.graph = Graph()

    @cached_property
    def run(self) -> Callable[..., Sequence[Tensor]]:
        """The program as one function of its tensors, which drops what it needs no more: one
        operation after the other, each called without what a module of PyTorch does around it.
        """
        code = self.graph.python_code("self")
        known: dict[str, Any] = dict(code.globals)

        def bare(found: re.Match[str]) -> str:
            """The operation itself, where PyTorch has it by this name, not the object around it."""
            target, name = attrgetter(found[1])(torch.ops), f"known_{len(known)}"
            known[name] = getattr(target, "_op", target)
            return name

        exec(re.sub(r"torch\.ops\.([\w.]+)(?=\()", bare, code.src), known)
        held = (node for node in self.graph.nodes if node.op == "get_attr")
        own = SimpleNamespace(**{str(node.target): node.meta["value"] for node in held})
        return partial(known["forward"], own)


def simplify(program: Program) -> None:
    """Remove the operations that are not needed, in place."""
    fixed = _mutated(program)
    _join_repeated(program, fixed)  # or equal constants would have different names
    _fold_constants(program, fixed)
    for node in _operations(program, fixed):
        same = _argument_given_back(node)
        if same is not None and same not in fixed:
            _replace(node, same)
    _join_repeated(program, fixed)
    program.graph.eliminate_dead_code(has_an_effect)


def has_an_effect(node: Node) -> bool:
    """Whether an operation matters though its result is not used: draws move the random stream."""
    silent = isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns
    return node.is_impure() or is_random(node) or silent  # such as a check that raises


def _operations(program: Program, fixed: set[Node]) -> list[Node]:
    """Those, and constants, that may be moved and shared."""
    return [node for node in program.graph.nodes if node not in fixed and not has_an_effect(node)]


def _replace(node: Node, same: Node) -> None:
    node.replace_all_uses_with(same)
    node.graph.erase_node(node)


def _mutated(program: Program) -> set[Node]:
    """Tensors that are changed in place, and all that share memory with them: these must not be
    moved or shared.
    """
    fixed: set[Node] = set()
    waiting = [each for n in program.graph.nodes if mutates(n) for each in n.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in fixed:
            fixed.add(node)
            waiting += [user for user in node.users if shares_memory(user)]
            waiting += node.all_input_nodes if shares_memory(node) else []
    return fixed


def mutates(node: Node) -> bool:
    if node.target in BATCH_NORMS:  # which update running averages, and do not say so
        return bool(node.args[5])
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def shares_memory(node: Node) -> bool:
    """Whether an operation gives views of its argument, or an element of them."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op == "call_function"
    if target is aten._unsafe_view.default:  # whose schema does not say so
        return True
    return any(result.alias_info is not None for result in target._schema.returns)


def is_random(node: Node) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _fold_constants(program: Program, fixed: set[Node]) -> None:
    """Keep the results of what depends on no tensor that the program is given."""
    for node in _operations(program, fixed):
        value = node.meta.get("value")
        if node.op == "call_function" and value is not None and value.numel() <= LARGEST_CONSTANT:
            with program.graph.inserting_before(node):
                constant = program.graph.get_attr(f"constant_{node.name}")
            constant.meta = {**node.meta, "value": value.clone()}
            _replace(node, constant)
    for node in program.graph.nodes:
        if node.op == "call_function":
            node.meta.pop("value", None)


def empty(like: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of this form, without its values."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _argument_given_back(node: Node) -> Node | None:
    """The argument that an operation only gives back, if it does."""
    first, second = (*node.args, None, None)[:2]
    neutral = node.target in NEUTRAL_AT_ONE and _is_one(second)
    if node.target is aten.t.default and isinstance(first, Node) and first.target is node.target:
        given = first.args[0]
    elif neutral or node.target in GIVING_BACK:
        given = first
    elif node.target is aten.mul.Tensor and _is_one(first):
        given = second
    else:
        return None
    return given if isinstance(given, Node) and _form(given) == _form(node) else None


def _is_one(value: Any) -> bool:
    if not isinstance(value, Node):
        return type(value) in (int, float) and value == 1
    return value.op == "get_attr" and bool((value.meta["value"] == 1).all())


def _form(node: Node) -> Any:
    val = node.meta.get("val")
    return isinstance(val, Tensor) and (val.shape, val.dtype, val.stride())


def _join_repeated(program: Program, fixed: set[Node]) -> None:
    seen: dict[tuple[Any, ...], Node] = {}
    for node in _operations(program, fixed):
        if not fixed.isdisjoint(node.all_input_nodes):
            continue
        key = node.op, node.target, repr(node.args), repr(sorted(node.kwargs.items()))
        if (same := seen.setdefault(key, node)) is not node:
            _replace(node, same)
