"""Pyro's distributions, with densities written for latent vectors under enumeration.

Values and gradients are those of the parents; what changes is how many passes over memory a density
takes. With K components enumerated over a batch these two densities are most of a step's work
outside the networks.
"""

from __future__ import annotations

import math
from typing import ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints, register_kl
from torch.nn.functional import logsigmoid

__all__ = [
    "AveragedComponent",
    "Component",
    "DiagonalNormal",
    "MarginalMixture",
    "MaskedIndependent",
    "Proportions",
    "RelaxedComponent",
    "RoundedLogistic",
    "clamp_to_labels",
    "diagonal_normal",
    "mean_and_log_variance",
    "one_hot_labels",
    "one_hot_of_largest",
    "raw_log_variance",
]

NO_SHAPE = torch.Size()
# exp(10 / 2) is a standard deviation of 148 and exp(-10 / 2) of 0.007: wider than any useful
# posterior.
MAX_LOG_VARIANCE = 10.0
# Log-odds of a class that is known: so high that every other one's probability is 0, and finite all
# the same.
CERTAIN = 1e4


class DiagonalNormal(dist.Independent):
    """``Normal(loc, scale).to_event(1)``: batch ``[...]``, event ``[d]``.

    :param loc: means ``[..., d]``.
    :param scale: standard deviations ``[..., d]``.
    """

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(
            dist.Normal(loc, scale, validate_args=validate_args), 1, validate_args=validate_args
        )
        # As they were before a plate expanded them: a density costs less where they are not
        # repeated.
        self._narrow = loc, scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        loc, scale = self._narrow
        # Constants are summed over d before they meet the batch: one pass over [K, B, d] less for
        # each.
        constant = scale.log().sum(-1) + 0.5 * math.log(2 * math.pi) * loc.shape[-1]
        log_prob = -0.5 * ((value - loc) * scale.reciprocal()).square().sum(-1) - constant
        return log_prob.expand(torch.broadcast_shapes(self.batch_shape, value.shape[:-1]))

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        loc, scale = self.base_dist.loc, self.base_dist.scale
        # Not torch's own draw, which fills an empty tensor in place: that cannot be mapped over
        # (torch.vmap).
        noise = torch.randn(self._extended_shape(sample_shape), dtype=loc.dtype, device=loc.device)
        return loc + scale * noise

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> DiagonalNormal:
        shape = (*batch_shape, *self.event_shape)
        loc, scale = self._narrow
        new = DiagonalNormal(loc.expand(shape), scale.expand(shape), validate_args=False)
        new._narrow = loc, scale
        return new


def diagonal_normal(raw: Tensor) -> DiagonalNormal:
    """Normal with diagonal covariance from a head's output: ``[..., 2 d]`` -> batch ``[...]``,
    event ``[d]``.
    """
    loc, log_variance = mean_and_log_variance(raw)
    return DiagonalNormal(loc, (0.5 * log_variance).exp())


