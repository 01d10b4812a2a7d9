"""What happens where an objective or its gradient is no longer finite, and how long a gradient may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ppl_models.checks import check_one_of
from ppl_models.configurable import Options

if TYPE_CHECKING:
    from inference.runner import SVIRunner

__all__ = ["Faults", "Guard"]

ACTIONS = ("stop", "skip", "halve")


class Guard(Options):
    """Looks at every step before it is taken, without reading anything back to the host.

    A step whose objective or gradient is not finite is not taken: parameters and moments stay. Then, by ``action``:
    ``"stop"`` takes no further step, and ``fit`` raises at the next logging interval; ``"skip"`` goes on with the next
    batch; ``"halve"`` does so too and halves the rate at the logging interval. Records have the number as ``skipped``.

    :param action: one of these.
    :param max_norm: gradients longer than this, over all parameters, are cut to it; without it none is.
    :raises ValueError: if ``action`` is unknown or ``max_norm`` is not positive.
    """

    def __init__(self, action: str = "stop", max_norm: float | None = None) -> None:
        self.action = check_one_of("action", action, ACTIONS)
        if max_norm is not None and not (isinstance(max_norm, int | float) and 0 < max_norm < float("inf")):
            raise ValueError(f"max_norm must be a positive number, got {max_norm!r}")
        self.max_norm = max_norm

    def hold(self, optimizer: torch.optim.Optimizer, loss: Tensor, norms: Tensor, faults: Tensor) -> Tensor:
        """Keep a fused optimiser from taking its next step if there is a fault; whether there is one, a truth value.

        :param loss: the objective, a scalar.
        :param norms: of each parameter's gradient.
        :param faults: how many there were before.
        """
        fault = ~(loss.isfinite() & norms.isfinite().all())
        held = fault | (faults > 0) if self.action == "stop" else fault
        optimizer.found_inf = held.to(torch.float32)  # type: ignore[attr-defined]
        return fault

    def shorten(self, gradients: Sequence[Tensor], norms: Tensor) -> None:
        """Cut the whole gradient to ``max_norm``, in place."""
        if self.max_norm is not None:
            torch._foreach_mul_(list(gradients), (self.max_norm / norms.norm()).clamp(max=1.0))


class Faults:
    """Of one run: how many steps were not taken since the last record, and where the first of them was.

    :ivar count: since the last record.
    :ivar first: step of the first one since then, or -1.
    :ivar norms: of each parameter's gradient there.
    """

    def __init__(self, runner: SVIRunner) -> None:
        self.runner = runner
        self.names = [name for name, p in runner.loss.named_parameters() if p.requires_grad]
        like = runner.model.gates
        self.count, self.first = like.new_zeros(()), like.new_full((), -1.0)
        self.norms = like.new_zeros(len(self.names))

    def look(self, loss: Tensor, step: Tensor) -> Tensor:
        """Hold the step if there is a fault, and note it; the objective, 0 where there is."""
        gradients = [p.grad for p in self.runner.loss.parameters() if p.requires_grad]
        norms = torch.stack(torch._foreach_norm([g if g is not None else self.count for g in gradients]))
        guard = self.runner.guard
        fault = guard.hold(self.runner.optimizer, loss, norms, self.count)
        guard.shorten([g for g in gradients if g is not None], norms)
        begins = fault & (self.first < 0)
        self.first = torch.where(begins, step, self.first)
        self.norms = torch.where(begins, norms, self.norms)
        self.count = self.count + fault
        return torch.where(fault, 0.0, loss)

    @property
    def stopped(self) -> bool:
        """Whether no further step is taken."""
        return self.runner.guard.action == "stop" and bool(self.count > 0)

    def parameters(self) -> list[str]:
        """Those whose gradient was not finite at the first fault."""
        return [name for name, finite in zip(self.names, self.norms.isfinite().tolist(), strict=True) if not finite]

    def forget(self) -> None:
        self.count, self.first = torch.zeros_like(self.count), torch.full_like(self.first, -1.0)
