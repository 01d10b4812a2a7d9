"""Is an ELBO estimator right, and how good is it? Draws, exact values for small models, tests that state their power.

An estimator is anything like :class:`~inference.objectives.Loss`: a module that maps a batch to nats per datum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyro
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from guides.base import FacetGuide
from inference.objectives import Loss
from inference.randomness import seeded
from ppl_models.base import FacetModel, evaluating
from ppl_models.checks import check_count

__all__ = [
    "EstimatorReport",
    "GradientMoments",
    "assert_unbiased",
    "compare_estimators",
    "exact_objective",
    "gauss_hermite",
    "gradient_moments",
    "loss_draws",
]

# Draws that are mapped over at once: enough to keep the machine busy, few enough for any memory.
CHUNK = 4096


@torch.no_grad()
def loss_draws(loss: nn.Module, x: Tensor, num_draws: int, seed: int = 0) -> Tensor:
    """Independent draws of the loss for the same batch: ``[num_draws]``, nats per datum.

    Drawn side by side with ``torch.vmap``; Pyro's checks are off meanwhile.

    :param x: ``[B, *x_shape]``.
    """
    check_count("num_draws", num_draws)
    with evaluating(loss), pyro.validation_enabled(False), seeded(seed, x.device):
        one_draw = vmap(lambda _: loss(x), randomness="different", chunk_size=CHUNK)
        return one_draw(torch.empty(num_draws, device=x.device))


@dataclass(frozen=True)
class GradientMoments:
    """Mean and variance of each parameter's gradient over independent draws.

    :ivar mean: ``{parameter: tensor of its shape}``.
    :ivar variance: likewise, of one draw.
    :ivar num_draws: draws that they were estimated from.
    """

    mean: dict[str, Tensor]
    variance: dict[str, Tensor]
    num_draws: int

    @property
    def trace(self) -> float:
        """Variance of the whole gradient: the trace of its covariance."""
        return float(sum(variance.sum() for variance in self.variance.values()))

    @property
    def signal_to_noise(self) -> float:
        """Norm of the mean gradient over the root of :attr:`trace`."""
        return float(_flat(self.mean).norm()) / math.sqrt(max(self.trace, 1e-300))

    def cosine(self, reference: Mapping[str, Tensor]) -> float:
        """Cosine between the mean gradient and ``reference``."""
        ours, theirs = _flat(self.mean), _flat({name: reference[name] for name in self.mean})
        return float(ours @ theirs / (ours.norm() * theirs.norm()))


def gradient_moments(loss: nn.Module, x: Tensor, num_draws: int, seed: int = 0, chunk: int = 256) -> GradientMoments:
    """Moments of the loss's gradient over independent draws, in one pass.

    :param chunk: gradients that are held at once, at most.
    """
    check_count("num_draws", num_draws)
    parameters = {name: p.detach() for name, p in loss.named_parameters() if p.requires_grad}
    gradient = vmap(grad(lambda p, _: functional_call(loss, p, (x,))), in_dims=(None, 0), randomness="different")
    count, mean, spread = 0, _zeros(parameters), _zeros(parameters)
    with evaluating(loss), pyro.validation_enabled(False), seeded(seed, x.device):
        while count < num_draws:
            n = min(chunk, num_draws - count)
            for name, draws in gradient(parameters, torch.empty(n, device=x.device)).items():
                # Chan's update: the moments of two sets of draws make those of their union.
                chunk_mean = draws.mean(0)
                delta = chunk_mean - mean[name]
                mean[name] += delta * n / (count + n)
                spread[name] += (draws - chunk_mean).square().sum(0) + delta.square() * count * n / (count + n)
            count += n
    return GradientMoments(mean, {name: s / max(count - 1, 1) for name, s in spread.items()}, count)


def gauss_hermite(num_nodes: int, dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Nodes ``[M, dim]`` and weights ``[M]`` that integrate against a standard normal, ``M = num_nodes ** dim``.

    Exact for polynomials of degree up to ``2 num_nodes - 1`` in each coordinate.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(check_count("num_nodes", num_nodes))
    grid = torch.cartesian_prod(*[torch.as_tensor(nodes, dtype=dtype)] * dim).reshape(-1, dim)
    log_weights = torch.as_tensor(np.log(weights / weights.sum()), dtype=dtype)
    return grid, torch.cartesian_prod(*[log_weights] * dim).reshape(-1, dim).sum(-1).exp()


def exact_objective(model: FacetModel, guide: FacetGuide, x: Tensor, num_nodes: int = 30) -> Tensor:
    """The expected loss of ``guide`` on ``x``, in nats per datum, by quadrature over z and enumeration over c.

    For guides whose clusters follow from the draws of z or are summed out (``VaDEGuide``, ``MarginalGuide``), with
    the model's current weights (MFCVAE, Eq. 58 and 89). The cost grows as ``num_nodes`` to the power of all latent
    dimensions together, and for shared responsibilities of L draws to L times a facet's: for tests on small models.
    Differentiable, so it gives exact gradients as well. Use smooth activations (``"tanh"``, ``"elu"``): at the kinks
    of ReLU quadrature converges slowly, and its gradients are wrong in the second digit.

    :param x: ``[B, *x_shape]`` in the model's dtype; use float64.
    :raises ValueError: if a facet's KL terms for z and c have different weights, for which the responsibilities are
        not the optimal q(c given x) and this formula does not hold.
    """
    if not torch.equal(model.kl_weights[:, 0], model.kl_weights[:, 1]):
        raise ValueError(f"each facet's two KL weights must be equal, got {model.kl_weights.tolist()}")
    x = model.prepare(x)
    posterior = guide.encode(x)
    total = -_expected_log_likelihood(model, posterior, x, num_nodes)
    for j, (name, prior) in enumerate(model.priors.items()):
        q = posterior[name]
        # A mixture whose clusters are summed out draw by draw is a mixture with one draw.
        draws = 1 if guide.options.get("marginal") or not prior.is_mixture else guide.num_samples
        nodes, weights = gauss_hermite(num_nodes, draws * prior.dim, x.dtype)
        z = q.base_dist.loc + q.base_dist.scale * nodes.view(-1, draws, 1, prior.dim)  # [M, L, B, d]
        log_p = (weights @ prior.log_joint(z).mean(1).logsumexp(-1)).sum()  # Eq. 58 at its optimal q(c given x)
        total = total + model.kl_weights[j, 0] * (-q.entropy().sum() - log_p)
    return total / len(x)


def _expected_log_likelihood(model: FacetModel, posterior: Mapping, x: Tensor, num_nodes: int) -> Tensor:
    nodes, weights = gauss_hermite(num_nodes, sum(model.dims), x.dtype)
    z, offset = {}, 0
    for name, q in posterior.items():
        d = q.event_shape[0]
        z[name] = q.base_dist.loc + q.base_dist.scale * nodes[:, None, offset : offset + d]  # [M, B, d]
        offset += d
    return (weights @ model.decode(z).log_prob(x)).sum()


def assert_unbiased(
    draws: Tensor, exact: float | Tensor, detectable: float = 0.01, false_alarm: float = 1e-6, power: float = 0.99
) -> float:
    """Fail if the mean of ``draws`` is not ``exact``, or if the draws are too few to have told.

    A two-sided z-test, its standard error measured from the draws.

    :param draws: independent draws ``[n]``.
    :param detectable: the bias, in the draws' unit, that must be found with probability ``power``.
    :param false_alarm: probability of failing an unbiased estimator.
    :returns: the z-score.
    :raises ValueError: if a bias of ``detectable`` would have been missed too often: the test could not have failed.
    :raises AssertionError: if the draws are biased.
    """
    n = len(draws)
    error = float(draws.std()) / math.sqrt(n)
    threshold = float(norm.isf(false_alarm / 2))
    found = (threshold + float(norm.isf(1 - power))) * error
    if not found <= detectable:
        raise ValueError(
            f"{n} draws with a standard error of {error:.3g} detect a bias of {found:.3g} at power {power}, not "
            f"{detectable:g}: take about {math.ceil(n * (found / detectable) ** 2):,} draws"
        )
    z = (float(draws.mean()) - float(exact)) / error
    if abs(z) > threshold:
        raise AssertionError(
            f"biased: the mean of {n} draws is {float(draws.mean()):.6g}, exact is {float(exact):.6g}; "
            f"z = {z:.1f} beyond {threshold:.1f}"
        )
    return z


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
    estimators: Mapping[str, Loss], x: Tensor, exact: Tensor, num_draws: int = 10_000, seed: int = 0
) -> dict[str, EstimatorReport]:
    """Bias, variance, gradient and cost of several estimators of one loss on the same batch.

    :param estimators: by name; they must share their parameters' names.
    :param exact: the loss they estimate, differentiable, such as :func:`exact_objective`; its gradient is the
        reference that cosines are taken with.
    """
    reports = {}
    for name, loss in estimators.items():
        parameters = {key: p for key, p in loss.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(exact, list(parameters.values()), retain_graph=True, allow_unused=True)
        reference = {
            key: torch.zeros_like(p) if g is None else g
            for (key, p), g in zip(parameters.items(), gradients, strict=True)
        }
        draws = loss_draws(loss, x, num_draws, seed)
        moments = gradient_moments(loss, x, max(num_draws // 10, 2), seed)
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


def _zeros(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) for name, p in parameters.items()}


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
