"""Steps of one model, as functions that take them: the library's, a plain loop's and the networks'
alone.

And what is asked of them: whether the two objectives are the same, and how long a step takes, alone
or in turns with other programs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyro
import torch
from torch import Tensor

from guides import FacetGuide
from inference import Loss, SVIRunner
from inference.randomness import seeded, synchronize
from inference.run import PRECISIONS
from inference.training.steps import Steps
from lab.benchmarks.model_cases import Case, Size
from ppl_models.given.observed import Observed
from ppl_models.modes import network_precision
from ppl_models.turns import yield_lock

Step = Callable[[], Any]

# Rows that objectives are compared on.
COMPARED_ROWS = 64
# Both objectives are computed in float64; the rest is the order of additions.
SAME_VALUE, SAME_GRADIENT = 1e-9, 1e-6


class FitSteps:
    """The steps of ``SVIRunner.fit``'s loop, its guard's look included, one for each call, so that
    other programs can take theirs in between: a call gathers the next batch, in passes over the
    data, and takes its step. Where the loop takes several steps at once, the first of their calls
    does so, and the others have nothing left to do; the very first call takes one step alone.

    :param batch_size: which the number of rows is a multiple of.
    """

    def __init__(self, runner: SVIRunner, data: Observed, batch_size: int) -> None:
        self.runner = runner
        self.steps = Steps(runner.plan(data.x, 1, batch_size, **data.given))
        self.rest: Iterator[list[Observed]] = iter(())
        self.ahead = 0
        runner.loss.train()

    def __call__(self) -> None:
        if self.ahead:
            self.ahead -= 1
            return
        precision = PRECISIONS[self.runner.precision]
        with network_precision(precision), pyro.validation_enabled(False):
            turn = next(self.rest, None) or self.next_pass()
            self.steps.take(turn)
        self.runner.step += len(turn)
        self.ahead = len(turn) - 1
        yield_lock()

    def next_pass(self) -> list[Observed]:
        self.runner.epoch += 1
        turns = self.steps.turns(0)
        first = next(turns)
        size = 1 if self.runner.epoch == 1 else len(first)  # of the run's first call
        self.rest = filter(None, chain([first[size:]], turns))
        return first[:size]

    def wait(self) -> None:
        """Until the device has finished."""
        synchronize(self.runner.device)

    @property
    def refusal(self) -> str | None:
        """Why steps that were to be recorded are not, if they are not."""
        recorder = self.steps.recorder
        if recorder is None or not recorder.refused:
            covered = recorder is None or self.steps.source.full is not None
            return None if covered else "batches of groups of many sizes"
        return next(iter(recorder.refused.values()))


def plain_step(objective: Callable[..., Tensor], guide: FacetGuide, batch: Observed) -> Step:
    """The step of a plain loop, for any objective of a guide and a batch."""
    optimizer = torch.optim.Adam(guide.parameters(), lr=5e-4, fused=True)

    def step() -> None:
        loss = objective(guide, batch.x, **batch.given)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    step.wait = partial(synchronize, batch.x.device)
    return step


def _ours(case: Case, guide: FacetGuide, batch: Observed, precision: str = "float32") -> FitSteps:
    runner = SVIRunner(guide.model, guide, precision=precision, compile=None)
    return FitSteps(runner, batch, len(batch))


# By name, from a case with its guide and a batch.
VARIANTS: dict[str, Callable[[Case, FacetGuide, Observed], Step]] = {
    "ours": _ours,
    "plain loop": lambda case, guide, batch: plain_step(case.plain, guide, batch),
    "networks alone": lambda case, guide, batch: plain_step(case.networks, guide, batch),
    "ours, bf16": partial(_ours, precision="bf16"),
}


def begin(step: Step) -> float:
    """Seconds of a program's first step, by the clock on the wall, as compilers have processes of
    their own.
    """
    with pyro.validation_enabled(False):
        return _turn(step, 1, time.perf_counter)


def in_turns(
    steps: Mapping[str, Step], turns: int, length: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Mean seconds of a step in each turn.

    In a round, every program has a turn of ``length`` steps, as in a loop of its own; one more
    before these is not timed, as another program's tensors are in the caches. Nor is the first
    round.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    with pyro.validation_enabled(False):
        for _ in range(1 + turns):
            for name, step in steps.items():
                _turn(step, 1, clock)
                found[name].append(_turn(step, length, clock) / length)
    return {name: seconds[1:] for name, seconds in found.items()}


def _turn(step: Step, length: int, clock: Callable[[], float]) -> float:
    """Seconds of so many steps, until their results are there."""
    wait = getattr(step, "wait", None)
    started = clock()
    for _ in range(length):
        step()
    if wait is not None:
        wait()
    return clock() - started


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) == 1:
        return dict.fromkeys(("median", "low", "high"), values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def ratios(these: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratio of two programs' turns in the same round."""
    return spread([one / other for one, other in zip(these, others, strict=True)])


def check_same_objective(name: str, case: Case, size: Size, device: torch.device) -> None:
    """Compare the objective written by hand with the library's, on the same data with the same
    noise, in float64.

    :raises ValueError: if values or gradients differ by more than rounding.
    """
    guide = case.guide(size).to(device, torch.float64)
    data = case.data(guide, size, device)[slice(COMPARED_ROWS)]
    x, library = data.x.double(), Loss(guide.model, guide)
    ours, our_gradients = _value_and_gradients(lambda: library(x, **data.given), library, device)
    hand, gradients = _value_and_gradients(
        lambda: case.plain(guide, x, **data.given), library, device
    )
    if not abs(ours - hand) <= SAME_VALUE * abs(ours):
        raise ValueError(
            f"{name}: the objective written by hand is {hand}, the library's {ours}, with the "
            "same noise"
        )
    for parameter, gradient in our_gradients.items():
        largest = float(gradient.abs().max())
        if (
            not float((gradients[parameter] - gradient).abs().max())
            <= SAME_GRADIENT * largest + SAME_VALUE
        ):
            raise ValueError(
                f"{name}: the gradient by {parameter} of the objective written by hand is not the "
                "library's"
            )


def _value_and_gradients(
    objective: Callable[[], Tensor], loss: Loss, device: torch.device
) -> tuple[float, dict[str, Tensor]]:
    loss.zero_grad()
    with seeded(0, device), pyro.validation_enabled(False):
        value = objective()
        value.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in loss.named_parameters()
    }
    return float(value.detach()), gradients
