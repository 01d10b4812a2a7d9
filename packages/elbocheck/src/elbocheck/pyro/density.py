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
from elbocheck.pyro.isolation import isolated
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
    program = Program(guide, guide, lambda model, guide, *a, **k: _log_prob(guide, a, k)[0],
                      *args, **kwargs)  # fmt: skip
    values, logs, scores = [], [], []
    with isolated(0, program.device, guide):
        held = list(program._leaves().values())
        with isolated(seed, program.device, guide), torch.enable_grad():
            for _ in range(num_draws):
                log_prob, z, volume = _log_prob(guide, args, kwargs)
                values.append(z)
                logs.append(float(log_prob.detach()) + volume)
                gradients: list[Tensor | None] = [None] * len(held)
                if held and log_prob.requires_grad:
                    gradients = list(torch.autograd.grad(log_prob, held, allow_unused=True))
                rows = [torch.zeros_like(p) if g is None else g for p, g in zip(held, gradients)]
                scores.append(np.concatenate([array(g).ravel() for g in rows] or [np.zeros(0)]))
    return check_density(np.stack(values), np.array(logs), np.stack(scores), bias=bias, seed=seed)


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
