"""Priors of one facet: what is drawn before the decoder sees it.

A prior has two steps, :meth:`Prior.component` (the discrete draw of a mixture, or nothing) and
:meth:`Prior.latent` (the latent vector given the component). Models call the two; they never ask which prior it is.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softplus

from ppl_models.checks import check_count, check_one_of
from ppl_models.configurable import Configurable
from ppl_models.distributions import Component, DiagonalNormal

__all__ = ["GaussianMixture", "Prior", "StandardNormal"]

# Below this standard deviation a component is a spike that a float32 density cannot resolve.
MIN_SCALE = 1e-4
# A sharp softplus, so that a standard deviation of 0.1 is still far from the flat end of the curve.
SOFTPLUS_BETA = 10.0


class Prior(Configurable, nn.Module):
    """Prior of one facet's latent vector ``z`` with ``dim`` entries and ``num_components`` components.

    :ivar dim: length d of the latent vector.
    :ivar num_components: K; 1 where the prior has no discrete variable.
    :cvar is_mixture: whether the facet has a discrete variable, and so a clustering.
    """

    is_mixture: bool = False
    dim: int
    num_components: int

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


class StandardNormal(Prior):
    """z ~ Normal(0, I): the prior of a plain VAE, without a discrete variable.

    :param dim: length of the latent vector.
    :raises ValueError: if ``dim`` is below 1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = check_count("dim", dim)
        self.num_components = 1
        self.register_buffer("loc", torch.zeros(dim), persistent=False)
        self.loc: Tensor

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        return DiagonalNormal(self.loc, torch.ones_like(self.loc))

    def log_joint(self, z: Tensor) -> Tensor:
        z = torch.as_tensor(z, dtype=self.loc.dtype, device=self.loc.device)
        return self.latent().log_prob(z).unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GaussianMixture(Prior):
    r"""Mixture of Gaussians (MFCVAE, Eq. 1), one facet's clustering.

    .. math:: c \sim \mathrm{Cat}(\pi), \quad z \mid c \sim \mathrm{Normal}(\mu_c, \Sigma_c)

    Covariances start at ``scale ** 2`` times the identity, weights uniform, means drawn from a standard normal;
    :mod:`inference.initialization` sets better ones from data.

    :param num_components: K, at least 1.
    :param dim: d, length of the latent vector.
    :param covariance: ``"diag"`` or ``"full"``; the latter is held as a Cholesky factor.
    :param weights: ``"learned"`` or ``"uniform"`` (fixed at 1 / K).
    :param scale: initial standard deviation of every component; the paper's variance is 0.01, so 0.1.
    :raises ValueError: if a size is below 1, ``scale`` is not positive, or an option is unknown.
    """

    is_mixture = True

    def __init__(
        self,
        num_components: int,
        dim: int,
        covariance: Literal["diag", "full"] = "diag",
        weights: Literal["learned", "uniform"] = "learned",
        scale: float = 0.1,
    ) -> None:
        super().__init__()
        self.num_components = check_count("num_components", num_components)
        self.dim = check_count("dim", dim)
        self.covariance = check_one_of("covariance", covariance, ("diag", "full"))
        self.weights = check_one_of("weights", weights, ("learned", "uniform"))
        if not scale > MIN_SCALE:
            raise ValueError(f"scale is the initial standard deviation and must exceed {MIN_SCALE}, got {scale}")
        self.loc = nn.Parameter(torch.randn(num_components, dim))
        self.raw_scale = nn.Parameter(torch.empty(num_components, dim))
        self.logits = nn.Parameter(torch.zeros(num_components), requires_grad=weights == "learned")
        if covariance == "full":
            self.lower = nn.Parameter(torch.zeros(num_components, dim, dim))
        self.initialize(covariances=(scale**2 * torch.eye(dim)).expand(num_components, dim, dim))

    @property
    def scale(self) -> Tensor:
        """Positive ``[K, d]``: standard deviations (diagonal) or the Cholesky factor's diagonal (full)."""
        return MIN_SCALE + softplus(self.raw_scale, beta=SOFTPLUS_BETA)

    @property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of each covariance: ``[K, d, d]``."""
        diagonal = torch.diag_embed(self.scale)
        return diagonal if self.covariance == "diag" else self.lower.tril(-1) + diagonal

    def component(self) -> dist.TorchDistribution:
        return Component(logits=self.logits)

    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        if component is None:
            return self.marginal()
        loc = component @ self.loc
        if self.covariance == "diag":
            return DiagonalNormal(loc, component @ self.scale)
        return dist.MultivariateNormal(loc, scale_tril=torch.einsum("...k,kij->...ij", component, self.scale_tril))

    def components(self) -> dist.TorchDistribution:
        """p(z given c) for every c: batch ``[K]``, event ``[d]``."""
        if self.covariance == "diag":
            return DiagonalNormal(self.loc, self.scale)
        return dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril)

    def marginal(self) -> dist.TorchDistribution:
        """p(z), the component summed out (Eq. 17), with event ``[d]``."""
        return dist.MixtureSameFamily(dist.Categorical(logits=self.logits), self.components())

    def log_joint(self, z: Tensor) -> Tensor:
        z = torch.as_tensor(z, dtype=self.loc.dtype, device=self.loc.device)
        # [..., 1, d] against [K, d]
        return self.components().log_prob(z.unsqueeze(-2)) + log_softmax(self.logits, -1)

    @torch.no_grad()
    def initialize(
        self, loc: Tensor | None = None, covariances: Tensor | None = None, weights: Tensor | None = None
    ) -> None:
        """Set the mixture's parameters; what is not given stays.

        :param loc: means ``[K, d]``.
        :param covariances: ``[K, d, d]``, positive definite; a diagonal mixture keeps their diagonals.
        :param weights: probabilities ``[K]``; ignored where weights are fixed.
        """
        if loc is not None:
            self.loc.copy_(loc)
        if weights is not None and self.weights == "learned":
            self.logits.copy_(weights.clamp_min(1e-6).log())
        if covariances is not None:
            variances = torch.diagonal(covariances, dim1=-2, dim2=-1)
            scale = variances.sqrt()
            if self.covariance == "full":
                factor = torch.linalg.cholesky(covariances)
                self.lower.copy_(factor.tril(-1))
                scale = torch.diagonal(factor, dim1=-2, dim2=-1)
            self.raw_scale.copy_(_inverse_softplus((scale - MIN_SCALE).clamp_min(MIN_SCALE)))

    def extra_repr(self) -> str:
        return (
            f"num_components={self.num_components}, dim={self.dim}, "
            f"covariance={self.covariance!r}, weights={self.weights!r}"
        )


def _inverse_softplus(value: Tensor) -> Tensor:
    scaled = SOFTPLUS_BETA * value
    return (scaled + torch.log(-torch.expm1(-scaled))) / SOFTPLUS_BETA
