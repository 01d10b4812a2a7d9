"""Estimators that are programs of NumPyro: a model, a guide and an ELBO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpyro.infer import SVI
from numpyro.optim import SGD

from elbocheck import programs
from elbocheck.programs import Draws

# Draws of one compiled call, so that it is compiled once.
BLOCK = 64


class Program(programs.Program):
    """The loss of a NumPyro model and guide, and the gradient by unconstrained parameters that
    ``SVI.update`` takes: ``jax.value_and_grad`` of the ELBO's loss. Parameters have their initial
    values.

    :param elbo: any of NumPyro's.
    :param inputs: of model and guide, as are ``named``.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
        >>> from elbocheck import check
        >>> from elbocheck.numpyro import Program
        >>> def model(x):
        ...     z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("x", dist.Normal(z, 1.0), obs=x)
        >>> def guide(x):
        ...     numpyro.sample("z", dist.Normal(numpyro.param("loc", jnp.array(0.0)), 0.7))
        >>> one = Program(model, guide, Trace_ELBO(), 1.0)
        >>> other = Program(model, guide, TraceMeanField_ELBO(), 1.0)
        >>> check(one, other, gradient_bias=0.5).verdict
        'unbiased'
    """

    def __init__(
        self, model: Callable, guide: Callable, elbo: Any, *inputs: Any, **named: Any
    ) -> None:
        svi = SVI(model, guide, SGD(1.0), elbo)
        state = svi.init(jax.random.PRNGKey(0), *inputs, **named)
        self.point = svi.optim.get_params(state.optim_state)
        self.parameters = {name: np.size(of) for name, of in self.point.items()}

        def one(key: Any) -> Any:
            def loss(point: Any) -> Any:
                constrained = svi.constrain_fn(point)
                return svi.loss.loss(key, constrained, model, guide, *inputs, **named)

            value, gradient = jax.value_and_grad(loss)(self.point)
            rows = [gradient[name].reshape(-1) for name in self.parameters]
            return value, jax.numpy.concatenate(rows) if rows else jax.numpy.zeros(0)

        self.block = jax.jit(jax.vmap(one))

    def draw(self, num_draws: int, seed: int, gradient: bool = True) -> Draws:
        blocks = -(-num_draws // BLOCK)
        keys = jax.random.split(jax.random.PRNGKey(seed % 2**31), blocks * BLOCK)
        parts = [self.block(keys[k * BLOCK : (k + 1) * BLOCK]) for k in range(blocks)]
        values, rows = (np.concatenate([np.asarray(p[i]) for p in parts]) for i in (0, 1))
        return Draws({"loss": values[:num_draws]}, rows[:num_draws] if rows.shape[1] else None)
