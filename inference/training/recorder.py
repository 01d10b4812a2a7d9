"""Steps by recorded programs: which are, the programs by the shape of a batch, and refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from inference.randomness import seeded, undisturbed
from inference.training.data_source import InMemorySource
from inference.training.recording import Recorded, TensorFunction, laid_out, recorded
from inference.training.update import MOMENTS, Update
from ppl_models.given.observed import Observed

if TYPE_CHECKING:
    from inference.training.steps import Steps

# Of a call of XLA, at most: steps, and numbers in their batches.
STEPS, NUMBERS = 64, 2**22

#: Objectives ``[S]`` or a scalar, detached, and the gradient of their sum by parameter.
Gradient = tuple[Tensor, Sequence[Tensor | None]]
#: Takes a step on each of some batches of one shape.
Turn = Callable[[Sequence[Observed]], None]


@dataclass(frozen=True)
class Recording:
    """Which steps are computed by recorded programs.

    :ivar executor: ``"replay"``, ``"xla"`` or ``"cuda graph"``; ``None`` to record none.
    :ivar last: whether the last batch of a pass, if it is smaller, gets a program as well.
    :ivar asked_for: whether to record the steps of parts that are not this library's as well, and
        to warn if the steps cannot be recorded.
    :ivar unknown: the part because of which nothing is recorded, if that is so, in words.
    """

    executor: str | None = None
    last: bool = True
    asked_for: bool = False
    unknown: str | None = None


class RecordingWarning(UserWarning):
    """Steps are not recorded: they are replayed instead of compiled, or run through Pyro."""


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
    """Takes steps, or computes parts of them, by recorded programs, one for each shape of a batch.

    A program has fixed which parameters learn and the settings of all parts.

    :ivar refused: why the steps cannot be recorded, or not be compiled, if that is so.
    """

    def __init__(self, steps: Steps, recording: Recording) -> None:
        self.steps, self.recording = steps, recording
        self.refused: dict[str, str] = {}
        self.programs: dict[tuple[Hashable, ...], Any] = {}

    def renew(self, unknown: str | None) -> bool:
        """Drop what was recorded; returns whether steps may be recorded now.

        :param unknown: the first part that is not this library's, in words.
        """
        self.programs = {}
        if unknown is not None and not self.recording.asked_for:
            warn_of_unknown(unknown)
            return False
        executor = str(self.recording.executor)
        whole = executor != "replay" and executor not in self.refused
        if whole and (why := self._unsuitable(executor)):
            self._refuse(executor, why)
        return True

    def release(self) -> None:
        """Drop what has fixed the addresses of tensors, which callbacks may have replaced."""
        self.programs = {key: of for key, of in self.programs.items() if key[0] != "cuda graph"}

    def _unsuitable(self, executor: str) -> str | None:
        """Why whole steps cannot be taken by a compiler or a graph, as far as that is plain."""
        steps = self.steps
        if steps.plan.processes.size > 1:
            return "several processes take part"
        if steps.source.full is None:
            return "batches of groups of many sizes"
        if steps.updates[0].options is None:
            return "its optimizer is not fused Adam"
        if executor == "cuda graph":
            return None
        if not isinstance(steps.source, InMemorySource):
            return "its data come from a loader"
        device = steps.runs[0].device
        return None if device.type == "cpu" else f"its device is {device}"

    def covers(self, rows: int) -> bool:
        """Whether a batch of so many rows, of all processes, gets a program; no batch does if they
        vary, as those of unequal groups, which would need too many.
        """
        full = self.steps.source.full
        return full is not None and (self.recording.last or rows == full)

    def gradient(self, batch: Observed) -> Gradient | None:
        """The objectives and their gradient; ``None`` if they cannot be recorded."""
        found = self._kept("replay", _key(batch), lambda: self._gradient(batch))
        if found is None:
            return None
        program, has = found
        with torch.no_grad():
            values, *rest = program.run(*self._given(batch))
        gradients = iter(rest)
        return values, [next(gradients) if each else None for each in has]

    def update(
        self, update: Update, loss: Tensor, gradients: Mapping[str, Tensor], before: Sequence[Any]
    ) -> bool:
        """Take a run's update; returns whether it could be recorded."""
        if update.options is None or not gradients:
            return False
        has = tuple(gradients)
        tensors = [*update.state(has).values(), loss, *gradients.values(), *before]

        key = has, update.settings()  # runs with equal models share it
        found = self._kept("update", key, lambda: recorded(update.function(has), tensors))
        if found is not None:
            found.run(*tensors)
        return found is not None

    def room(self, batch: Observed) -> int:
        """Steps that one call may take on batches like this one."""
        if self.recording.executor != "xla" or "xla" in self.refused:
            return 1
        numbers = sum(each.numel() for each in tensors_of(batch))
        return min(STEPS, self.steps.source.steps, max(1, NUMBERS // numbers))

    def turn(self, batch: Observed) -> Turn | None:
        """What takes whole steps on batches like this one, if that is compiled or captured."""
        executor = str(self.recording.executor)
        make = {"xla": self._compiled, "cuda graph": self._captured}.get(executor)
        if make is None or executor in self.refused or len(batch) != self.steps.source.full:
            return None
        key = *_key(batch), self.steps.updates[0].settings()
        return self._kept(executor, key, lambda: make(batch))

    def _kept(self, kind: str, key: tuple[Hashable, ...], build: Callable[[], Any]) -> Any:
        """A program of this kind; ``None`` if there can be none, as building it fails."""
        place = kind, *key
        if place not in self.programs and kind not in self.refused:
            try:
                self.programs[place] = build()
            except ModuleNotFoundError as error:
                install = "; pip install 'facetvae[xla]'"
                self._refuse(kind, f"{error.name} is not installed{install * (kind == 'xla')}")
            except Exception as error:  # of a user's own model, or of a compiler
                self._refuse(kind, str(error).strip().partition("\n")[0] or type(error).__name__)
        return self.programs.get(place)

    def _refuse(self, kind: str, why: str) -> None:
        self.refused[kind] = why
        if not self.recording.asked_for or kind == "update":
            return
        executor = self.recording.executor
        instead = (
            "computed through Pyro; leave compile= out, or choose an objective that reads no "
            "values, such as the guide's default"
            if kind == "replay"
            else "replayed where they can be"
        )
        warnings.warn(
            f"the steps cannot be recorded for {executor!r} ({why}): they are {instead}",
            RecordingWarning,
            stacklevel=3,
        )

    def _given(self, batch: Observed) -> list[Tensor]:
        """What the gradient's program takes: parameters and buffers, the step, and the batch."""
        steps = self.steps
        return [*steps.held.values(), steps.runs[0].counters["step"], *tensors_of(batch)]

    def _gradient(self, batch: Observed) -> tuple[Recorded, list[bool]]:
        has: list[bool] = []
        function, examples = self._with_gradient(batch, has), self._given(batch)
        before = self.steps.settings()
        with undisturbed():
            found = recorded(function, examples)
        if self.steps.settings() != before:
            # too little to be seen in the results so far
            raise ValueError("it changes settings of its own in each step")
        return found, has

    def _with_gradient(self, batch: Observed, has: list[bool]) -> TensorFunction:
        """The objectives and the gradient of their sum, as a function of tensors.

        :param has: filled with which of the parameters that learn have one; those alone are given.
        """
        names, learning = list(self.steps.held), list(self.steps.learning)

        def both(*tensors: Tensor) -> list[Tensor]:
            held = dict(zip(names, tensors, strict=False))
            held |= {name: held[name].detach().requires_grad_() for name in learning}
            step, x, *rest = tensors[len(names) :]
            like = Observed(x, dict(zip(batch.given, rest, strict=True)), batch.size)
            values = self.steps.objectives(held, step, like)
            leaves = [held[name] for name in learning]
            gradients = torch.autograd.grad(values.sum(), leaves, allow_unused=True)
            has[:] = [gradient is not None for gradient in gradients]
            return [values.detach(), *(g for g in laid_out(gradients, leaves) if g is not None)]

        return both

    def _whole(self, batch: Observed) -> tuple[RecordedStep, Callable[[], list[Tensor]]]:
        """A whole step, and what gives its state.

        :raises ValueError: if it cannot be recorded.
        """
        (update,), inputs = self.steps.updates, tensors_of(batch)
        found = self._kept("replay", _key(batch), lambda: self._gradient(batch))
        if found is None:
            raise ValueError(self.refused["replay"])
        gradient, has = found
        names = tuple(n for n, each in zip(self.steps.learning, has, strict=True) if each)
        state, given = update.state(names), self._given(batch)
        before = [state[name] for name in update.changing]
        with seeded(0, batch.x.device):
            results = gradient.run(*(each.clone() for each in given))
        examples = [*state.values(), *results, *before]
        places = {name: place for place, name in enumerate(state)}
        step = RecordedStep(
            gradient,
            recorded(update.function(names), examples),
            held=len(given) - len(inputs),
            before=[places[name] for name in update.changing],
            telling=[places["total"], *(places[f"{MOMENTS[0]} {name}"] for name in names)],
        )
        return step, lambda: list(update.state(names).values())

    def _compiled(self, batch: Observed) -> Turn:
        from inference.training.xla import compiled

        step, state = self._whole(batch)
        program = compiled(step, state(), tensors_of(batch), self.room(batch))
        return lambda batches: program(state(), [tensors_of(each) for each in batches])

    def _captured(self, batch: Observed) -> Turn:
        from inference.training.cuda_graph import captured

        step, state = self._whole(batch)
        replay = captured(partial(step.take, state()), tensors_of(batch))

        def turn(batches: Sequence[Observed]) -> None:
            for each in batches:
                replay(tensors_of(each))

        return turn


class RecordedStep(NamedTuple):
    """A whole step as operations on a state and a batch.

    :ivar gradient: of the first tensors of the state, and a batch; gives the objective and the
        gradients, and may change buffers.
    :ivar update: of the state, what ``gradient`` gives, and some of the state's tensors as they
        were before; changes the state.
    :ivar held: how many tensors of the state ``gradient`` takes.
    :ivar before: the places of those tensors.
    :ivar telling: the places of the total of the objectives, and of the means of the gradients.
    """

    gradient: Recorded
    update: Recorded
    held: int
    before: Sequence[int]
    telling: Sequence[int]

    def take(self, state: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
        before = [state[i].clone() for i in self.before]
        with torch.no_grad():
            found = self.gradient.run(*state[: self.held], *batch)
        self.update.run(*state, *found, *before)


def tensors_of(batch: Observed) -> list[Tensor]:
    return [batch.x, *batch.given.values()]


def _key(batch: Observed) -> tuple[Hashable, ...]:
    return batch.size, *((each.shape, each.dtype) for each in tensors_of(batch))
