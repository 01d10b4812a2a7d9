"""How the runs of a call take their steps: one run, or several runs in one program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from inference.distributed import Shard, SingleProcess
from inference.objectives import Loss
from inference.randomness import derive_seed
from inference.run import Run, check_optimized
from inference.schedules import WeightFunction
from inference.training.batching import Rows
from inference.training.compiled import Gradient, Recorder, Recording, warn_of_unknown
from inference.training.data_source import DataSource, InMemorySource
from inference.training.nonfinite import SCHEDULED, NonFiniteTracker
from inference.training.parts import Parts
from inference.training.recording import laid_out
from inference.training.update import TensorFunctions, Update
from ppl_models.given.observed import Observed


class Steps(ABC):
    """Base: how the runs take their steps.

    :param runs: one run or several; all use the first one's schedule.
    :param weights: of the terms, by step.
    :param source: where the data come from.
    :param trackers: one per run, of its steps that are not finite.
    :param processes: the processes that take part.
    :param recording: which steps are computed by recorded programs; the others run through Pyro's
        handlers.

    :ivar look_again: whether callbacks ran since the last pass began, which may change anything.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        weights: WeightFunction,
        source: DataSource,
        trackers: Sequence[NonFiniteTracker],
        processes: SingleProcess,
        recording: Recording | None = None,
    ) -> None:
        self.runs = runs
        self.weights = weights
        self.source = source
        self.trackers = trackers
        self.processes = processes
        self.recording = recording or Recording()
        self.recorder: Recorder | None = None
        programs: TensorFunctions | None = None if self.recording.executor is None else {}
        self.updates = [Update(tracker, programs) for tracker in trackers]
        self.recorded_for: Any = None
        self.look_again = True
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Build what all steps use.

        :raises ValueError: if the data cannot be batched as these steps need them.
        """

    def batches(self) -> Iterator[Observed]:
        """The next pass over the data; its order depends only on the runs' seeds and epoch.

        What was recorded is recorded anew if a callback has changed what it depends on.

        :raises ValueError: if a callback has put a parameter in place that no optimizer has.
        """
        if self.look_again:
            self.look_again = False
            for run in self.runs:
                check_optimized(run.loss, run.optimizer)
            if (now := self.fixed()) != self.recorded_for:
                self.recorded_for = now
                self.record_anew()
            for update in self.updates:
                update.prepare()
        return self.ordered()

    @abstractmethod
    def ordered(self) -> Iterator[Observed]:
        """The batches of the next pass."""

    @abstractmethod
    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers that the objectives depend on, by name."""

    @abstractmethod
    def objectives(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        step: Tensor,
        batch: Observed,
    ) -> Tensor:
        """The objectives, ``[S]`` or a scalar, as a pure function."""

    def turns(self, skip: int) -> Iterator[list[Observed]]:
        """The batches of the next pass, those whose steps are taken in one call together: here one
        at a time.

        :param skip: number of batches whose steps were taken before.
        """
        return ([batch] for batch in islice(self.batches(), skip, None))

    def take(self, batches: Sequence[Observed], step: Tensor, total: Tensor) -> None:
        """Take a step on each batch.

        :param step: the number of the first one, which is counted on.
        :param total: of the objectives, ``[S]``, which are added to it.
        """
        for batch in batches:
            total += self(batch, step)
            step += 1

    @abstractmethod
    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        """Take one optimizer step; return the earlier objectives, ``[S]``, 0 for a faulty step."""

    def parts(self) -> list[Parts]:
        """What the steps of each run depend on."""
        return [Parts(run, self.weights) for run in self.runs]

    def fixed(self) -> Any:
        """What must not change after something was recorded."""
        return [parts.settings for parts in self.parts()]

    def record_anew(self) -> None:
        """Drop what was recorded, and record again unless that was refused, or is not safe now."""
        parameters, buffers = self.tensors()
        self.learning = [p for p in parameters.values() if p.requires_grad]
        for parameter in parameters.values():
            parameter.grad = None
        if self.recording.executor is None or (self.recorder and self.recorder.refused):
            return
        unknown = None if self.recording.asked_for else unknown_part(self.parts())
        if unknown is not None:
            self.recorder, self.recording = None, Recording(unknown=unknown)
            for update in self.updates:
                update.programs = None
            warn_of_unknown(unknown)
            return
        self.recorder = Recorder(self.objectives, parameters, buffers, self.recording, self.parts)

    def gradient(self, step: Tensor, batch: Observed, rows: int) -> Gradient:
        """Objectives, detached, and the gradient of their sum for each parameter that learns.

        :param rows: of the batch of all processes, of which ``batch`` is this one's part.
        """
        recorded = None
        if self.recorder is not None and self.recording.covers(rows, self.source.full):
            recorded = self.recorder(step, batch)
        return self.computed(step, batch) if recorded is None else recorded

    def computed(self, step: Tensor, batch: Observed) -> Gradient:
        """The same one operation after the other."""
        objectives = self.evaluate(step, batch)
        gradients = torch.autograd.grad(objectives.sum(), self.learning, allow_unused=True)
        return objectives.detach(), laid_out(gradients, self.learning)

    def evaluate(self, step: Tensor, batch: Observed) -> Tensor:
        """The objectives of the parameters as they are."""
        return self.objectives(*self.tensors(), step, batch)

    def close(self) -> None:
        """Restore the runs to independent state."""
        self.recorder = None  # which refers to these steps, and so to the data
        for update in self.updates:
            update.detach()


