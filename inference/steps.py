"""How the runs of a call take their steps: one run, or several in one program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from inference.batches import Rows
from inference.feeds import Feed, InMemory
from inference.guard import Faults
from inference.objectives import Loss
from inference.processes import Processes
from inference.randomness import mixed
from inference.schedules import Weights
from ppl_models.data import Observed

if TYPE_CHECKING:
    from inference.runner import SVIRunner

__all__ = ["Alone", "AtStep", "Steps", "Together"]


class Steps(ABC):
    """How the runs take their steps.

    :param runners: one or several; the first one's schedule holds for all.
    :param weights: of the terms, by the step.
    :param feed: of the data.
    :param faults: of each run.
    :param processes: that take part.
    """

    def __init__(
        self, runners: Sequence[SVIRunner], weights: Weights, feed: Feed, faults: Sequence[Faults], processes: Processes
    ) -> None:
        self.runners = runners
        self.weights = weights
        self.feed = feed
        self.faults = faults
        self.processes = processes

    @abstractmethod
    def deal(self) -> Iterator[Observed]:
        """The next pass over the data: its order depends on the runs' seeds and epoch alone."""

    @abstractmethod
    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        """One optimiser step; the objectives before it, ``[S]``, 0 where the step was not taken for a fault."""

    def close(self) -> None:
        """Leave the runs as they would be alone."""
        for faults in self.faults:
            faults.let_go()


class Alone(Steps):
    """One run."""

    def __init__(
        self, runners: Sequence[SVIRunner], weights: Weights, feed: Feed, faults: Sequence[Faults], processes: Processes
    ) -> None:
        super().__init__(runners, weights, feed, faults, processes)
        (self.runner,) = runners
        self.program = AtStep(self.runner.loss, weights)

    def deal(self) -> Iterator[Observed]:
        return self.feed.deal(mixed(self.runner.seed, self.runner.epoch))

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        (faults,) = self.faults
        faults.remember()
        part, counts = self.processes.part(batch)
        loss = self.program(step, part.x, part.given, part.size)
        self.runner.optimizer.zero_grad(set_to_none=True)
        kept = faults.look(self.processes.backward(loss, counts, faults.parameters), step)
        faults.step()
        return kept


class Together(Steps):
    """Several runs whose parameters, gradients and buffers lie in stacks; the runs' own are views of these."""

    def __init__(
        self, runners: Sequence[SVIRunner], weights: Weights, feed: Feed, faults: Sequence[Faults], processes: Processes
    ) -> None:
        super().__init__(runners, weights, feed, faults, processes)
        if not isinstance(feed, InMemory) or not isinstance(feed.batches, Rows):
            dealt = feed.batches if isinstance(feed, InMemory) else feed
            raise ValueError(
                f"runs that are trained together take batches of as many rows, and {dealt!r} does not deal them: "
                "train each alone, with SVIRunner.fit"
            )
        self.memory, self.rows = feed, feed.batches
        self.program = AtStep(runners[0].loss, weights)
        programs = [AtStep(runner.loss, weights) for runner in runners]
        self.parameters = _stacked([dict(program.named_parameters()) for program in programs])
        self.buffers = _stacked([dict(program.named_buffers()) for program in programs])
        self.gradients = [p.grad for p in self.parameters.values() if p.grad is not None]

    def deal(self) -> Iterator[Observed]:
        data = self.memory.data
        seeds = [mixed(runner.seed, runner.epoch) for runner in self.runners]
        orders = torch.stack([self.rows.order(data, self.memory.generator(seed)) for seed in seeds])
        return (data[rows].to(self.memory.device) for rows in orders.split(self.memory.batch_size, dim=1))

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        torch._foreach_zero_(self.gradients)
        for faults in self.faults:
            faults.remember()
        mapped = torch.vmap(self._loss, in_dims=(0, 0, 0, 0, None), randomness="different")
        losses = mapped(self.parameters, self.buffers, batch.x, batch.given, step)
        losses.sum().backward()  # no run has a part in another's objective
        kept = [faults.look(loss, step) for faults, loss in zip(self.faults, losses.detach(), strict=True)]
        for faults in self.faults:
            faults.step()
        return torch.stack(kept)

    def _loss(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, given: Any, step: Tensor
    ) -> Tensor:
        return torch.func.functional_call(self.program, (parameters, buffers), (step, x, given))

    def close(self) -> None:
        super().close()
        for runner in self.runners:
            for parameter in runner.loss.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None
            for module in runner.loss.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.clone())  # a schedule may have given one object to all


class AtStep(nn.Module):
    """The objective with its weights, and whatever of the guide changes in training, as they are at a step."""

    def __init__(self, loss: Loss, weights: Weights) -> None:
        super().__init__()
        self.loss = loss
        self.weights = weights

    def forward(self, step: Tensor, x: Tensor, given: Mapping[str, Tensor], size: float | None = None) -> Tensor:
        self.set(step)
        return self.loss(x, size, **given)

    def set(self, step: Tensor) -> None:
        self.loss.model.kl_weights, self.loss.model.gates = self.weights(step)
        self.loss.guide.at_step(step)


def _stacked(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stacks ``[S, ...]`` by name, of which the given tensors, and their gradients, become views."""
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
