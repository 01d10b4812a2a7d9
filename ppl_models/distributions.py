"""Two of Pyro's distributions, with densities written for latent vectors under enumeration.

Values and gradients are those of the parents; what changes is how many passes over memory a density takes. With K
components enumerated over a batch these two densities are most of a step's work outside the networks.
"""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from torch import Tensor

__all__ = ["Component", "DiagonalNormal"]

NO_SHAPE = torch.Size()


class DiagonalNormal(dist.Independent):
    """``Normal(loc, scale).to_event(1)``: batch ``[...]``, event ``[d]``.

    :param loc: means ``[..., d]``.
    :param scale: standard deviations ``[..., d]``.
    """

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(dist.Normal(loc, scale, validate_args=validate_args), 1, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        loc, scale = self.base_dist.loc, self.base_dist.scale
        # Constants are summed over d before they meet the batch: one pass over [K, B, d] less for each.
        constant = scale.log().sum(-1) + 0.5 * math.log(2 * math.pi) * loc.shape[-1]
        return -0.5 * ((value - loc) / scale).square().sum(-1) - constant

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        loc, scale = self.base_dist.loc, self.base_dist.scale
        # Not torch's own draw, which fills an empty tensor in place: that cannot be mapped over (torch.vmap).
        noise = torch.randn(self._extended_shape(sample_shape), dtype=loc.dtype, device=loc.device)
        return loc + scale * noise

    def expand(self, batch_shape: torch.Size, _instance: dist.Distribution | None = None) -> DiagonalNormal:
        shape = (*batch_shape, *self.event_shape)
        return DiagonalNormal(self.base_dist.loc.expand(shape), self.base_dist.scale.expand(shape), validate_args=False)


class Component(dist.OneHotCategorical):
    """One-hot choice among K components: batch ``[...]``, event ``[K]``.

    The log-density is linear in the value, so at a relaxed value (weights that sum to 1) it is the expectation over
    the component, and K enumerated values against a batch are one matrix product.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return torch.einsum("...k,...k->...", value, self.logits)
