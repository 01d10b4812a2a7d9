"""Several estimators of one loss side by side: bias, noise and cost."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pyro
import torch
from torch import Tensor, nn

from inference.diagnostics.draws import gradient_moments, loss_draws
from inference.objectives import Loss
from inference.randomness import seeded

__all__ = ["EstimatorReport", "compare_estimators"]


@dataclass(frozen=True)
class EstimatorReport:
    """One estimator against an exact value; nats per datum throughout.

    :ivar bias: of the loss, with :attr:`bias_error`, its standard error.
    :ivar variance: of one draw of the loss.
    :ivar gradient_variance: trace of the covariance of one draw of the gradient.
    :ivar cosine: between the mean gradient and the reference's.
    :ivar milliseconds: of one gradient, the median.
    :ivar efficiency: 1 / (gradient variance x seconds): what a second of work buys.
    """

    bias: float
    bias_error: float
    variance: float
    gradient_variance: float
    signal_to_noise: float
    cosine: float
    milliseconds: float
    efficiency: float


def compare_estimators(
    estimators: Mapping[str, Loss], x: Tensor, exact: Tensor, num_draws: int = 10_000, seed: int = 0, chunk: int = 256
) -> dict[str, EstimatorReport]:
    """Bias, variance, gradient and cost of several estimators of one loss on the same batch.

    Gradients are compared over the parameters that ``exact`` depends on: a learned baseline's own are left out.

    :param estimators: by name; all of the same modules, those that ``exact`` was computed with.
    :param exact: the loss they estimate, differentiable, such as :func:`exact_objective`, or where that is out of
        reach the mean of many draws of an unbiased estimator; its gradient is the reference that cosines are taken
        with, and its own error is not part of ``bias_error``.
    :param num_draws: of the loss; a tenth as many of its gradient.
    :param chunk: draws that are held at once, at most.
    """
    reports = {}
    for name, loss in estimators.items():
        parameters = {key: p for key, p in loss.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(exact, list(parameters.values()), retain_graph=True, allow_unused=True)
        reference = {key: g for key, g in zip(parameters, gradients, strict=True) if g is not None}
        draws = loss_draws(loss, x, num_draws, seed, chunk)
        moments = gradient_moments(loss, x, max(num_draws // 10, 2), seed, chunk).of(reference)
        milliseconds = _gradient_milliseconds(loss, x)
        reports[name] = EstimatorReport(
            bias=float(draws.mean() - exact.detach()),
            bias_error=float(draws.std()) / math.sqrt(num_draws),
            variance=float(draws.var()),
            gradient_variance=moments.trace,
            signal_to_noise=moments.signal_to_noise,
            cosine=moments.cosine(reference),
            milliseconds=milliseconds,
            efficiency=1e3 / (moments.trace * milliseconds),
        )
    return reports


def _gradient_milliseconds(loss: nn.Module, x: Tensor, repeats: int = 21) -> float:
    parameters = [p for p in loss.parameters() if p.requires_grad]
    times = []
    with pyro.validation_enabled(False), seeded(0, x.device):
        for _ in range(repeats):
            started = time.perf_counter()
            torch.autograd.grad(loss(x), parameters, allow_unused=True)
            times.append(time.perf_counter() - started)
    return 1e3 * sorted(times)[repeats // 2]
