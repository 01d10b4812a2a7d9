"""Several estimators of one loss compared: bias, noise and cost."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from inference.diagnostics.draws import GradientMoments, gradient_moments, loss_draws
from inference.objectives import Loss
from inference.randomness import seeded, synchronize
from ppl_models.given.checks import check_size
from ppl_models.modes import evaluating

__all__ = ["EstimatorReport", "compare_estimators"]


@dataclass(frozen=True)
class EstimatorReport:
    """One estimator compared with a reference. Losses are in nats per datum, gradients in nats per
    datum and unit of the parameter.

    :ivar bias: of the loss; :attr:`bias_error` is its standard error, including the reference's.
    :ivar variance: of one draw of the loss.
    :ivar gradient_variance: trace of the covariance of one draw of the gradient.
    :ivar signal_to_noise: norm of the mean gradient divided by the square root of that trace.
    :ivar cosine: between the mean gradient and the reference's.
    :ivar milliseconds: median time of one gradient.
    :ivar efficiency: 1 / (gradient variance x seconds): the precision gained per second.
    """

    bias: float
    bias_error: float
    variance: float
    gradient_variance: float
    signal_to_noise: float
    cosine: float
    milliseconds: float
    efficiency: float


@dataclass(frozen=True)
class Reference:
    """The reference of a comparison: a value with its standard error, and a gradient."""

    value: float
    error: float
    gradient: GradientMoments


# Number of gradients that are timed; the median counts.
REPEATS = 21


def compare_estimators(
    estimators: Mapping[str, Loss],
    x: Tensor,
    reference: Tensor | Loss,
    num_draws: int = 10_000,
    seed: int = 0,
    chunk: int = 256,
    **given: Tensor,
) -> dict[str, EstimatorReport]:
    """Bias, variance, gradient and cost of several estimators of one loss on the same batch.

    Gradients are compared over the reference's parameters; those of a learned baseline are left
    out.

    :param estimators: losses by name; all of the same modules.
    :param x: ``[B, *x_shape]``, a tensor on the losses' device.
    :param reference: what they estimate: an exact, differentiable value, such as that of
        :func:`exact_objective`; or, if that is infeasible, an unbiased estimator, of which ten
        times as many draws are taken.
    :param num_draws: draws of each loss; a tenth as many of its gradient.
    :param seed: of all draws; the caller's random state is not changed.
    :param chunk: most draws to compute at once.
    :param given: inputs of the losses other than x, such as ``label``.
    :raises ValueError: if ``num_draws`` is below 2, or there are no estimators.

    Example:
        >>> import torch
        >>> from guides import AmortizedGuide, ScoreFunction
        >>> from inference import Loss
        >>> from inference.diagnostics import compare_estimators
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> enumerated = AmortizedGuide(model)
        >>> drawn = AmortizedGuide(model, discrete=ScoreFunction())
        >>> losses = {"enumerated": Loss(model, enumerated), "drawn": Loss(model, drawn)}
        >>> x, reference = torch.zeros(5, 6), losses["enumerated"]
        >>> reports = compare_estimators(losses, x, reference, num_draws=20)
        >>> {name: report.gradient_variance > 0 for name, report in reports.items()}
        {'enumerated': True, 'drawn': True}
    """
    if check_size("num_draws", num_draws) < 2:
        raise ValueError(f"num_draws must be at least 2 to give a variance, got {num_draws}")
    if not isinstance(estimators, Mapping) or not estimators:
        raise ValueError(
            f'estimators must be losses by name, such as {{"a": Loss(model, guide)}}, got '
            f"{estimators!r}"
        )
    if not isinstance(reference, Loss) and not (
        isinstance(reference, Tensor) and reference.requires_grad
    ):
        raise ValueError(
            "reference must be a Loss, or an exact value that can be differentiated "
            "(exact_objective)"
        )
    options: dict[str, Any] = {"num_draws": num_draws, "seed": seed, "chunk": chunk, **given}
    if isinstance(reference, Loss):
        common = _drawn_reference(reference, x, **options)
    else:
        common = _exact_reference(reference, next(iter(estimators.values())))
    return {name: _report(loss, x, common, **options) for name, loss in estimators.items()}


def _report(
    loss: Loss,
    x: Tensor,
    reference: Reference,
    num_draws: int,
    seed: int,
    chunk: int,
    **given: Tensor,
) -> EstimatorReport:
    draws = loss_draws(loss, x, num_draws, seed, chunk, **given)
    moments = gradient_moments(loss, x, max(num_draws // 10, 2), seed, chunk, **given).of(
        reference.gradient.mean
    )
    milliseconds = _gradient_milliseconds(loss, x, **given)
    return EstimatorReport(
        bias=float(draws.mean()) - reference.value,
        bias_error=math.hypot(float(draws.std()) / math.sqrt(num_draws), reference.error),
        variance=float(draws.var()),
        gradient_variance=moments.trace,
        signal_to_noise=moments.signal_to_noise,
        cosine=moments.cosine(reference.gradient),
        milliseconds=milliseconds,
        efficiency=1e3 / (moments.trace * milliseconds) if moments.trace else math.inf,
    )


def _drawn_reference(
    loss: Loss, x: Tensor, num_draws: int, seed: int, chunk: int, **given: Tensor
) -> Reference:
    draws = loss_draws(loss, x, 10 * num_draws, seed + 1, chunk, **given)
    gradient = gradient_moments(loss, x, max(num_draws, 2), seed + 1, chunk, **given)
    return Reference(float(draws.mean()), float(draws.std()) / math.sqrt(len(draws)), gradient)


def _exact_reference(value: Tensor, loss: Loss) -> Reference:
    parameters = {key: p for key, p in loss.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(
        value, list(parameters.values()), retain_graph=True, allow_unused=True
    )
    mean = {key: g for key, g in zip(parameters, gradients, strict=True) if g is not None}
    no_spread = {key: torch.zeros_like(g) for key, g in mean.items()}
    return Reference(float(value.detach()), 0.0, GradientMoments(mean, no_spread, 1))


def _gradient_milliseconds(loss: nn.Module, x: Tensor, **given: Tensor) -> float:
    parameters = [p for p in loss.parameters() if p.requires_grad]
    times = []
    with evaluating(loss), pyro.validation_enabled(False), seeded(0, x.device):
        for _ in range(REPEATS):
            started = time.perf_counter()
            torch.autograd.grad(loss(x, **given), parameters, allow_unused=True)
            synchronize(x.device)  # kernels may still be running
            times.append(time.perf_counter() - started)
    return 1e3 * sorted(times)[REPEATS // 2]
