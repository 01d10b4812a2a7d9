"""Variants of Pyro's distributions, with the same values and gradients by fewer passes over memory:
densities under enumeration are most of a step's work outside the networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions.util import broadcast_shape
from pyro.poutine.util import is_validation_enabled
from torch import Tensor
from torch.distributions import constraints, register_kl
from torch.nn.functional import linear, logsigmoid

from ppl_models.rising import wide

NO_SHAPE = torch.Size()
# Standard deviations from exp(-10 / 2) = 0.007 to exp(10 / 2) = 148: more than a posterior needs.
MAX_LOG_VARIANCE = 10.0
# Log-odds of a known class: high enough that every other class has probability 0, but finite.
CERTAIN = 1e4
# Entries of the intermediate [B, K, d] below which its few passes take less time than the product's
# preparation.
SMALL_INTERMEDIATE = 2**14


class DiagonalNormal(dist.Independent):
    """``Normal(loc, scale).to_event(1)``: batch ``[...]``, event ``[d]``.

    :param loc: means ``[..., d]``.
    :param scale: standard deviations ``[..., d]``.
    """

    def __init__(self, loc: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(
            dist.Normal(loc, scale, validate_args=validate_args), 1, validate_args=validate_args
        )
        # As they were before a plate expanded them: without the repeats, a density is cheaper.
        self._narrow = loc, scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        loc, scale = self._narrow
        # Constants are summed over d before the batch enters, which saves passes over [K, B, d].
        constant = scale.log().sum(-1) + 0.5 * math.log(2 * math.pi) * loc.shape[-1]
        log_prob = -0.5 * ((value - loc) * scale.reciprocal()).square().sum(-1) - constant
        return log_prob.expand(broadcast_shape(self.batch_shape, value.shape[:-1]))

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        loc = self.base_dist.loc
        # torch's own draw fills an empty tensor in place, which torch.vmap does not support.
        shape = self._extended_shape(sample_shape)
        return self.from_noise(torch.randn(shape, dtype=loc.dtype, device=loc.device))

    def from_noise(self, noise: Tensor) -> Tensor:
        """z ``[..., d]`` for standard normal noise of the same shape."""
        return self.base_dist.loc + self.base_dist.scale * noise

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> DiagonalNormal:
        shape = (*batch_shape, *self.event_shape)
        loc, scale = self._narrow
        new = type(self)(loc.expand(shape), scale.expand(shape), validate_args=False)
        new._narrow = loc, scale
        return new


def component_log_probs(components: dist.TorchDistribution, z: Tensor) -> Tensor:
    """log p(z given c) for every c: ``[..., d] -> [..., K]``.

    All are computed here, in one layout, so that model and guide share them in recorded programs.

    :param components: batch ``[K]``, event ``[d]``.
    """
    if isinstance(components, DiagonalNormal):
        loc, scale = components._narrow
        if loc.dim() == 2 and product_pays(z, loc):
            return normal_log_probs(z, loc, scale)
    return components.log_prob(z.unsqueeze(-2))


def product_pays(z: Tensor, loc: Tensor) -> bool:
    """Whether to use :func:`normal_log_probs` for values ``[..., d]`` and means ``[K, d]``; not in
    an exported program, which is the same for any number of values.
    """
    if torch.compiler.is_exporting():
        return False
    entries = math.prod(z.shape[:-1]) * loc.numel()
    return entries > SMALL_INTERMEDIATE and wide(z) == torch.float64


def normal_log_probs(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""log Normal(z; loc, scale) of each value under each Normal, by one product of matrices.

    .. math:: -\frac{1}{2} \sum_i \frac{(z_i - \mu_i)^2}{\sigma_i^2}
              = \sum_i \Big(-\frac{1}{2 \sigma_i^2} z_i^2 + \frac{\mu_i}{\sigma_i^2} z_i\Big)
              - \sum_i \frac{\mu_i^2}{2 \sigma_i^2}

    No intermediate has an entry for each value, Normal and dimension. Because the terms cancel, the
    product is computed in float64: its error is about :math:`2^{-53}` times the sum of
    :math:`(|z_i| + |\mu_i|)^2 / \sigma_i^2`. In float32, this exceeds the error of the formula on
    the left only where :math:`|z_i| / \sigma_i` is above about :math:`10^5`, and is then still far
    below what rounding z to float32 changes. Gradients are as accurate as on the left or more.

    :param z: values ``[..., d]``.
    :param loc: means ``[K, d]``.
    :param scale: standard deviations ``[K, d]``.
    :returns: ``[..., K]``, of the dtype of ``z``.
    """
    d = z.shape[-1]
    value, mean, deviation = z.reshape(-1, d).double(), loc.double(), scale.double()
    precision = deviation.square().reciprocal()
    weighted = precision * mean
    constant = (0.5 * weighted * mean + deviation.log()).sum(-1) + 0.5 * math.log(2 * math.pi) * d
    terms = torch.cat([value.square(), value], -1)
    log_probs = linear(terms, torch.cat([-0.5 * precision, weighted], -1), -constant)
    return log_probs.to(z.dtype).reshape(*z.shape[:-1], len(loc))


