"""How the members' posteriors of a group's content are combined (ML-VAE, 3.3, and supplement 1).

Groups are numbered from 0, ``[B]``. Sums run over these numbers, in B slots of which the first are
used, so that no size is copied to the host.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.configurable import Options
from ppl_models.distributions import NO_SHAPE, DiagonalNormal
from ppl_models.given.labels import group_sizes

__all__ = ["Evidence", "GroupMean", "MixtureOfNormals", "ProductOfNormals"]


def product_of_normals(loc: Tensor, log_variance: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of the normalized product of each group's densities (Eq. 7), by slot.

    Log-precisions are added by logsumexp and means are averaged with weights that sum to one, so
    that very unequal or very many precisions neither overflow nor underflow. Unused slots get a
    standard normal.

    :param loc: means of the rows, ``[..., B, d]``.
    :param log_variance: ``[..., B, d]``.
    :param group: ``[B]``.
    :returns: both ``[..., B, d]``, by slot.
    """
    log_precision = -log_variance
    index = group[:, None].expand_as(loc)
    lowest = torch.full_like(loc, -torch.inf)
    highest = lowest.scatter_reduce(-2, index, log_precision.detach(), "amax")
    shares = (log_precision - highest.gather(-2, index)).exp()
    total = torch.zeros_like(loc).index_add(-2, group, shares)
    used = total > 0
    total = torch.where(used, total, 1.0)
    mean = torch.zeros_like(loc).index_add(-2, group, shares / total.gather(-2, index) * loc)
    return mean, -torch.where(used, highest + total.log(), 0.0)


