"""Priors have two steps, which is all that models call: :meth:`Prior.component`, the discrete draw
of a mixture or nothing, and :meth:`Prior.latent`, the latent vector given the component.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from inspect import signature
from math import inf
from typing import ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.configurable import Configurable, Options
from ppl_models.distributions import (
    AveragedComponent,
    Component,
    DiagonalNormal,
    InPlates,
    MarginalMixture,
    component_log_probs,
    is_enumerated,
)
from ppl_models.given.checks import (
    check_count,
    check_kind,
    check_one_of,
    check_positive,
    check_size,
    is_index,
    number,
)

__all__ = ["Data", "DirichletWeights", "Mixture", "Prior"]


class DirichletWeights(Options):
    r"""A Dirichlet prior on the weights, which empties the components that the data do not need.

    .. math:: \pi \sim \mathrm{Dirichlet}(\alpha, \ldots, \alpha), \quad
              q(\pi) = \mathrm{Dirichlet}(\alpha + N \, \mathrm{softmax}(\mathrm{logits}))

    This family of q contains the exact optimum given the responsibilities, where softmax(logits) is
    their mean. The weights are never drawn: :math:`\log \pi_k` is replaced by its mean under q, and
    each sample carries 1 / N of KL(q(pi), p(pi)). The bound is therefore exact in pi, and ``kl_c``
    in the history includes this share.

    As N grows, surplus components become empty if alpha is below half the number of a component's
    parameters (Rousseau and Mengersen, 2011); optimization may stop earlier, with several that
    share a cluster. With a smaller N, a stronger prior, the objective is still a bound: a component
    is removed once its share of the data falls below about 2 / N.

    :param num_data: N: the number of training samples, or fewer for a stronger prior.
    :param concentration: alpha, positive.
    :raises ValueError: if a number is out of range.

    Example:
        >>> from ppl_models import DirichletWeights, GaussianMixture
        >>> prior = GaussianMixture(20, 5, weights=DirichletWeights(num_data=1000))
        >>> bool(prior.component().log_probs.exp().sum() < 1)
        True
    """

    def __init__(self, num_data: int, concentration: float = 0.01) -> None:
        self.num_data = check_count("num_data", num_data)
        check_positive("concentration", concentration)
        self.concentration = concentration

    def component(self, logits: Tensor) -> Component:
        """p(c), one-hot with event ``[K]``, from the mixture's parameter ``[K]``."""
        prior = torch.full_like(logits, self.concentration)
        posterior = prior + self.num_data * logits.softmax(-1)
        p, q = (
            torch.distributions.Dirichlet(each, validate_args=False) for each in (prior, posterior)
        )
        mean_log_weights = posterior.digamma() - posterior.sum().digamma()
        kl = torch.distributions.kl_divergence(q, p)
        return AveragedComponent(mean_log_weights - kl / self.num_data)


#: Rows ``[N, *x_shape]`` and their latents ``[N, d]``.
Data = tuple[Tensor, Tensor]


