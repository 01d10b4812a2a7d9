"""Independent draws of a loss, and the moments of its gradient.

An estimator is any module like :class:`~inference.objectives.Loss`, which maps a batch to nats per
datum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from inference.randomness import seeded
from ppl_models.checks import check_count, check_kind, check_size
from ppl_models.modes import evaluating

__all__ = ["GradientMoments", "gradient_moments", "loss_draws"]

# Rows to pass through the networks at once: enough to keep the device busy, few enough for its
# memory.
ROWS = 16_384


@torch.no_grad()
def loss_draws(
    loss: nn.Module,
    x: Tensor,
    num_draws: int,
    seed: int = 0,
    chunk: int | None = None,
    **given: Tensor,
) -> Tensor:
    """Independent draws of the loss for the same batch: ``[num_draws]``, nats per datum.

    The draws are vectorised with ``torch.vmap``; Pyro's checks are off meanwhile.

    Only for this library's objectives: Pyro's read tensors in ways that cannot be vectorised.

    :param x: ``[B, *x_shape]``, a tensor on the loss's device.
    :param num_draws: at least 1.
    :param seed: of the draws; the caller's random state is not changed.
    :param chunk: most draws to compute at once; by default as many as make 16,384 rows.
    :param given: inputs of the loss other than x, such as ``label``.
    :raises ValueError: if a number is below 1, or ``x`` is not a tensor.

    Example:
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from inference import Loss
        >>> from inference.diagnostics import loss_draws
        >>> from ppl_models import VAE, SharedMLP
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> loss_draws(Loss(model, VaDEGuide(model)), torch.zeros(5, 6), num_draws=100).shape
        torch.Size([100])
    """
    check_size("num_draws", num_draws)
    _check_loss(loss, x)
    chunk = max(ROWS // len(x), 1) if chunk is None else check_count("chunk", chunk)
    with evaluating(loss), pyro.validation_enabled(False), seeded(seed, x.device):
        one_draw = vmap(lambda _: loss(x, **given), randomness="different", chunk_size=chunk)
        return one_draw(torch.empty(num_draws, device=x.device))


@dataclass(frozen=True)
class GradientMoments:
    """Mean and variance of each parameter's gradient over independent draws.

    :ivar mean: ``{parameter: tensor of its shape}``.
    :ivar variance: of one draw, in the same form.
    :ivar num_draws: number of draws used for the estimates.
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
        """Norm of the mean gradient divided by the square root of :attr:`trace`."""
        return self.norm / math.sqrt(max(self.trace, 1e-300))

    @property
    def norm(self) -> float:
        """Norm of the mean gradient, corrected for the noise of the draws."""
        squared = float(_flat(self.mean).square().sum()) - self.trace / self.num_draws
        return math.sqrt(max(squared, 0.0))

    def of(self, parameters: Iterable[str]) -> GradientMoments:
        """The moments of these parameters alone."""
        names = list(parameters)
        mean, variance = (
            {name: moment[name] for name in names} for moment in (self.mean, self.variance)
        )
        return GradientMoments(mean, variance, self.num_draws)

    def cosine(self, reference: GradientMoments) -> float:
        """Cosine between the mean gradient and that of ``reference``, which is exact or of other
        draws.

        Both norms are corrected for the noise of the draws, so that an unbiased gradient has a
        cosine of about 1.
        """
        product = float(_flat(self.mean) @ _flat(reference.of(self.mean).mean))
        return product / max(self.norm * reference.of(self.mean).norm, 1e-300)


def gradient_moments(
    loss: nn.Module, x: Tensor, num_draws: int, seed: int = 0, chunk: int = 256, **given: Tensor
) -> GradientMoments:
    """Moments of the loss's gradient over independent draws, in one pass.

    :param x: ``[B, *x_shape]``, a tensor on the loss's device.
    :param num_draws: at least 1.
    :param seed: of the draws; the caller's random state is not changed.
    :param chunk: most gradients to compute at once.
    :param given: inputs of the loss other than x, such as ``label``.
    :raises ValueError: if a number is below 1, or ``x`` is not a tensor.

    Example:
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from inference import Loss
        >>> from inference.diagnostics import gradient_moments
        >>> from ppl_models import VAE, SharedMLP
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> loss = Loss(model, VaDEGuide(model))
        >>> moments = gradient_moments(loss, torch.zeros(5, 6), num_draws=20)
        >>> moments.trace > 0, moments.num_draws
        (True, 20)
    """
    check_size("num_draws", num_draws)
    check_count("chunk", chunk)
    _check_loss(loss, x)
    parameters = {name: p.detach() for name, p in loss.named_parameters() if p.requires_grad}
    gradient = vmap(
        grad(lambda p, _: functional_call(loss, p, (x,), given)),
        in_dims=(None, 0),
        randomness="different",
    )
    count, mean, spread = 0, _zeros(parameters), _zeros(parameters)
    with evaluating(loss), pyro.validation_enabled(False), seeded(seed, x.device):
        while count < num_draws:
            n = min(chunk, num_draws - count)
            for name, draws in gradient(parameters, torch.empty(n, device=x.device)).items():
                mean[name], spread[name] = merged_moments(count, mean[name], spread[name], draws)
            count += n
    return GradientMoments(mean, {name: s / max(count - 1, 1) for name, s in spread.items()}, count)


def _check_loss(loss: nn.Module, x: Tensor) -> None:
    check_kind(
        "loss",
        loss,
        nn.Module,
        "a module from a batch to nats per datum, such as Loss(model, guide)",
    )
    if not isinstance(x, Tensor) or not x.numel():
        raise ValueError(
            f"x must be a tensor with at least one datum, got {type(x).__name__}: give "
            "torch.as_tensor(x)"
        )


def merged_moments(
    count: int, mean: Tensor, spread: Tensor, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean, and sum of squared deviations from it, of ``count`` earlier draws together with
    ``draws`` ``[n, ...]``.

    Chan's update: combines the moments of two sets into those of their union.
    """
    n, new_mean = len(draws), draws.mean(0)
    delta = new_mean - mean
    spread = spread + (draws - new_mean).square().sum(0) + delta.square() * count * n / (count + n)
    return mean + delta * n / (count + n), spread


def _zeros(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) for name, p in parameters.items()}


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
