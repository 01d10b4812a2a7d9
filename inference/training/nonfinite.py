"""Steps whose objective or gradient is not finite: counting, skipping and diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from inference.run import Run
from inference.training.data_source import DataSource

# This many consecutive faulty steps end a run that skips them.
IN_A_ROW = 10
# Rows to check at a time for a term that is not finite.
PART = 2048
# Buffers that a schedule sets before each step.
SCHEDULED = {"gates", "temperature"}


class NonFiniteTracker:
    """Counts one run's faulty steps since the last record, and notes the first one.

    :ivar count: faulty steps since the last record.
    :ivar first: the first of these steps, or -1.
    :ivar norms: norm of each parameter's gradient at this step.
    :ivar in_a_row: consecutive faulty steps up to the last record.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.in_a_row = run, 0
        # Also those that do not learn, as a callback may unfreeze them.
        named = dict(run.loss.named_parameters())
        self.names, self.parameters = list(named), list(named.values())
        like = run.model.gates
        self.count, self.first = like.new_zeros(()), like.new_full((), -1.0)
        self.norms = like.new_zeros(len(self.names))

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """``count``, ``first`` and ``norms``, which :meth:`note` changes in place."""
        return self.count, self.first, self.norms

    def note(
        self, fault: Tensor, norms: Tensor, step: Tensor, count: Tensor, first: Tensor, at: Tensor
    ) -> Tensor:
        """Count a step if it is faulty; return whether it is skipped.

        :param norms: of each parameter's gradient.
        :param count: with ``first`` and ``at`` this tracker's :attr:`state`, or what stands for it
            in a recorded program.
        """
        skipping = fault | (count > 0) if self.run.guard.action == "stop" else fault
        begins = fault & (first < 0)
        # In place, like all state between steps: a recorded step uses fixed addresses.
        first.copy_(torch.where(begins, step, first))
        at.copy_(torch.where(begins, norms, at))
        count.add_(fault)
        return skipping

    def state_dict(self) -> dict[str, Any]:
        """The counts since the last record."""
        return {
            "in_a_row": self.in_a_row,
            "count": self.count,
            "first": self.first,
            "norms": self.norms,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume counting from what :meth:`state_dict` returned."""
        self.in_a_row = state["in_a_row"]
        for name in ("count", "first", "norms"):
            getattr(self, name).copy_(state[name])

    @property
    def stopped(self) -> bool:
        """Whether the run takes no further steps."""
        return self.run.guard.action == "stop" and bool(self.count > 0)

    def report(self, steps: int, source: DataSource) -> int:
        """Number of steps skipped since the last record; halve the rate or end the run, depending
        on the guard.

        :param steps: number of steps since the last record.
        :raises FloatingPointError: if a fault stops the run, or at least ten consecutive steps were
            faulty.
        """
        run, skipped = self.run, int(self.count)
        self.in_a_row = self.in_a_row + skipped if skipped == steps else 0
        if skipped and (run.guard.action == "stop" or self.in_a_row >= IN_A_ROW):
            raise FloatingPointError(self.diagnosis(source))
        if skipped and run.guard.action == "halve":
            for group in run.optimizer.param_groups:
                group["lr"] /= 2
        self.reset()
        return skipped

    def diagnosis(self, source: DataSource) -> str:
        """Which step, which gradients and, if it can be told, which term was not finite."""
        run, rate = self.run, self.run.optimizer.param_groups[0]["lr"]
        return (
            f"the objective of the run with seed {run.seed}, or its gradient, was not finite at "
            f"step {int(self.first) + 1} (the run is in epoch {run.epoch}) at lr={rate}; "
            "parameters are as they were before that step.\n  Gradients that were not finite: "
            f"{_some(self.non_finite_gradients()) or 'none'}\n  Terms that are not, on the data, "
            f"with these parameters: {_some(self.non_finite_terms(source)) or 'none'}\n  Try one "
            f"of:\n  - a lower rate\n  - data of another scale{self._skipping()}"
        )

    def _skipping(self) -> str:
        if self.run.guard.action != "stop":
            return f"\n  {self.in_a_row} steps in a row were skipped already"
        return (
            '\n  - to skip such steps: guard=Guard("skip"), or Guard("halve"), which halves the '
            "rate as well"
        )

    def non_finite_terms(self, source: DataSource) -> list[str]:
        """Terms of the ELBO that are not finite, on the first rows where one is not."""
        for part in source.chunks(max(source.batch_size, PART)):
            found = self.run.loss.terms(part.x, **part.given)
            if terms := [
                name for name, value in found.items() if name != "elbo" and not value.isfinite()
            ]:
                return terms
        return []

    def non_finite_gradients(self) -> list[str]:
        """Parameters whose gradient was not finite at the first fault."""
        return [
            name
            for name, finite in zip(self.names, self.norms.isfinite().tolist(), strict=True)
            if not finite
        ]

    def reset(self) -> None:
        """Restart counting; the first fault is kept until a step succeeds."""
        self.count.zero_()
        if not self.in_a_row:
            self.first.fill_(-1.0)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")