class Evidence(Options):
    """Base of the rules that combine the members' Normals into the posterior of the content."""

    @abstractmethod
    def by_group(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        """q(content given the group) by slot: batch ``[B]``, event ``[d]``.

        :param loc: means of the rows, ``[B, d]``.
        :param log_variance: ``[B, d]``.
        :param group: ``[B]``.
        """

    @abstractmethod
    def by_member(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        """The same, once for each row: batch ``[B]``, event ``[d]``; draws are independent."""


class ProductOfNormals(Evidence):
    r"""The normalized product of the members' Normals: precisions add up (Eq. 7).

    .. math::

        \Sigma_G^{-1} = \sum_i \Sigma_i^{-1}, \quad
        \mu_G = \Sigma_G \sum_i \Sigma_i^{-1} \mu_i

    Example:
        >>> import torch
        >>> from guides import ProductOfNormals
        >>> loc, log_variance = torch.tensor([[1.0], [3.0], [5.0]]), torch.zeros(3, 1)
        >>> group = torch.tensor([0, 0, 1])
        >>> q = ProductOfNormals().by_member(loc, log_variance, group)
        >>> q.mean.flatten(), q.variance.flatten()
        (tensor([2., 2., 5.]), tensor([0.5000, 0.5000, 1.0000]))
    """

    def by_group(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        mean, log_variance = product_of_normals(loc, log_variance, group)
        return DiagonalNormal(mean, (0.5 * log_variance).exp())

    def by_member(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        product = self.by_group(loc, log_variance, group)
        return DiagonalNormal(product.mean[group], product.stddev[group])


class GroupMean(Evidence):
    """The mean over members whose Normals are all the same, as with a table entry per group."""

    def by_group(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        share = (1 / group_sizes(group, loc.dtype))[group][:, None]
        mean, log_variance = (
            torch.zeros_like(loc).index_add(0, group, share * each) for each in (loc, log_variance)
        )
        return DiagonalNormal(mean, (0.5 * log_variance).exp())

    def by_member(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        return DiagonalNormal(loc, (0.5 * log_variance).exp())


class MixtureOfNormals(Evidence):
    r"""The equally weighted mixture of the members' Normals: :math:`q(c) = \frac{1}{|G|} \sum_i
    \mathrm{Normal}(c; \mu_i, \Sigma_i)` (supplement 1).

    With one draw per member there are ``|G|`` draws, as in the paper's experiments (supplement, Eq.
    3). A density compares every row with every draw, so its cost is quadratic in the batch size.

    Example:
        >>> import torch
        >>> from guides import GroupedGuide, MixtureOfNormals
        >>> from ppl_models import MLVAE
        >>> model = MLVAE((20,), content_dim=4, style_dim=2)
        >>> guide = GroupedGuide(model, evidence=MixtureOfNormals())
        >>> guide.embed(torch.rand(3, 20), group=[0, 0, 1])["content"].shape
        (3, 4)
    """

    def by_group(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        slots = torch.arange(len(group), device=group.device)
        return GroupMixture(loc, (0.5 * log_variance).exp(), group, slots)

    def by_member(self, loc: Tensor, log_variance: Tensor, group: Tensor) -> dist.TorchDistribution:
        return GroupMixture(loc, (0.5 * log_variance).exp(), group, group)


class GroupMixture(dist.TorchDistribution):
    """For each of M variables the mixture of one group's Normals: batch ``[M]``, event ``[d]``.

    Draws are differentiable: a member is chosen at random and its Normal is reparameterized; the
    weights are constant. A slot without members has a standard normal.

    :param loc: means of the rows, ``[B, d]``.
    :param scale: standard deviations, ``[B, d]``.
    :param group: the rows' groups, ``[B]``.
    :param of: the group of each variable, ``[M]``.
    """

    arg_constraints: dict = {}  # noqa: RUF012
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Tensor, scale: Tensor, group: Tensor, of: Tensor, leading: torch.Size = NO_SHAPE
    ) -> None:
        self.loc, self.scale, self.group, self.of = loc, scale, group, of
        super().__init__(torch.Size([*leading, len(of)]), loc.shape[-1:], validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> GroupMixture:
        return GroupMixture(self.loc, self.scale, self.group, self.of, torch.Size(batch_shape[:-1]))

    @property
    def mean(self) -> Tensor:
        return self._of_variables(self._means(self.loc))

    @property
    def variance(self) -> Tensor:
        # Of what is left beside the group's mean: means may be large beside deviations.
        rest = self.loc - self._means(self.loc)[self.group]
        variances = self._means(rest.square() + self.scale.square())
        unused = group_sizes(self.group)[:, None] == 0
        return self._of_variables(torch.where(unused, 1.0, variances))

    def _means(self, values: Tensor) -> Tensor:
        """Means of the rows' values ``[B, d]`` over each group, in as many slots."""
        sizes = group_sizes(self.group, values.dtype).clamp_min(1)
        return torch.zeros_like(values).index_add(0, self.group, values) / sizes[:, None]

    def _of_variables(self, values: Tensor) -> Tensor:
        """Values of groups ``[B, d]``, for each variable."""
        return values[self.of].expand(*self.batch_shape, -1)

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        shape = self._extended_shape(sample_shape)
        sizes = group_sizes(self.group, torch.float64)
        first = sizes.cumsum(0) - sizes
        uniform = torch.rand(shape[:-1], dtype=torch.float64, device=self.loc.device)
        place = first[self.of] + (uniform * sizes[self.of]).floor().clamp_max(sizes[self.of] - 1)
        in_order = self.group.argsort(stable=True)
        member = in_order[place.long().clamp(0, len(in_order) - 1)]
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        drawn = self.loc[member] + self.scale[member] * noise
        return torch.where((sizes[self.of] > 0)[:, None], drawn, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        sizes = group_sizes(self.group, self.loc.dtype)[self.of]
        normal = dist.Normal(self.loc, self.scale, validate_args=False)
        each = normal.log_prob(value.unsqueeze(-2)).sum(-1)  # [..., M, B]
        theirs = self.of[:, None] == self.group
        log_sum = torch.where(theirs, each, -torch.inf).logsumexp(-1) - sizes.clamp_min(1).log()
        standard = dist.Normal(0.0, 1.0, validate_args=False).log_prob(value).sum(-1)
        return torch.where(sizes > 0, log_sum, standard)
