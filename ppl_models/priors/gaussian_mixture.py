"""A mixture of Gaussians with learned parameters."""

from __future__ import annotations

from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ppl_models.distributions import DiagonalNormal, is_enumerated
from ppl_models.given.checks import check_one_of, number
from ppl_models.priors.base import Data, DirichletWeights, Mixture, check_parameter

# A float32 density cannot resolve components that are narrower than this standard deviation.
MIN_SCALE, MAX_SCALE = 1e-4, 1e10
# A sharp softplus, so that a standard deviation of 0.1 is far from the flat part of the curve.
SOFTPLUS_BETA = 10.0


class GaussianMixture(Mixture):
    r"""Mixture of Gaussians (MFCVAE, Eq. 1).

    .. math:: c \sim \mathrm{Cat}(\pi), \quad z \mid c \sim \mathrm{Normal}(\mu_c, \Sigma_c)

    Initially, covariances are ``scale ** 2`` times the identity, weights are uniform and means are
    drawn from a standard normal; :mod:`inference.initialization` sets better values from data.

    :param num_components: K, at least 1.
    :param dim: d, length of the latent vector.
    :param covariance: ``"diag"`` or ``"full"``; the latter is stored as a Cholesky factor.
    :param weights: ``"learned"``, ``"uniform"`` or ``DirichletWeights(...)``; see
        :class:`~ppl_models.priors.base.Mixture`.
    :param scale: initial standard deviation of every component; 0.1 in the paper.
    :raises ValueError: if a size is below 1, ``scale`` is not positive, or an option is unknown.

    Example:
        >>> import torch
        >>> from ppl_models import GaussianMixture
        >>> prior = GaussianMixture(10, 5)
        >>> prior.log_joint(torch.zeros(3, 5)).shape
        torch.Size([3, 10])
        >>> prior.sample(4, cluster=2).shape
        torch.Size([4, 5])
    """

    shown = (*Mixture.shown, "covariance")

    def __init__(
        self,
        num_components: int,
        dim: int,
        covariance: Literal["diag", "full"] = "diag",
        weights: str | DirichletWeights = "learned",
        scale: float = 0.1,
    ) -> None:
        super().__init__(num_components, dim, weights)
        self.covariance = check_one_of("covariance", covariance, ("diag", "full"))
        if not 2 * MIN_SCALE <= number(scale) <= MAX_SCALE:
            raise ValueError(
                "scale is the initial standard deviation and must be within "
                f"[{2 * MIN_SCALE}, {MAX_SCALE:g}], got {scale!r}"
            )
        self.loc: Tensor = nn.Parameter(torch.randn(num_components, dim))
        self.raw_scale = nn.Parameter(torch.empty(num_components, dim))
        if covariance == "full":
            self.lower = nn.Parameter(torch.zeros(num_components, dim, dim))
        self.place(covariances=(scale**2 * torch.eye(dim)).expand(num_components, dim, dim))

    @property
    def scale(self) -> Tensor:
        """Standard deviations ``[K, d]``; of full covariances the Cholesky factor's diagonal."""
        return MIN_SCALE + softplus(self.raw_scale, beta=SOFTPLUS_BETA)

    @property
    def scale_tril(self) -> Tensor:
        """Lower Cholesky factor of each covariance: ``[K, d, d]``."""
        diagonal = torch.diag_embed(self.scale)
        return diagonal if self.covariance == "diag" else self.lower.tril(-1) + diagonal

    def natural_parameters(self) -> Tensor:
        r""":math:`(\mu / \sigma^2, -1 / (2 \sigma^2))` of components: ``[K, 2 d]``, float64."""
        loc, precision = self.loc.double(), self.scale.double() ** -2
        return torch.cat([loc * precision, -0.5 * precision], -1)

    def components(self) -> dist.TorchDistribution:
        if self.covariance == "diag":
            return DiagonalNormal(self.loc, self.scale)
        return dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril)

    def latent(self, component: Tensor | None = None, **given: Tensor) -> dist.TorchDistribution:
        if component is None or is_enumerated(component) or self.covariance == "diag":
            return super().latent(component, **given)
        component = component.to(self.loc)
        factor = torch.einsum("...k,kij->...ij", component, self.scale_tril)
        return dist.MultivariateNormal(component @ self.loc, scale_tril=factor)

    @torch.no_grad()
    def place(
        self,
        loc: Tensor | None = None,
        covariances: Tensor | None = None,
        weights: Tensor | None = None,
        data: Data | None = None,
    ) -> None:
        """Set the mixture's parameters, from all but the data; of covariances a diagonal mixture
        reads the diagonals.

        :raises ValueError: if shapes do not fit, numbers are not finite, or a covariance that is
            read is not positive definite.
        """
        (K, d), full = self.loc.shape, self.covariance == "full"
        if loc is not None:
            check_parameter("loc", loc, (K, d))
        if covariances is not None:
            check_parameter("covariances", covariances, (K, d, d))
            variances = torch.diagonal(covariances, dim1=-2, dim2=-1)
            factor, fault = torch.linalg.cholesky_ex(covariances if full else covariances[:0])
            if full and not torch.allclose(covariances, covariances.mT):
                raise ValueError("covariances must be symmetric: give (S + S.mT) / 2")
            if bool(fault.any()) or not bool((variances > 0).all()):
                raise ValueError(
                    "covariances must be positive definite: add a constant to their diagonals"
                )
        self.set_weights(weights)
        if loc is not None:
            self.loc.copy_(loc)
        if covariances is not None:
            scale = variances.sqrt()
            if full:
                self.lower.copy_(factor.tril(-1))
                scale = torch.diagonal(factor, dim1=-2, dim2=-1)
            scaled = SOFTPLUS_BETA * (scale - MIN_SCALE).clamp_min(MIN_SCALE)
            # The inverse of the softplus.
            self.raw_scale.copy_((scaled + (-torch.expm1(-scaled)).log()) / SOFTPLUS_BETA)
