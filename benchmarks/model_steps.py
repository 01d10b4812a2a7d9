"""Steps of one model, as functions that take them: the library's, a plain loop's and the networks'
alone.

And what is asked of them: whether the two objectives are the same, how long a step takes, and its
memory.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.model_cases import Case, Size
from benchmarks.step_time import stepper
from guides import FacetGuide
from inference import Loss, SVIRunner
from inference.distributed import SingleProcess
from inference.randomness import seeded
from inference.run import PRECISIONS
from inference.training.data_source import data_source_for
from inference.training.nonfinite import NonFiniteTracker
from inference.training.steps import SingleRunStep
from ppl_models.data import Observed
from ppl_models.precision import network_precision

__all__ = ["VARIANTS", "check_same_objective", "library_step", "peak_memory", "timed"]

Step = Callable[[], Any]

# Rows that objectives are compared on.
COMPARED_ROWS = 64
# Both objectives are computed in float64; the rest is the order of additions.
SAME_VALUE, SAME_GRADIENT = 1e-9, 1e-6


def steps_of_a_run(runner: SVIRunner, batch: Observed) -> Callable[[Observed, Tensor], Tensor]:
    """One step of ``SVIRunner.fit`` on a batch, its guard's look included, as a function of the
    batch and its number.

    The one place that knows how the training loop is put together.
    """
    weights = runner.schedule.bind(runner.model, 1, 1)
    feed = data_source_for(runner.guide, runner.device, batch.x, batch.given, None, None)
    steps = SingleRunStep([runner], weights, feed, [NonFiniteTracker(runner)], SingleProcess())
    steps.record_anew()
    return steps


def library_step(guide: FacetGuide, batch: Observed, precision: str = "float32") -> Step:
    """The step that a run takes, without the dealing of its batch."""
    runner = SVIRunner(guide.model, guide, precision=precision)
    take = steps_of_a_run(runner, batch)
    runner.loss.train()
    number = torch.zeros_like(runner.model.gates[0])

    def step() -> None:
        with network_precision(PRECISIONS[precision]), pyro.validation_enabled(False):
            take(batch, number)
        number.add_(1)

    return step


def plain_step(objective: Callable[..., Tensor], guide: FacetGuide, batch: Observed) -> Step:
    """The step of a plain loop, for any objective of a guide and a batch."""
    return stepper(lambda x, _: objective(guide, x, **batch.given), guide.parameters, None, batch.x)


def _ours(precision: str) -> Callable[[Case, FacetGuide, Observed], Step]:
    return lambda case, guide, batch: library_step(guide, batch, precision)


# By name, from a case with its guide and a batch.
VARIANTS: dict[str, Callable[[Case, FacetGuide, Observed], Step]] = {
    "ours": _ours("float32"),
    "plain loop": lambda case, guide, batch: plain_step(case.plain, guide, batch),
    "networks alone": lambda case, guide, batch: plain_step(case.networks, guide, batch),
    "ours, bf16": _ours("bf16"),
}


def timed(step: Step, device: torch.device) -> Callable[[], float]:
    """The same step as a function that returns its seconds."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def measured() -> float:
        wait()
        started = time.perf_counter()
        step()
        wait()
        return time.perf_counter() - started

    return measured


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


def peak_memory(build: Callable[[], Step], device: torch.device) -> int:
    """Most bytes that tensors take at once while a step is built and taken three times.

    Parameters, gradients, Adam's moments, the batch, and what is kept for going backwards: all that
    PyTorch's allocator hands out, counted as it does so. Python, libraries, and buffers that
    operators get elsewhere are not in it.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        _take_three(build)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        _take_three(build)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    return _highest([event["args"] for event in events if event["name"] == "[memory]"])


def _take_three(build: Callable[[], Step]) -> None:
    step = build()
    for _ in range(3):  # from the second on there are moments, and gradients of the step before
        step()


def _highest(events: list[dict[str, Any]]) -> int:
    """The peak of what was handed out and not given back; what is given back but was handed out
    before is left out.
    """
    held: dict[int, int] = {}
    total = highest = 0
    for event in sorted(events, key=lambda event: event["Ev Idx"]):
        if event["Bytes"] > 0:
            held[event["Addr"]] = event["Bytes"]
            total += event["Bytes"]
        else:
            total -= held.pop(event["Addr"], 0)
        highest = max(highest, total)
    return highest
