"""Wrong inputs to the diagnostics of any Pyro program, by public name: fault, call and message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from inference.diagnostics import (
    assert_elbo_unbiased,
    calibration,
    exact_elbo,
    gradient_moments,
    loss_draws,
)

X = torch.zeros(2)


def model(x: Tensor) -> None:
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z, 1.0), obs=x)


def guide(x: Tensor) -> None:
    pyro.sample("z", dist.Normal(0.0, 1.0))


def waiting(x: Tensor) -> None:
    pyro.sample("z", dist.Exponential(1.0))


def tested(**options: Any) -> Callable[[], Any]:
    return partial(assert_elbo_unbiased, model, guide, Trace_ELBO(), X, **options)


def of_elbo(elbo: Any) -> Callable[[], Any]:
    return partial(assert_elbo_unbiased, model, guide, elbo, X)


def calibrated(**options: Any) -> Callable[[], Any]:
    return partial(calibration, model, guide, X, **options)


PROGRAMS: dict[str, list[tuple[str, Callable[[], Any], str]]] = {
    "assert_elbo_unbiased": [
        ("type: elbo class", of_elbo(Trace_ELBO), "the ELBO must be an instance such as"),
        ("type: reference", tested(reference=-3.0), "reference must be an ELBO, or a function"),
        ("range: bias", tested(bias=0.0), "bias must be a positive number, got 0.0"),
        ("range: level", tested(level=1), r"level must be within \(0, 1\), got 1"),
        ("range: power", tested(power=0.0), r"power must be within \(0, 1\), got 0.0"),
        ("range: max_draws", tested(max_draws=0), "max_draws must be an integer of at least 1"),
        ("range: seed", tested(seed=-1), "seed must be an integer from 0 to"),
        ("missing: gradient", tested(), "the reference's gradient is 0 by every parameter"),
    ],
    "exact_elbo": [
        ("type: model", lambda: exact_elbo(None, guide, X), "the model must be a function or"),
        ("type: guide class", lambda: exact_elbo(model, dict, X), "the guide must be a function"),
        ("huge: points", lambda: exact_elbo(model, guide, X, points=10**5), "the grid has 100,000"),
        ("misfit: site", lambda: exact_elbo(model, waiting, X), "site 'z' of the guide is Expon"),
    ],
    "calibration": [
        ("range: simulations", calibrated(num_simulations=0), "num_simulations must be an integer"),
        ("misfit: bins", calibrated(bins=7), "num_draws \\+ 1 must be a multiple of bins"),
        ("range: level", calibrated(level=2), r"level must be within \(0, 1\), got 2"),
        ("misfit: level", calibrated(level=0.5, power=0.5), "level must be below power, got 0.5"),
        ("type: seed", calibrated(seed="0"), "seed must be an integer from 0 to"),
        ("missing: latents", lambda: calibration(model, lambda x: None, X), "nothing to rank"),
    ],
    "loss_draws": [
        ("misfit: program", lambda: loss_draws((model, guide), X, 3), "got a tuple of 2"),
        (
            "type: elbo of a program",
            lambda: loss_draws((model, guide, Trace_ELBO), X, 3),
            "the ELBO must be an instance",
        ),
    ],
    "gradient_moments": [
        ("misfit: program", lambda: gradient_moments((model,), X, 3), "got a tuple of 1")
    ],
}
