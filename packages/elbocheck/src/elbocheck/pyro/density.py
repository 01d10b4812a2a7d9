"""Whether a Pyro guide's log-density is that of its draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import biject_to

from elbocheck.importance import check_density
from elbocheck.pyro.program import Program, check_callable
from elbocheck.pytorch import array
from elbocheck.reports import Report


def check_guide(
    guide: Callable,
    *args: Any,
    num_draws: int = 8000,
    bias: float = 0.1,
    seed: int = 0,
    **kwargs: Any,
) -> tuple[Report, ...]:
    """Whether the joint log-density of a guide's latents is that of its draws: see
    :func:`elbocheck.check_density`.

    The exact ELBO believes the guide's log-density, as every estimator does; this does not.

    :param args: of the guide, as are ``kwargs``.
    :param bias: as of :func:`elbocheck.check_density`.
    :returns: a report on the integral, and one on the score if there are parameters.
    :raises ValueError: if the guide has no latent with a density.
    """
    check_callable(guide=guide)
    values, logs = [], []

    def noted(_: Any, guide: Callable, *args: Any, **kwargs: Any) -> Tensor:
        log_prob, z, volume = _log_prob(guide, args, kwargs)
        values.append(z)
        logs.append(float(log_prob.detach()) + volume)
        return log_prob

    scores = Program(guide, guide, noted, *args, **kwargs).draw(num_draws, seed).gradient
    z, log_probs = np.stack(values[-num_draws:]), np.array(logs[-num_draws:])  # not of the setup
    return check_density(z, log_probs, scores, bias=bias, seed=seed)


def _log_prob(guide: Callable, args: tuple, kwargs: dict) -> tuple[Tensor, np.ndarray, float]:
    """Of one draw that is held fixed: its log-density, its unconstrained values, and what the
    log-density of these has beside; discrete latents count as evenly spread.
    """
    drawn = poutine.trace(guide).get_trace(*args, **kwargs)
    for site in drawn.nodes.values():
        if site["type"] == "sample" and isinstance(site["value"], Tensor):
            site["value"] = site["value"].detach()
    again = poutine.trace(poutine.replay(guide, trace=drawn)).get_trace(*args, **kwargs)
    again.compute_log_prob()
    free, volume = [], 0.0
    total: Any = torch.zeros(())
    for site in again.nodes.values():
        if site["type"] != "sample" or site["is_observed"] or isinstance(site["fn"], Delta):
            continue
        fn, value = site["fn"], site["value"]
        total = total + site["log_prob"].sum()
        if getattr(fn.support, "is_discrete", False):
            volume += math.log(len(fn.enumerate_support(expand=False))) * site["log_prob"].numel()
            continue
        to_support = biject_to(fn.support)
        own = to_support.inv(value)
        volume += float(to_support.log_abs_det_jacobian(own, value).sum())
        free.append(array(own).ravel())
    if not free:
        raise ValueError("the guide has no latent with a density")
    return total, np.concatenate(free).astype(np.float64), volume
