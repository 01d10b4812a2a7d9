"""Families of q(z given x): what the numbers of an encoder's head stand for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import cast

import pyro.distributions as dist
import torch
from pyro.nn import ConditionalAutoRegressiveNN
from torch import Tensor, nn

from ppl_models.configurable import Options
from ppl_models.distributions import diagonal_normal, mean_and_log_variance
from ppl_models.given.checks import check_counts, check_kind, check_positive, check_size
from ppl_models.posteriors import AutoregressiveNormal, FullNormal


class Family(Options):
    """A family of distributions of a facet's latent vector; a head's numbers pick one of them.

    The first 2 d are a mean and logarithms of variances, at least before what follows them.
    """

    @abstractmethod
    def head_size(self, dim: int) -> int:
        """How many numbers the encoder gives for a latent vector of length ``dim``."""

    @abstractmethod
    def posterior(self, head: Tensor, layers: nn.Module | None) -> dist.TorchDistribution:
        """From a head ``[..., size]`` to a distribution with batch ``[...]`` and event ``[d]``.

        :param layers: of this facet, as :meth:`layers` made them.
        """

    def layers(self, dim: int) -> nn.Module | None:
        """Learned layers that all data share, if the family has such."""
        return None

    def improved(
        self, heads: Heads, dims: Mapping[str, int], bound: Callable[[Heads, int], Tensor]
    ) -> Heads:
        """Heads ``[B, size]`` by facet, perhaps improved beyond what the encoder gave.

        :param dims: d of each facet.
        :param bound: of each datum ``[B]``, in nats, from heads and a number of points.
        """
        return heads


class Diagonal(Family):
    r""":math:`q(z \mid x) = \mathrm{Normal}(\mu(x), \mathrm{diag} \, \sigma^2(x))`, the usual one.

    Example:
        >>> import torch
        >>> from guides import Diagonal
        >>> Diagonal().posterior(torch.zeros(2, 6), None).variance
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    def head_size(self, dim: int) -> int:
        return 2 * dim

    def posterior(self, head: Tensor, layers: nn.Module | None) -> dist.TorchDistribution:
        return diagonal_normal(head)


class FullCovariance(Family):
    r""":math:`q(z \mid x) = \mathrm{Normal}(\mu(x), L(x) L(x)^\top)` with a lower triangular L.

    The head gives the mean, log L_ii^2, and L_ij / L_ii below the diagonal: d (d + 3) / 2 numbers.

    Example:
        >>> import torch
        >>> from guides import FullCovariance
        >>> head = torch.tensor([[0.0, 0.0, 0.0, 0.0, 2.0]])
        >>> FullCovariance().posterior(head, None).covariance_matrix
        tensor([[[1., 2.],
                 [2., 5.]]])
    """

    def head_size(self, dim: int) -> int:
        return dim * (dim + 3) // 2

    def posterior(self, head: Tensor, layers: nn.Module | None) -> dist.TorchDistribution:
        dim = (isqrt(9 + 8 * head.shape[-1]) - 3) // 2  # of as many numbers as head_size says
        loc, log_variance = mean_and_log_variance(head[..., : 2 * dim])
        rows, columns = torch.tril_indices(dim, dim, -1, device=head.device)
        below = head.new_zeros(*head.shape[:-1], dim * dim)
        below = below.index_copy(-1, rows * dim + columns, head[..., 2 * dim :])
        identity = torch.eye(dim, dtype=head.dtype, device=head.device)
        unit = below.unflatten(-1, (dim, dim)) + identity
        factor = (0.5 * log_variance).exp().unsqueeze(-1) * unit
        return FullNormal(loc, scale_tril=factor)


class InverseAutoregressive(Family):
    r"""A diagonal Normal, followed by layers that scale and shift each coordinate by those before
    it (Kingma et al., 2016, *Improved variational inference with inverse autoregressive flow*).

    .. math:: z_0 \sim \mathrm{Normal}(\mu(x), \mathrm{diag} \, \sigma^2(x)), \quad
              z_{t, i} = s_{t, i} z_{t - 1, i} + m_{t, i}, \quad
              (s_{t, i}, m_{t, i}) = f_t(z_{t - 1, < i}, h(x))

    with the order of the coordinates reversed from layer to layer. A draw and its density take one
    pass; the density of other values takes d. Logarithms of s are softly bounded to +-3. ``mean``
    and ``variance`` are averages over 256 fixed points. Of a single coordinate q is a Normal.

    :param num_layers: T.
    :param widths: hidden widths of each layer's network f, raised to d where they are below.
    :param num_features: length of h(x), which the encoder gives.
    :raises ValueError: if a number is below 1.

    Example:
        >>> import torch
        >>> from guides import InverseAutoregressive, VaDEGuide
        >>> from ppl_models import VAE
        >>> guide = VaDEGuide(VAE((6,), 3), family=InverseAutoregressive())
        >>> guide.embed(torch.zeros(4, 6))["layer_1"].shape
        (4, 3)
    """

    def __init__(
        self, num_layers: int = 2, widths: Sequence[int] = (32,), num_features: int = 8
    ) -> None:
        self.num_layers = check_size("num_layers", num_layers)
        self.widths = check_counts("widths", widths, "(32,)")
        self.num_features = check_size("num_features", num_features)

    def head_size(self, dim: int) -> int:
        return 2 * dim + (self.num_features if dim > 1 else 0)

    def layers(self, dim: int) -> nn.Module | None:
        """One network a layer, which maps z and h to m and log s; none for one coordinate."""
        if dim == 1:
            return None
        order = torch.arange(dim)
        widths = [max(width, dim) for width in self.widths]
        orders = (order if t % 2 else order.flip(0) for t in range(self.num_layers))
        sizes = dim, self.num_features, widths
        return nn.ModuleList(
            ConditionalAutoRegressiveNN(*sizes, permutation=each) for each in orders
        )

    def posterior(self, head: Tensor, layers: nn.Module | None) -> dist.TorchDistribution:
        if layers is None:
            return diagonal_normal(head)
        normal, features = head.tensor_split([head.shape[-1] - self.num_features], -1)
        return AutoregressiveNormal(diagonal_normal(normal), cast(nn.ModuleList, layers), features)


