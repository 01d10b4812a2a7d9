"""Objectives and gradients from recorded programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import ELBO
from torch import Tensor, nn

from inference.randomness import seeded
from inference.training.nonfinite import SCHEDULED
from inference.training.recording import (
    Program,
    agree,
    inductor,
    record,
    replay,
    shortened,
    with_gradient,
)
from ppl_models.configurable import Options
from ppl_models.data import Observed

__all__ = [
    "EXECUTORS",
    "Gradient",
    "Recorder",
    "Recording",
    "RecordingWarning",
    "settings",
    "warn_of_refusal",
]

#: Objectives ``[S]`` or a scalar, detached, and the gradient of their sum by parameter.
Gradient = tuple[Tensor, Sequence[Tensor | None]]
#: Computes objectives from parameters and buffers by name, the step, and a batch.
Objectives = Callable[[dict[str, Tensor], dict[str, Tensor], Tensor, Observed], Tensor]

#: What runs a recorded program, by name; with XLA, of the steps that it does not take itself.
EXECUTORS = {"replay": replay, "inductor": inductor, "xla": replay}


@dataclass(frozen=True)
class Recording:
    """Which steps are computed by recorded programs.

    :ivar executor: the name of one of :data:`EXECUTORS`; ``None`` to record none.
    :ivar last: whether the last batch of a pass, if it is smaller, gets a program as well.
    :ivar asked_for: whether to warn if the steps cannot be recorded.
    """

    executor: str | None = None
    last: bool = True
    asked_for: bool = False

    def covers(self, rows: int, full: int | None) -> bool:
        """Whether a batch of so many rows gets a program.

        :param full: of every batch but a smaller last one; ``None`` if they vary, as those of
            unequal groups, which would need too many programs.
        """
        return full is not None and (self.last or rows == full)


class RecordingWarning(UserWarning):
    """Steps cannot be recorded as was asked: they are replayed, or run through Pyro's handlers."""


def warn_of_refusal(executor: str | None, why: str, instead: str) -> None:
    """:param instead: how the steps are computed, and what to do."""
    warnings.warn(
        f"the steps cannot be recorded for {executor!r} ({why}): they are {instead}",
        RecordingWarning,
        stacklevel=3,
    )


class Recorder:
    """Computes objectives and gradients by recorded programs, one for each shape of a batch.

    A program has fixed which parameters learn and the plain settings of all modules.

    :param objectives: a pure function.
    :param parameters: by name; those that learn, and others.
    :param recording: names the executor.
    :param fixed: says what must not change once a program was recorded.

    :ivar tensors: the parameters, those that learn first, and the buffers.
    :ivar learning: how many learn.
    :ivar refused: why the function cannot be recorded, if it cannot.
    """

    def __init__(
        self,
        objectives: Objectives,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        recording: Recording,
        fixed: Callable[[], Any],
    ) -> None:
        assert recording.executor is not None
        self.objectives, self.recording, self.fixed = objectives, recording, fixed
        self.executor = EXECUTORS[recording.executor]
        self.names = sorted(parameters, key=lambda name: not parameters[name].requires_grad)
        self.learning = sum(p.requires_grad for p in parameters.values())
        self.buffers = list(buffers)
        self.tensors = [*(parameters[name] for name in self.names), *buffers.values()]
        self.programs: dict[Hashable, Callable[..., Gradient]] = {}
        self.refused: str | None = None

    def __call__(self, step: Tensor, batch: Observed) -> Gradient | None:
        """The objectives and the gradient; ``None`` if they cannot be recorded."""
        inputs = (step, batch.x, *batch.given.values())
        key = (batch.size, *((each.shape, each.dtype) for each in inputs))
        program = self.programs.get(key)
        if program is None and self.refused is None:
            try:
                program = self.programs[key] = self._program(inputs, batch)
            except Exception as error:  # of a user's own model, or of a compiler
                self._refuse(str(error).strip().partition("\n")[0])
        return None if program is None else program(*self.tensors, *inputs)

    def _refuse(self, why: str) -> None:
        self.refused = why
        if self.recording.asked_for:
            warn_of_refusal(
                self.recording.executor,
                why,
                "computed through Pyro's handlers; leave compile= out, or choose an objective that "
                "reads no values, such as the guide's default",
            )

    def _program(self, inputs: Sequence[Tensor], batch: Observed) -> Callable[..., Gradient]:
        objectives = self.function_of(batch)
        has: list[bool] = []
        function = with_gradient(objectives, self.learning, has)
        examples = [*self.tensors, *inputs]

        def from_fewer_operations() -> Callable[..., Sequence[Tensor]]:
            return with_gradient(shortened(objectives, examples), self.learning, [])

        before = self.fixed()
        with seeded(0, inputs[0].device):
            run = self._agreeing(function, examples, [from_fewer_operations, lambda: function])
        if self.fixed() != before:  # too little to be seen in the results so far
            raise ValueError("it changes settings of its own in each step")

        def program(*tensors: Tensor) -> Gradient:
            with torch.no_grad():
                values, *rest = run(*tensors)
            gradients = iter(rest)
            return values, [next(gradients) if each else None for each in has]

        return program

    def _agreeing(
        self,
        function: Callable[..., Sequence[Tensor]],
        examples: Sequence[Tensor],
        forms: Sequence[Callable[[], Callable[..., Sequence[Tensor]]]],
    ) -> Program:
        """The first of some forms of a function whose program has the function's results."""
        failure: Exception = ValueError(
            "it depends on something besides its tensors and random draws"
        )
        for form in forms:
            try:
                run = self.executor(record(form(), examples), examples)
                if agree(function, run, examples):
                    return run
            except Exception as error:  # of a user's own model, or of a compiler
                failure = error
        raise failure

    def function_of(self, batch: Observed) -> Callable[..., Tensor]:
        """The objectives as a function of :attr:`tensors`, the step, x, and what is given.

        :param batch: one like those in the tensors, for what is not a tensor.
        """
        P, B = len(self.names), len(self.buffers)

        def objectives(*tensors: Tensor) -> Tensor:
            step, x, *rest = tensors[P + B :]
            return self.objectives(
                dict(zip(self.names, tensors[:P], strict=True)),
                dict(zip(self.buffers, tensors[P : P + B], strict=True)),
                step,
                Observed(x, dict(zip(batch.given, rest, strict=True)), batch.size),
            )

        return objectives


def settings(module: nn.Module) -> list[Any]:
    """What a recorded program has fixed: which tensors the modules hold, which of them learn, and
    plain settings.
    """
    learn = [(id(p), p.requires_grad) for p in module.parameters()]
    buffers = [id(b) for part in module.modules() for b in _own_buffers(part)]
    return [learn, buffers, *(_plain(vars(part)) for part in module.modules())]


def _own_buffers(module: nn.Module) -> list[Tensor | None]:
    """Without those that are set anew in each step."""
    return [buffer for name, buffer in module._buffers.items() if name not in SCHEDULED]


def _plain(value: Any) -> Any:
    """Settings in a form that can be compared, objects by their identity."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if str(name)[0] != "_"}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    within = _plain(vars(value)) if isinstance(value, Options | ELBO) else None
    return id(value), within
