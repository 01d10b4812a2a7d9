"""Draws of objectives and their gradients, by elbocheck, as the statistical tests use them."""

from __future__ import annotations

import os
from typing import Any

import elbocheck
import numpy as np
import torch
from elbocheck import Report, check_mean, moments
from elbocheck.pytorch import Program
from torch import Tensor, nn

SEED = int(os.environ.get("FACETVAE_TEST_SEED", "0"))
FALSE_ALARM = 1e-6


def loss_draws(loss: nn.Module, x: Tensor, num_draws: int, seed: int = 0, **given: Any) -> Tensor:
    """Independent draws of a loss, in nats per datum: ``[num_draws]``."""
    draws = Program(loss, x, **given).draw(num_draws, seed, gradient=False)
    return torch.from_numpy(draws.values["loss"])


def worst_gradient_error(
    loss: nn.Module, x: Tensor, exact: Tensor, floor: float = 1e-10, **given: Any
) -> float:
    """The largest deviation of an entry of the mean gradient of 20,000 draws from that of an exact
    loss, in standard errors.

    :param floor: added to them, as entries behind a dead unit have no spread at all. Learned
        baselines are left out, which no exact loss has.
    """
    found = moments(Program(loss, x, **given), 20_000, SEED)
    found = found.of({n: size for n, size in found.parameters.items() if "baseline" not in n})
    parameters = dict(loss.named_parameters())
    wanted = torch.autograd.grad(exact, [parameters[name] for name in found.parameters])
    off = np.abs(found.mean - nn.utils.parameters_to_vector(wanted).numpy())
    return float((off / (np.sqrt(found.variance / found.num_draws) + floor)).max())


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
