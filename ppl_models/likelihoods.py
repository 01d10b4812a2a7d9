"""Likelihoods p(x given z): what the decoder's output means, and which data it can describe."""

from __future__ import annotations

from abc import abstractmethod
from math import inf

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.checks import number
from ppl_models.configurable import Configurable
from ppl_models.distributions import RoundedLogistic

__all__ = [
    "Bernoulli",
    "ContinuousBernoulli",
    "DiscretizedLogistic",
    "Exact",
    "HeteroscedasticNormal",
    "Likelihood",
    "Normal",
]


class Likelihood(Configurable, nn.Module):
    """Turns the decoder's output ``[..., *x_shape]`` into a distribution over x with event ``x_shape``."""

    #: inclusive range of the data that the density is defined on; 8-bit images are divided by 255 first
    support: tuple[float, float] = (-float("inf"), float("inf"))
    #: how many numbers the decoder gives for each entry of x
    parameters_per_entry = 1

    def prepare(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bring a batch to the form that the density is written for; a second call changes nothing.

        8-bit images become values in [0, 1] of ``dtype``; anything else is left as it is.
        """
        return x.to(dtype) / 255 if x.dtype == torch.uint8 else x

    @abstractmethod
    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        """Distribution over x given the decoder's raw output, with the last ``event_dim`` axes as its event.

        With several parameters for each entry the output has as many times the entries of x on its first event axis.
        """

    def check(self, x: Tensor) -> None:
        """Refuse data outside the support.

        :raises ValueError: with the range found, the range needed, and the likely fix.
        """
        low, high = (float(bound) for bound in torch.aminmax(x))
        if x.dtype == torch.uint8:
            if high <= 1:
                raise ValueError(
                    f"x is uint8 with values up to {high:.0f}, and 8-bit data are divided by 255: "
                    "give binary data as bool or float"
                )
            low, high = low / 255, high / 255
        if low < self.support[0] or high > self.support[1]:
            raise ValueError(
                f"x has values in [{low:.4g}, {high:.4g}], but the {type(self).__name__} likelihood needs "
                f"{list(self.support)}\n  Try one of:\n  - scale the data, for example x / x.max()\n"
                "  - give 8-bit images as uint8: they are divided by 255 for you\n"
                "  - use a likelihood for real values, such as Normal(scale=...)"
            )


class Bernoulli(Likelihood):
    r"""Independent pixels, x ~ Bernoulli(sigmoid(output)).

    As in the MFCVAE paper, grey values are accepted as they are: the log-likelihood
    :math:`x \log p + (1 - x) \log (1 - p)` is then the expectation over a random binarisation, and not a
    density on [0, 1]. For a density on grey values use :class:`ContinuousBernoulli`; for binary data give
    ``threshold``, or binarise beforehand (``torch.bernoulli(x)`` once, with a seed).

    :param threshold: if given, a pixel is 1 where it exceeds this value, else 0.
    :raises ValueError: if ``threshold`` is not within [0, 1).
    """

    support = (0.0, 1.0)

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        if threshold is not None and not 0 <= number(threshold) < 1:
            raise ValueError(f"threshold must be within [0, 1), got {threshold!r}")
        self.threshold = threshold

    def prepare(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        x = super().prepare(x, dtype)
        return x if self.threshold is None else (x > self.threshold).to(x.dtype)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        # Grey values are outside a Bernoulli's support of {0, 1}: the check of the values is ours (`check`).
        return dist.Bernoulli(logits=output, validate_args=False).to_event(event_dim)

    def extra_repr(self) -> str:
        return "" if self.threshold is None else f"threshold={self.threshold}"


class ContinuousBernoulli(Likelihood):
    """Independent pixels, x ~ ContinuousBernoulli(sigmoid(output)): a proper density on [0, 1]."""

    support = (0.0, 1.0)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return dist.ContinuousBernoulli(logits=output).to_event(event_dim)


class Normal(Likelihood):
    """Independent entries, x ~ Normal(output, scale) with a fixed standard deviation.

    :param scale: standard deviation in the units of x; MFCVAE's Table 3 has 0.6 (3DShapes) and 0.3 (SVHN).
    :param bounded: take sigmoid(output) as the mean, for data in [0, 1] (MFCVAE's Table 5 for SVHN).
    :raises ValueError: if ``scale`` is not positive.
    """

    def __init__(self, scale: float, bounded: bool = False) -> None:
        super().__init__()
        self.bounded = bounded
        if not 0 < number(scale) < inf:
            raise ValueError(f"scale is a standard deviation and must be positive, got {scale!r}")
        # On the device: a number would be copied there in every step.
        self.register_buffer("scale", torch.tensor(float(scale)), persistent=False)
        self.scale: Tensor

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        mean = output.sigmoid() if self.bounded else output
        return dist.Normal(mean, self.scale).to_event(event_dim)

    def extra_repr(self) -> str:
        return f"scale={float(self.scale):.4g}" + (", bounded=True" if self.bounded else "")


class HeteroscedasticNormal(Likelihood):
    """Independent entries whose mean and variance are both the decoder's: x ~ Normal(output, scale(output)).

    :param bound: log-variances are ``bound * tanh``, as in ML-VAE (supplement, 2.1), so within plus and minus this.
    :raises ValueError: if ``bound`` is not positive.
    """

    parameters_per_entry = 2

    def __init__(self, bound: float = 5.0) -> None:
        super().__init__()
        if not 0 < number(bound) < inf:
            raise ValueError(f"bound is the largest log-variance and must be positive, got {bound!r}")
        self.bound = bound

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        mean, raw = output.chunk(2, -event_dim)
        return dist.Normal(mean, (0.5 * self.bound * raw.tanh()).exp()).to_event(event_dim)

    def extra_repr(self) -> str:
        return f"bound={self.bound}"


class Exact(Likelihood):
    """No noise: x is the decoder's output, for decoders that can be run backwards."""

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return dist.Delta(output, event_dim=event_dim)


class DiscretizedLogistic(Likelihood):
    """8-bit values: the share of a logistic distribution that falls to each of 256 bins (Kingma et al., 2016, C.5).

    The output is added to the middle of the range, 0.5; the scale, one for all entries, is learned. The first bin and
    the last take what lies beyond them, so the probabilities of 0, 1/255, ..., 1 sum to one.

    :param scale: the scale at the start, in units of the range; the standard deviation is 1.8 times as much.
    :raises ValueError: if ``scale`` is not positive.
    """

    support = (0.0, 1.0)

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        if not 0 < number(scale) < inf:
            raise ValueError(f"scale must be positive, got {scale!r}")
        self.log_scale = nn.Parameter(torch.tensor(float(scale)).log())

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return RoundedLogistic(0.5 + output, self.log_scale.exp()).to_event(event_dim)

    def check(self, x: Tensor) -> None:
        super().check(x)
        if x.dtype != torch.uint8 and float((255 * x - (255 * x).round()).abs().max()) > 1e-3:
            raise ValueError(
                "DiscretizedLogistic is for 8-bit values, but x has others than multiples of 1/255: give 8-bit images "
                "as uint8, or take a likelihood for real values, such as Normal(scale=...)"
            )

    def extra_repr(self) -> str:
        return f"scale={float(self.log_scale.detach().exp()):.4g}"