class Prior(Configurable, nn.Module):
    """Prior of one facet's latent vector ``z``.

    :ivar dim: length d of the latent vector.
    :ivar num_components: K; 1 where the prior has no discrete variable.
    """

    dim: int
    num_components: int = 1
    #: whether z has the same density for every component, so that the KL of c says nothing about z
    shares_density = False
    #: keywords of what :meth:`component` may be given
    accepts: tuple[str, ...] = ()
    #: whether it is made of the guide's posteriors (see :meth:`bind`)
    uses_posterior = False
    #: the only model whose program draws from it, where other models cannot
    only_model: ClassVar[str] = ""
    #: attributes that its representation shows
    shown: ClassVar[tuple[str, ...]] = ("dim",)

    def component(self) -> dist.TorchDistribution | None:
        """p(c), one-hot with event ``[K]``; ``None`` for a prior without components."""
        return None

    @abstractmethod
    def latent(self, component: Tensor | None = None) -> dist.TorchDistribution:
        """p(z given c) with event ``[d]``.

        :param component: one-hot (or relaxed) ``[..., K]``; ``None`` for p(z), summed over c.
        """

    @abstractmethod
    def log_joint(self, z: Tensor) -> Tensor:
        """log p(z, c) for every c, in nats: ``[..., d] -> [..., K]``; also takes arrays."""

    def log_prob(self, z: Tensor, **given: Tensor) -> Tensor:
        """log p(z) with the component summed out (MFCVAE, Eq. 17), in nats: ``[..., d] ->
        [...]``.

        :param given: what c depends on (``accepts``).
        """
        return self.log_joint(z, **given).logsumexp(-1)

    def bind(
        self, encode: Callable[[Tensor], dist.TorchDistribution], x_shape: tuple[int, ...]
    ) -> None:
        """Called by a guide with its encoder of this facet, for priors made of posteriors."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)

    @torch.no_grad()
    def sample(self, n: int, cluster: int | None = None, temperature: float = 1.0) -> Tensor:
        """Draw ``[n, d]`` from component ``cluster``, or from the full prior if it is ``None``.

        :param temperature: factor on the standard deviation around the component's mean.
        :raises ValueError: if a number is out of range.
        """
        self._check_draws(n, cluster, temperature)
        component = self.component()
        if component is None:
            chosen = None
        elif cluster is None:
            chosen = component.expand([n]).sample()
        else:
            chosen = component.mean.new_zeros(n, *component.shape())
            chosen[..., cluster] = 1
        latent = self.latent(chosen)
        draws = latent.expand(torch.Size([n])).sample()
        return draws if temperature == 1 else latent.mean + temperature * (draws - latent.mean)

    def _check_draws(self, n: int, cluster: int | None, temperature: float) -> None:
        check_size("n", n)
        if cluster is not None and not is_index(cluster, self.num_components):
            raise ValueError(
                f"this prior has the components 0 to {self.num_components - 1}, got "
                f"cluster={cluster!r}"
            )
        if not 0 <= number(temperature) < inf:
            raise ValueError(
                f"temperature is a factor on deviations and must be at least 0, got {temperature!r}"
            )

    def _latents(self, z: Tensor, like: Tensor) -> Tensor:
        """Latents ``[..., d]``, possibly an array, as a tensor like ``like``."""
        z = torch.as_tensor(z, dtype=like.dtype, device=like.device)
        if z.shape[-1:] != (self.dim,):
            raise ValueError(
                f"z has shape {list(z.shape)}, but the prior's latents are [..., {self.dim}]"
            )
        return z


class Mixture(Prior):
    r"""Base of the mixtures: :math:`c \sim \mathrm{Cat}(\pi)`, then z from component c.

    Subclasses differ in their :meth:`components` and in how :meth:`place` initializes them.

    :param num_components: K, at least 1.
    :param dim: d, length of the latent vector.
    :param weights: of the components: ``"learned"``, ``"uniform"`` (fixed at 1 / K), or
        :class:`~ppl_models.priors.base.DirichletWeights` to empty unneeded components.
    :raises ValueError: if a size is below 1, or ``weights`` is unknown.

    :ivar loc: means of the components ``[K, d]``.
    """

    loc: Tensor
    shown: ClassVar[tuple[str, ...]] = ("num_components", "dim", "weights")

    def __init__(
        self, num_components: int, dim: int, weights: str | DirichletWeights = "learned"
    ) -> None:
        super().__init__()
        self.num_components = check_size("num_components", num_components)
        self.dim = check_size("dim", dim)
        if not isinstance(weights, DirichletWeights):
            check_one_of("weights", weights, ("learned", "uniform"))
        self.weights = weights
        self.logits = nn.Parameter(torch.zeros(num_components), requires_grad=weights != "uniform")

    @abstractmethod
    def components(self) -> dist.TorchDistribution:
        """p(z given c) for every c: batch ``[K]``, event ``[d]``."""

    @abstractmethod
    def place(
        self,
        loc: Tensor,
        covariances: Tensor | None = None,
        weights: Tensor | None = None,
        data: Data | None = None,
    ) -> None:
        """Initialize from a mixture fitted to latents of ``data``; what is not given is kept.

        :param loc: means ``[K, d]``.
        :param covariances: ``[K, d, d]``, positive definite.
        :param weights: probabilities ``[K]``; ignored where weights are fixed.
        :param data: rows ``[N, *x_shape]`` and their latents ``[N, d]``, for priors made of data.
        """

    def component(self) -> Component:
        if isinstance(self.weights, DirichletWeights):
            return self.weights.component(self.logits)
        return Component(logits=self.logits)  # pi = softmax(logits)

    def latent(self, component: Tensor | None = None, **given: Tensor) -> dist.TorchDistribution:
        if component is None:
            return self.marginal(**given)
        if is_enumerated(component):
            return InPlates(self.components(), component.dim() - 2)
        return _averaged(self.components(), component)

    def marginal(self, **given: Tensor) -> dist.TorchDistribution:
        """p(z) with the component summed out (Eq. 17), with event ``[d]``.

        :param given: what c depends on, as :meth:`component` takes it.
        """
        component, components = self.component(**given), self.components()
        if given:
            components = components.expand(component.batch_shape + components.batch_shape)
        return MarginalMixture(component, components)

    def log_joint(self, z: Tensor, **given: Tensor) -> Tensor:
        """:param given: what c depends on, as :meth:`component` takes it."""
        z = self._latents(z, self.logits)
        return component_log_probs(self.components(), z) + self.component(**given).log_probs

    @torch.no_grad()
    def set_weights(self, weights: Tensor | None) -> None:
        """Set the weights ``[K]``; no effect if they are fixed or ``weights`` is ``None``.

        :raises ValueError: if they are not K non-negative numbers.
        """
        if weights is None:
            return
        check_parameter("weights", weights, (self.num_components,))
        if not (weights >= 0).all():
            raise ValueError(
                f"weights are probabilities and cannot be negative, got {weights.tolist()}"
            )
        if self.weights != "uniform":
            self.logits.copy_(weights.clamp_min(1e-6).log())


def _averaged(components: dist.TorchDistribution, component: Tensor) -> dist.TorchDistribution:
    """The distribution that has a component's parameters, or their average by relaxed ones.

    :raises NotImplementedError: unless the entries of z are independent in each component, and a
        distribution of them is built from its parameters alone.
    """
    if not isinstance(components, dist.Independent):
        raise NotImplementedError(
            f"components are {type(components).__name__}, but only parameters of independent "
            "entries, as of `Normal(loc, scale).to_event(1)`, are averaged: override `latent`"
        )
    each = components.base_dist
    built_from = set(signature(type(each).__init__).parameters) - {"self", "validate_args"}
    if built_from != set(each.arg_constraints):
        raise NotImplementedError(
            f"entries of components are {type(each).__name__}, which is built from "
            f"{sorted(built_from)} and has the parameters {sorted(each.arg_constraints)}, the only "
            "ones that are averaged: override `latent`"
        )
    parameters = {name: getattr(each, name) for name in each.arg_constraints}
    own = {name: component.to(values) @ values for name, values in parameters.items()}
    return DiagonalNormal(**own) if isinstance(each, dist.Normal) else type(each)(**own).to_event(1)


def check_parameter(name: str, values: Tensor, shape: tuple[int, ...]) -> None:
    """:raises ValueError: if ``values`` does not have this shape or is not finite."""
    check_kind(name, values, Tensor, f"a tensor {list(shape)}")
    if tuple(values.shape) != shape:
        raise ValueError(f"{name} has shape {list(values.shape)}, but {list(shape)} is needed")
    if not values.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity, but finite numbers are needed")
