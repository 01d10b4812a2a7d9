"""Steps of several similar runs, taken as one program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from inference.randomness import derive_seed
from inference.training.batching import Rows
from inference.training.parts import SCHEDULED
from inference.training.recorder import Gradient
from inference.training.steps import Steps, called
from ppl_models.given.observed import Observed


class StepsTogether(Steps):
    """Several runs; their own parameters and buffers are views of stacks ``[S, ...]``.

    :raises ValueError: if the data cannot be batched alike for all runs.
    """

    def __init__(self, plan: Any) -> None:
        batching = plan.source.batching  # as fit_together takes no loader
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
        generators = [source.generator(derive_seed(run.seed, run.epoch)) for run in self.runs]
        orders = torch.stack([source.batching.order(data, each) for each in generators])
        return (data[rows].to(source.device) for rows in orders.split(source.batch_size, dim=1))

    def tensors(self) -> dict[str, Tensor]:
        return self.stacks

    def objectives(self, tensors: Mapping[str, Tensor], step: Tensor, batch: Observed) -> Tensor:
        def objective(tensors: Mapping[str, Tensor], x: Tensor, given: Any) -> Tensor:
            return called(self.program, tensors, step, Observed(x, given))

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
