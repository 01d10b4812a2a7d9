"""A normalizing flow over a mixture of Gaussians (*I Don't Need u*, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyro
from torch import Tensor

from ppl_models.base import FacetModel
from ppl_models.given.checks import check_kind
from ppl_models.likelihoods import Exact
from ppl_models.networks import AutoregressiveFlow, FlowDecoder
from ppl_models.priors.base import Mixture
from ppl_models.program import ENUMERATE


class GMMFlow(FacetModel):
    r"""An invertible map of a mixture: :math:`c \sim \mathrm{Cat}(\pi), z \mid c \sim
    \mathrm{Normal}(\mu_c, \Sigma_c), x = f(z)`.

    .. math::

        \log p(x) = \log p(z) + \log \left| \det \frac{\partial f^{-1}}{\partial x} \right|,
        \quad z = f^{-1}(x)

    (Eq. D.4.) The map is one-to-one: x given z is a point and has no density of its own. The
    determinant enters through q(z given x), also a point (:class:`~guides.flow.FlowGuide`). The
    ELBO is then log p(x) itself, so maximizing it is maximum likelihood; in the history
    ``reconstruction`` is 0 and ``kl_z_NAME`` is -log p(x).

    :param x_shape: shape of one sample.
    :param prior: the mixture, with as many dimensions as x; the paper uses 50 components.
    :param name: the facet's name.
    :raises ValueError: if the prior has no components, or not as many dimensions as x.

    Example:
        >>> import torch
        >>> from ppl_models import AutoregressiveFlow, GaussianMixture, GMMFlow
        >>> network = AutoregressiveFlow((16,), num_layers=2)
        >>> model = GMMFlow((5,), GaussianMixture(3, 5), network=network)
        >>> z, log_determinant = model.flow.invert(torch.zeros(4, 5))
        >>> z.shape, log_determinant.shape
        (torch.Size([4, 5]), torch.Size([4]))
    """

    suitable_guide = "FlowGuide"

    def __init__(
        self,
        x_shape: Sequence[int],
        prior: Mixture,
        network: AutoregressiveFlow | None = None,
        name: str = "cluster",
    ) -> None:
        check_kind("prior", prior, Mixture, "a mixture, such as GaussianMixture(50, 5)")
        if prior.uses_posterior:
            raise ValueError(
                "GMMFlow's posteriors are points, of which no components can be made: use "
                f"GaussianMixture({prior.num_components}, {prior.dim}), got {prior!r}"
            )
        network = AutoregressiveFlow() if network is None else network
        example = "an invertible network, AutoregressiveFlow(...)"
        check_kind("network", network, AutoregressiveFlow, example)
        super().__init__(x_shape, {name: prior}, Exact(), network)
        self.name = name

    @property
    def flow(self) -> FlowDecoder:
        """The map f and its inverse."""
        return cast(FlowDecoder, self.decoder)

    def forward(
        self,
        x: Tensor | None = None,
        *,
        size: int = 1,
        num_samples: int = 1,
        marginal: bool = False,
    ) -> Tensor:
        """The program. Sites: ``c_NAME`` ``[B, K]`` one-hot, ``z_NAME`` ``[B, d]``, ``x`` ``[B,
        *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``, whose z comes from a guide; without it, ``size``
            samples are drawn.
        :param marginal: omit the cluster: z is drawn from the full mixture.
        """
        prior, c = self.mixtures[self.name], None
        with self.plate(x, size):
            if not marginal:
                # c ~ Cat(pi)
                c = pyro.sample(f"c_{self.name}", prior.component(), infer=ENUMERATE)
            with self.draws(num_samples):
                z = pyro.sample(f"z_{self.name}", prior.latent(c))  # z | c ~ Normal(mu_c, Sigma_c)
            if x is None:
                mean = self.decode({self.name: z}).mean
                x = pyro.deterministic("x", mean, event_dim=len(self.x_shape))  # x = f(z)
        return x
