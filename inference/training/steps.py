"""The steps of a run, or of several similar runs as one program: the objective's gradient, then the
update, as they are or recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import torch
from torch import Tensor, nn

from inference.objectives.loss import Loss
from inference.optimizers import check_optimized
from inference.schedules import WeightFunction
from inference.training.batching import Rows
from inference.training.parts import SCHEDULED, Parts
from inference.training.plan import FitPlan
from inference.training.recorder import (
    Gradient,
    Recorder,
    tensors_of,
    warn_of_unknown,
    with_gradient,
)
from inference.training.update import Update
from ppl_models.given.observed import Observed


class Steps:
    """The steps of one run."""

    def __init__(self, plan: FitPlan) -> None:
        self.runs, self.weights = plan.runs, plan.weights
        self.source: Any = plan.source
        self.processes, self.recording = plan.processes, plan.recording
        self.program = ScheduledLoss(self.runs[0].loss, self.weights)
        self.updates = [Update(run) for run in self.runs]
        self.recorder = Recorder(self) if self.recording.executor else None
        self.seen = -1  # records, when callbacks had last run
        if self.recording.unknown is not None:
            warn_of_unknown(self.recording.unknown)

    # What depends on the number of runs.

    def ordered(self) -> Iterator[Observed]:
        """The batches of the next pass."""
        run = self.runs[0]
        return self.source.batches(run.seed, run.epoch, run.progress.epoch)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers that the objectives depend on, by name."""
        return self.runs[0].tensors()

    def objectives(self, tensors: Mapping[str, Tensor], step: Tensor, batch: Observed) -> Tensor:
        """The objectives, ``[S]`` or a scalar, as a pure function of tensors.

        :raises ValueError: if it puts another buffer in one's place, which would be lost.
        """
        if not self.program.loss.model.recordable:
            raise ValueError("a function's parameters are in Pyro's store, which gives no others")
        held = {f"loss.{name}": tensor for name, tensor in tensors.items()}
        objective = torch.func.functional_call(self.program, held, (step, batch))
        for name, tensor in tensors.items():
            if held[f"loss.{name}"] is not tensor and name.rpartition(".")[2] not in SCHEDULED:
                raise ValueError(
                    f"a forward assigns the buffer {name!r}: change it in place (copy_)"
                )
        return objective

    def evaluate(self, step: Tensor, batch: Observed) -> Tensor:
        """The objectives of the parameters as they are."""
        return self.program(step, batch)

    def apart(self, objectives: Tensor, gradients: Mapping[str, Tensor]) -> list[Gradient]:
        """What belongs to each run."""
        return [(objectives, gradients)]

    def rows(self, batch: Observed) -> int:
        return len(batch)

    # What does not.

    def turns(self, skip: int) -> Iterator[list[Observed]]:
        """The batches of the next pass, those together whose steps one call takes.

        :param skip: number of batches whose steps were taken before.
        :raises ValueError: if a callback has put a parameter in place that no optimizer has.
        """
        if self.seen != len(self.runs[0].history):
            self.look()
        batches = islice(self.ordered(), skip, None)
        for _, alike in groupby(batches, lambda batch: (len(batch), batch.size)):
            left = iter(alike)
            for first in left:
                room = self.recorder.room(first) if self.recorder else 1
                # None is read ahead where steps are taken one by one.
                yield [first, *islice(left, min(room, self.source.steps) - 1)]

    def look(self) -> None:
        """Look at what callbacks may have changed; what depends on it is recorded anew."""
        self.seen = len(self.runs[0].history)
        for run, update in zip(self.runs, self.updates, strict=True):
            check_optimized(run.loss, run.optimizer)
            update.look()
        self.held = self.tensors()
        self.learning = {name: each for name, each in self.held.items() if each.requires_grad}
        if self.recorder is None:
            return
        parts = [Parts(run, self.weights) for run in self.runs]
        unknown = next((of.unknown for of in parts if of.unknown), None)
        if unknown is None or self.recording.asked_for:
            self.recorder.look([of.settings for of in parts])
            return
        self.recorder = None
        warn_of_unknown(unknown)

    def settings(self) -> list[Any]:
        """What must not change after something was recorded."""
        return [Parts(run, self.weights).settings for run in self.runs]

    def take(self, batches: Sequence[Observed]) -> None:
        """Take a step on each batch, of one size."""
        rows, full, recorder = self.rows(batches[0]), self.source.full, self.recorder
        # No batch has a program if they vary, as those of unequal groups: too many are needed.
        covered = full is not None and (self.recording.last or rows == full)
        if recorder and rows == full and (turn := recorder.turn(batches[0])):
            turn([tensors_of(each) for each in batches])
            return
        for batch in batches:
            self.one(batch, covered)

    def one(self, batch: Observed, recorded: bool) -> None:
        """Take a step.

        :param recorded: whether its gradient may come from a recorded program.
        """
        processes, step = self.processes, self.runs[0].counters["step"]
        mine, share = processes.shard(batch)
        before = [update.snapshot() for update in self.updates]
        found = self.recorder.gradient(mine) if recorded and self.recorder else None
        found = found or with_gradient(self.evaluate(step, mine), self.learning)
        each = self.apart(*processes.mean(*found, share, self.learning))
        for update, own, earlier in zip(self.updates, each, before, strict=True):
            update(*own, earlier)

    def close(self) -> None:
        """Restore the runs to independent state."""
        self.recorder = None  # which refers to these steps, and so to the data