class InPlates(dist.TorchDistribution):
    """All components, batch ``[K]``, as one distribution ``[K, 1, ..., 1]`` within plates."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self, components: dist.TorchDistribution, plates: int, batch_shape: Sequence[int] = ()
    ) -> None:
        self.components, self.plates = components, plates
        shape = torch.Size(batch_shape or (*components.batch_shape, *[1] * plates))
        super().__init__(shape, components.event_shape, validate_args=False)

    @property
    def has_rsample(self) -> bool:
        return self.components.has_rsample

    @constraints.dependent_property
    def support(self) -> constraints.Constraint:
        return self.components.support

    def log_prob(self, value: Tensor) -> Tensor:
        dim = value.dim() - 2 - self.plates  # of the components among those of the value
        if dim >= 0 and value.shape[dim] > 1:  # each component has values of its own
            log_prob = self.components.log_prob(value.movedim(dim, -2))
        else:
            shared = value.squeeze(dim) if dim >= 0 else value
            log_prob = component_log_probs(self.components, shared)
            log_prob = log_prob.reshape(*[1] * (-1 - dim), *log_prob.shape)
        log_prob = log_prob.movedim(-1, -1 - self.plates)
        return log_prob.expand(broadcast_shape(self.batch_shape, log_prob.shape))

    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        with torch.no_grad():
            return self._arranged(self.components.sample, sample_shape)

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return self._arranged(self.components.rsample, sample_shape)

    def _arranged(self, draw: Callable[[torch.Size], Tensor], sample_shape: torch.Size) -> Tensor:
        batch = list(self.batch_shape)
        del batch[-1 - self.plates]
        return draw(torch.Size((*sample_shape, *batch))).movedim(-2, -2 - self.plates)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> dist.TorchDistribution:
        return InPlates(self.components, self.plates, batch_shape)


class FewScalesNormal(dist.Independent):
    """``Normal(loc, scale).to_event(event_dim)`` with the same scales for all data.

    :param loc: means ``[..., *event_shape]``.
    :param scale: standard deviations ``[*event_shape]``, or a scalar for all entries.
    """

    def __init__(self, loc: Tensor, scale: Tensor, event_dim: int) -> None:
        super().__init__(dist.Normal(loc, scale), event_dim)
        self.scale = scale

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        # Fewer passes over the entries than torch's, which computes the constants for each of them.
        residual = (value - self.base_dist.loc) * self.scale.reciprocal()
        squares = residual.square().flatten(residual.dim() - len(self.event_shape)).sum(-1)
        entries, logs = math.prod(self.event_shape), self.scale.log()
        if logs.dim():
            logs = logs.mean()
        return -0.5 * squares - entries * (logs + 0.5 * math.log(2 * math.pi))

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> FewScalesNormal:
        loc = self.base_dist.loc.expand(*batch_shape, *self.event_shape)
        return FewScalesNormal(loc, self.scale, len(self.event_shape))


def diagonal_normal(raw: Tensor) -> DiagonalNormal:
    """Diagonal Normal from a head: ``[..., 2 d]`` -> batch ``[...]``, event ``[d]``."""
    loc, log_variance = mean_and_log_variance(raw)
    return DiagonalNormal(loc, (0.5 * log_variance).exp())


def mean_and_log_variance(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of a head ``[..., 2 d]``, the latter softly bounded to +-10."""
    loc, log_variance = raw.chunk(2, -1)
    return loc, MAX_LOG_VARIANCE * torch.tanh(log_variance / MAX_LOG_VARIANCE)


