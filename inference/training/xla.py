"""A run's steps taken by XLA, many in one call.

What small models spend on calling their operations goes. Needs JAX (the extra ``xla``), which is
imported with this module.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from inference.randomness import seeded
from inference.training.compiled import Gradient, warn_of_refusal
from inference.training.data_source import InMemorySource
from inference.training.recording import TensorFunction, agree, record, shortened, with_gradient
from inference.training.steps import SingleRunStep
from inference.training.xla_program import Layout, StepsProgram
from ppl_models.given.observed import Observed

# Of a call, at most: steps, and numbers in their batches.
STEPS, NUMBERS = 64, 2**22


class XLAStep(SingleRunStep):
    """One run, many of whose steps are taken by one call of a compiled program.

    The others are taken as they are without it: the first step of a run, before which the optimizer
    has no moments; and, replayed, those of a smaller last batch, or all if XLA cannot have them.

    :ivar refused: why XLA cannot have the steps, if it cannot.
    """

    def prepare(self) -> None:
        super().prepare()
        self.refused: str | None = None
        self.programs: dict[Hashable, StepsProgram] = {}

    def record_anew(self) -> None:
        super().record_anew()
        self.programs = {}
        if self.refused is None and (why := self._unsuitable()) is not None:
            self._refuse(why)

    def turns(self, skip: int) -> Iterator[list[Observed]]:
        batches = islice(self.batches(), skip, None)
        following = next(batches, None)
        while following is not None:
            turn, size, following = [following], self._at_once(following), None
            while len(turn) < size:
                following = next(batches, None)
                if following is None or not _alike(following, turn[0]):
                    break
                turn.append(following)
                following = None
            yield turn  # none is read ahead where steps are taken one by one
            following = next(batches, None) if following is None else following

    def take(self, batches: Sequence[Observed], step: Tensor, total: Tensor) -> None:
        program = self._program(batches[0], step, total) if self._takes(batches[0]) else None
        if program is None:
            super().take(batches, step, total)
            return
        state = self._state(program.layout.has, step, total)
        program(state, [_tensors(batch) for batch in batches])

    def gradient(self, step: Tensor, batch: Observed, rows: int) -> Gradient:
        """Not recorded for the first step alone."""
        first = self.refused is None and not self.run.optimizer.state
        return self.computed(step, batch) if first else super().gradient(step, batch, rows)

    def _unsuitable(self) -> str | None:
        if not isinstance(self.source, InMemorySource):
            return "its data come from a loader"
        if self.source.full is None:
            return "batches of groups of many sizes"
        if self.run.device.type != "cpu":
            return f"its device is {self.run.device}"
        if self.updates[0].options is None:
            return "its optimizer is not fused Adam"
        return None

    def _refuse(self, why: str) -> None:
        self.refused = why
        if self.recording.asked_for:
            warn_of_refusal("xla", why, "replayed where they can be")

    def _takes(self, batch: Observed) -> bool:
        """Whether a step is one for a program, if there is one."""
        ready = self.updates[0].options is not None and bool(self.run.optimizer.state)
        return self.refused is None and ready and len(batch) == self.source.full

    def _at_once(self, batch: Observed) -> int:
        """Steps of a call, at most."""
        if not self._takes(batch):
            return 1
        numbers = sum(each.numel() for each in _tensors(batch))
        return min(STEPS, self.source.steps, max(1, NUMBERS // numbers))

    def _program(self, batch: Observed, step: Tensor, total: Tensor) -> StepsProgram | None:
        shapes = ((each.shape, each.dtype) for each in _tensors(batch))
        key = (batch.size, self.updates[0].settings(), *shapes)
        if key not in self.programs:
            try:
                with seeded(0, self.run.device), _collector_paused():
                    self.programs[key] = self._compiled(batch, step, total)
            except Exception as error:  # of a user's own model, or of the compiler
                self._refuse(str(error).strip().partition("\n")[0] or type(error).__name__)
        return self.programs.get(key)

    def _compiled(self, batch: Observed, step: Tensor, total: Tensor) -> StepsProgram:
        """:raises ValueError: if the program does something else than the steps."""
        (update,), recorder = self.updates, self.recorder
        assert recorder is not None
        inputs, objective = _tensors(batch), recorder.function_of(batch)
        examples = [each.detach() for each in (*recorder.tensors, step, *inputs)]
        found: list[bool] = []
        gradient = with_gradient(objective, recorder.learning, found)
        loss, *gradients = gradient(*(each.clone() for each in examples))
        places = {id(each): i for i, each in enumerate(recorder.tensors)}
        learning = tuple(i for i, each in enumerate(found) if each)
        has = tuple(places[id(each)] in learning for each in update.tracker.parameters)
        if sum(has) < len(learning):
            raise ValueError("a parameter began to learn after the first step")
        changing = tuple(places[id(each)] for each in update.buffers)
        guard = len(update.tracker.state)
        layout = Layout(has, recorder.learning, learning, len(places), changing, guard)
        state = self._state(has, step, total)
        updated = update.function(has)
        trained = [state[i] for i in layout.trained]
        like = layout.update_inputs(state, state, loss, gradients, trained)
        recorded = shortened(objective, recorder.learning, examples), record(updated, like)
        program = StepsProgram(*recorded, layout, state, inputs, self._at_once(batch))
        by_operations = one_step(gradient, updated, layout)
        if not agree(_moved(by_operations, layout), _moved(program.one, layout), [*state, *inputs]):
            raise ValueError("XLA's results differ from those of the steps themselves")
        return program

    def _state(self, has: tuple[bool, ...], step: Tensor, total: Tensor) -> list[Tensor]:
        """As a :class:`~inference.training.xla_program.Layout` says."""
        (update,), recorder = self.updates, self.recorder
        moments = update.state_of(has)
        assert recorder is not None
        assert moments is not None
        counts, *rest = moments
        held = [*recorder.tensors, *update.tracker.state, counts, *rest[sum(has) :]]
        return [each.detach() for each in (*held, update.rate_now(), total, step)]


def one_step(gradient: TensorFunction, update: TensorFunction, layout: Layout) -> TensorFunction:
    """A step as a function that changes a state; it is given a batch as well."""

    def step(*tensors: Tensor) -> Sequence[Tensor]:
        before = [each.clone() for each in tensors]
        held, batch = tensors[: layout.held], tensors[layout.number + 1 :]
        loss, *gradients = gradient(*held, tensors[layout.number], *batch)
        trained = [tensors[i] for i in layout.trained]
        (kept,) = update(*layout.update_inputs(before, tensors, loss, gradients, trained))
        tensors[layout.total].add_(kept)
        return ()

    return step


def _moved(step: TensorFunction, layout: Layout) -> TensorFunction:
    """Objective and whole gradient, which tell whether a step is right: parts may be rounding."""

    def moved(*tensors: Tensor) -> list[Tensor]:
        now = [each.clone() for each in tensors]
        step(*now)
        gradients = [(now[i] - tensors[i]).reshape(-1) for i in layout.first_moments]
        return [now[layout.total], torch.cat(gradients)]

    return moved


@contextmanager
def _collector_paused() -> Iterator[None]:
    """As recording makes many objects that stay, through which Python would search for cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _tensors(batch: Observed) -> list[Tensor]:
    return [batch.x, *batch.given.values()]


def _alike(one: Observed, other: Observed) -> bool:
    """Whether two batches of the same data have one program."""
    return len(one) == len(other) and one.size == other.size
