"""Variational Ladder Autoencoder for Clustering (Willetts et al., 2019) and its special cases."""

from __future__ import annotations

from collections.abc import Sequence

from ppl_models.given.checks import check_counts
from ppl_models.likelihood_base import Likelihood
from ppl_models.mfcvae import MFCVAE
from ppl_models.networks import Architecture, MLPLadder
from ppl_models.priors.base import Prior
from ppl_models.priors.gaussian_mixture import GaussianMixture
from ppl_models.priors.plain import StandardNormal


class VLAC(MFCVAE):
    r"""A ladder of latent layers, each with its own clustering or with a standard normal prior.

    The generative process (section 2), for each sample:

    * for each layer l, a cluster :math:`y_l \sim \mathrm{Cat}(1 / K_l)`,
    * and its latent vector :math:`z_l \mid y_l \sim \mathrm{Normal}(\mu_{y_l}, \sigma_{y_l})`, or
      :math:`z_l \sim \mathrm{Normal}(0, I)` in a plain layer;
    * then, down the ladder, :math:`x \mid z \sim p(x \mid f(z_1, \ldots, z_L))` (Eq. 1 to 3).

    This is :class:`~ppl_models.mfcvae.MFCVAE` with uniform weights; VLAC differs in inference, by
    :class:`~guides.ladder.LadderGuide`. The facets are called ``layer_1`` (shallow) to ``layer_L``.

    :param x_shape: shape of one sample.
    :param num_components: K of each layer, shallow to deep; 1 makes the layer plain.
    :param dims: length of each layer's latent vector.
    :param network: a ladder with one rung per layer; fully connected by default.
    :param scale: initial standard deviation of every component.
    :raises ValueError: if a size is below 1, or ``dims`` and ``num_components`` differ in length.

    Example:
        >>> from ppl_models import VLAC
        >>> model = VLAC((784,), num_components=(10, 1), dims=(5, 8))
        >>> list(model.priors), list(model.mixtures)
        (['layer_1', 'layer_2'], ['layer_1'])
        >>> model.generate(4, facet="layer_1", cluster=3).shape
        torch.Size([4, 784])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        num_components: Sequence[int],
        dims: Sequence[int],
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
        scale: float = 0.1,
    ) -> None:
        num_components = check_counts("num_components", num_components, "(1, 5, 50, 1)")
        dims = check_counts("dims", dims, "(5, 5, 5, 10)")
        if len(num_components) != len(dims):
            raise ValueError(
                "num_components and dims hold one number per layer and must be equally many, got "
                f"{num_components} and {dims}"
            )
        layers = zip(num_components, dims, strict=True)
        facets = {f"layer_{number}": _layer(K, d, scale) for number, (K, d) in enumerate(layers, 1)}
        if network is None and len(facets) == 1:
            network = MLPLadder(rungs=[1])
        super().__init__(x_shape, facets, likelihood, network)


class VLAE(VLAC):
    r"""Variational ladder autoencoder (Zhao et al., 2017): every layer plain, :math:`z_l \sim
    \mathrm{Normal}(0, I)`.

    :param dims: length of each layer's latent vector, shallow to deep.

    Example:
        >>> from ppl_models import VLAE
        >>> model = VLAE((784,), dims=(4, 8))
        >>> list(model.priors), model.dims
        (['layer_1', 'layer_2'], (4, 8))
        >>> model.generate(3).shape
        torch.Size([3, 784])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        dims: Sequence[int],
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
    ) -> None:
        dims = check_counts("dims", dims, "(5, 5, 5, 10)")
        super().__init__(x_shape, [1] * len(dims), dims, likelihood, network)


class GMDGM(VLAC):
    r"""Gaussian-mixture deep generative model, VLAC's baseline: one layer, :math:`y, z \mid y, x
    \mid z`.

    :param num_components: K.
    :param dim: length of the latent vector.

    Example:
        >>> from ppl_models import GMDGM
        >>> model = GMDGM((784,), num_components=10, dim=5)
        >>> model.generate(4, facet="layer_1", cluster=3).shape
        torch.Size([4, 784])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        num_components: int,
        dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
        scale: float = 0.1,
    ) -> None:
        super().__init__(x_shape, [num_components], [dim], likelihood, network, scale)


class VAE(VLAC):
    r"""Variational autoencoder (Kingma and Welling, 2014): one plain layer, :math:`z \sim
    \mathrm{Normal}(0, I)`.

    Trained under ``Constant(beta)`` it is the beta-VAE (Higgins et al., 2017).

    :param dim: length of the latent vector.

    Example:
        >>> import torch
        >>> from ppl_models import VAE
        >>> model = VAE((784,), 16)
        >>> model.generate(3).shape
        torch.Size([3, 784])
        >>> model.decode({"layer_1": torch.zeros(2, 16)}).mean.shape
        torch.Size([2, 784])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
    ) -> None:
        super().__init__(x_shape, [1], [dim], likelihood, network)


def _layer(num_components: int, dim: int, scale: float) -> Prior:
    if num_components == 1:
        return StandardNormal(dim)
    return GaussianMixture(num_components, dim, weights="uniform", scale=scale)
