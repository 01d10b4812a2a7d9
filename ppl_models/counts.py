"""Likelihoods of counts, 0, 1, 2 and so on, with more zeros than these give if wanted."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ppl_models.given.checks import check_kind
from ppl_models.likelihood_base import Located
from ppl_models.rising import wide

# Rates are between exp(-30) and exp(30): float32 holds them and their squares.
LARGEST_LOG_RATE = 30.0
# Size of a NegativeBinomial before it is learned.
FIRST_SIZE = 5.0


class WidePoisson(dist.Poisson):
    """Pyro's Poisson by its log-rate, in double precision: terms as large as the counts cancel.

    :param log_rate: ``[...]``.
    """

    def __init__(self, log_rate: Tensor) -> None:
        self.log_rate = log_rate
        super().__init__(log_rate.exp())

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        x, log_rate = (each.to(wide(each)) for each in (value, self.log_rate))
        return (x * log_rate - log_rate.exp() - (x + 1).lgamma()).to(self.log_rate)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> WidePoisson:
        return WidePoisson(self.log_rate.expand(batch_shape))


class WideNegativeBinomial(dist.NegativeBinomial):
    """Pyro's negative binomial by the logarithms of its size and its mean, likewise.

    :param log_size: scalar or ``[...]``.
    :param log_mean: ``[...]``.
    """

    def __init__(self, log_size: Tensor, log_mean: Tensor) -> None:
        self.log_size, self.log_mean = log_size, log_mean
        super().__init__(log_size.exp(), logits=log_mean - log_size)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logs = (each.to(wide(each)) for each in (value, self.log_size, self.log_mean))
        x, log_size, log_mean = logs
        size, logits = log_size.exp(), log_mean - log_size
        ways = (x + size).lgamma() - size.lgamma() - (x + 1).lgamma()
        return (ways + size * logsigmoid(-logits) + x * logsigmoid(logits)).to(self.log_mean)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> WideNegativeBinomial:
        return WideNegativeBinomial(self.log_size, self.log_mean.expand(batch_shape))


class Counts(Located):
    """Base of likelihoods of counts, whose log-rate comes from the decoder.

    With zero inflation an entry is 0 with a probability whose logit is the second half of the
    decoder's output, and a count otherwise. Encoders see log(1 + x).
    """

    support = (0.0, inf)
    discrete = True
    eight_bit = 1
    takes_sparse = True

    def __init__(
        self, zero_inflated: bool = False, loc: float | None = None, unit: float | None = None
    ) -> None:
        super().__init__(loc, unit)
        self.zero_inflated = check_kind("zero_inflated", zero_inflated, bool, "True or False")
        self.parameters_per_entry = 2 if zero_inflated else 1

    @abstractmethod
    def counts(self, log_rate: Tensor) -> dist.TorchDistribution:
        """The distribution without zero inflation: batch ``[...]``."""

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        if not self.zero_inflated:
            return self.counts(self.log_rate(output)).to_event(event_dim)
        output, gate = output.chunk(2, -event_dim)
        counts = self.counts(self.log_rate(output))
        return dist.ZeroInflatedDistribution(counts, gate_logits=gate).to_event(event_dim)

    def link(self, x: Tensor) -> Tensor:
        return x.log1p()

    def log_rate(self, output: Tensor) -> Tensor:
        """Log of the mean count without zero inflation."""
        return self.placed(output).clamp(-LARGEST_LOG_RATE, LARGEST_LOG_RATE)

    def check(self, x: Tensor) -> None:
        check_counted(x, type(self).__name__)

    def extra_repr(self) -> str:
        zeros = "zero_inflated=True" if self.zero_inflated else ""
        return ", ".join(part for part in (zeros, super().extra_repr()) if part)


def check_counted(x: Tensor, name: str) -> None:
    """:raises ValueError: if a value is no count, for the likelihood of this name."""
    if (wrong := x[(x < 0) | (x != x.floor())]).numel():
        raise ValueError(
            f"x has values such as {float(wrong.flatten()[0]):.4g}, but {name} needs counts, 0, 1, "
            "2 and so on: use Normal(), or LogNormal() for positive numbers"
        )


class Poisson(Counts):
    """Independent counts, x ~ Poisson(exp(output)), whose variance is their mean.

    :param zero_inflated: whether there are zeros besides, with a probability from the decoder.
    :param loc: if given, the log-rate is ``loc + unit * output``, and encoders see
        ``(log(1 + x) - loc) / unit``.
    :param unit: as ``loc``.
    :raises ValueError: if ``zero_inflated`` is no bool, ``unit`` not positive, or ``loc`` infinite.

    Example:
        >>> import torch
        >>> from ppl_models import Poisson
        >>> Poisson()(torch.zeros(1, 2), event_dim=1).mean
        tensor([[1., 1.]])
    """

    def counts(self, log_rate: Tensor) -> dist.TorchDistribution:
        return WidePoisson(log_rate)


class NegativeBinomial(Counts):
    """Independent counts with the mean m = exp(output) and the variance m + m^2 / size, where the
    size is learned, one for all entries.

    The arguments are those of :class:`Poisson`.

    Example:
        >>> import torch
        >>> from ppl_models import NegativeBinomial
        >>> p = NegativeBinomial(zero_inflated=True)(torch.zeros(1, 4), event_dim=1)
        >>> p.event_shape  # a log-rate and a logit of zero for each entry
        torch.Size([2])
    """

    def __init__(
        self, zero_inflated: bool = False, loc: float | None = None, unit: float | None = None
    ) -> None:
        super().__init__(zero_inflated, loc, unit)
        self.log_size = nn.Parameter(torch.tensor(FIRST_SIZE).log())

    @property
    def size(self) -> Tensor:
        """The size, a positive scalar: the larger, the more as a Poisson's."""
        return self.log_size.exp()

    def counts(self, log_rate: Tensor) -> dist.TorchDistribution:
        return WideNegativeBinomial(self.log_size, log_rate)
