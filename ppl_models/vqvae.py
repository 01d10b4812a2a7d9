"""Vector-quantized VAE, relaxed to a distribution over codes, and its baseline autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyro
from torch import Tensor

from ppl_models.base import FacetModel
from ppl_models.given.checks import check_kind, check_shape, check_size
from ppl_models.likelihood_base import Likelihood
from ppl_models.mfcvae import MFCVAE
from ppl_models.networks import ConvGrid
from ppl_models.priors.plain import Codebook, Flat


class VQVAE(FacetModel):
    r"""An image from a grid of codes (van den Oord et al., 2017; Sonderby et al., 2017).

    For each sample, at each place p of the grid, a code :math:`c_p \sim \mathrm{Uniform}(1, \ldots,
    K)`; then, from the vectors of the codes, :math:`x \mid c \sim p(x \mid f(e_{c_1}, \ldots,
    e_{c_P}))`. Implicitly, the embeddings form a mixture around the codes (*I Don't Need u*,
    appendix B); see :class:`~guides.codebook.CodebookGuide`.

    :param x_shape: shape of one image.
    :param num_codes: K; 128 in the authors' code.
    :param code_dim: length of a code's vector.
    :param network: by default ``ConvGrid()``, whose grid is a quarter as high and wide as x; see
        :class:`~ppl_models.networks.ConvGrid`.
    :param name: the facet's name.
    :raises ValueError: if a size is below 1, or the network does not fit.

    Example:
        >>> from ppl_models import VQVAE, ConvGrid
        >>> model = VQVAE((1, 28, 28), num_codes=16, code_dim=4, network=ConvGrid((8, 8)))
        >>> model.codebook.places
        49
        >>> model.generate(2).shape
        torch.Size([2, 1, 28, 28])
    """

    suitable_guide = "CodebookGuide"

    def __init__(
        self,
        x_shape: Sequence[int],
        num_codes: int,
        code_dim: int,
        likelihood: Likelihood | None = None,
        network: ConvGrid | None = None,
        name: str = "code",
    ) -> None:
        check_size("num_codes", num_codes)
        network = network if network is not None else ConvGrid()
        places = _places(network, x_shape)
        super().__init__(
            x_shape, {name: Codebook(num_codes, code_dim, places)}, likelihood, network
        )
        self.name = name

    @property
    def discrete(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def codebook(self) -> Codebook:
        return cast(Codebook, self.priors[self.name])

    def forward(self, x: Tensor | None = None, *, size: int = 1, num_samples: int = 1) -> Tensor:
        """The program. Sites: ``c_NAME`` ``[B, P, K]`` one-hot, ``z_NAME`` ``[B, d]``, ``x`` ``[B,
        *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``; without it, ``size`` samples are drawn.
        :param num_samples: L; above 1, codes and x gain a leading axis of draws, weighted 1 / L.
        """
        with self.plate(x, size), self.draws(num_samples):
            # c_p ~ Uniform(1, ..., K)
            c = pyro.sample(f"c_{self.name}", self.codebook.component())
            z = pyro.deterministic(f"z_{self.name}", self.codebook.vectors(c), event_dim=1)
            # x | z
            return pyro.sample("x", self.decode({self.name: z}), obs=x)


class Autoencoder(MFCVAE):
    r"""z without a prior: :math:`x \mid z`, the baseline of *I Don't Need u*'s appendix B. With
    :class:`~guides.codebook.PointGuide` it is a plain autoencoder, trained by the likelihood of its
    reconstructions.

    :param x_shape: shape of one image.
    :param code_dim: length of z at each place of the network's grid.
    :param name: the facet's name.
    :raises ValueError: if a size is below 1, or the network does not fit.

    Example:
        >>> import torch
        >>> from ppl_models import Autoencoder, ConvGrid
        >>> model = Autoencoder((1, 28, 28), code_dim=4, network=ConvGrid((8, 8)))
        >>> model.dims
        (196,)
        >>> model.decode({"code": torch.zeros(2, 196)}).mean.shape
        torch.Size([2, 1, 28, 28])
    """

    suitable_guide = "PointGuide"

    def __init__(
        self,
        x_shape: Sequence[int],
        code_dim: int,
        likelihood: Likelihood | None = None,
        network: ConvGrid | None = None,
        name: str = "code",
    ) -> None:
        network = network if network is not None else ConvGrid()
        prior = Flat(_places(network, x_shape) * check_size("code_dim", code_dim))
        super().__init__(x_shape, {name: prior}, likelihood, network)


def _places(network: ConvGrid, x_shape: Sequence[int]) -> int:
    """:raises ValueError: if ``network`` is no ``ConvGrid``, or does not fit images."""
    check_kind("network", network, ConvGrid, "a ConvGrid, such as ConvGrid((64, 64))")
    return network.places(check_shape(x_shape))
