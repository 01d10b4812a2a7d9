"""Independent draws of a loss, and the moments of its gradient.

An estimator is anything like :class:`~inference.objectives.Loss`, a module that maps a batch to
nats per datum, or any Pyro model and guide with an ELBO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from inference.diagnostics.programs import ElboCall, check_program, isolated, streams
from inference.randomness import seeded
from ppl_models.given.checks import check_count, check_kind, check_size
from ppl_models.modes import evaluating

__all__ = ["GradientMoments", "gradient_moments", "loss_draws"]

# Rows to pass through the networks at once: enough to keep the device busy, few enough for its
# memory.
ROWS = 16_384


# Draws of a program that are mapped over at once.
CHUNK = 256

# A module, or a model, a guide and an ELBO.
Estimator = nn.Module | tuple[Callable, Callable, Any]


@torch.no_grad()
def loss_draws(
    loss: Estimator,
    x: Tensor | tuple,
    num_draws: int,
    seed: int = 0,
    chunk: int | None = None,
    **given: Any,
) -> Tensor:
    """Independent draws of the loss for the same batch: ``[num_draws]``.

    Of a module, in its unit, which is nats per datum for our own objectives: drawn side by side
    with ``torch.vmap``.

    Of a program ``(model, guide, elbo)``, in the ELBO's unit, which is nats of all data together
    for Pyro's: values of ``elbo.loss``, drawn one after the other, since Pyro's ELBOs and functions
    with ``pyro.param`` cannot be mapped over. Modules with parameters of their own and one of our
    objectives are drawn side by side too.

    Pyro's checks are off meanwhile, modules in evaluation mode; the parameter store, gradients and
    the caller's random state are left as they were. Parameters that the store does not have yet
    start from their initial values, drawn with seed 0.

    >>> import torch
    >>> import pyro, pyro.distributions as dist
    >>> from pyro.infer import Trace_ELBO
    >>> def model(x):
    ...     z = pyro.sample("z", dist.Normal(0.0, 1.0))
    ...     pyro.sample("x", dist.Normal(z, 1.0), obs=x)
    >>> def guide(x):
    ...     pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor(0.5)), 0.7))
    >>> loss_draws((model, guide, Trace_ELBO()), torch.tensor(1.0), 3).shape
    torch.Size([3])

    :param loss: a module, or a model, a guide and an ELBO; instead of the ELBO a function such as
        SVI takes can stand.
    :param x: ``[B, *x_shape]``, a tensor where the loss is; for a program its argument, or a tuple
        of its positional arguments.
    :param num_draws: at least 1.
    :param seed: of the draws.
    :param chunk: draws that are held at once, at most, where they are mapped over; by default as
        many as make 16,384 rows.
    :param given: what the loss takes beside x, such as ``label``; a program's keyword arguments.
    :raises ValueError: if a number is below 1, ``x`` is no tensor where a module is given, or a
        part of the program cannot be called.
    """
    check_size("num_draws", num_draws)
    if chunk is not None:
        check_count("chunk", chunk)
    if isinstance(loss, tuple):
        return _program_losses(_program(loss, x, given), num_draws, seed, chunk)
    x = _check_loss(loss, x)
    chunk = max(ROWS // len(x), 1) if chunk is None else chunk
    return _mapped_losses(loss, (x,), given, num_draws, seed, chunk, x.device)


def _mapped_losses(
    loss: nn.Module,
    args: tuple,
    given: Mapping[str, Any],
    num_draws: int,
    seed: int,
    chunk: int,
    device: torch.device,
) -> Tensor:
    with evaluating(loss), pyro.validation_enabled(False), seeded(seed, device):
        one_draw = vmap(lambda _: loss(*args, **given), randomness="different", chunk_size=chunk)
        return one_draw(torch.empty(num_draws, device=device))


def _program_losses(program: ElboCall, num_draws: int, seed: int, chunk: int | None) -> Tensor:
    device = program.device()
    with isolated(program.model, program.guide):
        with streams(0, device):
            mappable = program.mappable()
        if mappable:
            module = program.elbo(program.model, program.guide)
            given = (program.args, program.kwargs, num_draws, seed, chunk or CHUNK, device)
            return _mapped_losses(module, *given)
        with pyro.validation_enabled(False), streams(seed, device):
            return torch.tensor([program.loss() for _ in range(num_draws)], dtype=torch.float64)


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
    loss: Estimator,
    x: Tensor | tuple,
    num_draws: int,
    seed: int = 0,
    chunk: int = 256,
    **given: Any,
) -> GradientMoments:
    """Moments of the loss's gradient over independent draws, in one pass.

    Of a module by its parameters. Of a program ``(model, guide, elbo)`` by the unconstrained
    parameters that the store has after one run, under their names there, and by those of modules
    that are not in the store, under ``model.`` and ``guide.``: gradients of
    ``elbo.differentiable_loss``, or of ``elbo.loss_and_grads`` where there is none. What is mapped
    over and what is left as it was is as in :func:`loss_draws`.

    >>> import torch
    >>> import pyro, pyro.distributions as dist
    >>> from pyro.infer import TraceMeanField_ELBO
    >>> def model(x):
    ...     z = pyro.sample("z", dist.Normal(0.0, 1.0))
    ...     pyro.sample("x", dist.Normal(z, 1.0), obs=x)
    >>> def guide(x):
    ...     pyro.sample("z", dist.Normal(pyro.param("loc", torch.tensor(0.5)), 0.7))
    >>> moments = gradient_moments((model, guide, TraceMeanField_ELBO()), torch.tensor(1.0), 200)
    >>> list(moments.mean), abs(float(moments.mean["loc"])) < 0.2  # 0.5 is the posterior's mean
    (['loc'], True)

    :param loss: a module, or a model, a guide and an ELBO.
    :param x: ``[B, *x_shape]``, a tensor where the loss is; for a program its argument, or a tuple
        of its positional arguments.
    :param num_draws: at least 2.
    :param seed: of the draws; the caller's random state is left as it was.
    :param chunk: gradients that are held at once, at most.
    :param given: what the loss takes beside x, such as ``label``; a program's keyword arguments.
    :raises ValueError: if ``num_draws`` is below 2 or ``chunk`` below 1, ``x`` is no tensor where a
        module is given, or a part of the program cannot be called.
    """
    if check_size("num_draws", num_draws) < 2:
        raise ValueError(f"num_draws must be at least 2 to give a variance, got {num_draws}")
    check_count("chunk", chunk)
    if isinstance(loss, tuple):
        return _program_moments(_program(loss, x, given), num_draws, seed, chunk)
    x = _check_loss(loss, x)
    return _moments(_mapped_gradients(loss, (x,), given, num_draws, seed, chunk, x.device))


def _moments(parts: Iterable[dict[str, Tensor]]) -> GradientMoments:
    """Of gradients that come in parts, ``{parameter: [n, ...]}``."""
    count = 0
    mean: dict[str, Tensor] = {}
    spread: dict[str, Tensor] = {}
    for part in parts:
        n = 0
        for name, draws in part.items():
            n = len(draws)
            before = mean.get(name, torch.zeros_like(draws[0]))
            square = spread.get(name, torch.zeros_like(draws[0]))
            mean[name], spread[name] = merged_moments(count, before, square, draws)
        count += n
    return GradientMoments(mean, {name: s / (count - 1) for name, s in spread.items()}, count)


def _mapped_gradients(
    loss: nn.Module,
    args: tuple,
    given: Mapping[str, Any],
    num_draws: int,
    seed: int,
    chunk: int,
    device: torch.device,
) -> Iterator[dict[str, Tensor]]:
    parameters = {name: p.detach() for name, p in loss.named_parameters() if p.requires_grad}
    gradient = vmap(
        grad(lambda p, _: functional_call(loss, p, args, dict(given))),
        in_dims=(None, 0),
        randomness="different",
    )
    with evaluating(loss), pyro.validation_enabled(False), seeded(seed, device):
        for n in _parts(num_draws, chunk):
            yield gradient(parameters, torch.empty(n, device=device))


def _program_moments(program: ElboCall, num_draws: int, seed: int, chunk: int) -> GradientMoments:
    device = program.device()
    with isolated(program.model, program.guide):
        with streams(0, device):
            parameters, mappable = program.parameters(), program.mappable()
        if mappable:
            module = program.elbo(program.model, program.guide)
            given = (program.args, program.kwargs, num_draws, seed, chunk, device)
            return _moments(_mapped_gradients(module, *given))
        with pyro.validation_enabled(False), streams(seed, device):
            return _moments(_looped_gradients(program, parameters, num_draws, chunk))


def _looped_gradients(
    program: ElboCall, parameters: Mapping[str, Tensor], num_draws: int, chunk: int
) -> Iterator[dict[str, Tensor]]:
    for n in _parts(num_draws, chunk):
        draws = [program.gradient(parameters)[1] for _ in range(n)]
        yield {name: torch.stack([draw[name] for draw in draws]) for name in parameters}


def _parts(num_draws: int, chunk: int) -> Iterator[int]:
    for start in range(0, num_draws, chunk):
        yield min(chunk, num_draws - start)


def _program(parts: tuple, x: Any, given: Mapping[str, Any]) -> ElboCall:
    if len(parts) != 3:
        raise ValueError(f"a program is (model, guide, elbo), got a tuple of {len(parts)}")
    return check_program(*parts, x if isinstance(x, tuple) else (x,), given)


def _check_loss(loss: Any, x: Any) -> Tensor:
    check_kind(
        "loss",
        loss,
        nn.Module,
        "a module from a batch to nats per datum, such as Loss(model, guide), or (model, guide, "
        "elbo)",
    )
    if not isinstance(x, Tensor) or not x.numel():
        raise ValueError(
            f"x must be a tensor with at least one datum, got {type(x).__name__}: give "
            "torch.as_tensor(x)"
        )
    return x


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


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
