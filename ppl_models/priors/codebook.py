"""A grid of places, each with a code from one codebook."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.checks import check_size
from ppl_models.distributions import Component
from ppl_models.priors.base import Prior

__all__ = ["Codebook"]


class Codebook(Prior):
    """A code at every place, all equally probable; z holds their vectors: the first entry of every
    place's, then the second, as a flattened image of ``code_dim`` channels (van den Oord et al.,
    2017).

    :param num_components: K, the number of codes.
    :param code_dim: length of a code's vector.
    :param places: number of places, such as 64 for a grid of 8 x 8.
    :raises ValueError: if a size is below 1.

    :ivar dim: ``places * code_dim``, length of z.
    :ivar loc: the codes' vectors ``[K, code_dim]``.

    Example:
        >>> import torch
        >>> from ppl_models import Codebook
        >>> prior = Codebook(16, code_dim=4, places=9)
        >>> prior.sample(2).shape
        torch.Size([2, 36])
        >>> prior.log_affinity(torch.zeros(2, 36)).shape
        torch.Size([2, 9, 16])
    """

    only_model = "VQVAE"

    def __init__(self, num_components: int, code_dim: int, places: int) -> None:
        super().__init__()
        self.num_components = check_size("num_components", num_components)
        self.code_dim = check_size("code_dim", code_dim)
        self.places = check_size("places", places)
        self.dim = self.places * self.code_dim
        self.loc = nn.Parameter(torch.randn(num_components, code_dim))

    def component(self) -> dist.TorchDistribution:
        """p(c): one-hot, event ``[places, K]``."""
        logits = torch.zeros_like(self.loc[:, 0]).expand(self.places, -1)
        return Component(logits=logits).to_event(1)

    def vectors(self, component: Tensor) -> Tensor:
        """z of codes ``[..., places, K]``, one-hot or relaxed: ``[..., dim]``."""
        return (component @ self.loc).mT.flatten(-2)

    def log_affinity(self, embedding: Tensor) -> Tensor:
        """Closeness of an embedding ``[..., dim]`` to every code, up to a constant: ``[..., places,
        K]``, nats.

        The log-density of each place's part under a Normal with identity covariance around each
        code. Its softmax gives the responsibilities of a mixture of these Normals (*I Don't Need
        u*, appendix B).
        """
        e = embedding.unflatten(-1, (self.code_dim, self.places)).mT
        # Terms that are equal for all codes cancel in a softmax.
        return e @ self.loc.T - 0.5 * self.loc.square().sum(-1)

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        codes = self.component().sample() if component is None else component
        return dist.Delta(self.vectors(codes), event_dim=1)

    def log_joint(self, z: Tensor) -> Tensor:
        raise ValueError(
            "a codebook's z has a code for each place and no log_joint: use log_affinity(z) instead"
        )

    @torch.no_grad()
    def sample(self, n: int, cluster: int | None = None, temperature: float = 1.0) -> Tensor:
        """Draw ``[n, dim]``: independent codes, or code ``cluster`` at every place; ``temperature``
        has no effect.
        """
        self._check_draws(n, cluster, temperature)
        if cluster is None:
            return self.vectors(self.component().expand([n]).sample())
        return self.loc[cluster].repeat_interleave(self.places).repeat(n, 1)

    def extra_repr(self) -> str:
        codes = f"num_components={self.num_components}, code_dim={self.code_dim}"
        return f"{codes}, places={self.places}, dim={self.dim}"
