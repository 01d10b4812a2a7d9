"""Steps by recorded programs: which are, the programs by the shape of a batch, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inference.randomness import undisturbed
from inference.training.program import Program
from inference.training.recording import recorded
from inference.training.update import MOMENTS
from ppl_models.given.observed import Observed
from ppl_models.warn import warn

# Of a call of XLA, at most: steps, and numbers in their batches.
STEPS, NUMBERS = 64, 2**24

#: Objectives ``[S]`` or a scalar, detached, and the gradient of their sum by parameter's name.
Gradient = tuple[Tensor, Mapping[str, Tensor]]
#: Takes a step on each of some batches of one shape, by their tensors.
Turn = Callable[[Sequence[Sequence[Tensor]]], None]


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
    warn(
        f"the steps are not recorded and run through Pyro, up to twice as slow: {part}, and a "
        "recorded step repeats nothing but operations on tensors. If its results depend on "
        "nothing but tensors, random draws and fixed settings, give compile='replay'; "
        "compile=None leaves the steps as they are without this warning",
        RecordingWarning,
    )


class Recorder:
    """Takes steps, or computes parts of them, by recorded programs, one for each shape of a batch,
    which have fixed which parameters learn and the settings of all parts.

    :param steps: whose they are (:class:`~inference.training.steps.Steps`).

    :ivar refused: why the steps cannot be recorded, or not be compiled, if that is so.
    :ivar whole: whether a step is one run's alone, with an update that can be recorded.
    """

    def __init__(self, steps: Any) -> None:
        self.steps, self.updates, self.recording = steps, steps.updates, steps.recording
        self.refused: dict[str, str] = {}
        self.programs: dict[tuple[Hashable, ...], Any] = {}
        self.recorded_for: Any = None

    def look(self, settings: Any) -> None:
        """Take in what callbacks may have changed, and drop what was recorded, if it was.

        :param settings: of the steps, as they are now.
        """
        # Graphs have fixed the addresses of tensors, which may have been replaced.
        self.programs = {key: of for key, of in self.programs.items() if key[0] != "cuda graph"}
        if settings != self.recorded_for:
            self.recorded_for, self.programs = settings, {}
        executor, by_adam = str(self.recording.executor), self.updates[0].options is not None
        self.whole = by_adam and len(self.updates) == self.steps.processes.size == 1
        why = self.recording.unsuitable or (None if by_adam else "its optimizer is not fused Adam")
        if why and executor not in ("replay", *self.refused):
            self._refuse(executor, why)

    def gradient(self, batch: Observed) -> Gradient | None:
        """The objectives and their gradient; ``None`` if they cannot be recorded."""
        found = self._kept("replay", _key(batch), lambda: self._gradient(batch))
        if found is None:
            return None
        program, names = found
        with torch.no_grad():
            objectives, *gradients = program.run(*self._given(batch))
        return objectives, dict(zip(names, gradients, strict=True))

    def room(self, batch: Observed) -> int:
        """Steps that one call may take on batches like this one."""
        if self.recording.executor != "xla" or "xla" in self.refused:
            return 1
        return min(STEPS, max(1, NUMBERS // sum(each.numel() for each in tensors_of(batch))))

    def turn(self, batch: Observed) -> Turn | None:
        """What takes whole steps on batches like this one: by the executor, or else replayed."""
        if not self.whole or "step" in self.refused:
            return None
        key, executor = (*_key(batch), self.updates[0].settings()), str(self.recording.executor)
        step = self._kept("step", key, lambda: self._step(batch))
        if step is None:
            if executor != "replay":
                self._refuse(executor, self.refused["step"])
            return None
        make = {"xla": self._compiled, "cuda graph": self._captured}.get(executor)
        turn = make and self._kept(executor, key, lambda: make(batch, *step))
        return turn or partial(self._replay, *step)

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
        if not self.recording.asked_for or kind == "step":
            return
        executor = self.recording.executor
        instead = (
            "computed through Pyro; leave compile= out, or choose an objective that reads no "
            "values, such as the guide's default"
            if kind == "replay"
            else "replayed where they can be"
        )
        warn(
            f"the steps cannot be recorded for {executor!r} ({why}): they are {instead}",
            RecordingWarning,
        )

    def _given(self, batch: Observed) -> list[Tensor]:
        """What the gradient's program takes: parameters and buffers, the step, and the batch."""
        step = self.updates[0].run.counters["step"]
        return [*self.steps.held.values(), step, *tensors_of(batch)]

    def _gradient(self, batch: Observed) -> tuple[Program, tuple[str, ...]]:
        """A program of the objectives and their gradient, and the parameters that have one."""
        held, learning = list(self.steps.held), list(self.steps.learning)
        names: tuple[str, ...] = ()

        def both(*tensors: Tensor) -> list[Tensor]:
            nonlocal names
            known = dict(zip(held, tensors, strict=False))
            leaves = {name: known[name].detach().requires_grad_() for name in learning}
            step, x, *rest = tensors[len(held) :]
            like = Observed(x, dict(zip(batch.given, rest, strict=True)), batch.size)
            values = self.steps.objectives(known | leaves, step, like)
            objectives, gradients = with_gradient(values, leaves)
            names = tuple(gradients)
            return [objectives, *gradients.values()]

        before = self.steps.settings()
        with undisturbed():
            found = recorded(both, self._given(batch))
        if self.steps.settings() != before:
            # too little to be seen in the results so far
            raise ValueError("it changes settings of its own in each step")
        return found, names

    def _step(self, batch: Observed) -> tuple[Program, tuple[str, ...]]:
        """A program of a whole step, which changes the update's state, given before a batch; and
        the parameters that have a gradient.

        :raises ValueError: if it cannot be recorded.
        """
        (update,), inputs = self.updates, tensors_of(batch)
        found = self._kept("replay", _key(batch), lambda: self._gradient(batch))
        if found is None:
            raise ValueError(self.refused["replay"])
        gradient, names = found
        state = update.state(names)
        held = len(self._given(batch)) - len(inputs)  # of the state's tensors the gradient's

        def step(*tensors: Tensor) -> list[Tensor]:
            now, given = tensors[: len(state)], tensors[len(state) :]
            by_name = dict(zip(state, now, strict=True))
            before = {name: by_name[name].clone() for name in update.changing}
            objective, *gradients = gradient.run(*now[:held], *given)
            update.by_adam(by_name, objective, dict(zip(names, gradients, strict=True)), before)
            return []

        return recorded(step, [*state.values(), *inputs]), names

    def _replay(
        self, program: Program, names: tuple[str, ...], batches: Sequence[Sequence[Tensor]]
    ) -> None:
        state = self.updates[0].state(names).values()
        for batch in batches:
            program.run(*state, *batch)

    def _compiled(self, batch: Observed, program: Program, names: tuple[str, ...]) -> Turn:
        from inference.training.xla import compiled

        (update,), room = self.updates, self.room(batch)
        state = update.state(names)
        told = ["total", *(f"{MOMENTS[0]} {name}" for name in names)]
        places = [[*state].index(name) for name in told]
        steps = compiled(program, list(state.values()), tensors_of(batch), room, places)
        return lambda batches: steps(list(update.state(names).values()), batches)

    def _captured(self, batch: Observed, program: Program, names: tuple[str, ...]) -> Turn:
        """A step as one CUDA graph, launched without its single kernels; none is taken yet."""
        state = self.updates[0].state(names).values()
        own = [each.clone() for each in tensors_of(batch)]  # whose addresses the graph has fixed
        graph, device = torch.cuda.CUDAGraph(), own[0].device
        # Other threads, such as those that pin a loader's batches, may continue meanwhile.
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            program.run(*state, *own)

        def replay(batches: Sequence[Sequence[Tensor]]) -> None:
            with torch.cuda.device(device):
                for given in batches:
                    for ours, theirs in zip(own, given, strict=True):
                        ours.copy_(theirs)
                    graph.replay()

        return replay


def with_gradient(objectives: Tensor, parameters: Mapping[str, Tensor]) -> Gradient:
    """The objectives with their gradient, for the parameters that have one: in each one's memory
    layout, which fused optimizers rely on.
    """
    found = torch.autograd.grad(objectives.sum(), list(parameters.values()), allow_unused=True)
    pairs = zip(parameters.items(), found, strict=True)
    return objectives.detach(), {
        name: g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        for (name, p), g in pairs
        if g is not None
    }


def tensors_of(batch: Observed) -> list[Tensor]:
    return [batch.x, *batch.given.values()]


def _key(batch: Observed) -> tuple[Hashable, ...]:
    forms = ((each.shape, each.dtype, each.stride()) for each in tensors_of(batch))
    return batch.size, *forms
