"""Variational Deep Embedding (Jiang et al., 2017): one facet of MFCVAE."""

from __future__ import annotations

from collections.abc import Sequence

from ppl_models.given.checks import check_kind
from ppl_models.likelihood_base import Likelihood
from ppl_models.mfcvae import MFCVAE
from ppl_models.networks import Architecture
from ppl_models.priors.base import Mixture


class VaDE(MFCVAE):
    r"""A single clustering: :math:`c \sim \mathrm{Cat}(\pi), z \mid c \sim \mathrm{Normal}(\mu_c,
    \Sigma_c), x \mid z`.

    This is :class:`~ppl_models.mfcvae.MFCVAE` with one facet and the shared architecture (MFCVAE,
    D.5), without VaDE's original stacked-autoencoder pre-training.

    :param x_shape: shape of one sample.
    :param prior: the mixture, for example ``GaussianMixture(50, 10)``.
    :param name: the facet's name.
    :raises ValueError: if the prior has no components, or as :class:`~ppl_models.MFCVAE`.

    Example:
        >>> from ppl_models import GaussianMixture, VaDE
        >>> model = VaDE((784,), GaussianMixture(10, 5))
        >>> list(model.mixtures)
        ['cluster']
        >>> model.generate(4, facet="cluster", cluster=3).shape
        torch.Size([4, 784])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        prior: Mixture,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
        name: str = "cluster",
    ) -> None:
        check_kind("prior", prior, Mixture, "a mixture, such as GaussianMixture(50, 10)")
        super().__init__(x_shape, {name: prior}, likelihood, network)
