"""Communication between the processes of one run; most runs have only one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from inference.randomness import derive_seed, random_state, seeded
from ppl_models.given.observed import Observed

if TYPE_CHECKING:
    from lightning_fabric import Fabric


__all__ = ["DataParallel", "Shard", "SingleProcess"]

T = TypeVar("T")
Gradients = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shard(Observed):
    """A batch of one process's own rows, which no other process has.

    :ivar counts: how many of its rows count: all, or 0 if they stand in for a pass that has ended.
    """

    counts: float = 0.0


class SingleProcess:
    """The only process of a run.

    :ivar rank: this process's number.
    :ivar size: how many processes there are.
    :ivar sync_every: steps between exchanges about checkpoints and signals.
    """

    rank, size = 0, 1
    sync_every = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the first process, which alone reports, writes and runs callbacks."""
        return self.rank == 0

    def begin(self, plan: Any) -> None:
        """Begin a call of ``fit``: the callbacks are checked, and the runs count anew; in several
        processes they are alike, and draw differently.

        :param plan: of the call (:class:`~inference.training.plan.FitPlan`).
        :raises ValueError: if a callback would fail, or the processes' data, parts or seeds differ.
        """
        self.on_first(plan.check_callbacks)
        for run in plan.runs:
            run.begin()
            self.copy(run)

    def copy(self, run: Any) -> None:
        """Copy what callbacks may have changed in the first process, such as parameters, to all."""

    def shard(self, batch: Observed) -> tuple[Observed, float]:
        """This process's part of a batch, and how much its objective counts among all."""
        return batch, 1.0

    def mean(
        self, loss: Tensor, gradients: Gradients, counts: float, parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Gradients]:
        """The whole batch's objective and its gradient, from those of each process's part.

        :param loss: the objective of this process's part, detached.
        :param gradients: its gradient, for those of ``parameters`` that have one.
        :param counts: what :meth:`shard` returned.
        """
        return loss, gradients

    def on_first(self, work: Callable[[], T]) -> T:
        """What ``work`` gives in the first process, in all of them; if it fails there, all fail."""
        return work()

    def every(self, value: T) -> list[T]:
        """The value of every process, tensors on the CPU."""
        return [value]

    def fresh_random_state(self, run: Any) -> list[Tensor]:
        """Random streams that differ from those of all other processes, and of other steps."""
        with seeded(derive_seed(run.seed, self.rank, run.step), run.device):
            return random_state(run.device)


