"""Training steps as one program of XLA: a loop over batches, of the recorded gradient and update.

What small models spend on calling their operations goes. Random numbers are PyTorch's: they are
drawn before the call, in the order in which the steps would draw them. Needs JAX (the extra
``xla``), which is imported with this module.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from inference.training.lowering import NotLoweredError, groups, lower, written
from inference.training.recording import RecordedStep, TensorFunction, agree
from inference.training.simplify import attribute, is_random

aten = torch.ops.aten
# Of these operations a tensor's shape matters alone; of others of their names its values, too.
SHAPED = {aten.rand_like.default, aten.randn_like.default, aten.bernoulli_.float}
SHAPED |= {aten.uniform_.default, aten.normal_.default, aten.exponential_.default}
# Compiles in four fifths of the time of the default, to steps as fast.
OPTIONS = {"xla_backend_optimization_level": 1}
# Compiled loops that are kept, for runs of equal models.
KEPT = 16
LOOPS: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()


def compiled(
    step: RecordedStep, state: Sequence[Tensor], batch: Sequence[Tensor], size: int
) -> StepsProgram:
    """A step's program; see there.

    :raises ValueError: if it does something else than the step.
    """
    program, split = StepsProgram(step, state, batch, size), len(state)

    def moved(take: Callable[..., None]) -> TensorFunction:
        """Where a step leads, but for rounding, of which Adam makes whole steps."""

        def function(*given: Tensor) -> list[Tensor]:
            now = [each.clone() for each in given[:split]]
            take(now, given[split:])
            objective, *gradients = ((now[i] - given[i]).reshape(-1) for i in step.telling)
            return [objective, torch.cat(gradients)]

        return function

    by_xla = moved(lambda state, batch: program(state, [batch]))
    if not agree(moved(step.take), by_xla, [*state, *batch]):
        raise ValueError("XLA's results differ from those of the steps themselves")
    return program


class StepsProgram:
    """Takes steps on several batches of one shape by one call.

    :param state: tensors like those of a call.
    :param batch: tensors like those of a batch.
    :param size: steps of a call at most; fewer are taken by the same program.
    :raises NotLoweredError: if an operation is not known, or draws depend on values.
    """

    def __init__(
        self, step: RecordedStep, state: Sequence[Tensor], batch: Sequence[Tensor], size: int
    ) -> None:
        self.room, before = size, step.before
        self.columns: list[Tensor] = []  # memory that is used again
        gradient, update = step.gradient.graph, step.update.graph
        random = [node for node in gradient.graph.nodes if is_random(node)]
        self.draws = [_draw(node) for node in random]
        moving = {i for i in written(gradient) | written(update) if i < len(state)}
        still = set(range(len(state))) - moving
        self.moving, self.still = (Packing(state, sorted(places)) for places in (moving, still))
        shapes = [(each.shape, each.dtype) for each in (*state, *batch)]
        key = _text(gradient), _text(update), *before, *shapes, size

        def build() -> Callable[..., Any]:
            with _jax():  # constants keep their types
                parts = lower(gradient, set(random)), lower(update, set())
            step = _step(*parts, before, len(batch))
            return jax.jit(_loop(step, self.moving, self.still), compiler_options=OPTIONS)

        if key not in LOOPS:
            LOOPS[key] = build()
        LOOPS.move_to_end(key)
        if len(LOOPS) > KEPT:
            LOOPS.popitem(last=False)
        self.loop = LOOPS[key]

    def __call__(self, state: Sequence[Tensor], batches: Sequence[Sequence[Tensor]]) -> None:
        """Take the steps, and change the state in place.

        :param batches: the tensors of each, ``room`` at most.
        """
        rows = [[*batch, *(draw() for draw in self.draws)] for batch in batches]
        if not self.columns:
            self.columns = [each.new_zeros((self.room, *each.shape)) for each in rows[0]]
        for column, values in zip(self.columns, zip(*rows, strict=True), strict=True):
            torch.stack(values, out=column[: len(rows)])
        given = self.moving.flatten(state), self.still.flatten(state)
        with _jax():
            arrays = [[_array(each) for each in of] for of in (*given, self.columns)]
            packed = jax.block_until_ready(self.loop(*arrays, len(rows)))
            self.moving.unflatten([torch.from_dlpack(each) for each in packed], state)


def _step(gradient: Any, update: Any, before: Sequence[int], inputs: int) -> Any:
    """One step: from the state, and a batch with its draws, to the state.

    :param inputs: number of a batch's tensors.
    """

    def step(state: list[Any], row: list[Any]) -> list[Any]:
        batch, drawn = row[:inputs], row[inputs:]
        (loss, *gradients), after = gradient(state, batch, drawn)
        now = [*after, *state[len(after) :]]
        return update(now, [loss, *gradients, *(state[i] for i in before)], ())[1]

    return step


def _loop(step: Any, moving: Packing, still: Packing) -> Callable[..., Any]:
    def loop(packed: Any, constant: Any, columns: Any, steps: Any) -> Any:
        fixed = still.unpack(constant)

        def body(i: Any, values: Any) -> Any:
            state = fixed | moving.unpack(values)
            row = [lax.dynamic_index_in_dim(each, i, keepdims=False) for each in columns]
            with jax.disable_jit():  # of JAX's own functions, which tracing spends time on
                new = step([state[k] for k in sorted(state)], row)
            return moving.pack({k: new[k] for k in moving.places})

        return lax.fori_loop(0, steps, body, packed)

    return loop


class Packing:
    """Some tensors of a state as vectors: one of each type's small ones, and each other alone.

    :param places: of the tensors within the state.
    """

    def __init__(self, state: Sequence[Tensor], places: Sequence[int]) -> None:
        types = dict.fromkeys(state[i].dtype for i in places)
        by_type = [[i for i in places if state[i].dtype == kind] for kind in types]
        self.groups = [
            [of[k] for k in group]
            for of in by_type
            for group in groups([state[i].numel() for i in of])
        ]
        self.places = [i for group in self.groups for i in group]
        self.shapes = {i: tuple(state[i].shape) for i in places}

    def flatten(self, state: Sequence[Tensor]) -> list[Tensor]:
        return [_flatten_dense_tensors([state[i] for i in group]) for group in self.groups]

    def unflatten(self, vectors: Sequence[Tensor], state: Sequence[Tensor]) -> None:
        """Copy vectors back into the state."""
        for vector, group in zip(vectors, self.groups, strict=True):
            own = [state[i] for i in group]
            torch._foreach_copy_(own, _unflatten_dense_tensors(vector, own))

    # In JAX.

    def pack(self, values: Mapping[int, Any]) -> list[Any]:
        return [jnp.concatenate([values[i].reshape(-1) for i in group]) for group in self.groups]

    def unpack(self, vectors: Sequence[Any]) -> dict[int, Any]:
        values = {}
        for vector, group in zip(vectors, self.groups, strict=True):
            ends = list(accumulate(prod(self.shapes[i]) for i in group))
            for i, part in zip(group, jnp.split(vector, ends[:-1]), strict=True):
                values[i] = part.reshape(self.shapes[i])
        return values


def _draw(node: Node) -> Callable[[], Tensor]:
    """What an operation draws.

    :raises NotLoweredError: if that depends on the values of tensors.
    """
    if node.all_input_nodes and node.target not in SHAPED:
        raise NotLoweredError("what it draws depends on the values of tensors")

    def empty(of: Node) -> Tensor:
        like = of.meta["val"]
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)

    target: Any = node.target
    return lambda: target(*map_arg(node.args, empty), **map_arg(node.kwargs, empty))


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
    each = (
        (value.shape, value.dtype, value.detach().flatten().view(torch.uint8).numpy().tobytes())
        for value in constants
    )
    return program.code, *each
