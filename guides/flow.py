"""Latents from x by inverting the decoder."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import register_kl

from guides.vade import MarginalGuide
from ppl_models.base import FacetModel
from ppl_models.flow import GMMFlow
from ppl_models.networks import Encoder


class MappedPoint(dist.Delta):
    """A point under an invertible map, whose density of z holds the map's log-determinant."""


@register_kl(MappedPoint, dist.Distribution)
def _kl_of_mapped_point(q: MappedPoint, p: dist.TorchDistribution) -> Tensor:
    return q.log_density - p.log_prob(q.v)  # Pyro's, of a Delta, is without the density


class FlowGuide(MarginalGuide):
    r"""z is the point :math:`f^{-1}(x)`, the exact posterior, without parameters of the guide.

    log q(z given x) is minus the log-determinant of :math:`\partial f^{-1} / \partial x`, and the
    ELBO is log p(x). The map runs in the precision of its parameters, whatever the runner's, since
    its Jacobian is part of the density.

    :param model: a :class:`~ppl_models.flow.GMMFlow`.
    :raises ValueError: if the model is not a GMMFlow.

    Example:
        >>> import torch
        >>> from guides import FlowGuide
        >>> from ppl_models import AutoregressiveFlow, GaussianMixture, GMMFlow
        >>> network = AutoregressiveFlow((16,), num_layers=2)
        >>> guide = FlowGuide(GMMFlow((5,), GaussianMixture(3, 5), network=network))
        >>> guide.predict_proba(torch.zeros(4, 5))["cluster"].shape
        (4, 3)
    """

    kind = GMMFlow
    model: GMMFlow
    deterministic = True

    def __init__(self, model: FacetModel) -> None:
        super().__init__(model)

    def build_encoder(self) -> Encoder:
        return Encoder()

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        return MappedPoint(head[..., :-1], -head[..., -1], event_dim=1)

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        z, log_determinant = self.model.flow.invert(prepared)
        return {self.model.name: torch.cat([z, log_determinant.unsqueeze(-1)], -1)}
