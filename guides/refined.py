"""Posteriors that are improved for each datum after the encoder has picked them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from guides.families import Diagonal, Family
from ppl_models.checks import check_kind, check_size, number
from ppl_models.distributions import mean_and_log_variance

__all__ = ["Refined"]

# Of Adam, over few steps: its averages are short.
FAST, SLOW, TINY = 0.8, 0.9, 1e-8


class Refined(Family):
    r"""Another family, whose member for each datum is improved by steps on this datum's own bound
    (Kim et al., 2018, *Semi-amortized variational autoencoders*).

    .. math:: \lambda_0 = \mathrm{encoder}(x), \quad
              \lambda_{t + 1} = \lambda_t + \mathrm{Adam}\big(\nabla_\lambda
              \mathbb{E}_{q(z \mid \lambda_t)} [\log p(x, z) - \log q(z \mid \lambda_t)]\big)

    with clusters summed out, given their neighbours if these are, also where labels are known, and
    with the weights of the terms of z. What an encoder of limited size leaves of the bound is
    gained back; what the family itself leaves is not. The expectation is over fixed points, so that
    the same datum always has the same posterior, and a datum whose bound by them does not rise
    keeps the encoder's. The steps have no gradient: the objective's gradient passes to the encoder
    as if :math:`\lambda_T - \lambda_0` did not depend on it, which leaves out second derivatives.

    Each of the steps takes the decoder forwards and backwards at ``num_points`` points, in training
    and in predictions.

    :param family: the other family; diagonal Normals by default.
    :param num_steps: T.
    :param rate: length of the first step, in standard deviations of q for its mean and in
        logarithms for its variances; later ones are shorter, down to 0.
    :param num_points: points of the expectation, at least 2; twice the latents of all facets, if
        that is more.
    :raises ValueError: if ``family`` is none, a number is too small, or the rate not above 0.

    Example:
        >>> import torch
        >>> from guides import FullCovariance, Refined, VaDEGuide
        >>> from ppl_models import VAE
        >>> guide = VaDEGuide(VAE((6,), 3), family=Refined(FullCovariance(), num_steps=5))
        >>> guide.embed(torch.zeros(4, 6))["layer_1"].shape
        (4, 3)
    """

    def __init__(
        self,
        family: Family | None = None,
        num_steps: int = 10,
        rate: float = 0.1,
        num_points: int = 16,
    ) -> None:
        self.family = (
            Diagonal()
            if family is None
            else check_kind("family", family, Family, "a family, such as FullCovariance()")
        )
        self.num_steps = check_size("num_steps", num_steps)
        self.num_points = check_size("num_points", num_points)
        if num_points == 1:
            raise ValueError("num_points must be at least 2, so that they tell a variance, got 1")
        if not 0 < number(rate) < inf:
            raise ValueError(f"rate is the length of a step and must be above 0, got {rate!r}")
        self.rate = rate

    def head_size(self, dim: int) -> int:
        return self.family.head_size(dim)

    def layers(self, dim: int) -> nn.Module | None:
        return self.family.layers(dim)

    def posterior(self, head: Tensor, layers: nn.Module | None) -> dist.TorchDistribution:
        return self.family.posterior(head, layers)

    def improved(
        self,
        heads: dict[str, Tensor],
        dims: Mapping[str, int],
        bound: Callable[[dict[str, Tensor], int], Tensor],
    ) -> dict[str, Tensor]:
        start = {name: head.detach() for name, head in heads.items()}
        units = {name: _units(head, dims[name]) for name, head in start.items()}

        def value(offsets: dict[str, Tensor]) -> Tensor:
            moved = {name: start[name] + units[name] * offsets[name] for name in start}
            return bound(moved, self.num_points)

        with torch.no_grad():  # around torch.func.grad, which keeps no graph then
            none = {name: torch.zeros_like(head) for name, head in start.items()}
            offsets = self._climb(none, torch.func.grad(lambda at: value(at).sum()))
            better = (value(offsets) > value(none)).unsqueeze(-1)
            offsets = {name: torch.where(better, each, 0.0) for name, each in offsets.items()}
        return {name: head + units[name] * offsets[name] for name, head in heads.items()}

    def _climb(
        self,
        at: dict[str, Tensor],
        gradient: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Adam's steps uphill, for every number by itself, so that data do not touch each other."""
        first = second = {name: torch.zeros_like(each) for name, each in at.items()}
        for t in range(self.num_steps):
            slopes = gradient(at)
            first = {n: FAST * first[n] + (1 - FAST) * g for n, g in slopes.items()}
            second = {n: SLOW * second[n] + (1 - SLOW) * g * g for n, g in slopes.items()}
            rate = self.rate * (1 - t / self.num_steps) / (1 - FAST ** (t + 1))
            spread = 1 / (1 - SLOW ** (t + 1))
            at = {
                n: each + rate * first[n] / ((spread * second[n]).sqrt() + TINY)
                for n, each in at.items()
            }
        return at


def _units(head: Tensor, dim: int) -> Tensor:
    """In which a head's numbers are moved: standard deviations for the mean, else 1."""
    _, log_variance = mean_and_log_variance(head[..., : 2 * dim])
    rest = torch.ones_like(head[..., dim:])
    return torch.cat([(0.5 * log_variance).exp(), rest], -1)
