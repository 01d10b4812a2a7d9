"""A block of latents per class, one of which the class selects."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.checks import check_size
from ppl_models.distributions import Component, DiagonalNormal
from ppl_models.priors.base import Prior

__all__ = ["ClassBlocks"]


class ClassBlocks(Prior):
    r"""A class and a block of latents for every class: :math:`y \sim \mathrm{Cat}(1 / K), z_1,
    \ldots, z_K \sim \mathrm{Normal}(0, I)`.

    The class does not change the density of the latents; it selects the block that the decoder sees
    (N-VAE, III B), see :meth:`chosen`.

    :param num_components: K, the number of classes.
    :param block_dim: length of each class's block; z is all blocks concatenated.
    :raises ValueError: if a size is below 1.

    Example:
        >>> import torch
        >>> from ppl_models import ClassBlocks
        >>> prior = ClassBlocks(3, 2)
        >>> prior.chosen(torch.ones(6), torch.tensor([0.0, 1.0, 0.0]))
        tensor([0., 0., 1., 1., 0., 0.])
    """

    shares_density = True

    def __init__(self, num_components: int, block_dim: int) -> None:
        super().__init__()
        self.num_components = check_size("num_components", num_components)
        self.block_dim = check_size("block_dim", block_dim)
        self.dim = self.num_components * self.block_dim
        self.register_buffer("logits", torch.zeros(self.num_components), persistent=False)
        self.logits: Tensor

    def component(self) -> Component:
        return Component(logits=self.logits)

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        loc = self.logits.new_zeros(self.dim)
        return DiagonalNormal(loc, torch.ones_like(loc))

    def log_joint(self, z: Tensor) -> Tensor:
        return (
            self.latent().log_prob(self._latents(z, self.logits)).unsqueeze(-1)
            + self.component().log_probs
        )

    def chosen(self, z: Tensor, component: Tensor) -> Tensor:
        """Latents ``[..., dim]`` with every block except that of the class, one-hot ``[..., K]``,
        set to 0 (N-VAE, Fig. 4).
        """
        blocks = z.unflatten(-1, (self.num_components, self.block_dim))
        return (component.unsqueeze(-1) * blocks).flatten(-2)

    def extra_repr(self) -> str:
        return f"num_components={self.num_components}, block_dim={self.block_dim}, dim={self.dim}"
