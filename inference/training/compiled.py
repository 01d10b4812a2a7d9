"""Objectives and gradients from recorded programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.randomness import seeded, undisturbed
from inference.training.parts import Parts
from inference.training.recording import (
    TensorFunction,
    agree,
    record,
    replay,
    shortened,
    with_gradient,
)
from ppl_models.given.observed import Observed

#: Objectives ``[S]`` or a scalar, detached, and the gradient of their sum by parameter.
Gradient = tuple[Tensor, Sequence[Tensor | None]]
#: Computes objectives from parameters and buffers by name, the step, and a batch.
Objectives = Callable[[dict[str, Tensor], dict[str, Tensor], Tensor, Observed], Tensor]


@dataclass(frozen=True)
class Recording:
    """Which steps are computed by recorded programs.

    :ivar executor: ``"replay"`` or ``"xla"``; ``None`` to record none.
    :ivar last: whether the last batch of a pass, if it is smaller, gets a program as well.
    :ivar asked_for: whether to record the steps of parts that are not this library's as well, and
        to warn if the steps cannot be recorded.
    :ivar unknown: the part because of which nothing is recorded, if that is so, in words.
    """

    executor: str | None = None
    last: bool = True
    asked_for: bool = False
    unknown: str | None = None

    def covers(self, rows: int, full: int | None) -> bool:
        """Whether a batch of so many rows gets a program.

        :param full: of every batch but a smaller last one; ``None`` if they vary, as those of
            unequal groups, which would need too many programs.
        """
        return full is not None and (self.last or rows == full)


class RecordingWarning(UserWarning):
    """Steps are not recorded: they are replayed instead of compiled, or run through Pyro."""


def warn_of_refusal(executor: str | None, why: str, instead: str) -> None:
    """:param instead: how the steps are computed, and what to do."""
    warnings.warn(
        f"the steps cannot be recorded for {executor!r} ({why}): they are {instead}",
        RecordingWarning,
        stacklevel=3,
    )


def warn_of_unknown(part: str) -> None:
    """:param part: see :attr:`Parts.unknown <inference.training.parts.Parts>`."""
    warnings.warn(
        f"the steps are not recorded and run through Pyro, up to twice as slow: {part}, and a "
        "recorded step repeats nothing but operations on tensors. If its results depend on "
        "nothing but tensors, random draws and fixed settings, give compile='replay'; "
        "compile=None leaves the steps as they are without this warning",
        RecordingWarning,
        stacklevel=3,
    )


class Recorder:
    """Computes objectives and gradients by recorded programs, one for each shape of a batch.

    A program has fixed which parameters learn and the settings of all parts.

    :param objectives: a pure function.
    :param parameters: by name; those that learn, and others.
    :param recording: names the executor.
    :param parts: looks at what the function depends on.

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
        parts: Callable[[], Sequence[Parts]],
    ) -> None:
        self.objectives, self.recording, self.parts = objectives, recording, parts
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
                "computed through Pyro; leave compile= out, or choose an objective that "
                "reads no values, such as the guide's default",
            )

    def _program(self, inputs: Sequence[Tensor], batch: Observed) -> Callable[..., Gradient]:
        objectives = self.function_of(batch)
        has: list[bool] = []
        function = with_gradient(objectives, self.learning, has)
        examples = [*self.tensors, *inputs]

        def from_fewer_operations() -> Callable[..., Sequence[Tensor]]:
            return with_gradient(shortened(objectives, self.learning, examples), self.learning, [])

        before = self.parts()
        with seeded(0, inputs[0].device), undisturbed():
            run = self._agreeing(function, examples, [from_fewer_operations, lambda: function])
        if [parts.settings for parts in self.parts()] != [parts.settings for parts in before]:
            # too little to be seen in the results so far
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
    ) -> TensorFunction:
        """The first of some forms of a function whose program has the function's results."""
        failure: Exception = ValueError(
            "it depends on something besides its tensors and random draws"
        )
        for form in forms:
            try:
                run = replay(record(form(), examples))
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
