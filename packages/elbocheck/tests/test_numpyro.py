"""Programs of NumPyro, run by ``numpyro.infer``: right ones, and published faults made anew."""

from __future__ import annotations

import math
from typing import Any

import pytest

numpyro = pytest.importorskip("numpyro")

import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402
from numpyro.distributions import constraints  # noqa: E402
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO  # noqa: E402

from elbocheck import check  # noqa: E402
from elbocheck.numpyro import Program  # noqa: E402

X = jnp.array([-1.2, 0.4, 2.0])


def model(x: Any) -> None:
    z = numpyro.sample("z", dist.Normal(0.3, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


def guide(x: Any) -> None:
    loc = numpyro.param("loc", jnp.array(0.0))
    s = numpyro.param("s", jnp.array(0.7), constraint=constraints.positive)
    numpyro.sample("z", dist.Normal(loc, s))


def exact() -> tuple[float, dict[str, Any]]:
    """By hand: -E log p(x|z) + KL, and its derivatives by loc and log s."""
    half = 0.5 * jnp.log(2 * jnp.pi)
    s = 0.7
    fit = 3 * half + 0.5 * (float((X**2).sum()) + 3 * s**2)
    kl = -jnp.log(s) + (s**2 + 0.3**2) / 2 - 0.5
    return float(fit + kl), {"loc": -float(X.sum()) - 0.3, "s": 4 * s**2 - 1}


class Summed(Trace_ELBO):
    """#1724: particles are summed where they should be averaged."""

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.num_particles * super().loss(*args, **kwargs)


class Shifted(Trace_ELBO):
    """#1412, in review: the path through the guide's log-density is cut."""

    def loss(self, key: Any, params: Any, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        value = super().loss(key, params, model, guide, *args, **kwargs)
        return value + jnp.log(params["s"]) - math.log(0.7)


@pytest.mark.parametrize("kind", [Trace_ELBO, TraceMeanField_ELBO])
def test_its_estimators_are_unbiased(kind: type) -> None:
    """Detects 0.2 nats of 6 and a fifth of the gradient."""
    report = check(Program(model, guide, kind(num_particles=50), X), exact(), gradient_bias=0.2)
    assert report.verdict == "unbiased", str(report)


@pytest.mark.parametrize("kind", [Summed, Shifted])
def test_published_faults_are_found(kind: type) -> None:
    report = check(Program(model, guide, kind(num_particles=50), X), exact(), gradient_bias=0.2)
    assert report.verdict == "biased", str(report)
    biased = {comparison.name for comparison in report.biased}
    assert ("loss" in biased) == (kind is Summed)
    assert "gradient along the reference's" in biased
