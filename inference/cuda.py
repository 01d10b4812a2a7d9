"""The step of a run as one CUDA graph: recorded once, then played again without a launch for each kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inference.feeds import Feed
from inference.guard import SCHEDULED, Faults
from inference.processes import Processes
from inference.schedules import Weights
from inference.steps import Alone
from ppl_models.data import Observed

if TYPE_CHECKING:
    from inference.runner import SVIRunner

__all__ = ["Captured"]

# Steps before one is recorded, in which memory is laid out and libraries choose their kernels.
WARM_UP = 3


class Captured(Alone):
    """One run, its step recorded; what a graph cannot play is done as :class:`~inference.steps.Alone` does.

    A graph has its shapes, rates and places in memory for good. So batches of another size than the first one's take
    the plain way, as do all batches of groups, and where a rate or a place changed (a callback halved the one or put
    new tensors in the other), the step is recorded anew. Where it cannot be recorded there is a warning, and the plain
    way is taken throughout.
    """

    def __init__(
        self, runners: Sequence[SVIRunner], weights: Weights, feed: Feed, faults: Sequence[Faults], processes: Processes
    ) -> None:
        super().__init__(runners, weights, feed, faults, processes)
        self.fails = False
        self.recorded_for: Any = None
        self.warm = 0
        self.replay: Callable[[], None] | None = None
        for group in self.runner.optimizer.param_groups:
            group["capturable"] = True

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        if self.fails or batch.size is not None or len(batch) != self.feed.batch_size:
            return super().__call__(batch, step)
        if (now := self._fixed()) != self.recorded_for:
            self.recorded_for, self.warm, self.replay = now, 0, None
        if self.warm < WARM_UP:
            self.warm += 1
            return aside(lambda: super(Captured, self).__call__(batch, step))
        if self.replay is None and not self._record(batch, step):
            return super().__call__(batch, step)
        self._fill(batch, step)
        assert self.replay is not None
        self.replay()
        return self.kept.clone()

    def _fixed(self) -> Any:
        """What a graph takes to be as it was when it was recorded."""
        buffers = [b for name, b in self.runner.loss.named_buffers() if name.rpartition(".")[2] not in SCHEDULED]
        places = [tensor.data_ptr() for tensor in (*self.runner.loss.parameters(), *buffers)]
        return places, [group["lr"] for group in self.runner.optimizer.param_groups]

    def _record(self, batch: Observed, step: Tensor) -> bool:
        """Record the step on a batch and a number of its own, and whether that could be done."""
        given = {name: values.clone() for name, values in batch.given.items()}
        self.batch, self.step = Observed(batch.x.clone(), given), step.clone()
        try:
            self.replay, self.kept = recorded(lambda: super(Captured, self).__call__(self.batch, self.step))
        except RuntimeError as error:
            warnings.warn(f"the step cannot be recorded as a CUDA graph, and is not: {error}", stacklevel=2)
            self.fails = True
        return not self.fails

    def _fill(self, batch: Observed, step: Tensor) -> None:
        self.batch.x.copy_(batch.x)
        for name, values in self.batch.given.items():
            values.copy_(batch.given[name])
        self.step.copy_(step)

    def close(self) -> None:
        super().close()
        for group in self.runner.optimizer.param_groups:
            group["capturable"] = False


def recorded(take: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """What plays ``take`` once more, and where its result then lies; nothing is computed by recording."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = take()
    return graph.replay, kept


def aside(take: Callable[[], Tensor]) -> Tensor:
    """``take`` on a stream of its own, as what comes before recording is to be."""
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()
    other.wait_stream(here)
    with torch.cuda.stream(other):
        result = take()
    here.wait_stream(other)
    return result
