"""How the runs of a call take their steps: one run, or several runs in one program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from inference.distributed import SingleProcess
from inference.objectives import Loss
from inference.randomness import derive_seed
from inference.run import Run
from inference.schedules import Weights
from inference.training.batching import Rows
from inference.training.data_source import DataSource, InMemorySource
from inference.training.nonfinite import NonFiniteTracker
from ppl_models.data import Observed

__all__ = ["ScheduledLoss", "SingleRunStep", "Steps", "VmappedStep"]


class Steps(ABC):
    """Base: how the runs take their steps.

    :param runs: one run or several; all use the first one's schedule.
    :param weights: of the terms, by step.
    :param source: where the data come from.
    :param trackers: one per run, of its steps that are not finite.
    :param processes: the processes that take part.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        weights: Weights,
        source: DataSource,
        trackers: Sequence[NonFiniteTracker],
        processes: SingleProcess,
    ) -> None:
        self.runs = runs
        self.weights = weights
        self.source = source
        self.trackers = trackers
        self.processes = processes
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Build what all steps use.

        :raises ValueError: if the data cannot be batched as these steps need them.
        """

    @abstractmethod
    def batches(self) -> Iterator[Observed]:
        """The next pass over the data; its order depends only on the runs' seeds and epoch."""

    @abstractmethod
    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        """Take one optimiser step; return the earlier objectives, ``[S]``, 0 for a faulty step."""

    def close(self) -> None:
        """Restore the runs to independent state."""
        for tracker in self.trackers:
            tracker.detach()


class SingleRunStep(Steps):
    """The steps of one run."""

    def prepare(self) -> None:
        (self.run,) = self.runs
        self.program = ScheduledLoss(self.run.loss, self.weights)

    def batches(self) -> Iterator[Observed]:
        return self.source.batches(derive_seed(self.run.seed, self.run.epoch))

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        (tracker,) = self.trackers
        tracker.snapshot()
        part, counts = self.processes.shard(batch)
        loss = self.program(step, part.x, part.given, part.size)
        self.run.optimizer.zero_grad(set_to_none=True)
        kept = tracker.check(self.processes.backward(loss, counts, tracker.parameters), step)
        tracker.step()
        return kept


class VmappedStep(Steps):
    """Several runs with stacked parameters, gradients and buffers, of which the runs' own are
    views.
    """

    def prepare(self) -> None:
        source = self.source
        if not isinstance(source, InMemorySource) or not isinstance(source.batching, Rows):
            batching = source.batching if isinstance(source, InMemorySource) else source
            raise ValueError(
                f"runs that are trained together need batches of equal size, which {batching!r} "
                "does not give: train each alone, with SVIRunner.fit"
            )
        self.memory, self.rows = source, source.batching
        self.program = ScheduledLoss(self.runs[0].loss, self.weights)
        programs = [ScheduledLoss(run.loss, self.weights) for run in self.runs]
        self.parameters = _stacked([dict(program.named_parameters()) for program in programs])
        self.buffers = _stacked([dict(program.named_buffers()) for program in programs])
        self.gradients = [p.grad for p in self.parameters.values() if p.grad is not None]

    def batches(self) -> Iterator[Observed]:
        data = self.memory.data
        seeds = [derive_seed(run.seed, run.epoch) for run in self.runs]
        orders = torch.stack([self.rows.order(data, self.memory.generator(seed)) for seed in seeds])
        return (
            data[rows].to(self.memory.device)
            for rows in orders.split(self.memory.batch_size, dim=1)
        )

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        torch._foreach_zero_(self.gradients)
        for tracker in self.trackers:
            tracker.snapshot()
        mapped = torch.vmap(self._loss, in_dims=(0, 0, 0, 0, None), randomness="different")
        losses = mapped(self.parameters, self.buffers, batch.x, batch.given, step)
        losses.sum().backward()  # each run's objective depends only on its own parameters
        kept = [
            tracker.check(loss, step)
            for tracker, loss in zip(self.trackers, losses.detach(), strict=True)
        ]
        for tracker in self.trackers:
            tracker.step()
        return torch.stack(kept)

    def _loss(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        given: Any,
        step: Tensor,
    ) -> Tensor:
        return torch.func.functional_call(self.program, (parameters, buffers), (step, x, given))

    def close(self) -> None:
        super().close()
        for run in self.runs:
            for parameter in run.loss.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None
            for module in run.loss.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.clone())  # a schedule may have shared one object


class ScheduledLoss(nn.Module):
    """The objective with its weights, and the guide's scheduled options, set to their values at a
    step.
    """

    def __init__(self, loss: Loss, weights: Weights) -> None:
        super().__init__()
        self.loss = loss
        self.weights = weights

    def forward(
        self, step: Tensor, x: Tensor, given: Mapping[str, Tensor], size: float | None = None
    ) -> Tensor:
        self.set(step)
        return self.loss(x, size, **given)

    def set(self, step: Tensor) -> None:
        self.loss.model.kl_weights, self.loss.model.gates = self.weights(step)
        self.loss.guide.at_step(step)


def _stacked(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stacks ``[S, ...]`` by name; the given tensors and their gradients become views of them."""
    stacks = {}
    for name, lead in each[0].items():
        stack = torch.stack([tensors[name].detach() for tensors in each])
        for tensors, part in zip(each, stack, strict=True):
            tensors[name].data, tensors[name].grad = part, None
        if lead.requires_grad:
            stack.requires_grad_().grad = torch.zeros_like(stack)
            for tensors, part in zip(each, stack.grad, strict=True):  # type: ignore[arg-type]
                tensors[name].grad = part
        stacks[name] = stack
    return stacks
