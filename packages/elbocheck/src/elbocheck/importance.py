"""Importance weights of a posterior's draws: tighter bounds, the tail, and the density itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp, roots_hermitenorm
from scipy.stats import multivariate_normal

from elbocheck.arguments import check_count
from elbocheck.checks import check_gradient, check_mean
from elbocheck.reports import Report

# Scale of the reference density, of the draws' own: narrower, so that its ratio stays small.
NARROWER = 0.7
MOST_NODES = 2**20


def gauss_hermite(num_nodes: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes ``[M, dim]`` and weights ``[M]`` for integrals over a standard normal, with ``M =
    num_nodes ** dim``. Exact for polynomials of degree up to ``2 num_nodes - 1`` in each
    coordinate.

    :raises ValueError: if a number is below 1, or there are more than a million nodes.

    Example:
        >>> from elbocheck import gauss_hermite
        >>> nodes, weights = gauss_hermite(5, dim=2)
        >>> nodes.shape, weights.shape
        ((25, 2), (25,))
        >>> round(float(weights @ nodes[:, 0] ** 4), 6)  # the fourth moment of a standard normal
        3.0
    """
    count = check_count("dim", dim) * math.log(check_count("num_nodes", num_nodes))
    if count > math.log(MOST_NODES) + 1e-9:
        raise ValueError(f"{num_nodes} ** {dim} nodes are too many: at most {MOST_NODES:,}")
    nodes, weights = roots_hermitenorm(num_nodes)
    grid = np.meshgrid(*[nodes] * dim, indexing="ij")
    shares = np.meshgrid(*[weights / weights.sum()] * dim, indexing="ij")
    return np.stack([of.ravel() for of in grid], -1), np.prod([of.ravel() for of in shares], 0)


def importance_weighted_bounds(log_weights: Any, sizes: Sequence[int]) -> dict[int, float]:
    """IWAE's bound for each number of draws in ``sizes``, in nats per datum (Burda et al., 2016,
    Eq. 8).

    The gain from one draw to many shows how much the posterior loses. For each size the draws are
    split into as many groups as possible, so small sizes are averages over many groups.

    :param log_weights: ``[num_draws, N]``: log p(x, z) - log q(z given x) of draws of z.
    :raises ValueError: if there are fewer draws than a size asks for.

    Example:
        >>> import numpy as np
        >>> from elbocheck import importance_weighted_bounds
        >>> log_weights = np.log([[1.0], [3.0]])  # two draws for one sample
        >>> bounds = importance_weighted_bounds(log_weights, [1, 2])
        >>> {size: round(bound, 3) for size, bound in bounds.items()}
        {1: 0.549, 2: 0.693}
    """
    values = _log_weights(log_weights)
    found = {}
    for size in sizes:
        if check_count("each of sizes", size) > len(values):
            raise ValueError(f"sizes must be at most the number of draws, {len(values)}")
        groups = values[: len(values) // size * size].reshape(-1, size, values.shape[1])
        found[size] = float((logsumexp(groups, axis=1) - math.log(size)).mean())
    return found


def pareto_k(log_weights: Any) -> np.ndarray:
    """Shape of the Pareto tail of each datum's importance weights: ``[N]`` (ArviZ's PSIS, the extra
    ``psis``; Vehtari et al., 2024).

    Up to about 0.7, importance sampling from the posterior works; above 1 the weights have no
    finite mean: the posterior misses mass of the true one. Infinite where the largest weights
    differ by more than a float64 can hold, e to the 708: a few draws then outweigh all others. 0
    where all weights of the tail are equal, as they are from the true posterior.

    :param log_weights: ``[num_draws, N]``, at least 100 draws.
    :raises ValueError: if there are fewer draws.
    """
    values = _log_weights(log_weights)
    if len(values) < 100:
        raise ValueError(f"a tail needs at least 100 draws, got {len(values)}")
    from arviz_stats.base import array_stats

    with np.errstate(invalid="ignore"):  # of weights that are all 0
        values = (values - values.max(0)).T
    num_tail = int(min(values.shape[1] / 5, 3 * math.sqrt(values.shape[1])))  # the paper's
    tail = np.sort(values, 1)[:, ::-1][:, :num_tail]  # [N, num_tail], the largest first
    # The fit measures the tail by its lower quartile. ArviZ goes on if that has become 0 by
    # underflow, and returns the prior's small k; tails without any spread it refuses.
    held = tail[:, -int(num_tail / 4 + 0.5)] >= math.log(np.finfo(np.float64).tiny)
    flat = tail[:, 0] == tail[:, -1]
    k = np.where(flat, 0.0, np.inf)
    if (held & ~flat).any():
        # ArviZ takes log-likelihoods, whose inverses are the weights in leave-one-out.
        with np.errstate(all="ignore"):
            k[held & ~flat] = array_stats.psislw(-values[held & ~flat], axis=-1)[1]
    return k


def check_density(
    values: Any,
    log_probs: Any,
    scores: Any = None,
    *,
    bias: float = 0.1,
    level: float = 1e-4,
    power: float = 0.99,
    seed: int = 0,
) -> tuple[Report, ...]:
    """Whether a log-density is that of its draws: its integral, and the mean of its score.

    A bound whose guide has a wrong log-density, as of a flow whose log-determinant is forgotten, is
    wrong and agrees with itself. Here the integral of the density is estimated by the ratio of a
    narrower normal's, fitted to half of the draws, to it, at the other half; it is 1. The mean
    score, the gradient of the log-density at draws that are held fixed, is 0.

    :param values: draws ``[n, d]`` on the whole real line.
    :param log_probs: at these, ``[n]``.
    :param scores: by the density's parameters, ``[n, P]``; left out where there are none.
    :param bias: of the integral, and of the score in standard deviations of one draw.
    :returns: a report on the integral, and one on the score if there is one.
    """
    z, logs = np.asarray(values, np.float64), np.asarray(log_probs, np.float64)
    half = len(z) // 2
    cov = np.atleast_2d(np.cov(z[:half].T)) * NARROWER**2
    normal = multivariate_normal(z[:half].mean(0), cov)
    ratio = np.exp(normal.logpdf(z[half:]) - logs[half:])
    options: dict[str, Any] = {"level": level, "power": power}
    reports = [check_mean(ratio, 1.0, bias=bias, name="integral of the density", **options)]
    if scores is not None and np.size(scores):
        zero = np.zeros(np.shape(scores)[1])
        reports.append(check_gradient(scores, zero, gradient_bias=bias, seed=seed, **options))
    return tuple(reports)


def _log_weights(log_weights: Any) -> np.ndarray:
    values = np.asarray(log_weights, np.float64)
    if values.ndim != 2 or not values.size or np.isnan(values).any():
        raise ValueError(
            f"log_weights must be [num_draws, N] without NaN, got shape {list(values.shape)} with "
            f"{int(np.isnan(values).sum())} of them"
        )
    return values
