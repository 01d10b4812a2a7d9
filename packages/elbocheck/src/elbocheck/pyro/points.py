"""Points that stand for a site of a program, with their weights: a support, or a quadrature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro.distributions import (
    Delta,
    LowRankMultivariateNormal,
    MaskedDistribution,
    MultivariateNormal,
    Normal,
)
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import Independent, biject_to

from elbocheck.importance import gauss_hermite

# Runs of model and guide that are summed over, at most.
MAX_RUNS = 20_000
# A density that is no normal is summed over a grid of its unconstrained values: so many deviations
# to each side, so many points for each of a normal's, and so many draws to find the deviation.
REACH, DENSER, SCALED = 8.0, 4, 4000

# Value and weight of the k-th point of a site's grid, given its distribution in the guide.
Point = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Latent:
    """A site and the points that stand for it.

    :ivar size: how many points.
    :ivar frames: the plates around it.
    :ivar point: of an index and a distribution, a value and its weight.
    """

    name: str
    size: int
    frames: frozenset
    point: Callable[[int, Any], Point]


def frames_of(site: dict) -> frozenset:
    return frozenset((frame.name, frame.counter) for frame in site["cond_indep_stack"])


def vectorized(site: dict) -> frozenset:
    stack = site["cond_indep_stack"]
    return frozenset((frame.name, frame.counter) for frame in stack if frame.vectorized)


def hidden_latent(site: dict) -> Latent:
    """The support of a latent of the model alone."""
    fn, frames = site["fn"], vectorized(site)
    if not getattr(fn, "has_enumerate_support", False):
        raise ValueError(
            f"latent {site['name']!r} of the model is not in the guide, and is not discrete with a "
            "finite support: the exact ELBO needs it in both; give reference="
        )
    if len(frames) > 1:
        raise ValueError(
            f"latent {site['name']!r} of the model alone is in several plates: give reference="
        )
    return Latent(site["name"], len(fn.enumerate_support(expand=False)), frames, supported)


def guide_latent(site: dict, points: int) -> Latent:
    """The points of a guide's site."""
    fn, name = site["fn"], site["name"]
    planned = {frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    for dim in range(-len(fn.batch_shape), 0):
        if fn.batch_shape[dim] > 1 and dim not in planned:
            raise ValueError(
                f"dimension {dim} of site {name!r} has {fn.batch_shape[dim]} entries and no plate: "
                "declare them with pyro.plate or .to_event"
            )
    base, frames = _base(fn), frames_of(site)
    if isinstance(base, Delta):
        return Latent(name, 1, frames, lambda k, fn: (fn.rsample(), torch.tensor(1.0)))
    if isinstance(base, (Normal, MultivariateNormal, LowRankMultivariateNormal)):
        return _integrated(name, fn, frames, points)
    if getattr(fn, "has_enumerate_support", False):
        return Latent(name, len(fn.enumerate_support(expand=False)), frames, supported)
    if getattr(base, "has_enumerate_support", False) and not base.event_shape:
        return _of_entries(name, fn, frames)
    if base.event_shape or base.support is None or base.support.is_discrete:
        raise ValueError(
            f"site {name!r} of the guide is {type(base).__name__}, whose support is neither finite "
            "nor of one dimension: give reference=, an estimator that is known to be right"
        )
    return _gridded(name, fn, frames, points)


def _base(fn: Any) -> Any:
    while isinstance(fn, (Independent, MaskedDistribution)):
        fn = fn.base_dist
    return fn


def supported(k: int, fn: Any) -> Point:
    value = fn.enumerate_support(expand=True)[k]
    return value, fn.log_prob(value).exp()


def _of_entries(name: str, fn: Any, frames: frozenset) -> Latent:
    """All combinations of the supports of independent entries."""
    support, entries = _base(fn).enumerate_support(expand=False).flatten(), fn.event_shape.numel()
    size = check_runs(len(support) ** entries, 1)

    def point(k: int, fn: Any) -> Point:
        digits = np.unravel_index(k, (len(support),) * entries)
        value = support[list(map(int, digits))].reshape(fn.event_shape)
        value = value.expand(fn.batch_shape + fn.event_shape)
        # Of the base, as a mask does not change which values there are.
        return value, sum_rightmost(_base(fn).log_prob(value), fn.event_dim).exp()

    return Latent(name, size, frames, point)


def _gridded(name: str, fn: Any, frames: frozenset, points: int) -> Latent:
    """A density of one dimension, or of few independent ones, on a grid of unconstrained values,
    which the parameters do not move.
    """
    entries, count = fn.event_shape.numel(), DENSER * points
    size = check_runs(count**entries, points)
    nodes, weights = (torch.as_tensor(each) for each in np.polynomial.legendre.leggauss(count))
    to_support = biject_to(_base(fn).support)
    with torch.no_grad():
        drawn = to_support.inv(_base(fn).sample(torch.Size([SCALED])))
        middle, half = drawn.mean(0), REACH * drawn.std(0)

    def point(k: int, fn: Any) -> Point:
        digits = list(map(int, np.unravel_index(k, (count,) * entries)))
        node, weight = (of[digits].reshape(fn.event_shape).to(middle) for of in (nodes, weights))
        free = middle + half * node
        value = to_support(free)
        log_volume = to_support.log_abs_det_jacobian(free, value)
        logs = _base(fn).log_prob(value) + log_volume + (weight * half).log()
        return value, sum_rightmost(logs, fn.event_dim).exp()

    with torch.no_grad():
        mass = sum((point(k, fn)[1] for k in range(size)), torch.zeros(()))
    if not torch.allclose(mass, torch.ones_like(mass), atol=1e-3):
        raise ValueError(
            f"the density of site {name!r} of the guide, {type(_base(fn)).__name__}, sums to "
            f"{float(mass.flatten()[0]):.4g} on a grid of {count} points, not to 1: it is wrong, "
            "or needs more points; or give reference="
        )
    return Latent(name, size, frames, point)


def _integrated(name: str, fn: Any, frames: frozenset, points: int) -> Latent:
    dim, shape = fn.event_shape.numel(), fn.event_shape
    size = check_runs(points**dim, points)
    nodes, weights = (torch.as_tensor(each) for each in gauss_hermite(points, dim))

    def point(k: int, fn: Any) -> Point:
        base = _base(fn)
        noise, weight = nodes[k].reshape(shape).to(base.loc), weights[k].to(base.loc)
        if isinstance(base, Normal):
            return base.loc + base.scale * noise, weight
        whole = getattr(base, "scale_tril", None)
        if whole is None:  # of low rank: any root of the covariance will do
            whole = torch.linalg.cholesky(base.covariance_matrix)
        return base.loc + (whole @ noise.unsqueeze(-1)).squeeze(-1), weight

    return Latent(name, size, frames, point)


def check_runs(runs: int, points: int) -> int:
    """:raises ValueError: if there are too many."""
    if runs > MAX_RUNS:
        raise ValueError(
            f"the grid has {runs:,} points, at points={points} a dimension, and at most "
            f"{MAX_RUNS:,} are summed over: take fewer points or fewer latents, or give "
            "reference=, an estimator that is known to be right"
        )
    return runs
