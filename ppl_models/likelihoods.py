"""Likelihoods p(x given z): what the decoder's output means, and which data it can describe."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.distributions import (
    FewScalesNormal,
    LogitContinuousBernoulli,
    MaskedIndependent,
    RoundedLogistic,
)
from ppl_models.factors import FactorFill
from ppl_models.given.checks import check_kind, check_positive, number
from ppl_models.likelihood_base import Likelihood, Scaled


class Bernoulli(Likelihood):
    r"""Independent pixels, x ~ Bernoulli(sigmoid(output)).

    As in the MFCVAE paper, gray values are accepted: the log-likelihood :math:`x \log p + (1 - x)
    \log (1 - p)` is then the expectation over a random binarization, not a density on [0, 1]. For a
    density on gray values use :class:`ContinuousBernoulli`; to binarize, give ``threshold`` or call
    ``torch.bernoulli(x)`` once beforehand, with a seed.

    :param threshold: if given, a pixel above this value becomes 1, any other 0.
    :raises ValueError: if ``threshold`` is not within [0, 1).

    Example:
        >>> import torch
        >>> from ppl_models import Bernoulli
        >>> Bernoulli()(torch.zeros(1, 3), event_dim=1).mean
        tensor([[0.5000, 0.5000, 0.5000]])
        >>> Bernoulli(threshold=0.5).prepare(torch.tensor([0.2, 0.7]))
        tensor([0., 1.])
    """

    support = (0.0, 1.0)
    discrete = True

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        if threshold is not None and not 0 <= number(threshold) < 1:
            raise ValueError(f"threshold must be within [0, 1), got {threshold!r}")
        self.threshold = threshold

    def prepare(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        x = super().prepare(x, dtype)
        return x if self.threshold is None else (x > self.threshold).to(x.dtype)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        # Gray values are outside a Bernoulli's support of {0, 1}; `check` validates them instead.
        return dist.Bernoulli(logits=output, validate_args=False).to_event(event_dim)

    def extra_repr(self) -> str:
        return "" if self.threshold is None else f"threshold={self.threshold}"


class ContinuousBernoulli(Likelihood):
    """Independent pixels, x ~ ContinuousBernoulli(sigmoid(output)): a proper density on [0, 1].

    Example:
        >>> import torch
        >>> from ppl_models import ContinuousBernoulli
        >>> p = ContinuousBernoulli()(torch.ones(2, 784), event_dim=1)
        >>> p.log_prob(torch.full((2, 784), 0.3)).shape
        torch.Size([2])
    """

    support = (0.0, 1.0)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return LogitContinuousBernoulli(logits=output).to_event(event_dim)


class Normal(Scaled):
    """Independent entries, x ~ Normal(output, scale), with a standard deviation that is fixed or
    learned, and the same for all entries or for each its own.

    :param scale: standard deviation in the units of x; 0.6 (3DShapes) and 0.3 (SVHN) in MFCVAE's
        Table 3; numbers in the shape of x for a scale of each entry. ``None`` to learn one, from
        half of ``unit`` on; it then stays above a tenth.
    :param bounded: use sigmoid(output) as the mean, for data in [0, 1] (MFCVAE's Table 5 for SVHN).
    :param learned: whether the scale is a parameter, which begins at ``scale``. Where latents can
        describe the data exactly the best scale is 0, and the bound has no maximum.
    :param loc: if given, the mean is ``loc + unit * output``, and encoders see ``(x - loc) /
        unit``. For a column of a table: its mean.
    :param unit: as ``loc``. For a column of a table: its standard deviation.
    :raises ValueError: if one is not positive or finite, or ``bounded`` has a place, or no scale.

    Example:
        >>> import torch
        >>> from ppl_models import Normal
        >>> p = Normal(0.3)(torch.zeros(1, 2), event_dim=1)
        >>> p.mean, p.variance
        (tensor([[0., 0.]]), tensor([[0.0900, 0.0900]]))
        >>> Normal(2.0, loc=40.0, unit=12.0)(torch.ones(1, 1), event_dim=1).mean
        tensor([[52.]])
    """

    def __init__(
        self,
        scale: float | Sequence[Any] | np.ndarray | Tensor | None = None,
        bounded: bool = False,
        learned: bool = False,
        loc: float | None = None,
        unit: float | None = None,
    ) -> None:
        super().__init__(scale, loc, unit, learned)
        self.bounded = bounded
        if bounded and (self.located or scale is None):
            raise ValueError(
                "a bounded mean lies in [0, 1], with a scale and neither loc nor unit, such as "
                f"Normal(0.3, bounded=True): got scale={scale!r}, loc={loc!r}, unit={unit!r}"
            )

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        mean = output.sigmoid() if self.bounded else self.placed(output)
        return FewScalesNormal(mean, self.scale, event_dim)

    def fitted(self, values: Tensor) -> Likelihood:
        return self if self.bounded else super().fitted(values)

    def extra_repr(self) -> str:
        bounded = ", bounded=True" if self.bounded else ""
        scale, comma, rest = super().extra_repr().partition(", ")
        return f"{scale}{bounded}{comma}{rest}"


class HeteroscedasticNormal(Likelihood):
    """Independent entries, x ~ Normal(mean, scale), with mean and variance both from the decoder:
    log-variances are ``5 * tanh(output)``, between -5 and 5, as in ML-VAE (supplement, 2.1).

    Example:
        >>> import torch
        >>> from ppl_models import HeteroscedasticNormal
        >>> likelihood = HeteroscedasticNormal()
        >>> likelihood.parameters_per_entry
        2
        >>> likelihood(torch.zeros(5, 2 * 784), event_dim=1).mean.shape
        torch.Size([5, 784])
    """

    parameters_per_entry = 2

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        mean, raw = output.chunk(2, -event_dim)
        return dist.Normal(mean, (0.5 * 5.0 * raw.tanh()).exp()).to_event(event_dim)


class Exact(Likelihood):
    """No noise: x is the decoder's output. For invertible decoders.

    Example:
        >>> import torch
        >>> from ppl_models import Exact
        >>> Exact()(torch.tensor([[1.0, 2.0]]), event_dim=1).mean
        tensor([[1., 2.]])
    """

    entrywise = False

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return dist.Delta(output, event_dim=event_dim)


class Incomplete(Likelihood):
    r"""Wraps a likelihood for data with missing entries, each marked by NaN.

    .. math:: p(x_{\text{there}} \mid z) = \prod_{i \,\text{there}} p(x_i \mid z)

    The objective bounds log p of the observed entries, which is correct if entries are missing at
    random given these (Nazabal et al., *Handling incomplete heterogeneous data using VAEs*, 2020).
    Encoders see ``fill`` instead of missing entries, of which ``reconstruct`` returns means, too.

    :param likelihood: of the observed entries, any of single entries: not ``Exact``, and not of
        counts given their total; ``Columns`` takes missing entries itself.
    :param fill: what encoders see instead of a missing entry, such as the mean of the data; by
        default 0, where the likelihood allows it, or its ``loc``. Of rows of real numbers, a
        :class:`FactorFill`, by what is there.
    :raises ValueError: if ``likelihood`` is of no single entries, or ``fill`` outside its support.

    Example:
        >>> import torch
        >>> from ppl_models import Incomplete, Normal
        >>> p = Incomplete(Normal(1.0))(torch.zeros(1, 3), event_dim=1)
        >>> x = torch.tensor([[0.0, float("nan"), float("nan")]])
        >>> torch.allclose(p.log_prob(x), Normal(1.0)(torch.zeros(1, 1), 1).log_prob(x[:, :1]))
        True
    """

    takes_missing = True
    entrywise = False

    def __init__(self, likelihood: Likelihood, fill: float | FactorFill | None = None) -> None:
        super().__init__()
        check_kind("likelihood", likelihood, Likelihood, "a likelihood, such as Normal(0.3)")
        if not likelihood.entrywise:
            itself = ", which takes missing entries itself" if likelihood.takes_missing else ""
            raise ValueError(
                "likelihood must be of single entries that are alike, such as Normal(0.3), got "
                f"{type(likelihood).__name__}{itself}"
            )
        self.by_others = fill if isinstance(fill, FactorFill) else None
        if fill is None or isinstance(fill, FactorFill):
            fill = float(likelihood.placeholder)
        low, high = likelihood.support
        if not (low <= number(fill) <= high and abs(number(fill)) < inf):
            raise ValueError(
                f"fill must be a number that {type(likelihood).__name__} allows, in "
                f"{[low, high]}, got {fill!r}"
            )
        likelihood.check(torch.tensor([float(fill)]))
        self.likelihood = likelihood
        self.fill = float(fill)
        self.support, self.discrete = likelihood.support, likelihood.discrete
        self.parameters_per_entry = likelihood.parameters_per_entry

    def prepare(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        prepared = self.likelihood.prepare(x, dtype)
        # Keep NaN, which a threshold would have replaced.
        return torch.where(x.isnan(), x.to(prepared.dtype), prepared)

    def features(self, x: Tensor) -> Tensor:
        fill = self.by_others
        return self.likelihood.features(x.nan_to_num(self.fill) if fill is None else fill(x))

    def features_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """:raises ValueError: if ``fill`` is of rows of another length."""
        if self.by_others is not None and tuple(x_shape) != tuple(self.by_others.loc.shape):
            raise ValueError(
                f"fill is of rows of {len(self.by_others.loc)} numbers, but x has the shape "
                f"{tuple(x_shape)}: give one that is fitted to such rows"
            )
        return self.likelihood.features_shape(x_shape)

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        return self.likelihood.output_shape(x_shape)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return MaskedIndependent(self.likelihood(output, event_dim), self.fill)

    def misfit(self, p: dist.TorchDistribution, x: Tensor) -> Tensor:
        there = ~x.isnan()
        square = (p.mean - torch.where(there, x, 0.0)).square()
        return torch.where(there, square, 0.0).sum() / there.sum().clamp_min(1)

    def check(self, x: Tensor) -> None:
        there = x[~x.isnan()]
        if len(there):
            self.likelihood.check(there)

    def extra_repr(self) -> str:
        return "" if self.by_others is not None else f"fill={self.fill:.4g}"


class DiscretizedLogistic(Likelihood):
    """8-bit values: a logistic distribution's probabilities of 256 bins (Kingma et al., 2016, C.5).

    The location is 0.5, the middle of the range, plus the output; the scale is learned and shared
    by all entries. The first and last bin include the tails, so the probabilities of 0, 1/255, ...,
    1 sum to one.

    :param scale: initial scale, in units of the range; the standard deviation is 1.8 times that.
    :raises ValueError: if ``scale`` is not positive.

    Example:
        >>> import torch
        >>> from ppl_models import DiscretizedLogistic
        >>> p = DiscretizedLogistic(scale=0.1)(torch.zeros(256, 1), event_dim=1)
        >>> values = torch.arange(256).unsqueeze(-1) / 255
        >>> torch.allclose(p.log_prob(values).exp().sum(), torch.tensor(1.0))
        True
    """

    support = (0.0, 1.0)
    discrete = True

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(check_positive("scale", scale)).log())

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return RoundedLogistic(0.5 + output, self.log_scale.exp()).to_event(event_dim)

    def check(self, x: Tensor) -> None:
        super().check(x)
        if x.dtype != torch.uint8 and float((255 * x - (255 * x).round()).abs().max()) > 1e-3:
            raise ValueError(
                "DiscretizedLogistic is for 8-bit values, but x has values that are not "
                "multiples of 1/255: give 8-bit images as uint8, or use a "
                "likelihood for real values, such as Normal(scale=...)"
            )

    def extra_repr(self) -> str:
        return f"scale={float(self.log_scale.detach().exp()):.4g}"


class StudentT(Scaled):
    """Independent entries, x ~ StudentT(df, output, scale): numbers of which some lie far out.

    :param df: degrees of freedom, above 1; tails are heavier the fewer there are.
    :param scale: in the units of x; ``None`` to learn it, from half of ``unit`` on, above a tenth.
    :param loc: if given, the location is ``loc + unit * output``; encoders see (x - loc) / unit.
    :param unit: as ``loc``.
    :raises ValueError: if ``df`` is at most 1, a scale or unit not positive, or ``loc`` infinite.

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
        super().__init__(scale, loc, unit)
        if not 1 < number(df) < inf:
            raise ValueError(f"df must be a number above 1, so that there is a mean, got {df!r}")
        self.register_buffer("df", torch.tensor(float(df)), persistent=False)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return dist.StudentT(self.df, self.placed(output), self.scale).to_event(event_dim)

    def extra_repr(self) -> str:
        return f"df={float(self.df):.4g}, {super().extra_repr()}"


class LogNormal(Scaled):
    """Independent entries, log x ~ Normal(output, scale): positive numbers such as incomes.

    :param scale: standard deviation of log x; ``None`` to learn it, as of :class:`StudentT`.
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
        super().__init__(scale, loc, unit)

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