#: What an encoder gives for each facet, ``[B, size]``.
Heads = dict[str, Tensor]
# Of Adam, over few steps: its averages are short.
FAST, SLOW, TINY = 0.8, 0.9, 1e-8


class Refined(Family):
    r"""Another family, whose member for each datum is improved by steps on this datum's own bound
    (Kim et al., 2018, *Semi-amortized variational autoencoders*).

    .. math:: \lambda_0 = \mathrm{encoder}(x), \quad
              \lambda_{t + 1} = \lambda_t + \mathrm{Adam}\big(\nabla_\lambda
              \mathbb{E}_{q(z \mid \lambda_t)} [\log p(x, z) - \log q(z \mid \lambda_t)]\big)

    with clusters summed out, given their neighbors if these are, also where labels are known, and
    with the weights of the terms of z. The expectation is over fixed points, so that the same datum
    always has the same posterior, and a datum whose bound by them does not rise keeps the
    encoder's. The objective's gradient passes to the encoder as if :math:`\lambda_T - \lambda_0`
    did not depend on it. Each step takes the decoder forwards and backwards at ``num_points``
    points, in training and in predictions.

    :param family: the other family; diagonal Normals by default.
    :param num_steps: T.
    :param rate: length of the first step, in standard deviations of q for its mean and in
        logarithms for its variances; later ones are shorter, down to 0.
    :param num_points: points of the expectation, at least 2 and twice the latents of all facets.
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
        family = Diagonal() if family is None else family
        self.family = check_kind("family", family, Family, "a family, such as FullCovariance()")
        self.num_steps = check_size("num_steps", num_steps)
        self.num_points = check_size("num_points", num_points, least=2)  # to tell a variance
        check_positive("rate", rate)
        self.rate = rate

    def head_size(self, dim: int) -> int:
        return self.family.head_size(dim)

    def layers(self, dim: int) -> nn.Module | None:
        return self.family.layers(dim)

    def posterior(self, head: Tensor, layers: nn.Module | None) -> dist.TorchDistribution:
        return self.family.posterior(head, layers)

    def improved(
        self, heads: Heads, dims: Mapping[str, int], bound: Callable[[Heads, int], Tensor]
    ) -> Heads:
        start = {name: head.detach() for name, head in heads.items()}
        units = {name: _units(head, dims[name]) for name, head in start.items()}

        def value(offsets: Heads) -> Tensor:
            moved = {name: start[name] + units[name] * offsets[name] for name in start}
            return bound(moved, self.num_points)

        with torch.no_grad():  # around torch.func.grad, which keeps no graph then
            none = {name: torch.zeros_like(head) for name, head in start.items()}
            offsets = self._climb(none, torch.func.grad(lambda at: value(at).sum()))
            better = (value(offsets) > value(none)).unsqueeze(-1)
            offsets = {name: torch.where(better, each, 0.0) for name, each in offsets.items()}
        return {name: head + units[name] * offsets[name] for name, head in heads.items()}

    def _climb(self, at: Heads, gradient: Callable[[Heads], Heads]) -> Heads:
        """Adam's steps uphill, for every number by itself, so that data do not touch each other."""
        first = second = {name: torch.zeros_like(each) for name, each in at.items()}
        for t in range(self.num_steps):
            slopes = gradient(at)
            first = {n: FAST * first[n] + (1 - FAST) * g for n, g in slopes.items()}
            second = {n: SLOW * second[n] + (1 - SLOW) * g * g for n, g in slopes.items()}
            rate = self.rate * (1 - t / self.num_steps) / (1 - FAST ** (t + 1))
            spread = 1 / (1 - SLOW ** (t + 1))
            steps = {n: rate * first[n] / ((spread * second[n]).sqrt() + TINY) for n in at}
            at = {n: each + steps[n] for n, each in at.items()}
        return at


def _units(head: Tensor, dim: int) -> Tensor:
    """In which a head's numbers are moved: standard deviations for the mean, else 1."""
    _, log_variance = mean_and_log_variance(head[..., : 2 * dim])
    rest = torch.ones_like(head[..., dim:])
    return torch.cat([(0.5 * log_variance).exp(), rest], -1)
