"""A recorded program with fewer operations, and the same results.

What depends on no tensor is computed once; what changes nothing or is repeated goes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from inference.training.program import Program

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


def simplify(program: Program) -> None:
    """Remove the operations that are not needed, in place."""
    fixed = _mutated(program)
    _join_repeated(program, fixed)  # or equal constants would have different names
    _fold_constants(program, fixed)
    for node in _operations(program, fixed):
        same = _argument_given_back(program, node)
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
    """Compute once what depends on no tensor that the program is given."""
    values: dict[Node, Any] = {}
    for node in _operations(program, fixed):
        if node.op == "get_attr":
            values[node] = program.get_buffer(str(node.target))
        elif (known := _value(node, values)) is not None:
            kept = _keep(program, node, known) if isinstance(known, Tensor) else node
            values[kept] = known


def _value(node: Node, values: dict[Node, Any]) -> Any:
    """The result of an operation, if it is a constant."""
    assert callable(node.target)
    inputs, results = node.all_input_nodes, node.meta.get("val")
    if node.target in FILLING:  # whatever their argument's values
        values = {each: empty(each.meta["val"], each.meta["device"]) for each in inputs}
    tensors = results if isinstance(results, list | tuple) else [results]
    numbers = sum(each.numel() for each in tensors if isinstance(each, Tensor))
    if not all(each in values for each in inputs) or numbers > LARGEST_CONSTANT:
        return None
    with torch.no_grad():
        return node.target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))


def empty(like: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of this form, without its values."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _keep(program: Program, node: Node, value: Tensor) -> Node:
    """Put a constant in a node's place."""
    name = f"constant_{node.name}"
    program.register_buffer(name, value.detach().clone(), persistent=False)
    with program.graph.inserting_before(node):
        constant = program.graph.get_attr(name)
        constant.meta = {**node.meta, "val": value}
    _replace(node, constant)
    return constant


def _argument_given_back(program: Program, node: Node) -> Node | None:
    """The argument that an operation only gives back, if it does."""
    first, second = (*node.args, None, None)[:2]
    neutral = node.target in NEUTRAL_AT_ONE and _is_one(program, second)
    if node.target is aten.t.default and isinstance(first, Node) and first.target is node.target:
        given = first.args[0]
    elif neutral or node.target in GIVING_BACK:
        given = first
    elif node.target is aten.mul.Tensor and _is_one(program, first):
        given = second
    else:
        return None
    return given if isinstance(given, Node) and _alike(node, given) else None


def _is_one(program: Program, value: Any) -> bool:
    if not isinstance(value, Node):
        return type(value) in (int, float) and value == 1
    name = str(value.target)
    is_constant = value.op == "get_attr" and name.startswith("constant_")
    return is_constant and bool((program.get_buffer(name) == 1).all())


def _alike(one: Node, other: Node) -> bool:
    a, b = one.meta.get("val"), other.meta.get("val")
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    )


def _join_repeated(program: Program, fixed: set[Node]) -> None:
    seen: dict[tuple[Any, ...], Node] = {}
    for node in _operations(program, fixed):
        if not fixed.isdisjoint(node.all_input_nodes):
            continue
        key = node.op, node.target, repr(node.args), repr(sorted(node.kwargs.items()))
        if (same := seen.setdefault(key, node)) is not node:
            _replace(node, same)
