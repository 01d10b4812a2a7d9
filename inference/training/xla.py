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
from jax.flatten_util import ravel_pytree
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.fx import Node
from torch.fx.node import map_arg

from inference.training.lowering import Lowered, groups, lower, written
from inference.training.program import Program, empty, is_random
from inference.training.recording import TensorFunction, agree

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
    step: Program,
    state: Sequence[Tensor],
    batch: Sequence[Tensor],
    size: int,
    telling: Sequence[int],
) -> StepsProgram:
    """A step's program; see there.

    :param telling: places in the state by which results are compared: of the total of the
        objectives, and of the means of the gradients.
    :raises ValueError: if it does something else than the step.
    """
    program, split = StepsProgram(step, state, batch, size), len(state)

    def moved(take: Callable[..., object]) -> TensorFunction:
        """Where a step leads, but for rounding, of which Adam makes whole steps."""

        def function(*given: Tensor) -> list[Tensor]:
            now = [each.clone() for each in given[:split]]
            take(now, given[split:])
            objective, *gradients = ((now[i] - given[i]).reshape(-1) for i in telling)
            return [objective, torch.cat(gradients)]

        return function

    replayed = moved(lambda state, batch: step.run(*state, *batch))
    by_xla = moved(lambda state, batch: program(state, [batch]))
    if not agree(replayed, by_xla, [*state, *batch]):
        raise ValueError("XLA's results differ from those of the steps themselves")
    return program


class StepsProgram:
    """Takes steps on several batches of one shape by one call.

    :param step: changes the tensors of a state, given before those of a batch.
    :param state: tensors like those of a call.
    :param batch: tensors like those of a batch.
    :param size: steps of a call at most; fewer are taken by the same program.
    :raises ValueError: if an operation is not known, or draws depend on values.
    """

    def __init__(
        self, step: Program, state: Sequence[Tensor], batch: Sequence[Tensor], size: int
    ) -> None:
        self.room = size
        self.columns: list[Tensor] = []  # memory that is used again
        random = [node for node in step.graph.nodes if is_random(node)]
        self.draws = [_draw(node) for node in random]
        places, changed = range(len(state)), written(step)
        self.moving = Packing(state, [i for i in places if i in changed])
        self.still = Packing(state, [i for i in places if i not in changed])
        shapes = [(each.shape, each.dtype) for each in (*state, *batch)]
        key = _text(step), *shapes, size
        if key not in LOOPS:
            with _jax():  # constants keep their types
                lowered = lower(step, set(random))
            loop = _loop(lowered, self.moving, self.still, len(batch))
            LOOPS[key] = jax.jit(loop, compiler_options=OPTIONS)
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


def _loop(step: Lowered, moving: Packing, still: Packing, inputs: int) -> Callable[..., Any]:
    """Steps on rows of columns: a batch's tensors, of which there are so many, and its draws."""

    def loop(packed: Any, constant: Any, columns: Any, steps: Any) -> Any:
        fixed = still.unpack(constant)

        def body(i: Any, values: Any) -> Any:
            state = fixed | moving.unpack(values)
            row = [lax.dynamic_index_in_dim(each, i, keepdims=False) for each in columns]
            given = [*(state[k] for k in sorted(state)), *row[:inputs]]
            with jax.disable_jit():  # of JAX's own functions, which tracing spends time on
                new = step(given, row[inputs:])
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
        return [ravel_pytree([values[i] for i in group])[0] for group in self.groups]

    def unpack(self, vectors: Sequence[Any]) -> dict[int, Any]:
        values = {}
        for vector, group in zip(vectors, self.groups, strict=True):
            ends = list(accumulate(prod(self.shapes[i]) for i in group))
            for i, part in zip(group, jnp.split(vector, ends[:-1]), strict=True):
                values[i] = part.reshape(self.shapes[i])
        return values


def _draw(node: Node) -> Callable[[], Tensor]:
    """What an operation draws.

    :raises ValueError: if that depends on the values of tensors.
    """
    if node.all_input_nodes and node.target not in SHAPED:
        raise ValueError("what it draws depends on the values of tensors")

    def like(of: Node) -> Tensor:
        return empty(of.meta["val"], "cpu")

    target: Any = node.target
    return lambda: target(*map_arg(node.args, like), **map_arg(node.kwargs, like))


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


def _text(program: Program) -> Hashable:
    """Equal for equal programs."""
    constants = (node.meta["value"] for node in program.graph.nodes if node.op == "get_attr")
    each = (
        (value.shape, value.dtype, value.flatten().view(torch.uint8).numpy().tobytes())
        for value in constants
    )
    return program.graph.python_code("self").src, *each
