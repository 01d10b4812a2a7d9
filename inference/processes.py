"""What the processes of one run have to say to each other; of most runs there is only one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from inference.randomness import mixed, random_state, seeded
from ppl_models.data import Observed

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from inference.runner import SVIRunner

__all__ = ["DataParallel", "Processes"]

T = TypeVar("T")


class Processes:
    """The only process of a run.

    :ivar rank: this one's number.
    :ivar agree_every: steps from one time that all tell each other what they want to the next.
    """

    rank = 0
    agree_every = 1

    @property
    def leads(self) -> bool:
        """Whether this is the first process, which alone reports, writes and calls back."""
        return self.rank == 0

    def wrapped(self, program: nn.Module) -> nn.Module:
        """The program, whose gradients will be those of all processes together."""
        return program

    def part(self, batch: Observed) -> tuple[Observed, float]:
        """This process's part of a batch, and what its objective counts in the mean over processes."""
        return batch, 1.0

    def backward(self, loss: Tensor, counts: float) -> Tensor:
        """The gradient of the whole batch's objective; returns that objective, detached.

        :param loss: the part's.
        :param counts: as :meth:`part` said.
        """
        loss.backward()
        return loss.detach()

    def most(self, wanted: int) -> int:
        """The largest number that any process gives."""
        return wanted

    def told(self, value: T) -> T:
        """What the first process gives."""
        return value

    def gathered(self, values: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """What each process gives."""
        return [values]

    def share(self, runner: SVIRunner) -> None:
        """Let all have what callbacks may have changed in the first process: parameters, buffers, rates, history."""

    def fresh(self, runner: SVIRunner) -> list[Tensor]:
        """Random streams that no other process has."""
        with seeded(mixed(runner.seed, self.rank, runner.step), runner.device):
            return random_state(runner.device)


class DataParallel(Processes):
    """Several processes that train one run, each on its part of every batch, by Lightning Fabric.

    Rows (or groups) of a batch go to the processes in turn. Each process's objective is the mean over its own; they
    are weighed such that the gradient that Fabric averages over processes is, with the same draws, the gradient of the
    whole batch. What an objective says of several rows at once it says of each part's: batch normalisation is over a
    part, and so are the pairs of :class:`~guides.SimilarContentGuide`.

    :param fabric: launched, its strategy one that averages gradients, such as ``"ddp"``.
    :raises ValueError: if it was not launched, or its devices are of another kind than the runner's.
    """

    # An exchange costs as much as it takes to reach the farthest machine.
    agree_every = 10

    def __init__(self, fabric: Fabric, runner: SVIRunner) -> None:
        if not hasattr(fabric, "global_rank") or isinstance(fabric, type):
            raise ValueError(f"fabric must be a Fabric of Lightning's, such as Fabric(devices=2), got {fabric!r}")
        if not getattr(fabric, "_launched", True):
            raise ValueError("the Fabric was not launched: call fabric.launch() before the model is built")
        if fabric.device.type != runner.device.type:
            raise ValueError(
                f"the Fabric's devices are {fabric.device.type} and the runner is on {runner.device.type}: "
                "give the runner device=fabric.device"
            )
        self.fabric, self.size, self.rank = fabric, fabric.world_size, fabric.global_rank

    def wrapped(self, program: nn.Module) -> nn.Module:
        return self.fabric.setup_module(program)

    def part(self, batch: Observed) -> tuple[Observed, float]:
        if "group" in batch.given:
            return self._part_of_groups(batch)
        n = len(range(self.rank, len(batch), self.size))
        mine = batch[slice(self.rank, None, self.size)] if n else batch[slice(0, 1)]  # counts nothing
        return mine, self.size * n / len(batch)

    def _part_of_groups(self, batch: Observed) -> tuple[Observed, float]:
        group = batch.given["group"]
        groups = int(group.max()) + 1
        m = len(range(self.rank, groups, self.size))
        mine = batch.regrouped(((group - self.rank) % self.size == 0 if m else group == 0).nonzero()[:, 0])
        size = (len(batch) if batch.size is None else batch.size) * max(m, 1) / groups
        return replace(mine, size=size), self.size * m / groups

    def backward(self, loss: Tensor, counts: float) -> Tensor:
        weighed = loss * counts
        self.fabric.backward(weighed)
        return self._mean(weighed.detach())

    def _mean(self, value: Tensor) -> Tensor:
        mean: Any = self.fabric.all_reduce(value.clone(), reduce_op="mean")
        return mean

    def most(self, wanted: int) -> int:
        return max(int(value) for value in self._all(torch.tensor(wanted)))

    def told(self, value: T) -> T:
        return self.fabric.broadcast(value)

    def gathered(self, values: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        return list(zip(*(self._all(value) for value in values), strict=True))

    def _all(self, value: Tensor) -> Tensor:
        """``[processes, ...]``"""
        stack = value.new_zeros((self.size, *value.shape))
        stack[self.rank] = value
        gathered: Any = self.fabric.all_reduce(stack, reduce_op="sum")
        return gathered.cpu()

    def share(self, runner: SVIRunner) -> None:
        rates = [group["lr"] for group in runner.optimizer.param_groups]
        rates, runner.history, runner.should_stop = self.told((rates, runner.history, runner.should_stop))
        for group, rate in zip(runner.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for tensor in (*runner.loss.parameters(), *runner.loss.buffers()):
            tensor.data.copy_(self.told(tensor.detach().cpu()))
