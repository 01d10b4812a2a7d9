"""Further likelihoods of real numbers: heavy tails, and positive numbers."""

from __future__ import annotations

from math import inf

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.checks import number
from ppl_models.likelihood_base import Scaled

__all__ = ["LogNormal", "StudentT"]


class StudentT(Scaled):
    """Independent entries, x ~ StudentT(df, output, scale): numbers of which some lie far out.

    :param df: degrees of freedom, above 1; tails are heavier the fewer there are.
    :param scale: in the units of x, not a standard deviation; ``None`` to learn it, from half of
        ``unit`` on, above a tenth.
    :param loc: if given, the location is ``loc + unit * output``, and encoders see
        ``(x - loc) / unit``.
    :param unit: as ``loc``.
    :raises ValueError: if ``df`` is not above 1, ``scale`` or ``unit`` not positive, or ``loc`` not
        finite.

    Example:
        >>> import torch
        >>> from ppl_models import StudentT
        >>> StudentT(df=3.0, scale=1.0)(torch.zeros(2, 5), event_dim=1).mean.shape
        torch.Size([2, 5])
    """

    df: Tensor

    def __init__(
        self,
        df: float = 4.0,
        scale: float | None = None,
        loc: float | None = None,
        unit: float | None = None,
    ) -> None:
        super().__init__()
        if not 1 < number(df) < inf:
            raise ValueError(f"df must be a number above 1, so that there is a mean, got {df!r}")
        self._locate(loc, unit)
        self._set_scale(scale)
        self.register_buffer("df", torch.tensor(float(df)), persistent=False)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return dist.StudentT(self.df, self.placed(output), self.scale).to_event(event_dim)

    def extra_repr(self) -> str:
        return f"df={float(self.df):.4g}, {super().extra_repr()}"


class LogNormal(Scaled):
    """Independent entries, log x ~ Normal(output, scale): positive numbers such as incomes.

    :param scale: standard deviation of log x; ``None`` to learn it, from half of ``unit`` on, above
        a tenth.
    :param loc: if given, the mean of log x is ``loc + unit * output``, and encoders see
        ``(log x - loc) / unit``.
    :param unit: as ``loc``.
    :raises ValueError: if ``scale`` or ``unit`` is not positive, or ``loc`` not finite.

    Example:
        >>> import torch
        >>> from ppl_models import LogNormal
        >>> p = LogNormal(0.5, loc=10.0, unit=1.0)(torch.zeros(1, 1), event_dim=1)
        >>> p.log_prob(torch.tensor([[20_000.0]])).shape
        torch.Size([1])
    """

    support = (0.0, inf)

    def __init__(
        self, scale: float | None = None, loc: float | None = None, unit: float | None = None
    ) -> None:
        super().__init__()
        self._locate(loc, unit)
        self._set_scale(scale)

    @property
    def placeholder(self) -> float | Tensor:
        return self.loc.exp() if self.located else 1.0

    def link(self, x: Tensor) -> Tensor:
        return x.log()

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return dist.LogNormal(self.placed(output), self.scale).to_event(event_dim)

    def check(self, x: Tensor) -> None:
        if (low := float(x.min())) <= 0:
            raise ValueError(
                f"x has values down to {low:.4g}, but LogNormal needs positive ones: use Normal() "
                "or StudentT(), or NegativeBinomial() for counts"
            )
