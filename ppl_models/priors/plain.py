"""Priors that are no mixtures: of plain VAEs, and those that one model alone draws from."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.distributions import Component, DiagonalNormal, diagonal_normal
from ppl_models.given.checks import check_size
from ppl_models.priors.base import Prior


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
        self.register_buffer("loc", torch.zeros(dim), persistent=False)
        self.loc: Tensor

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        return DiagonalNormal(self.loc, torch.ones_like(self.loc))

    def log_joint(self, z: Tensor) -> Tensor:
        return self.latent().log_prob(self._latents(z, self.loc)).unsqueeze(-1)


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

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        return _FlatDensity(dist.constraints.real_vector, (), (self.dim,))

    def log_joint(self, z: Tensor) -> Tensor:
        return torch.zeros_like(torch.as_tensor(z)[..., :1])

    def sample(self, n: int, cluster: int | None = None, temperature: float = 1.0) -> Tensor:
        raise ValueError(
            "a flat prior has no draws: an autoencoder encodes and decodes, it does not generate"
        )


class _FlatDensity(dist.ImproperUniform):
    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value).to(value)  # its dtype and device


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
    shown = ("label_dim", "dim")

    def __init__(self, label_dim: int, dim: int, width: int = 50) -> None:
        super().__init__()
        self.label_dim = check_size("label_dim", label_dim)
        self.dim = check_size("dim", dim)
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


class ClassBlocks(StandardNormal):
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
    shown = ("num_components", "block_dim", "dim")

    def __init__(self, num_components: int, block_dim: int) -> None:
        self.num_components = check_size("num_components", num_components)
        self.block_dim = check_size("block_dim", block_dim)
        super().__init__(self.num_components * self.block_dim)
        self.register_buffer("logits", torch.zeros(self.num_components), persistent=False)
        self.logits: Tensor

    def component(self) -> Component:
        return Component(logits=self.logits)

    def log_joint(self, z: Tensor) -> Tensor:
        return super().log_joint(z) + self.component().log_probs

    def chosen(self, z: Tensor, component: Tensor) -> Tensor:
        """Latents ``[..., dim]``, 0 but for the block of the class, one-hot ``[..., K]``."""
        blocks = z.unflatten(-1, (self.num_components, self.block_dim))
        return (component.unsqueeze(-1) * blocks).flatten(-2)


class Codebook(Prior):
    """A code at every place, all equally probable; z holds their vectors: the first entry of every
    place's, then the second, as a flattened image (van den Oord et al., 2017).

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
    shown = ("num_components", "code_dim", "places", "dim")

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
        """Log-density of each place's part of an embedding ``[..., dim]`` under a Normal with
        identity covariance around every code, up to a constant: ``[..., places, K]``, nats (*I
        Don't Need u*, appendix B).
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
