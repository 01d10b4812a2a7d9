"""Training steps as one program of XLA: a loop over batches, of the objective, its gradient, the
guard's look and the optimizer's update.

The objective and the update are recorded, as for replaying, and given to JAX operation by
operation; JAX takes the gradient. Random numbers are PyTorch's: they are drawn before the call, in
the order in which the steps would draw them.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.fx import Graph, GraphModule, Node

from inference.training.lowering import Lowered, NotLoweredError, lower, written
from inference.training.recording import replay
from inference.training.simplify import attribute, is_random

aten = torch.ops.aten
# Of these arguments the shape alone matters.
LIKE = {aten.empty_like.default, aten.rand_like.default, aten.randn_like.default}
# Compiled loops that are kept, for runs of equal models.
KEPT = 16

#: A loop over steps: from the state, packed, the batches, the draws, and their number.
Loop = Callable[..., Sequence[Any]]
#: What is at the places of a state.
Places = Sequence[Any] | Mapping[int, Any]
#: Arrays, by their place in the state.
State = dict[int, Any]
#: One step: from the state, a batch and its draws to the state.
Step = Callable[[State, list[Any], list[Any]], State]
LOOPS: OrderedDict[Hashable, Loop] = OrderedDict()


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a step's state are.

    The state is: parameters, those that learn first, and buffers; the guard's state; the counts of
    the optimizer's steps; its first and second moments; the rate; the total of the objectives; and
    the number of the step.

    :ivar has: which of the parameters that the optimizer was made for have a gradient.
    :ivar learners: number of the parameters that learn.
    :ivar learning: places of those that have a gradient.
    :ivar held: number of parameters and buffers.
    :ivar changing: places of the buffers that a skipped step leaves as they were.
    :ivar guard: number of tensors of the guard's state.
    """

    has: tuple[bool, ...]
    learners: int
    learning: tuple[int, ...]
    held: int
    changing: tuple[int, ...]
    guard: int

    @property
    def counts(self) -> int:
        return self.held + self.guard

    @property
    def rate(self) -> int:
        return self.counts + 1 + 2 * len(self.learning)

    @property
    def total(self) -> int:
        return self.rate + 1

    @property
    def number(self) -> int:
        return self.rate + 2

    @property
    def first_moments(self) -> range:
        return range(self.counts + 1, self.counts + 1 + len(self.learning))

    @property
    def before(self) -> list[int]:
        """Places of what the update takes before the gradients and changes."""
        return [*range(self.held, self.counts), *self.changing]

    @property
    def second_moments(self) -> range:
        return range(self.first_moments.stop, self.rate)

    @property
    def trained(self) -> list[int]:
        """Places of parameters and their moments, a third each."""
        return [*self.learning, *self.first_moments, *self.second_moments]

    def update_inputs(
        self,
        before: Places,
        now: Places,
        loss: Any,
        gradients: Sequence[Any],
        trained: Sequence[Any],
    ) -> list[Any]:
        """What the update takes, after the objective.

        :param before: the state before the step.
        :param now: the state, in which the objective may have changed buffers.
        :param gradients: of the parameters that have one.
        :param trained: these parameters and their moments.
        """
        return [
            loss,
            now[self.number],
            *(now[i] for i in self.before),
            *(before[i] for i in self.changing),
            now[self.rate],
            *gradients,
            now[self.counts],
            *trained,
        ]