def raw_log_variance(log_variance: Tensor) -> Tensor:
    """Inverse of :func:`mean_and_log_variance` for the log-variance: what a head must output."""
    return MAX_LOG_VARIANCE * torch.atanh((log_variance / MAX_LOG_VARIANCE).clamp(-0.99, 0.99))


def mark_enumerated(values: Tensor) -> Tensor:
    """Mark one-hot values ``[K, 1, ..., 1, K]`` as all components in order."""
    values.enumerates_components = True  # type: ignore[attr-defined]
    return values


def is_enumerated(value: Tensor | None) -> bool:
    """Whether a value was marked by :func:`mark_enumerated`."""
    return getattr(value, "enumerates_components", False)


class _Weights(type(constraints.simplex)):  # type: ignore[misc]
    """One-hot vectors and relaxed ones; Pyro's autoguides refuse to take them for continuous."""

    is_discrete = True


WEIGHTS = _Weights()


class Component(dist.OneHotCategorical):
    """One-hot choice among K components: batch ``[...]``, event ``[K]``.

    The log-density is linear in the value: at a relaxed one the expectation over the component.
    """

    support = WEIGHTS

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        # torch's own __init__ normalizes in several passes over [B, K], forwards and backwards.
        self._categorical = _categorical(logits.log_softmax(-1))
        shape = self._categorical.batch_shape, self._categorical.param_shape[-1:]
        torch.distributions.Distribution.__init__(self, *shape, validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Component:
        return super().expand(batch_shape, self._get_checked_instance(Component, _instance))

    @property
    def log_probs(self) -> Tensor:
        """Log-probability of each component: ``[..., K]``, nats."""
        return self.logits

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        if is_enumerated(value):
            # Without an expanded plate's strides of 0, which would mix layouts [K, B] and [B, K].
            by_component = self.log_probs.contiguous().movedim(-1, 0)
            ones = [1] * (value.dim() - 1 - by_component.dim())
            return by_component.reshape(len(value), *ones, *by_component.shape[1:])
        return torch.einsum("...k,...k->...", value.to(self.log_probs), self.log_probs)

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        # The Gumbel-max trick: torch's own draw inspects values, which torch.vmap does not support.
        return one_hot_of_largest(self._perturbed(sample_shape))

    def _perturbed(self, sample_shape: torch.Size) -> Tensor:
        """Logits with Gumbel noise; the index of the largest entry follows the probabilities."""
        shape, tiny = self._extended_shape(sample_shape), torch.finfo(self.logits.dtype).tiny
        uniform = torch.rand(shape, dtype=self.logits.dtype, device=self.logits.device)
        return self.logits - (-uniform.clamp_min(tiny).log()).clamp_min(tiny).log()


class KnownValue(dist.TorchDistribution):
    """A distribution whose draw is known; its log-density is the distribution's.

    :param base: the distribution.
    :param value: the draw, which broadcasts with its shape.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: dist.TorchDistribution, value: Tensor) -> None:
        self.base, self.value = base, value
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base.support

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> KnownValue:
        return KnownValue(self.base.expand(batch_shape), self.value)

    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return self.value.expand(self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base.log_prob(value)


def _categorical(log_probs: Tensor) -> torch.distributions.Categorical:
    """The choice with these log-probabilities, which are normalized."""
    new = object.__new__(torch.distributions.Categorical)
    new.logits = new._param = log_probs
    new._num_events = log_probs.shape[-1]
    torch.distributions.Distribution.__init__(new, log_probs.shape[:-1], validate_args=False)
    return new


def one_hot_of_largest(scores: Tensor) -> Tensor:
    """One-hot ``[..., K]`` of the largest entry; unlike torch's ``one_hot``, it reads no values."""
    largest = scores.argmax(-1, keepdim=True)
    return (torch.arange(scores.shape[-1], device=scores.device) == largest).to(scores)


def one_hot_labels(label: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """One-hot vectors ``[..., K]`` of integers ``[...]``; floats ``[..., K]`` stay as they are.

    :raises ValueError: for other floats, booleans, or, with Pyro's checks on, classes out of range.
    """
    label = torch.as_tensor(label, device=like.device)
    if label.is_floating_point() and label.shape[-1:] == (num_classes,):
        return label.to(like)
    if label.is_floating_point() or label.dtype == torch.bool:
        raise ValueError(
            f"label must hold integers, or one-hot vectors of {num_classes}, got {label.dtype}"
        )
    if is_validation_enabled() and ((label < 0) | (label >= num_classes)).any():
        raise ValueError(f"label must be within 0 to {num_classes - 1}, got {label.unique()}")
    # Unlike torch's one_hot, this reads no values.
    return (torch.arange(num_classes, device=like.device) == label[..., None]).to(like)


class Proportions(dist.Dirichlet):
    """``Dirichlet(concentration)`` whose draws work under ``torch.vmap``.

    A draw normalizes Gamma variables and is differentiated through them. Its gradient differs from
    torch's and has the same mean.
    """

    def rsample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        concentration = self.concentration.expand(self._extended_shape(sample_shape))
        # Replace what underflows by the smallest normal number, as torch's Gamma does.
        gamma = torch._standard_gamma(concentration).clamp_min(
            torch.finfo(concentration.dtype).tiny
        )
        return gamma / gamma.sum(-1, keepdim=True)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> Proportions:
        concentration = self.concentration.expand(*batch_shape, *self.event_shape)
        return Proportions(concentration, validate_args=False)


class AveragedComponent(Component):
    """A choice whose log-probabilities are averages, with exponentials that sum to less than 1;
    draws follow these, normalized.

    :param logits: averages ``[..., K]``, nats; so named as in every one-hot distribution of Pyro's.
    """

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(logits=logits, validate_args=validate_args)
        self.shortfall = logits.logsumexp(-1, keepdim=True)

    @property
    def log_probs(self) -> Tensor:
        return self.logits + self.shortfall

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> AveragedComponent:
        log_probs = self.log_probs.expand(*batch_shape, *self.event_shape)
        return AveragedComponent(log_probs, validate_args=False)


class RelaxedComponent(Component):
    """A choice whose draws are differentiable in the logits (Gumbel-softmax; Jang et al., 2017).

    :param logits: ``[..., K]``.
    :param temperature: positive scalar; draws approach one-hot as it goes to 0.
    :param hard: straight-through: one-hot draws, with the gradient of the relaxed ones.
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

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> RelaxedComponent:
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
        log_probs = component_log_probs(self.component_distribution, value)
        return (log_probs + self.component.log_probs).logsumexp(-1)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> dist.MixtureSameFamily:
        new = super().expand(batch_shape, self._get_checked_instance(MarginalMixture, _instance))
        new.component = self.component.expand(batch_shape)
        return new


class LogitContinuousBernoulli(dist.ContinuousBernoulli):
    r"""Pyro's continuous Bernoulli, computed from its logit ``[...]``, for any size of that:
    :math:`\log p(x) = \lambda x + \log \frac{\lambda}{e^\lambda - 1}`, in nats.

    Torch's clamps probabilities to what float32 tells from 0 and 1, so that the density of a logit
    beyond 15 does not integrate to 1, and no mean is below 0.06.
    """

    # Below it, series.
    NEAR = 0.5

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logit, size = self.logits, self._size
        far = logit * value - logit.clamp_min(0) + size.log() - (-torch.expm1(-size)).log()
        square = logit.square()
        near = logit * (value - 0.5) - square / 24 * (1 - square / 120 * (1 - square / 63))
        return self._either(near, far)

    @property
    def mean(self) -> Tensor:
        above = -1 / torch.expm1(-self._size) - 1 / self._size
        square = self.logits.square()
        near = 0.5 + self.logits / 12 * (1 - square / 60 * (1 - square / 42))
        return self._either(near, torch.where(self.logits < 0, 1 - above, above))

    @property
    def variance(self) -> Tensor:
        shrunk, square = (-self._size).exp(), self.logits.square()
        near = (1 - square / 20 * (1 - square / 25.2 * (1 - square / 28.57))) / 12
        return self._either(near, self._size**-2 - shrunk / (1 - shrunk) ** 2)

    def icdf(self, value: Tensor) -> Tensor:
        below = self.logits < 0  # by symmetry the same for both
        size = self.logits.abs().clamp_min(1e-3)
        share = torch.where(below, value, 1 - value)
        far = -torch.log1p(share * torch.expm1(-size)) / size
        far = torch.where(below, far, 1 - far)
        near = value + self.logits * value * (1 - value) / 2
        return torch.where(self.logits.abs() < 1e-3, near, far)

    @property
    def _size(self) -> Tensor:
        return self.logits.abs().clamp_min(self.NEAR)

    def _either(self, near: Tensor, far: Tensor) -> Tensor:
        return torch.where(self.logits.abs() < self.NEAR, near, far)


class RoundedLogistic(dist.TorchDistribution):
    """A logistic variable rounded to 0, 1/255, ..., 1; the first and last value include the tails.

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
        above = (value + half - self.loc) / self.scale
        below = (value - half - self.loc) / self.scale
        # log(s(b) - s(a)) = log s(b) + log s(-a) + log(1 - exp(a - b)), s the sigmoid.
        up, down = logsigmoid(above), logsigmoid(-below)
        inside = up + down + (-torch.expm1(-2 * half / self.scale)).log()
        return torch.where(value < half, up, torch.where(value > 1 - half, down, inside))

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        shape = self._extended_shape(sample_shape)
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        logistic = self.loc + self.scale * torch.logit(uniform, eps=1e-7)
        return (logistic * self.STEPS).round().clamp(0, self.STEPS) / self.STEPS

    @property
    def mean(self) -> Tensor:
        # The mean of a count is the sum over k of the probability that it exceeds k.
        return sum(self._beyond(), torch.zeros_like(self.loc)) / self.STEPS

    @property
    def variance(self) -> Tensor:
        # That of its square is the sum of 2 k + 1 times this probability.
        square = torch.zeros_like(self.loc)
        for k, beyond in enumerate(self._beyond()):
            square += (2 * k + 1) * beyond
        return square / self.STEPS**2 - self.mean.square()

    def _beyond(self) -> Iterator[Tensor]:
        """For each count from 0 on, the probability of a larger one."""
        for k in range(self.STEPS):
            yield ((self.loc - (k + 0.5) / self.STEPS) / self.scale).sigmoid()

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> RoundedLogistic:
        return RoundedLogistic(
            self.loc.expand(batch_shape), self.scale.expand(batch_shape), validate_args=False
        )


class MaskedIndependent(dist.Independent):
    """Independent entries, some of them missing: a NaN in a value adds nothing to the density.

    :param entries: batch ``[...]``, event ``[*x_shape]``, of independent entries.
    :param fill: a number within their support, a placeholder for missing entries.
    """

    def __init__(self, entries: dist.Independent, fill: float) -> None:
        self.fill = fill
        axes = entries.reinterpreted_batch_ndims
        super().__init__(entries.base_dist, axes, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        missing = value.isnan()
        each = self.base_dist.log_prob(torch.where(missing, self.fill, value))
        return torch.where(missing, 0.0, each).flatten(-len(self.event_shape)).sum(-1)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> MaskedIndependent:
        entries = dist.Independent(self.base_dist, self.reinterpreted_batch_ndims)
        return MaskedIndependent(entries.expand(batch_shape), self.fill)


def clamp_to_labels(logits: Tensor, label: Tensor) -> Tensor:
    """Logits ``[B, K]`` with all weight on the class where it is known.

    :param label: integers ``[B]``; -1 where unknown, which keeps the logits.
    :raises ValueError: with Pyro's checks on, if a class is out of range.
    """
    if is_validation_enabled() and (label >= logits.shape[-1]).any():
        raise ValueError(
            f"label must be within 0 to {logits.shape[-1] - 1}, or -1 where unknown, got "
            f"{label.unique().tolist()}"
        )
    known = torch.arange(logits.shape[-1], device=logits.device) == label.unsqueeze(-1)
    return torch.where((label < 0).unsqueeze(-1), logits, CERTAIN * known.to(logits))
