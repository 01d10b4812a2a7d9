"""Rows with gaps, filled by what is there."""

from __future__ import annotations

import numpy as np
import torch

from facetvae.table_rules.rows import has_missing, in_parts, some_rows
from inference.randomness import seeded
from ppl_models import FactorFill

# Most factors, and rows for each; most rows that they are fitted to, and the steps of EM.
FACTORS, ROWS_PER_FACTOR, MAX_ROWS, STEPS = 20, 10, 2000, 30
# Least deviation of a standardized column's noise, and what is added to sums of squares.
LEAST_NOISE, RIDGE = 0.03, 1e-3


def fitted_fill(x: np.ndarray) -> FactorFill:
    """Fitted by EM, in float64, to standardized rows ``[N, D]``, a column by those that have it."""
    rows = torch.as_tensor(some_rows(x, most=MAX_ROWS)).double()
    there, values = (~rows.isnan()).double(), rows.nan_to_num()
    (N, D), number = rows.shape, there.sum(0).clamp(min=1)
    k = max(1, min(FACTORS, D - 1, N // ROWS_PER_FACTOR))
    loc = values.sum(0) / number
    _, s, vt = torch.linalg.svd((values - loc) * there, full_matrices=False)
    noise = torch.full((D,), 0.5).double()
    found = FactorFill(vt[:k] * s[:k, None] / N**0.5, loc, noise).double()
    for _ in range(STEPS):
        mean, precision = found.posterior(rows)
        z = torch.cat([mean, torch.ones(N, 1).double()], 1)
        second = z.unsqueeze(2) * z.unsqueeze(1)
        second[:, :k, :k] += torch.linalg.inv(precision)
        sums = (there.T @ second.flatten(1)).unflatten(1, (k + 1, k + 1))
        with_z = values.T @ z
        weights = torch.linalg.solve(sums + RIDGE * torch.eye(k + 1), with_z)
        noise = (values.square().sum(0) - (weights * with_z).sum(1)) / number
        noise = noise.clamp(min=LEAST_NOISE**2)
        found = FactorFill(weights[:, :k].T, weights[:, k], noise).double()
    return found


def drawn(fill: FactorFill, x: np.ndarray, seed: int = 0) -> np.ndarray:
    """Rows ``[N, D]`` with a draw in each gap; alike at each call."""
    with seeded(seed, torch.device("cpu")), torch.no_grad():
        return in_parts(lambda part: fill.draw(torch.as_tensor(part).double()).numpy(), x)


@torch.no_grad()
def means(fill: FactorFill, x: np.ndarray) -> np.ndarray:
    """Rows ``[N, D]`` with the mean in each gap."""
    return in_parts(lambda part: fill(torch.as_tensor(part).double()).numpy(), x)


def without_gaps(x: np.ndarray, draws: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows ``[N, D]`` in any units with draws in their gaps given what is there, and the
    log-densities of these draws ``[N]``, as often as is said.
    """
    if not has_missing(x):
        return [(x, np.zeros(len(x)))]
    loc, scale = np.nanmean(x, 0), np.nanstd(x, 0).clip(1e-12)
    unit = (x - loc) / scale
    fill, volume = fitted_fill(unit), np.isnan(x) @ np.log(scale)
    there = fill.log_prob(torch.as_tensor(unit))
    filled = [drawn(fill, unit, seed) for seed in range(draws)]
    log_q = [(fill.log_prob(torch.as_tensor(z)) - there).numpy() - volume for z in filled]
    return [(z * scale + loc, each) for z, each in zip(filled, log_q, strict=True)]
