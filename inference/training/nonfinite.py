"""Steps whose objective or gradient is not finite: counted, held back and diagnosed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from inference.run import Run
from inference.training.data_source import DataSource

__all__ = ["NonFiniteTracker"]

# So many faulty steps with no good one among them end a run that skips them.
IN_A_ROW = 10
# Rows at a time that are looked through for a term that is not finite.
PART = 2048
# Buffers that a schedule sets before each step.
SCHEDULED = {"kl_weights", "gates", "temperature"}


class NonFiniteTracker:
    """Of one run: how many steps were skipped since the last record, and which was the first.

    :ivar count: since the last record.
    :ivar first: step of the first one since then, or -1.
    :ivar norms: of each parameter's gradient there.
    :ivar in_a_row: faulty steps with no good one among them, by the last record.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.in_a_row = run, 0
        named = {name: p for name, p in run.loss.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(named), list(named.values())
        like = run.model.gates
        self.none, self.count, self.first = (
            like.new_zeros(()),
            like.new_zeros(()),
            like.new_full((), -1.0),
        )
        self.norms = like.new_zeros(len(self.names))
        self.skipping = torch.zeros((), dtype=torch.bool, device=like.device)
        # What a step changes beside parameters, such as running statistics.
        self.buffers = [
            (module, name)
            for module in run.loss.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.is_floating_point()
            and name not in module._non_persistent_buffers_set | SCHEDULED
        ]

    def snapshot(self) -> None:
        """What the step to come may change."""
        self.before = [getattr(module, name).clone() for module, name in self.buffers]

    def check(self, loss: Tensor, step: Tensor) -> Tensor:
        """Hold the step if there is a fault, and note it; the objective, 0 where there is."""
        gradients = [p.grad if p.grad is not None else self.none for p in self.parameters]
        norms = torch.stack(torch._foreach_norm(gradients))
        guard = self.run.guard
        fault = guard.is_faulty(loss, norms)
        guard.clip([g for g in gradients if g is not self.none], norms)
        self.skipping = fault | (self.count > 0) if guard.action == "stop" else fault
        for (module, name), before in zip(self.buffers, self.before, strict=True):
            buffer = getattr(module, name)
            buffer.copy_(torch.where(self.skipping, before, buffer))
        begins = fault & (self.first < 0)
        # In place, as all that lasts from step to step: a recorded step finds it where it was.
        self.first.copy_(torch.where(begins, step, self.first))
        self.norms.copy_(torch.where(begins, norms, self.norms))
        self.count.add_(fault)
        return torch.where(fault, 0.0, loss)

    def step(self) -> None:
        """The optimiser's step, but where it is held."""
        optimizer = self.run.optimizer
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = self.skipping.to(torch.float32)  # type: ignore[attr-defined]
            optimizer.step()
        elif not bool(
            self.skipping
        ):  # one of the user's own, which cannot be told so on the device
            optimizer.step()

    def detach(self) -> None:
        """Leave the optimiser as it was."""
        if hasattr(self.run.optimizer, "found_inf"):
            del self.run.optimizer.found_inf

    def state_dict(self) -> dict[str, Any]:
        """What has been counted since the last record."""
        return {
            "in_a_row": self.in_a_row,
            "count": self.count,
            "first": self.first,
            "norms": self.norms,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what :meth:`state_dict` gave."""
        self.in_a_row = state["in_a_row"]
        for name in ("count", "first", "norms"):
            getattr(self, name).copy_(state[name])

    @property
    def stopped(self) -> bool:
        """Whether no further step is taken."""
        return self.run.guard.action == "stop" and bool(self.count > 0)

    def report(self, steps: int, source: DataSource) -> int:
        """How many steps since the last record were not taken; the rate is halved, or the run ends,
        as was asked.

        :param steps: since the last record.
        :raises FloatingPointError: if a fault is to stop the run, or ten steps or more have had
            nothing but faults.
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
        """Which step, which of the parameters' gradients, and, as far as it can be found again,
        which term.
        """
        run, rate = self.run, self.run.optimizer.param_groups[0]["lr"]
        return (
            f"the objective of the run with seed {run.seed}, or its gradient, was not finite at "
            "step "
            f"{int(self.first) + 1} (the run is in epoch {run.epoch}) at lr={rate}; "
            "parameters are as they were before that step.\n"
            f"  Gradients that were not finite: {_some(self.non_finite_gradients()) or 'none'}\n"
            "  Terms that are not, on the data, with these parameters: "
            f"{_some(self.non_finite_terms(source)) or 'none'}\n"
            "  Try one of:\n  - a lower rate\n  - data of another scale\n"
            '  - to skip such steps: guard=Guard("skip"), or Guard("halve"), which halves the '
            "rate as well"
        )

    def non_finite_terms(self, source: DataSource) -> list[str]:
        """Terms of the ELBO that are not finite on the first rows where one is not."""
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
        """Begin to count anew; while there is no good step, the first fault is kept."""
        self.count.zero_()
        if not self.in_a_row:
            self.first.fill_(-1.0)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")
