"""As many draws as a test needs: pilots say how many, and more are taken until they suffice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Draws from which the first variances come.
PILOT = 100
# Fewer draws are too few for a normal approximation.
FEWEST = 300
# Variances are themselves estimated: so many draws more than they ask for.
RESERVE = 1.1
ROUNDS = 6
# Relative error of a mean by rounding, in machine epsilons.
ROUNDING = 8


@dataclass
class Known:
    """Statistics with known values and errors: an exact reference.

    :ivar mean: ``[statistics]``.
    :ivar squared_error: likewise.
    """

    mean: Tensor
    squared_error: Tensor
    count: int = 0


@dataclass
class Sampled:
    """Statistics of independent draws.

    :ivar draw: gives one draw, ``[statistics]``.
    :ivar epsilon: the machine epsilon with which it was computed.
    """

    draw: Callable[[], Tensor]
    epsilon: float = torch.finfo(torch.float32).eps
    rows: list[Tensor] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def table(self) -> Tensor:
        return torch.stack(self.rows)

    @property
    def mean(self) -> Tensor:
        return self.table.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.table.var(0)

    @property
    def squared_error(self) -> Tensor:
        """Of the mean, not less than rounding."""
        return self.variance / self.count + self.rounding.square()

    @property
    def rounding(self) -> Tensor:
        return ROUNDING * self.epsilon * (1 + self.mean.abs())

    def extend(self, count: int) -> None:
        """Draw until there are ``count``."""
        while self.count < count:
            self.rows.append(self.draw())
        if not self.table.isfinite().all():
            raise ValueError(
                f"{int((~self.table.isfinite()).any(1).sum())} of {self.count} draws are not finite"
            )


Statistics = Known | Sampled


def settle(sampled: Sampled, reference: Statistics, error: Tensor, max_draws: int) -> None:
    """Draw until the standard errors of the differences are at most ``error``, ``[statistics]``.

    :raises ValueError: if more than ``max_draws`` would be needed, or rounding is too large.
    """
    drawn = [s for s in (sampled, reference) if isinstance(s, Sampled)]
    for s in drawn:
        s.extend(PILOT)
    left = error.square()
    if isinstance(reference, Known):
        left = left - reference.squared_error
        if not bool((left > error.square() / 2).all()):
            raise ValueError(
                f"the exact reference has an error of {float(reference.squared_error.max()):.2g} "
                "squared, too large for the test: its quadrature has not converged; give "
                "reference=partial(exact_elbo, points=50), or an ELBO that is known to be right"
            )
    left = left - _checked_rounding(drawn, left.sqrt())
    for _ in range(ROUNDS):
        squared = sampled.squared_error + reference.squared_error
        if sampled.count >= FEWEST and bool((squared <= error.square()).all()):
            return
        for s in drawn:
            s.extend(max(FEWEST, _needed(s, left * _share(s, drawn), max_draws)))
    raise ValueError(
        f"after {sampled.count:,} draws the standard errors are still above what the test needs: "
        "the draws' variance does not settle"
    )


def _checked_rounding(drawn: Sequence[Sampled], error: Tensor) -> Tensor:
    """The squared error by rounding, which no number of draws makes smaller.

    :raises ValueError: if draws would not tell the means with so small an error.
    """
    rounding = torch.stack([s.rounding.square() for s in drawn]).sum(0).sqrt()
    if bool((rounding >= error).any()):
        worst = int((rounding / error).argmax())
        raise ValueError(
            f"means of {float(drawn[0].mean[worst]):,.0f} nats are known to "
            f"{float(rounding[worst]):.2g} within rounding, and the test needs "
            f"{float(error[worst]):.2g}: give fewer data, a larger bias or a program in float64; "
            "or, if the gradient is close to 0, other parameters or gradient=False"
        )
    return rounding.square()


def _share(s: Sampled, drawn: list[Sampled]) -> Tensor:
    """How much of the squared error is left to one of them so that all take the fewest draws."""
    deviations = torch.stack([each.variance.sqrt() for each in drawn]) + 1e-300
    return (s.variance.sqrt() + 1e-300) / deviations.sum(0)


def _needed(s: Sampled, squared: Tensor, max_draws: int) -> int:
    count = float((RESERVE * s.variance / squared).max())
    if not count <= max_draws:
        shown = f"{math.ceil(count):,}" if math.isfinite(count) else "infinitely many"
        raise ValueError(
            f"the test needs about {shown} draws, more than max_draws={max_draws:,}: allow a larger"
            " bias or gradient_bias, or move the parameters to where the gradient is not close to 0"
        )
    return max(s.count, math.ceil(count))