def mean_and_log_variance(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Halves of a head's output ``[..., 2 d]``, the log-variance softly bounded to +-10 so that no
    step overflows.
    """
    loc, log_variance = raw.chunk(2, -1)
    return loc, MAX_LOG_VARIANCE * torch.tanh(log_variance / MAX_LOG_VARIANCE)


def raw_log_variance(log_variance: Tensor) -> Tensor:
    """What a head gives for a log-variance within the bounds of :func:`mean_and_log_variance`."""
    return MAX_LOG_VARIANCE * torch.atanh((log_variance / MAX_LOG_VARIANCE).clamp(-0.99, 0.99))


class Component(dist.OneHotCategorical):
    """One-hot choice among K components: batch ``[...]``, event ``[K]``.

    The log-density is linear in the value, so at a relaxed value (weights that sum to 1) it is the
    expectation over the component, and K enumerated values against a batch are one matrix product.
    """

    # Relaxed values are within it too.
    support = constraints.simplex

    @property
    def log_probs(self) -> Tensor:
        """Log-probability of each component: ``[..., K]``, nats."""
        return self.logits

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return torch.einsum("...k,...k->...", value, self.log_probs)

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        # Gumbel's trick, and not torch's own draw, which looks at its values: torch.vmap does not
        # allow that.
        return one_hot_of_largest(self._perturbed(sample_shape))

    def _perturbed(self, sample_shape: torch.Size) -> Tensor:
        """Logits with Gumbel noise, whose largest entry follows the probabilities."""
        shape, tiny = self._extended_shape(sample_shape), torch.finfo(self.logits.dtype).tiny
        uniform = torch.rand(shape, dtype=self.logits.dtype, device=self.logits.device)
        return self.logits - (-uniform.clamp_min(tiny).log()).clamp_min(tiny).log()


def one_hot_of_largest(scores: Tensor) -> Tensor:
    """``[..., K]``, without torch's ``one_hot``, which looks at its values."""
    largest = scores.argmax(-1, keepdim=True)
    return (torch.arange(scores.shape[-1], device=scores.device) == largest).to(scores)


def one_hot_labels(label: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """Integers ``[...]`` as one-hot vectors ``[..., K]``; real numbers ``[..., K]`` are such
    already.

    :raises ValueError: for real numbers of another shape, truth values, or classes that there are
        not.
    """
    label = torch.as_tensor(label, device=like.device)
    if label.is_floating_point() and label.shape[-1:] == (num_classes,):
        return label.to(like)
    if label.is_floating_point() or label.dtype == torch.bool:
        raise ValueError(
            f"label must hold integers, or one-hot vectors of {num_classes}, got {label.dtype}"
        )
    try:
        return nn.functional.one_hot(label.long(), num_classes).to(like)
    except (
        RuntimeError
    ) as error:  # what torch itself says where it looks at the values, as on the CPU
        raise ValueError(f"label must be within 0 to {num_classes - 1}: {error}") from error


class Proportions(dist.Dirichlet):
    """``Dirichlet(concentration)``, whose draws ``torch.vmap`` can map over.

    A draw is made of Gamma variables, so its gradient follows these: another one than torch's, with
    the same mean.
    """

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        concentration = self.concentration.expand(self._extended_shape(sample_shape))
        # The smallest normal number in place of what underflows, as torch's Gamma has it.
        gamma = torch._standard_gamma(concentration).clamp_min(
            torch.finfo(concentration.dtype).tiny
        )
        return gamma / gamma.sum(-1, keepdim=True)

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> Proportions:
        return Proportions(
            self.concentration.expand(*batch_shape, *self.event_shape), validate_args=False
        )


class AveragedComponent(Component):
    """A choice whose weights are random: the log-probabilities are averages, and their exponentials
    sum to less than 1.

    Draws follow the normalised exponentials.

    :param logits: averages ``[..., K]``, nats; so named as in every one-hot distribution of Pyro's.
    """

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.shortfall = logits.logsumexp(-1, keepdim=True)

    @property
    def log_probs(self) -> Tensor:
        return self.logits + self.shortfall

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> AveragedComponent:
        return AveragedComponent(
            self.log_probs.expand(*batch_shape, *self.event_shape), validate_args=False
        )


class RelaxedComponent(Component):
    """A choice whose draws can be differentiated by the probabilities (Gumbel-softmax; Jang et al.,
    2017).

    :param logits: ``[..., K]``.
    :param temperature: positive scalar; draws tend to one-hot as it goes to 0.
    :param hard: hand out one-hot draws, which follow the probabilities exactly, with the relaxed
        draws' gradient (straight-through).
    """

    has_rsample = True

    def __init__(
        self,
        logits: Tensor,
        temperature: Tensor,
        hard: bool = False,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.temperature, self.hard = temperature, hard

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        relaxed = (self._perturbed(sample_shape) / self.temperature).softmax(-1)
        return one_hot_of_largest(relaxed) + relaxed - relaxed.detach() if self.hard else relaxed

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> RelaxedComponent:
        logits = self.logits.expand(*batch_shape, *self.event_shape)
        return RelaxedComponent(logits, self.temperature, self.hard, validate_args=False)


@register_kl(Component, Component)
def _kl_component_component(q: Component, p: Component) -> Tensor:
    return (q.probs * (q.log_probs - p.log_probs)).sum(-1)


class MarginalMixture(dist.MixtureSameFamily):
    """A mixture with its component summed out: batch ``[]``, event ``[d]``.

    :param component: choice among K.
    :param components: batch ``[K]``, event ``[d]``.
    """

    def __init__(self, component: Component, components: dist.TorchDistribution) -> None:
        super().__init__(dist.Categorical(logits=component.logits), components)
        self.component = component

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        # Its components', where torch has a constraint of its own that no transform is known for.
        return self.component_distribution.support

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        log_joint = (
            self.component_distribution.log_prob(value.unsqueeze(-2)) + self.component.log_probs
        )
        return log_joint.logsumexp(-1)

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> dist.MixtureSameFamily:
        new = super().expand(batch_shape, self._get_checked_instance(MarginalMixture, _instance))
        new.component = self.component.expand(batch_shape)
        return new


class RoundedLogistic(dist.TorchDistribution):
    """A logistic variable rounded to one of 0, 1/255, ..., 1, the outermost values taking all
    beyond them.

    :param loc: of the logistic, ``[...]``.
    :param scale: of the logistic, positive.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012
    support = constraints.unit_interval
    STEPS = 255

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        half = 0.5 / self.STEPS
        above, below = (
            (value + half - self.loc) / self.scale,
            (value - half - self.loc) / self.scale,
        )
        # log(s(b) - s(a)) = log s(b) + log s(-a) + log(1 - exp(a - b)), s the sigmoid: no
        # difference of near equals.
        up, down = logsigmoid(above), logsigmoid(-below)
        inside = up + down + (-torch.expm1(-2 * half / self.scale)).log()
        return torch.where(value < half, up, torch.where(value > 1 - half, down, inside))

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        uniform = torch.rand(
            self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device
        )
        logistic = self.loc + self.scale * torch.logit(uniform, eps=1e-7)
        return (logistic * self.STEPS).round().clamp(0, self.STEPS) / self.STEPS

    @property
    def mean(self) -> Tensor:
        # The mean of a count is the sum of the probabilities that it exceeds each number below its
        # largest.
        edges = [(k + 0.5) / self.STEPS for k in range(self.STEPS)]
        total = torch.zeros_like(self.loc)
        for edge in edges:
            total += ((self.loc - edge) / self.scale).sigmoid()
        return total / self.STEPS

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> RoundedLogistic:
        return RoundedLogistic(
            self.loc.expand(batch_shape), self.scale.expand(batch_shape), validate_args=False
        )


class MaskedIndependent(dist.TorchDistribution):
    """Independent entries of which some may be missing: NaN in a value counts nothing, and all else
    as it does.

    :param entries: batch ``[...]``, event ``[*x_shape]``, of independent entries.
    :param fill: a number within their support, for densities that are not counted.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, entries: dist.Independent, fill: float) -> None:
        self.entries, self.fill = entries, fill
        super().__init__(entries.batch_shape, entries.event_shape, validate_args=False)

    @property
    def has_rsample(self) -> bool:
        return self.entries.has_rsample

    @property
    def mean(self) -> Tensor:
        return self.entries.mean

    @property
    def variance(self) -> Tensor:
        return self.entries.variance

    def log_prob(self, value: Tensor) -> Tensor:
        missing = value.isnan()
        each = self.entries.base_dist.log_prob(torch.where(missing, self.fill, value))
        return torch.where(missing, 0.0, each).flatten(-len(self.event_shape)).sum(-1)

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return self.entries.rsample(sample_shape)

    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return self.entries.sample(sample_shape)

    def expand(
        self, batch_shape: torch.Size, _instance: dist.Distribution | None = None
    ) -> MaskedIndependent:
        return MaskedIndependent(self.entries.expand(batch_shape), self.fill)


def clamp_to_labels(logits: Tensor, label: Tensor) -> Tensor:
    """Logits ``[B, K]`` with all weight on the classes that are known.

    :param label: integers ``[B]``; -1 where the class is not known, which leaves the logits as they
        are.
    """
    known = torch.arange(logits.shape[-1], device=logits.device) == label.unsqueeze(-1)
    return torch.where((label < 0).unsqueeze(-1), logits, CERTAIN * known.to(logits))
