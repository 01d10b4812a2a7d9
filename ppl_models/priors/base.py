"""What every prior promises, and what all mixtures share.

A prior has two steps, :meth:`Prior.component` (the discrete draw of a mixture, or nothing) and
:meth:`Prior.latent` (the latent vector given the component). Models call the two; they never ask which prior it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.checks import check_count
from ppl_models.configurable import Configurable
from ppl_models.distributions import Component, DiagonalNormal, MarginalMixture
from ppl_models.priors.weights import DirichletWeights, MixtureWeights, mixture_weights

__all__ = ["Data", "Mixture", "Prior"]

# Rows [N, *x_shape] and their latents [N, d].
Data = tuple[Tensor, Tensor]


class Prior(Configurable, nn.Module):
    """Prior of one facet's latent vector ``z`` with ``dim`` entries and ``num_components`` components.

    :ivar dim: length d of the latent vector.
    :ivar num_components: K; 1 where the prior has no discrete variable.
    """

    dim: int
    num_components: int
    #: whether z has the same density for every component, so that the component's KL says nothing of z
    apart = False

    def component(self) -> dist.TorchDistribution | None:
        """p(c), one-hot with event ``[K]``; ``None`` for a prior without components."""
        return None

    @abstractmethod
    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        """p(z given c) with event ``[d]``.

        :param component: one-hot (or relaxed) ``[..., K]``; ``None`` for p(z), the component summed out.
        """

    @abstractmethod
    def log_joint(self, z: Tensor) -> Tensor:
        """log p(z, c) for every c, in nats: ``[..., d] -> [..., K]``; takes arrays as well."""

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z) with the component summed out (MFCVAE, Eq. 17), in nats: ``[..., d] -> [...]``."""
        return self.log_joint(z).logsumexp(-1)

    def bind(self, encode: Callable[[Tensor], dist.TorchDistribution], x_shape: tuple[int, ...]) -> None:
        """Told by a guide how it encodes data of ``x_shape`` into this facet; for priors made of posteriors."""

    @torch.no_grad()
    def sample(self, n: int, cluster: int | None = None, temperature: float = 1.0) -> Tensor:
        """Draw ``[n, d]``, each from component ``cluster``, or from the whole prior where that is ``None``.

        :param temperature: factor on the standard deviation around the component's mean.
        """
        component = self.component()
        if component is None:
            chosen = None
        elif cluster is None:
            chosen = component.expand([n]).sample()
        else:
            chosen = nn.functional.one_hot(torch.tensor([cluster] * n), self.num_components).to(component.probs)
        latent = self.latent(chosen)
        draws = latent.expand(torch.Size([n])).sample()
        return latent.mean + temperature * (draws - latent.mean)


class Mixture(Prior):
    r"""A finite mixture, one facet's clustering: :math:`c \sim \mathrm{Cat}(\pi)`, then z from component c.

    Kinds of mixtures differ in their :meth:`components`, and in where those come from.

    :param num_components: K, at least 1.
    :param dim: d, length of the latent vector.
    :param weights: of the components: ``"learned"``, ``"uniform"`` (fixed at 1 / K), or
        :class:`~ppl_models.priors.weights.DirichletWeights` to empty those that are not needed.
    :raises ValueError: if a size is below 1, or ``weights`` is unknown.

    :ivar loc: means of the components ``[K, d]``.
    """

    loc: Tensor

    def __init__(self, num_components: int, dim: int, weights: str | DirichletWeights = "learned") -> None:
        super().__init__()
        self.num_components = check_count("num_components", num_components)
        self.dim = check_count("dim", dim)
        self.weights: MixtureWeights = mixture_weights(weights)
        self.logits = nn.Parameter(torch.zeros(num_components), requires_grad=self.weights.learned)

    @abstractmethod
    def components(self) -> dist.TorchDistribution:
        """p(z given c) for every c: batch ``[K]``, event ``[d]``."""

    @abstractmethod
    def place(
        self, loc: Tensor, covariances: Tensor | None = None, weights: Tensor | None = None, data: Data | None = None
    ) -> None:
        """Start from a mixture that was fitted to latents of ``data``; what is not given stays.

        :param loc: means ``[K, d]``.
        :param covariances: ``[K, d, d]``, positive definite.
        :param weights: probabilities ``[K]``; ignored where weights are fixed.
        :param data: rows ``[N, *x_shape]`` and their latents ``[N, d]``, for priors that are made of data.
        """

    def component(self) -> Component:
        return self.weights.component(self.logits)

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        if component is None:
            return self.marginal()
        each = self.components().base_dist
        return DiagonalNormal(component @ each.loc, component @ each.scale)

    def marginal(self) -> dist.TorchDistribution:
        """p(z), the component summed out (Eq. 17), with event ``[d]``."""
        return MarginalMixture(self.component(), self.components())

    def log_joint(self, z: Tensor) -> Tensor:
        z = torch.as_tensor(z, dtype=self.logits.dtype, device=self.logits.device)
        # [..., 1, d] against [K, d]
        return self.components().log_prob(z.unsqueeze(-2)) + self.component().log_probs

    @torch.no_grad()
    def set_weights(self, weights: Tensor | None) -> None:
        """Set the weights ``[K]``, but where they are fixed or ``None``."""
        if weights is not None and self.weights.learned:
            self.logits.copy_(weights.clamp_min(1e-6).log())

    def extra_repr(self) -> str:
        return f"num_components={self.num_components}, dim={self.dim}, weights={self.weights!r}"