class StepsProgram:
    """Takes steps on several batches of one shape by one call.

    :param objective: recorded; of the parameters and buffers, the step's number, and a batch.
    :param update: recorded; see :meth:`Update.function <inference.training.update.Update>`.
    :param layout: of the state.
    :param state: tensors like those of a call.
    :param batch: tensors like those of a batch.
    :param room: steps of a call at most; fewer are taken by the same program.
    :raises NotLoweredError: if an operation is not known, or draws depend on parameters.
    """

    def __init__(
        self,
        objective: GraphModule,
        update: GraphModule,
        layout: Layout,
        state: Sequence[Tensor],
        batch: Sequence[Tensor],
        room: int,
    ) -> None:
        self.layout, self.room = layout, room
        random = [node for node in objective.graph.nodes if is_random(node)]
        self.draws = replay(_draws(objective, random, len(batch)))
        self.columns: list[Tensor] = []
        ends = {layout.counts, layout.total, layout.number}
        moving = {*layout.trained, *layout.before, *ends, *written(objective)}
        still = set(range(len(state))) - moving
        self.moving, self.still = (
            Packing([state[i] for i in sorted(of)], sorted(of)) for of in (moving, still)
        )
        key = (*map(_text, (objective, update)), layout, *map(_described, (state, batch)), room)

        def build() -> Loop:
            with _jax():  # constants keep their types
                step = _step(lower(objective, set(random)), lower(update, set()), layout)
            return jax.jit(_loop(step, self.moving, self.still, len(batch)))

        self.loop = _kept(key, build)

    def __call__(self, state: Sequence[Tensor], batches: Sequence[Sequence[Tensor]]) -> None:
        """Take the steps, and change the state in place.

        :param batches: the tensors of each, ``room`` at most.
        """
        rows = [[*batch, *self.draws(*batch)] for batch in batches]
        given = self.moving.flatten(state), self.still.flatten(state), self._stacked(rows)
        with _jax():
            arrays = [[_array(each) for each in of] for of in given]
            packed = jax.block_until_ready(self.loop(*arrays, len(rows)))
            self.moving.unflatten([torch.from_dlpack(each) for each in packed], state)

    def one(self, *tensors: Tensor) -> Sequence[Tensor]:
        """A step as a function that changes a state; it is given a batch as well."""
        split = self.layout.number + 1
        self(tensors[:split], [tensors[split:]])
        return ()

    def _stacked(self, rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Each tensor of the steps, in memory that is used again."""
        if not self.columns:
            self.columns = [each.new_zeros((self.room, *each.shape)) for each in rows[0]]
        for column, values in zip(self.columns, zip(*rows, strict=True), strict=True):
            torch.stack(values, out=column[: len(rows)])
        return self.columns


def _kept(key: Hashable, build: Callable[[], Loop]) -> Loop:
    """The loop of an equal program, if it is among the last ones."""
    if key not in LOOPS:
        LOOPS[key] = build()
    LOOPS.move_to_end(key)
    if len(LOOPS) > KEPT:
        LOOPS.popitem(last=False)
    return LOOPS[key]


def _loop(step: Step, moving: Packing, still: Packing, inputs: int) -> Loop:
    """:param inputs: number of the columns that are batches'; the others are draws."""

    def loop(packed: Any, constant: Any, columns: Any, steps: Any) -> Any:
        fixed = dict(zip(still.places, still.unpack(constant), strict=True))

        def body(i: Any, values: Any) -> Any:
            state = fixed | dict(zip(moving.places, values, strict=True))
            row = [lax.dynamic_index_in_dim(each, i, keepdims=False) for each in columns]
            with jax.disable_jit():  # of JAX's own functions, which tracing spends time on
                new = step(state, row[:inputs], row[inputs:])
            return [new[k] for k in moving.places]

        return moving.pack(lax.fori_loop(0, steps, body, moving.unpack(packed)))

    return loop


def _step(objective: Lowered, update: Lowered, layout: Layout) -> Step:
    L, held = layout.learners, layout.held

    def step(state: State, batch: list[Any], drawn: list[Any]) -> State:
        def value(learning: list[Any]) -> Any:
            given = [*learning, *(state[i] for i in (*range(L, held), layout.number)), *batch]
            result, changed = objective(given, drawn)
            return result, changed[:held]

        learning = [state[i] for i in range(L)]
        (loss, held_now), gradients = jax.value_and_grad(value, has_aux=True)(learning)
        new = state | dict(enumerate(held_now))
        given = [gradients[i] for i in layout.learning]
        trained = [state[i] for i in layout.trained]
        (kept,), changed = update(layout.update_inputs(state, new, loss, given, trained), [])
        new |= dict(zip(layout.before, changed[2:], strict=False))
        ends = layout.counts, *layout.trained
        new |= dict(zip(ends, changed[-len(ends) :], strict=True))
        new[layout.total] += kept
        new[layout.number] += 1
        return new

    return step


# Tensors between PyTorch and JAX.


class Packing:
    """Some tensors of a state as one vector for each type, in PyTorch and in JAX.

    :param places: of the tensors within the state.
    """

    def __init__(self, examples: Sequence[Tensor], places: Sequence[int]) -> None:
        self.places = list(places)
        self.shapes = [tuple(each.shape) for each in examples]
        self.types = list(dict.fromkeys(each.dtype for each in examples))
        self.kinds = [self.types.index(each.dtype) for each in examples]

    def _by_type(self, values: Sequence[Any]) -> list[list[Any]]:
        parts: list[list[Any]] = [[] for _ in self.types]
        for kind, value in zip(self.kinds, values, strict=True):
            parts[kind].append(value)
        return parts

    # In PyTorch.

    def flatten(self, state: Sequence[Tensor]) -> list[Tensor]:
        parts = self._by_type([state[i] for i in self.places])
        return [_flatten_dense_tensors(each) for each in parts]

    def unflatten(self, vectors: Sequence[Tensor], state: Sequence[Tensor]) -> None:
        """Copy vectors back into the state."""
        parts = self._by_type([state[i] for i in self.places])
        for vector, part in zip(vectors, parts, strict=True):
            torch._foreach_copy_(part, _unflatten_dense_tensors(vector, part))

    # In JAX.

    def pack(self, values: Sequence[Any]) -> list[Any]:
        parts = self._by_type([value.reshape(-1) for value in values])
        return [jnp.concatenate(each) for each in parts]

    def unpack(self, vectors: Sequence[Any]) -> list[Any]:
        ends, values = [0] * len(self.types), []
        for kind, shape in zip(self.kinds, self.shapes, strict=True):
            start = ends[kind]
            ends[kind] += prod(shape)
            values.append(vectors[kind][start : ends[kind]].reshape(shape))
        return values


def _array(tensor: Tensor) -> Any:
    """As JAX takes it fastest, without copying."""
    return jax.dlpack.from_dlpack(tensor) if tensor.dtype is torch.bfloat16 else tensor.numpy()


@contextmanager
def _jax() -> Iterator[None]:
    """On the CPU, with the types that PyTorch has, and as many threads if JAX starts here."""
    with jax.enable_x64(True), jax.default_device(_cpu()):
        yield


@cache
def _cpu() -> jax.Device:
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = before or str(torch.get_num_threads())  # read once, at the start
    try:
        return jax.devices("cpu")[0]
    finally:
        os.environ.pop("NPROC") if before is None else None


def _text(program: GraphModule) -> Hashable:
    """Equal for equal programs."""
    constants = [attribute(program, n) for n in program.graph.nodes if n.op == "get_attr"]
    each = (value.detach().flatten().view(torch.uint8).numpy().tobytes() for value in constants)
    return program.code, *each


def _described(tensors: Sequence[Tensor]) -> Hashable:
    return tuple((each.shape, each.dtype) for each in tensors)


# Random draws.


def _draws(program: GraphModule, random: Sequence[Node], inputs: int) -> GraphModule:
    """The random operations alone, from the tensors of a batch.

    :param inputs: number of these, the last ones of the program.
    :raises NotLoweredError: if draws depend on something else, such as parameters.
    """
    graph, copies = Graph(), {}
    for node in [n for n in program.graph.nodes if n.op == "placeholder"][-inputs:]:
        copies[node] = graph.placeholder(node.name)

    def copied(node: Node) -> Node:
        if node not in copies:
            if node.op == "placeholder":
                raise NotLoweredError("what it draws depends on parameters")
            if node.target in LIKE:
                argument = node.args[0]
                assert isinstance(argument, Node)
                copies.setdefault(argument, _empty(graph, argument))
            for each in node.all_input_nodes:
                copied(each)
            copies[node] = graph.node_copy(node, lambda each: copies[each])
        return copies[node]

    graph.output([copied(node) for node in random])
    return GraphModule(program, graph)


def _empty(graph: Graph, like: Node) -> Node:
    value = like.meta["val"]
    options = {"dtype": value.dtype, "device": value.device}
    return graph.call_function(
        aten.empty_strided.default, (list(value.shape), list(value.stride())), options
    )
