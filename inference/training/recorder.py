"""Steps by recorded programs: which are, the programs by the shape of a batch, and refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inference.randomness import seeded, undisturbed
from inference.training.recording import Recorded, RecordedStep, TensorFunction, laid_out, recorded
from inference.training.update import MOMENTS, Update
from ppl_models.given.observed import Observed

NOT_ADAM = "its optimizer is not fused Adam"
# Of a call of XLA, at most: steps, and numbers in their batches.
STEPS, NUMBERS = 64, 2**24

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
    :ivar unsuitable: why whole steps cannot be compiled or captured, but only be replayed.
    """

    executor: str | None = None
    last: bool = True
    asked_for: bool = False
    unknown: str | None = None
    unsuitable: str | None = None


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
    """Takes steps, or computes parts of them, by recorded programs, one for each shape of a batch,
    which have fixed which parameters learn and the settings of all parts.

    :param objectives: ``[S]`` or a scalar, as a pure function of parameters and buffers by name,
        the step, and a batch.
    :param settings: what must not change after something was recorded.
    :param updates: of each run.

    :ivar refused: why the steps cannot be recorded, or not be compiled, if that is so.
    """

    def __init__(
        self,
        objectives: Callable[[Mapping[str, Tensor], Tensor, Observed], Tensor],
        settings: Callable[[], Any],
        updates: Sequence[Update],
        recording: Recording,
    ) -> None:
        self.objectives, self.settings, self.updates = objectives, settings, updates
        self.recording = recording
        self.refused: dict[str, str] = {}
        self.programs: dict[tuple[Hashable, ...], Any] = {}
        self.recorded_for: Any = None

    def look(self, held: dict[str, Tensor], settings: Any) -> None:
        """Take in what callbacks may have changed, and drop what was recorded, if it was.

        :param held: parameters and buffers by name.
        :param settings: see above, as they are now.
        """
        self.held = held
        self.learning = [name for name, tensor in held.items() if tensor.requires_grad]
        # Graphs have fixed the addresses of tensors, which may have been replaced.
        self.programs = {key: of for key, of in self.programs.items() if key[0] != "cuda graph"}
        if settings != self.recorded_for:
            self.recorded_for, self.programs = settings, {}
        executor = str(self.recording.executor)
        if executor != "replay" and executor not in self.refused:
            plain = self.updates[0].options is not None
            if why := self.recording.unsuitable or (None if plain else NOT_ADAM):
                self._refuse(executor, why)

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

    def take_update(
        self, update: Update, loss: Tensor, gradients: Mapping[str, Tensor], before: Sequence[Any]
    ) -> bool:
        """Take a run's update; returns whether it could be recorded."""
        if update.options is None or not gradients:
            return False
        has, tensors = tuple(gradients), update.inputs(loss, gradients, before)
        key = has, update.settings()  # runs with equal models share it
        found = self._kept("update", key, lambda: recorded(update.function(has), tensors))
        if found is not None:
            found.run(*tensors)
        return found is not None

    def room(self, batch: Observed) -> int:
        """Steps that one call may take on batches like this one."""
        if self.recording.executor != "xla" or "xla" in self.refused:
            return 1
        return min(STEPS, max(1, NUMBERS // sum(each.numel() for each in tensors_of(batch))))

    def turn(self, batch: Observed) -> Turn | None:
        """What takes whole steps on batches like this one, if that is compiled or captured."""
        executor = str(self.recording.executor)
        make = {"xla": self._compiled, "cuda graph": self._captured}.get(executor)
        if make is None or executor in self.refused:
            return None
        key = *_key(batch), self.updates[0].settings()
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
        step = self.updates[0].run.counters["step"]
        return [*self.held.values(), step, *tensors_of(batch)]

    def _gradient(self, batch: Observed) -> tuple[Recorded, list[bool]]:
        has: list[bool] = []
        function, examples = self._with_gradient(batch, has), self._given(batch)
        before = self.settings()
        with undisturbed():
            found = recorded(function, examples)
        if self.settings() != before:
            # too little to be seen in the results so far
            raise ValueError("it changes settings of its own in each step")
        return found, has

    def _with_gradient(self, batch: Observed, has: list[bool]) -> TensorFunction:
        """The objectives and the gradient of their sum, as a function of tensors.

        :param has: filled with which of the parameters that learn have one; those alone are given.
        """
        names, learning = list(self.held), self.learning

        def both(*tensors: Tensor) -> list[Tensor]:
            held = dict(zip(names, tensors, strict=False))
            held |= {name: held[name].detach().requires_grad_() for name in learning}
            step, x, *rest = tensors[len(names) :]
            like = Observed(x, dict(zip(batch.given, rest, strict=True)), batch.size)
            values = self.objectives(held, step, like)
            leaves = [held[name] for name in learning]
            gradients = torch.autograd.grad(values.sum(), leaves, allow_unused=True)
            has[:] = [gradient is not None for gradient in gradients]
            return [values.detach(), *(g for g in laid_out(gradients, leaves) if g is not None)]

        return both

    def _whole(self, batch: Observed) -> tuple[RecordedStep, Callable[[], list[Tensor]]]:
        """A whole step, and what gives its state.

        :raises ValueError: if it cannot be recorded.
        """
        (update,), inputs = self.updates, tensors_of(batch)
        found = self._kept("replay", _key(batch), lambda: self._gradient(batch))
        if found is None:
            raise ValueError(self.refused["replay"])
        gradient, has = found
        names = tuple(n for n, each in zip(self.learning, has, strict=True) if each)
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


def tensors_of(batch: Observed) -> list[Tensor]:
    return [batch.x, *batch.given.values()]


def _key(batch: Observed) -> tuple[Hashable, ...]:
    forms = ((each.shape, each.dtype, each.stride()) for each in tensors_of(batch))
    return batch.size, *forms
