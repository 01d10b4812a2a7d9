"""A prior conditioned on a vector."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.checks import check_size
from ppl_models.distributions import diagonal_normal
from ppl_models.priors.base import Prior

__all__ = ["ConditionalNormal"]


class ConditionalNormal(Prior):
    """z ~ Normal(loc(u), scale(u)), both from one network of u (Khemakhem et al., 2020).

    :param label_dim: length of u.
    :param dim: length of the latent vector.
    :param width: of the network's two hidden layers.
    :raises ValueError: if a size is below 1.

    Example:
        >>> import torch
        >>> from ppl_models import ConditionalNormal
        >>> prior = ConditionalNormal(label_dim=3, dim=2)
        >>> prior.latent(torch.zeros(4, 3)).mean.shape
        torch.Size([4, 2])
    """

    only_model = "ContinuousIVAE"

    def __init__(self, label_dim: int, dim: int, width: int = 50) -> None:
        super().__init__()
        self.label_dim = check_size("label_dim", label_dim)
        self.dim = check_size("dim", dim)
        self.num_components = 1
        self.network = nn.Sequential(
            nn.Linear(label_dim, check_size("width", width)),
            nn.LeakyReLU(0.1),
            nn.Linear(width, width),
            nn.LeakyReLU(0.1),
            nn.Linear(width, 2 * dim),
        )

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        """p(z given u).

        :param component: u, ``[..., label_dim]``.
        :raises ValueError: without u.
        """
        if component is None:
            raise ValueError("this prior is conditioned on u and needs it: latent(u)")
        return diagonal_normal(self.network(component))

    def log_joint(self, z: Tensor) -> Tensor:
        raise ValueError("without u, z has no density under this prior: use latent(u).log_prob(z)")

    @torch.no_grad()
    def sample(self, n: int, cluster: int | None = None, temperature: float = 1.0) -> Tensor:
        self._check_draws(n, cluster, temperature)
        q = self.latent(torch.randn(n, self.label_dim).to(next(self.network.parameters())))
        return q.mean + temperature * (q.sample() - q.mean)

    def extra_repr(self) -> str:
        return f"label_dim={self.label_dim}, dim={self.dim}"