class DataParallel(SingleProcess):
    """Several processes that train one run with Lightning Fabric, each on its part of every batch.

    Each process passes the same parts and seed to ``fit``, and either the same arrays, of whose
    batches the rows (or groups) are assigned to the processes in turn; or a loader of rows that no
    other process has (:class:`Shard`), whose batches make up one batch together. The gradient is
    that of the whole batch, with the same draws: the processes' gradients, weighted by their rows.
    Whatever an objective computes from several rows at once (batch normalization, the pairs of
    :class:`~guides.SimilarContentGuide`), it computes from each part's rows.

    Only the Fabric's processes and their communication are used; precision is the runner's.
    Gradients are added in a fixed order, however often a run is stopped. How long a process waits
    for one that cannot be reached is the ``timeout`` of the Fabric's strategy; of one that has
    ended it is told at once.

    :param fabric: a launched Fabric.
    :param device: the runner's.
    :raises ValueError: if it is not a Fabric, was not launched, or its device differs from the
        runner's.
    """

    # An exchange takes as long as reaching the farthest machine.
    sync_every = 10

    def __init__(self, fabric: Fabric, device: torch.device) -> None:
        if not hasattr(fabric, "global_rank") or isinstance(fabric, type):
            raise ValueError(
                f"fabric must be a Lightning Fabric, such as Fabric(devices=2), got {fabric!r}"
            )
        if not getattr(fabric, "_launched", True):
            raise ValueError(
                "the Fabric was not launched: call fabric.launch() before the model is built"
            )
        if device != fabric.device and (device.type, fabric.device.type) != ("cpu", "cpu"):
            raise ValueError(
                f"this process's device is {fabric.device} and the runner is on {device}: "
                "give the runner device=fabric.device"
            )
        self.fabric, self.size, self.rank = fabric, fabric.world_size, fabric.global_rank

    def begin(self, plan: Any) -> None:
        own = plan.description()
        told = self.every({name: json.dumps(own[name]) for name in own if name != "callbacks"})
        for name, said in told[0].items():
            for other in (of.get(name, "nothing") for of in told):
                if other != said:
                    raise ValueError(
                        "the processes called fit with other data, parts or seeds than one "
                        f"another ({name}: {said:.60} and {other:.60}): all give the same arrays, "
                        "parts and seed, or each a loader of its own rows"
                    )
        super().begin(plan)
        if not self.is_first:
            plan.lead.random_state = self.fresh_random_state(plan.lead)

    def copy(self, run: Any) -> None:
        tensors, groups = run.tensors().values(), run.optimizer.param_groups
        first, rates, records, run.should_stop = self.on_first(
            lambda: (
                [(tensor.detach().cpu(), tensor.requires_grad) for tensor in tensors],
                [group["lr"] for group in groups],
                run.history[-1:],
                run.should_stop,
            )
        )
        if self.is_first:
            return
        for tensor, (value, learns) in zip(tensors, first, strict=True):
            tensor.data.copy_(value)
            tensor.requires_grad_(learns)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        known = run.history[-1]["step"] if run.history else None
        run.history += [record for record in records if record["step"] != known]

    def shard(self, batch: Observed) -> tuple[Observed, float]:
        if isinstance(batch, Shard):
            return batch, batch.counts
        group = batch.given.get("group")
        parts = len(batch) if group is None else int(group.max()) + 1
        own = len(range(self.rank, parts, self.size))
        first = self.rank if own else 0  # a row, or group, of weight 0 stands in for none
        if group is None:
            return batch[slice(first, None, self.size)], own
        mine = batch.regrouped((group % self.size == first).nonzero()[:, 0])
        size = (len(batch) if batch.size is None else batch.size) * max(own, 1) / parts
        return replace(mine, size=size), own

    def mean(
        self, loss: Tensor, gradients: Gradients, counts: float, parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, Gradients]:
        own = [gradients.get(name, torch.zeros_like(p)) for name, p in parameters.items()]
        flat = torch.cat([*(g.flatten() for g in own), loss[None], torch.ones_like(loss)[None]])
        with _reaching_all():
            total: Any = self.fabric.all_reduce(flat * counts, reduce_op="sum")
        mean = total[:-1] / total[-1]
        # In each parameter's memory layout.
        found = {name: torch.empty_like(p) for name, p in parameters.items()}
        parts = mean[:-1].split([each.numel() for each in found.values()])
        for each, part in zip(found.values(), parts, strict=True):
            each.copy_(part.view_as(each))
        return mean[-1], found

    def on_first(self, work: Callable[[], T]) -> T:
        value, error = None, None
        try:
            value = work() if self.is_first else None
        except Exception as raised:  # any error: the other processes must not wait for this one
            error = raised
        said = error and f"{type(error).__name__}: {error}"
        with _reaching_all():
            told, fault = self.fabric.broadcast((value, said))
        if error is not None:
            raise error
        if fault is not None:
            raise RuntimeError(f"the first process ended with {fault}")
        return told  # type: ignore[return-value]

    def every(self, value: T) -> list[T]:
        if self.size == 1:  # which has no group of processes
            return [value]
        found: list[Any] = [None] * self.size
        with _reaching_all():
            torch.distributed.all_gather_object(found, value)
        return found


@contextmanager
def _reaching_all() -> Iterator[None]:
    """:raises RuntimeError: if another process has ended or cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).split("] ", 1)[-1].partition(". ")[0]
        raise RuntimeError(
            "another process of this run has ended, or its machine cannot be reached "
            f"({reason:.80}): its own output says why; start all of them again, with "
            "Checkpoints(..., resume=True) from the last checkpoint"
        ) from error
