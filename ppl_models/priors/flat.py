"""A flat prior, which leaves the latent unconstrained."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.checks import check_size
from ppl_models.priors.base import Prior

__all__ = ["Flat"]


class Flat(Prior):
    """Density 1 everywhere: the improper prior of a plain autoencoder. It cannot be sampled.

    :param dim: length of the latent vector.
    :raises ValueError: if ``dim`` is below 1; :meth:`sample` always raises it.

    Example:
        >>> import torch
        >>> from ppl_models import Flat
        >>> Flat(2).log_prob(torch.zeros(3, 2))
        tensor([0., 0., 0.])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.num_components = 1

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        return _FlatDensity(dist.constraints.real_vector, (), (self.dim,))

    def log_joint(self, z: Tensor) -> Tensor:
        return torch.zeros_like(torch.as_tensor(z)[..., :1])

    def sample(self, n: int, cluster: int | None = None, temperature: float = 1.0) -> Tensor:
        raise ValueError(
            "a flat prior has no draws: an autoencoder encodes and decodes, it does not generate"
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class _FlatDensity(dist.ImproperUniform):
    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value).to(value)  # its dtype and device
