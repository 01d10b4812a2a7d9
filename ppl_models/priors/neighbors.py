"""A mixture whose clusters neighboring data tend to share."""

from __future__ import annotations

from math import inf
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.distributions import AveragedComponent, Component
from ppl_models.given.checks import check_kind, number
from ppl_models.priors.base import Mixture


class NeighborMixture(Mixture):
    r"""Another mixture, whose clusters form a Potts model on a graph of the data.

    .. math:: p(c_1, \ldots, c_N) \propto \prod_i \pi_{c_i}
              \exp\Big(\beta \sum_{i < j} w_{ij} \, 1[c_i = c_j]\Big), \quad
              z_i \mid c_i \sim p(z \mid c_i)

    A datum's cluster depends on others through its neighbors' alone:

    .. math:: p(c_i = k \mid c_{-i}) \propto \pi_k \exp(\beta n_{ik}), \quad
              n_{ik} = \sum_j w_{ij} 1[c_j = k]

    Programs describe one datum, so they take :math:`n_i`, the number of its neighbors in each
    cluster, as ``neighbors=``; under a posterior of the others, its mean. Summed over data, the
    gradient of their bound is that of the whole bound in all parameters but pi and beta, since each
    edge is counted from both of its ends. Without neighbors, as for new data, this is the mixture
    itself. :func:`~inference.fit_neighbors` trains with a graph.

    :param mixture: the mixture.
    :param strength: beta, at least 0, in nats for a neighbor of weight 1. ``fit_neighbors`` finds
        it, beginning here; from 0 the first clusters to be compared with their neighbors' are
        those that each datum has by itself.
    :raises ValueError: if ``mixture`` is none, or the strength is negative.

    :ivar strength: beta, a scalar.

    Example:
        >>> import torch
        >>> from ppl_models import GaussianMixture, NeighborMixture
        >>> prior = NeighborMixture(GaussianMixture(3, 2), strength=0.5)
        >>> counts = torch.tensor([[8.0, 2.0, 0.0]])  # of ten neighbors
        >>> prior.component(counts).probs.argmax().item()
        0
    """

    strength: Tensor
    accepts = ("neighbors",)

    def __init__(self, mixture: Mixture, strength: float = 0.0) -> None:
        torch.nn.Module.__init__(self)  # a mixture's parameters are those of the one inside
        check_kind("mixture", mixture, Mixture, "such as GaussianMixture(10, 5)")
        if not 0 <= number(strength) < inf:
            raise ValueError(f"strength is in nats for each neighbor, at least 0, got {strength!r}")
        self.mixture = mixture
        self.num_components, self.dim = mixture.num_components, mixture.dim
        self.weights = mixture.weights
        self.uses_posterior = mixture.uses_posterior
        self.register_buffer("strength", torch.tensor(float(strength)))

    @property
    def logits(self) -> Tensor:  # type: ignore[override]
        return self.mixture.logits

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        return self.mixture.loc

    @property
    def covariance(self) -> str:
        return getattr(self.mixture, "covariance", "diag")

    def component(self, neighbors: Tensor | None = None) -> Component:
        """p(c), or p(c given the neighbors' clusters).

        :param neighbors: number of neighbors in each cluster ``[..., K]``.
        """
        alone = self.mixture.component()
        if neighbors is None:
            return alone
        share = alone.log_probs
        given = (share + self.strength * neighbors).log_softmax(-1)
        # Less than 1 together where weights are averaged over their posterior.
        return AveragedComponent(given + share.logsumexp(-1))

    def components(self) -> dist.TorchDistribution:
        return self.mixture.components()

    def latent(self, component: Tensor | None = None, **given: Tensor) -> dist.TorchDistribution:
        return self.marginal(**given) if component is None else self.mixture.latent(component)

    def place(self, *fitted: Any, **options: Any) -> None:
        self.mixture.place(*fitted, **options)

    def bind(self, *guide: Any) -> None:
        self.mixture.bind(*guide)

    def extra_repr(self) -> str:
        return f"strength={self.strength.item():.4g}"
