"""The prior of a plain VAE."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.checks import check_size
from ppl_models.distributions import DiagonalNormal
from ppl_models.priors.base import Prior

__all__ = ["StandardNormal"]


class StandardNormal(Prior):
    """z ~ Normal(0, I): the prior of a plain VAE, without a discrete variable.

    :param dim: length of the latent vector.
    :raises ValueError: if ``dim`` is below 1.

    Example:
        >>> import torch
        >>> from ppl_models import StandardNormal
        >>> prior = StandardNormal(5)
        >>> prior.log_prob(torch.zeros(3, 5)).shape
        torch.Size([3])
        >>> prior.sample(4).shape
        torch.Size([4, 5])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.num_components = 1
        self.register_buffer("loc", torch.zeros(dim), persistent=False)
        self.loc: Tensor

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        return DiagonalNormal(self.loc, torch.ones_like(self.loc))

    def log_joint(self, z: Tensor) -> Tensor:
        return self.latent().log_prob(self._latents(z, self.loc)).unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
