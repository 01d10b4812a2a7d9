"""Distributions of a latent vector that is standard normal noise, transformed."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any, ClassVar, cast

import numpy as np
import pyro.distributions as dist
import torch
from pyro.distributions.util import broadcast_shape
from scipy.linalg import solve_triangular
from scipy.stats import norm, qmc
from torch import Tensor, nn

from ppl_models.distributions import NO_SHAPE, DiagonalNormal

# Points that the mean and variance of what has no formula for them are averaged over.
POINTS = 256
# How many of them at once; fewer for large batches, which are so many rows at most.
MOST_AT_ONCE, ROWS_AT_ONCE = 16, 65_536
# Bound of a layer's log-scales, to avoid overflow.
MAX_LOG_SCALE = 3.0


def normal_points(number: int, dim: int, like: Tensor) -> Tensor:
    """Points of a fixed quasi-random sequence, standard normal: ``[number, dim]``; each coordinate
    has the mean 0 and the variance 1 exactly, and no two are correlated if there are more points
    than coordinates.

    :param number: at least 2.
    """
    return torch.as_tensor(_points(number, dim)).to(like)


@cache
def _points(number: int, dim: int) -> np.ndarray:
    """Computed once, and outside of what PyTorch records or transforms."""
    points = norm.ppf(qmc.Halton(dim, seed=0).random(number))
    points -= points.mean(0)
    if number <= dim:
        return points / points.std(0)
    factor = np.linalg.cholesky(points.T @ points / number)
    return solve_triangular(factor, points.T, lower=True).T


class FullNormal(dist.MultivariateNormal):
    """``MultivariateNormal(loc, scale_tril=scale_tril)``, also under ``torch.vmap``.

    :param loc: means ``[..., d]``.
    :param scale_tril: lower triangular, with a positive diagonal, ``[..., d, d]``.
    """

    def from_noise(self, noise: Tensor) -> Tensor:
        """z ``[..., d]`` for standard normal noise of the same shape."""
        return self.loc + (self._unbroadcasted_scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        # torch's own draw fills an empty tensor in place, which torch.vmap does not support.
        shape = self._extended_shape(sample_shape)
        return self.from_noise(torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device))

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> FullNormal:
        shape = (*batch_shape, *self.event_shape)
        factor = self.scale_tril.expand(*shape, self.event_shape[0])
        return FullNormal(self.loc.expand(shape), scale_tril=factor, validate_args=False)


class AutoregressiveNormal(dist.TorchDistribution):
    """A diagonal Normal, and layers that scale and shift each coordinate by those before it.

    :param base: batch ``[...]``, event ``[d]``.
    :param networks: of the layers; each maps z ``[..., d]`` and the features to shifts and
        logarithms of scales ``[..., d]``, which depend on the coordinates before, in the order
        ``network.permutation``.
    :param features: ``[..., h]``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = dist.constraints.real_vector
    has_rsample = True

    def __init__(self, base: DiagonalNormal, networks: nn.ModuleList, features: Tensor) -> None:
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)
        self.base, self.networks, self.features = base, networks, features
        self._drawn: tuple[Tensor, Tensor, bool] | None = None

    def from_noise(self, noise: Tensor) -> Tensor:
        """z ``[..., d]`` for standard normal noise of the same shape."""
        return self._from_start(self.base.from_noise(noise))

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return self._from_start(self.base.rsample(sample_shape))

    def _from_start(self, start: Tensor) -> Tensor:
        z, log_scales = self._forward(start)
        # The density of its latest draw needs no inversion.
        self._drawn = z, self.base.log_prob(start) - log_scales, torch.is_grad_enabled()
        return z

    def log_prob(self, value: Tensor) -> Tensor:
        if self._drawn is not None and value is self._drawn[0]:
            _, log_prob, with_gradient = self._drawn
            if with_gradient or not torch.is_grad_enabled():
                return log_prob
        shape = broadcast_shape(value.shape, self.batch_shape + self.event_shape)
        start, log_scales = self._invert(value.expand(shape))
        return self.base.log_prob(start) - log_scales

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> AutoregressiveNormal:
        features = self.features.expand(*batch_shape, self.features.shape[-1])
        return type(self)(self.base.expand(batch_shape), self.networks, features)

    @property
    def mean(self) -> Tensor:
        return self._moments[0]

    @property
    def variance(self) -> Tensor:
        return self._moments[1]

    @cached_property
    @torch.no_grad()
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of z by points of a quasi-random sequence, without a gradient."""
        # About a point among them: means may be large beside deviations.
        origin = self.from_noise(torch.zeros_like(self.base.mean))
        noise = normal_points(POINTS, self.event_shape[0], self.features)
        first = second = torch.zeros_like(self.base.mean)
        for points in noise.split(self._at_once()):
            shape = (len(points), *[1] * len(self.batch_shape), *self.event_shape)
            z = self.from_noise(points.view(shape).expand(-1, *self.batch_shape, -1)) - origin
            first, second = first + z.sum(0) / POINTS, second + z.square().sum(0) / POINTS
        return origin + first, second - first.square()

    def _at_once(self) -> int:
        """How many points are mapped at once: fewer in large batches."""
        if torch.compiler.is_exporting():  # a program that is exported has no loops
            return POINTS
        rows = max(1, self.batch_shape.numel())
        return max(1, min(MOST_AT_ONCE, ROWS_AT_ONCE // rows))

    def _forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer's z, and the sum of all logarithms of scales ``[...]``."""
        total = z.new_zeros(z.shape[:-1])
        for network in self.networks:
            shift, log_scale = self._layer(network, z)
            z, total = log_scale.exp() * z + shift, total + log_scale.sum(-1)
        return z, total

    def _invert(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The same, from the last layer's z to the first one's."""
        total, places = z.new_zeros(z.shape[:-1]), torch.arange(z.shape[-1], device=z.device)
        for network in reversed(self.networks):
            known = torch.zeros_like(z)
            for place in cast(Tensor, network.permutation).tolist():
                shift, log_scale = self._layer(network, known)
                value = (z - shift) * (-log_scale).exp()
                known = torch.where(places == place, value, known)
            total = total + self._layer(network, known)[1].sum(-1)
            z = known
        return z, total

    def _layer(self, network: nn.Module, z: Tensor) -> tuple[Tensor, Tensor]:
        shift, raw = network(z, self.features)
        return shift, MAX_LOG_SCALE * torch.tanh(raw / MAX_LOG_SCALE)
