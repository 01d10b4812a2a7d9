"""Draws of objectives and their gradients, by elbocheck, as the statistical tests use them."""

from __future__ import annotations

from typing import Any, NamedTuple

import elbocheck
import torch
from elbocheck import Report, check_mean, moments
from elbocheck.pytorch import Program
from torch import Tensor, nn

FALSE_ALARM = 1e-6


def loss_draws(loss: nn.Module, x: Tensor, num_draws: int, seed: int = 0, **given: Any) -> Tensor:
    """Independent draws of a loss, in nats per datum: ``[num_draws]``."""
    draws = Program(loss, x, **given).draw(num_draws, seed, gradient=False)
    return torch.from_numpy(draws.values["loss"])


class Moments(NamedTuple):
    """Mean and variance of each parameter's gradient, flat."""

    mean: dict[str, Tensor]
    variance: dict[str, Tensor]
    num_draws: int


def gradient_moments(
    loss: nn.Module, x: Tensor, num_draws: int, seed: int = 0, **given: Any
) -> Moments:
    parameters = dict(loss.named_parameters())
    found = moments(Program(loss, x, **given), num_draws, seed)
    sizes = list(found.parameters.values())
    mean, variance = (
        {
            name: part.view_as(parameters[name])
            for name, part in zip(found.parameters, whole.split(sizes), strict=True)
        }
        for whole in (torch.from_numpy(found.mean), torch.from_numpy(found.variance))
    )
    return Moments(mean, variance, found.num_draws)


def assert_unbiased(draws: Tensor, exact: float | Tensor, detectable: float = 0.01) -> Report:
    """A bias of ``detectable`` nats is found with probability 0.99; a right estimator fails once in
    a million runs.
    """
    report = check_mean(draws.numpy(), float(exact), bias=detectable, level=FALSE_ALARM)
    return report.assert_unbiased()


def gauss_hermite(num_nodes: int, dim: int) -> tuple[Tensor, Tensor]:
    """Nodes ``[M, dim]`` and weights ``[M]`` for a standard normal, in double precision."""
    nodes, weights = elbocheck.gauss_hermite(num_nodes, dim)
    return torch.from_numpy(nodes), torch.from_numpy(weights)
