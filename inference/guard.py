"""What happens where an objective or its gradient is no longer finite, and how long a gradient may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ppl_models.checks import check_one_of, check_positive
from ppl_models.configurable import Options

if TYPE_CHECKING:
    from inference.feeds import Feed
    from inference.runner import SVIRunner

__all__ = ["Faults", "Guard"]

ACTIONS = ("stop", "skip", "halve")
# So many faulty steps with no good one among them end a run that skips them.
IN_A_ROW = 10
# Rows at a time that are looked through for a term that is not finite.
PART = 2048
# Buffers that a schedule sets before each step.
SCHEDULED = {"kl_weights", "gates", "temperature"}


class Guard(Options):
    """Looks at every step before it is taken, without reading anything back to the host.

    A step whose objective or gradient is not finite is not taken: parameters, moments and running statistics stay.
    Then, by ``action``:
    ``"stop"`` takes no further step, and ``fit`` raises at the next logging interval; ``"skip"`` goes on with the next
    batch; ``"halve"`` does so too and halves the rate at the logging interval. Records have the number as ``skipped``.

    :param action: one of these.
    :param max_norm: gradients longer than this, over all parameters, are cut to it; without it none is.
    :raises ValueError: if ``action`` is unknown or ``max_norm`` is not positive.
    """

    def __init__(self, action: str = "stop", max_norm: float | None = None) -> None:
        self.action = check_one_of("action", action, ACTIONS)
        self.max_norm = max_norm if max_norm is None else check_positive("max_norm", max_norm)

    def fault(self, loss: Tensor, norms: Tensor) -> Tensor:
        """Whether a step is faulty, a truth value.

        :param loss: the objective, a scalar.
        :param norms: of each parameter's gradient.
        """
        return ~(loss.isfinite() & norms.isfinite().all())

    def shorten(self, gradients: Sequence[Tensor], norms: Tensor) -> None:
        """Cut the whole gradient to ``max_norm``, in place."""
        if self.max_norm is not None:
            torch._foreach_mul_(list(gradients), (self.max_norm / norms.norm()).clamp(max=1.0))


class Faults:
    """Of one run: how many steps were not taken since the last record, and where the first of them was.

    :ivar count: since the last record.
    :ivar first: step of the first one since then, or -1.
    :ivar norms: of each parameter's gradient there.
    :ivar in_a_row: faulty steps with no good one among them, by the last record.
    """

    def __init__(self, runner: SVIRunner) -> None:
        self.runner, self.in_a_row = runner, 0
        named = {name: p for name, p in runner.loss.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(named), list(named.values())
        like = runner.model.gates
        self.none, self.count, self.first = like.new_zeros(()), like.new_zeros(()), like.new_full((), -1.0)
        self.norms = like.new_zeros(len(self.names))
        self.held = torch.zeros((), dtype=torch.bool, device=like.device)
        # What a step changes beside parameters, such as running statistics.
        self.buffers = [
            (module, name)
            for module in runner.loss.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set | SCHEDULED
        ]

    def remember(self) -> None:
        """What the step to come may change."""
        self.before = [getattr(module, name).clone() for module, name in self.buffers]

    def look(self, loss: Tensor, step: Tensor) -> Tensor:
        """Hold the step if there is a fault, and note it; the objective, 0 where there is."""
        gradients = [p.grad if p.grad is not None else self.none for p in self.parameters]
        norms = torch.stack(torch._foreach_norm(gradients))
        guard = self.runner.guard
        fault = guard.fault(loss, norms)
        guard.shorten([g for g in gradients if g is not self.none], norms)
        self.held = fault | (self.count > 0) if guard.action == "stop" else fault
        for (module, name), before in zip(self.buffers, self.before, strict=True):
            buffer = getattr(module, name)
            buffer.copy_(torch.where(self.held, before, buffer))
        begins = fault & (self.first < 0)
        # In place, as all that lasts from step to step: a recorded step finds it where it was.
        self.first.copy_(torch.where(begins, step, self.first))
        self.norms.copy_(torch.where(begins, norms, self.norms))
        self.count.add_(fault)
        return torch.where(fault, 0.0, loss)

    def step(self) -> None:
        """The optimiser's step, but where it is held."""
        optimizer = self.runner.optimizer
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = self.held.to(torch.float32)  # type: ignore[attr-defined]
            optimizer.step()
        elif not bool(self.held):  # one of the user's own, which cannot be told so on the device
            optimizer.step()

    def let_go(self) -> None:
        """Leave the optimiser as it was."""
        if hasattr(self.runner.optimizer, "found_inf"):
            del self.runner.optimizer.found_inf

    @property
    def stopped(self) -> bool:
        """Whether no further step is taken."""
        return self.runner.guard.action == "stop" and bool(self.count > 0)

    def settle(self, steps: int, feed: Feed) -> int:
        """How many steps since the last record were not taken; the rate is halved, or the run ends, as was asked.

        :param steps: since the last record.
        :raises FloatingPointError: if a fault is to stop the run, or ten steps or more have had nothing but faults.
        """
        runner, skipped = self.runner, int(self.count)
        self.in_a_row = self.in_a_row + skipped if skipped == steps else 0
        if skipped and (runner.guard.action == "stop" or self.in_a_row >= IN_A_ROW):
            raise FloatingPointError(self.diagnosis(feed))
        if skipped and runner.guard.action == "halve":
            for group in runner.optimizer.param_groups:
                group["lr"] /= 2
        self.forget()
        return skipped

    def diagnosis(self, feed: Feed) -> str:
        """Which step, which of the parameters' gradients, and, as far as it can be found again, which term."""
        runner, rate = self.runner, self.runner.optimizer.param_groups[0]["lr"]
        return (
            f"the objective of the run with seed {runner.seed}, or its gradient, was not finite at step "
            f"{int(self.first) + 1} (the run is in epoch {runner.epoch}) at lr={rate}; "
            "parameters are as they were before that step.\n"
            f"  Gradients that were not finite: {_some(self.broken()) or 'none'}\n"
            f"  Terms that are not, on the data, with these parameters: {_some(self.broken_terms(feed)) or 'none'}\n"
            "  Try one of:\n  - a lower rate\n  - data of another scale\n"
            '  - to skip such steps: guard=Guard("skip"), or Guard("halve"), which halves the rate as well'
        )

    def broken_terms(self, feed: Feed) -> list[str]:
        """Terms of the ELBO that are not finite on the first rows where one is not."""
        for part in feed.parts(max(feed.batch_size, PART)):
            found = self.runner.loss.terms(part.x, **part.given)
            if terms := [name for name, value in found.items() if name != "elbo" and not value.isfinite()]:
                return terms
        return []

    def broken(self) -> list[str]:
        """Parameters whose gradient was not finite at the first fault."""
        return [name for name, finite in zip(self.names, self.norms.isfinite().tolist(), strict=True) if not finite]

    def forget(self) -> None:
        """Begin to count anew; while there is no good step, the first fault is kept."""
        self.count.zero_()
        if not self.in_a_row:
            self.first.fill_(-1.0)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")
