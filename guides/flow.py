"""Latents from x by running an invertible decoder backwards."""

from __future__ import annotations

from typing import cast

import pyro.distributions as dist
import torch
from torch import Tensor

from guides.marginal import MarginalGuide
from ppl_models.base import FacetModel
from ppl_models.flow import GMMFlow
from ppl_models.networks import Encoder, NoEncoder

__all__ = ["FlowGuide"]


class FlowGuide(MarginalGuide):
    r"""z is the point :math:`f^{-1}(x)`: the exact posterior of a
    :class:`~ppl_models.flow.GMMFlow`.

    At any precision of the runner the map is run as its parameters are stored: its Jacobian is a
    part of the density. As a density of z it is that of a point under the map, so that log q(z
    given x) is minus the log-determinant of :math:`\partial f^{-1} / \partial x` and the ELBO is
    log p(x). It has nothing to learn: all parameters are the model's.

    :param model: a :class:`~ppl_models.flow.GMMFlow`.
    :raises ValueError: if the model is another.

    Example:
        >>> import torch
        >>> from guides import FlowGuide
        >>> from ppl_models import AutoregressiveFlow, GaussianMixture, GMMFlow
        >>> network = AutoregressiveFlow((16,), num_layers=2)
        >>> guide = FlowGuide(GMMFlow((5,), GaussianMixture(3, 5), network=network))
        >>> guide.predict_proba(torch.zeros(4, 5))["cluster"].shape
        (4, 3)
    """

    deterministic = True

    def __init__(self, model: FacetModel, num_samples: int = 1) -> None:
        if not isinstance(model, GMMFlow):
            raise ValueError(
                "FlowGuide is for GMMFlow, whose decoder can be run backwards, got "
                f"{type(model).__name__}"
            )
        super().__init__(model, num_samples)

    def build_encoder(self) -> Encoder:
        return NoEncoder()

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        return dist.Delta(head[..., :-1], -head[..., -1], event_dim=1)

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        model = cast(GMMFlow, self.model)
        z, log_determinant = model.flow.invert(prepared)
        return {model.name: torch.cat([z, log_determinant.unsqueeze(-1)], -1)}