class StepsTogether(Steps):
    """Several runs; their own parameters and buffers are views of stacks ``[S, ...]``.

    :raises ValueError: if the data cannot be batched alike for all runs.
    """

    def __init__(self, plan: FitPlan) -> None:
        source: Any = plan.source
        batching = source.batching  # as fit_together takes no loader
        if not isinstance(batching, Rows):
            raise ValueError(
                f"runs that are trained together need batches of equal size, which {batching!r} "
                "does not give: train each alone, with SVIRunner.fit"
            )
        super().__init__(plan)
        self.stacks: dict[str, Tensor] = {}
        each = [run.tensors() for run in plan.runs]
        for name, lead in each[0].items():
            stack = torch.stack([own[name].detach() for own in each])
            for own, part in zip(each, stack, strict=True):
                own[name].data = part
            self.stacks[name] = stack.requires_grad_(lead.requires_grad)

    def look(self) -> None:
        """Take in what callbacks have changed: tensors instead of views, as by ``p.data = ...``,
        and which parameters learn.

        :raises ValueError: if a parameter learns in some of the runs only.
        """
        each = [run.tensors() for run in self.runs]
        for name, stack in self.stacks.items():
            learn = {own[name].requires_grad for own in each}
            if len(learn) > 1:
                raise ValueError(
                    f"parameter {name!r} requires a gradient in some of the runs that are trained "
                    "together, but not in all: freeze it in all of them, or train each alone"
                )
            stack.requires_grad_(learn.pop())
            if name.rpartition(".")[2] in SCHEDULED:
                continue
            for own, part in zip(each, stack.detach(), strict=True):
                if own[name].data_ptr() != part.data_ptr():
                    part.copy_(own[name].detach())
                    own[name].data = part
        super().look()

    def ordered(self) -> Iterator[Observed]:
        source, data = self.source, self.source.data
        generators = [source.generator(run.seed, run.epoch) for run in self.runs]
        orders = torch.stack([source.batching.order(data, each) for each in generators])
        return (data[rows].to(source.device) for rows in orders.split(source.batch_size, dim=1))

    def tensors(self) -> dict[str, Tensor]:
        return self.stacks

    def objectives(self, tensors: Mapping[str, Tensor], step: Tensor, batch: Observed) -> Tensor:
        of_one = super().objectives

        def objective(tensors: Mapping[str, Tensor], x: Tensor, given: Any) -> Tensor:
            return of_one(tensors, step, Observed(x, given))

        mapped = torch.vmap(objective, randomness="different")
        return mapped(dict(tensors), batch.x, batch.given)

    def evaluate(self, step: Tensor, batch: Observed) -> Tensor:
        return self.objectives(self.stacks, step, batch)

    def apart(self, objectives: Tensor, gradients: Mapping[str, Tensor]) -> list[Gradient]:
        return [
            (objective, {name: each[i] for name, each in gradients.items()})
            for i, objective in enumerate(objectives)
        ]

    def rows(self, batch: Observed) -> int:
        return batch.x.shape[1]

    def close(self) -> None:
        super().close()
        for run in self.runs:
            for parameter in run.loss.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None
            for module in run.loss.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.clone())  # a schedule may have shared one object


class ScheduledLoss(nn.Module):
    """The objective, with its weights and the guide's options as they are at a step."""

    def __init__(self, loss: Loss, weights: WeightFunction) -> None:
        super().__init__()
        self.loss = loss
        self.weights = weights

    def forward(self, step: Tensor, batch: Observed) -> Tensor:
        return self.loss(batch.x, batch.size, self.set(step), **batch.given)

    def set(self, step: Tensor) -> Tensor:
        """Set gates and temperatures; return the weights of the KL terms ``[J, 2]``."""
        kl_weights, self.loss.model.gates = self.weights(step)
        self.loss.guide.at_step(step)
        return kl_weights
