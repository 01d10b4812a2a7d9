"""The step of a run as one CUDA graph: recorded once, and replayed without single launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from inference.training.data_source import InMemorySource
from inference.training.nonfinite import SCHEDULED
from inference.training.steps import SingleRunStep
from ppl_models.given.observed import Observed

# Steps before the recording, in which memory is allocated and libraries choose their kernels.
WARM_UP = 3


class CUDAGraphStep(SingleRunStep):
    """One run with a recorded step; a batch of another size takes an ordinary step.

    A graph's shapes, rates and memory addresses are fixed. So the step is recorded anew before a
    pass if one of them has changed since the last pass (a callback halved a rate, or put new
    tensors in a prior).

    :raises ValueError: if no batch would have the recorded size, as with those of unequal groups.
    :raises RuntimeError: in the fourth step, if CUDA cannot record it.
    """

    def prepare(self) -> None:
        super().prepare()
        source = self.source
        if source.full is None or (
            isinstance(source, InMemorySource) and len(source.data) < source.batch_size
        ):
            how = getattr(source, "batching", source)
            raise ValueError(
                f"compile='cuda graph' needs batches of one size, but {how!r} gives none of "
                f"{source.batch_size} rows here: leave it out, or give a smaller batch_size"
            )
        self.warm = 0
        self.replay: Callable[[], None] | None = None

    def ordered(self) -> Iterator[Observed]:
        self.look_again = True  # the first steps make the optimizer's moments
        return super().ordered()

    def record_anew(self) -> None:
        super().record_anew()
        self.warm, self.replay = 0, None

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        if len(batch) != self.source.full:
            return super().__call__(batch, step)
        device = self.run.device
        if self.warm < WARM_UP:
            self.warm += 1
            return aside(lambda: super(CUDAGraphStep, self).__call__(batch, step), device)
        if self.replay is None:
            self._record(batch, step)
        self._fill(batch, step)
        assert self.replay is not None
        self.replay()
        return self.kept.clone()

    def fixed(self) -> Any:
        """Also addresses, and the optimizer's options; its moments exist after a step."""
        optimizer = self.run.optimizer
        buffers = [
            b
            for name, b in self.run.loss.named_buffers()
            if name.rpartition(".")[2] not in SCHEDULED
        ]
        moments = [
            t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)
        ]
        places = [tensor.data_ptr() for tensor in (*self.run.loss.parameters(), *buffers, *moments)]
        options = [
            {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
        ]
        return super().fixed(), places, options, dict(vars(self.run.guard))

    def _record(self, batch: Observed, step: Tensor) -> None:
        """Record the step on its own copies of a batch and a step number."""
        given = {name: values.clone() for name, values in batch.given.items()}
        self.batch, self.step = Observed(batch.x.clone(), given, batch.size), step.clone()
        groups = self.run.optimizer.param_groups
        for group in groups:
            group["capturable"] = True
        try:
            take = super().__call__
            self.replay, self.kept = recorded(lambda: take(self.batch, self.step), self.run.device)
        except RuntimeError as error:
            raise RuntimeError(
                f"CUDA cannot record this step as a graph: leave compile= out ({error})"
            ) from error
        finally:
            for group in groups:
                group["capturable"] = False

    def _fill(self, batch: Observed, step: Tensor) -> None:
        self.batch.x.copy_(batch.x)
        for name, values in self.batch.given.items():
            values.copy_(batch.given[name])
        self.step.copy_(step)


def recorded(take: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """A function that replays ``take``, and the tensor of its result; nothing is computed yet."""
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as those that pin a loader's batches, may continue meanwhile.
    with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = take()

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay, kept


def aside(take: Callable[[], Tensor], device: torch.device) -> Tensor:
    """Run ``take`` on a separate stream, as the steps before recording must be."""
    with torch.cuda.device(device):
        here, other = torch.cuda.current_stream(), torch.cuda.Stream()
        other.wait_stream(here)
        with torch.cuda.stream(other):
            result = take()
        here.wait_stream(other)
        return result