class SingleRunStep(Steps):
    """The steps of one run."""

    def prepare(self) -> None:
        (self.run,) = self.runs
        self.program = ScheduledLoss(self.run.loss, self.weights)

    def ordered(self) -> Iterator[Observed]:
        return self.source.batches(derive_seed(self.run.seed, self.run.epoch))

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return dict(self.program.named_parameters()), dict(self.program.named_buffers())

    def objectives(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        step: Tensor,
        batch: Observed,
    ) -> Tensor:
        inputs = (step, batch.x, batch.given, batch.size)
        return _called(self.program, parameters, buffers, inputs)

    def evaluate(self, step: Tensor, batch: Observed) -> Tensor:
        return self.program(step, batch.x, batch.given, batch.size)

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        (update,) = self.updates
        update.snapshot()
        part, counts = self.processes.shard(batch)
        loss, gradients = self.processes.mean(
            *self.gradient(step, part, _rows_of_all(batch)), counts, self.learning
        )
        for parameter, gradient in zip(self.learning, _apart(gradients), strict=True):
            parameter.grad = gradient
        return update(loss, step)


class VmappedStep(Steps):
    """Several runs; their own parameters, gradients and buffers are views of stacks."""

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
        self.programs = [ScheduledLoss(run.loss, self.weights) for run in self.runs]
        self.each = [dict(program.named_parameters()) for program in self.programs]
        self.parameters = _stacked(self.each)
        self.buffers = _stacked([dict(program.named_buffers()) for program in self.programs])

    def batches(self) -> Iterator[Observed]:
        if self.look_again:
            self.rejoin()
        return super().batches()

    def rejoin(self) -> None:
        """Take in what callbacks have changed: tensors instead of views, as by ``p.data = ...``,
        and which parameters learn.

        :raises ValueError: if a parameter learns in some of the runs only.
        """
        for name, stack in self.parameters.items():
            learn = {dict(each.named_parameters())[name].requires_grad for each in self.programs}
            if len(learn) > 1:
                raise ValueError(
                    f"parameter {name!r} requires a gradient in some of the runs that are trained "
                    "together, but not in all: freeze it in all of them, or train each alone"
                )
            stack.requires_grad_(learn.pop())
        stacks = {
            name: stack.detach()
            for name, stack in (self.parameters | self.buffers).items()
            if name.rpartition(".")[2] not in SCHEDULED
        }
        for i, program in enumerate(self.programs):
            own = dict(program.named_parameters()) | dict(program.named_buffers())
            for name, stack in stacks.items():
                part = stack[i]
                if own[name].data_ptr() != part.data_ptr():
                    part.copy_(own[name].detach())
                    own[name].data = part

    def ordered(self) -> Iterator[Observed]:
        data = self.memory.data
        seeds = [derive_seed(run.seed, run.epoch) for run in self.runs]
        orders = torch.stack([self.rows.order(data, self.memory.generator(seed)) for seed in seeds])
        return (
            data[rows].to(self.memory.device)
            for rows in orders.split(self.memory.batch_size, dim=1)
        )

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.parameters, self.buffers

    def record_anew(self) -> None:
        super().record_anew()
        for name, stack in self.parameters.items():
            stack.grad = torch.zeros_like(stack) if stack.requires_grad else None
            parts = [None] * len(self.each) if stack.grad is None else stack.grad
            for own, part in zip(self.each, parts, strict=True):
                own[name].grad = part

    def objectives(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        step: Tensor,
        batch: Observed,
    ) -> Tensor:
        mapped = torch.vmap(self._loss, in_dims=(0, 0, 0, 0, None), randomness="different")
        return mapped(parameters, buffers, batch.x, batch.given, step)

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        for update in self.updates:
            update.snapshot()
        # Each run's objective depends only on its own parameters.
        losses, gradients = self.gradient(step, batch, batch.x.shape[1])
        for parameter, gradient in zip(self.learning, gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.zero_() if gradient is None else parameter.grad.copy_(gradient)
        return torch.stack(
            [update(loss, step) for update, loss in zip(self.updates, losses, strict=True)]
        )

    def _loss(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        given: Any,
        step: Tensor,
    ) -> Tensor:
        return _called(self.program, parameters, buffers, (step, x, given))

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

    def forward(
        self, step: Tensor, x: Tensor, given: Mapping[str, Tensor], size: float | None = None
    ) -> Tensor:
        return self.loss(x, size, self.set(step), **given)

    def set(self, step: Tensor) -> Tensor:
        """Set gates and temperatures; return the weights of the KL terms ``[J, 2]``."""
        kl_weights, self.loss.model.gates = self.weights(step)
        self.loss.guide.at_step(step)
        return kl_weights


def _called(
    program: ScheduledLoss,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    inputs: tuple[Any, ...],
) -> Tensor:
    """The objective with these parameters and buffers.

    :raises ValueError: if it puts another buffer in one's place, which would be lost.
    """
    held = {**parameters, **buffers}
    objective = torch.func.functional_call(program, held, inputs)
    for name, buffer in buffers.items():
        if held[name] is not buffer and name.rpartition(".")[2] not in SCHEDULED:
            raise ValueError(f"a forward assigns the buffer {name!r}: change it in place (copy_)")
    return objective


def unknown_part(parts: Iterable[Parts]) -> str | None:
    """The first part that is not this library's, in words, if there is one."""
    return next((each.unknown for each in parts if each.unknown is not None), None)


def _rows_of_all(batch: Observed) -> int:
    """Of the batch of all processes."""
    return batch.whole if isinstance(batch, Shard) else len(batch)


def _apart(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Each in memory of its own, as they are changed in place: parameters that are added to each
    other may have one and the same.
    """
    held: set[int] = set()
    own = []
    for gradient in gradients:
        if gradient is not None:
            place = gradient.untyped_storage().data_ptr()
            gradient = gradient.clone() if place in held else gradient
            held.add(place)
        own.append(gradient)
    return own


def _stacked(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stacks ``[S, ...]`` by name; the given tensors become views of them."""
    stacks = {}
    for name, lead in each[0].items():
        stack = torch.stack([tensors[name].detach() for tensors in each])
        for tensors, part in zip(each, stack, strict=True):
            tensors[name].data = part
        stacks[name] = stack.requires_grad_(lead.requires_grad)
    return stacks
