"""The training steps of MFCVAE in NumPyro, which step_time puts beside this library's.

The model is in its marginal form: the mixtures' densities sum the clusters out, which gives the
objective of VaDEGuide in value and gradient. The guide is a Normal for each facet, whose mean and
deviation the encoder gives. SVI.update is compiled by jax.jit together with the gathering of the
batch; the state before a step is donated, so that its memory is used again, as it is within a
compiled epoch. NumPyro's checks are off, as Pyro's are in a fit: they would reject gray pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO

PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16}


class NumPyroSteps:
    """Steps on batches of some data, one for each call.

    :param weights: by the names of step_time's PlainMFCVAE; matrices ``[in, out]``.
    :param x: rows ``[N, D]``.
    :param label: the deep facet's clusters ``[N]``, if they are known.
    :param scale: of a Normal likelihood; ``None`` for Bernoulli.
    :param label_weight: of log q(c given x) of known clusters.
    :param precision: of the networks.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        x: np.ndarray,
        label: np.ndarray | None,
        *,
        batch: int,
        lr: float,
        scale: float | None,
        label_weight: float,
        precision: str = "float32",
    ) -> None:
        self.weights = {name: jnp.asarray(value) for name, value in weights.items()}
        self.scale, self.label_weight = scale, label_weight
        self.dtype = PRECISIONS[precision]
        self.data = jnp.asarray(x), None if label is None else jnp.asarray(label)
        self.batch = batch
        self.svi = SVI(self.model, self.guide, numpyro.optim.Adam(lr), Trace_ELBO())
        first = self.gathered(self.data, slice(batch))
        with numpyro.validation_enabled(False):
            self.state = self.svi.init(jax.random.PRNGKey(0), *first)
        self.update = jax.jit(self.gather_and_update, donate_argnums=0)
        self.batches = self.passes()

    def __call__(self) -> None:
        self.state, self.loss = self.update(self.state, self.data, next(self.batches))

    def wait(self) -> None:
        """Until the steps that were called for are taken."""
        jax.block_until_ready(self.state)

    def passes(self) -> Iterator[np.ndarray]:
        rng, n = np.random.default_rng(0), len(self.data[0])
        while True:
            yield from rng.permutation(n).astype(np.int32).reshape(-1, self.batch)

    @staticmethod
    def gathered(data: Any, rows: Any) -> Any:
        return jax.tree.map(lambda array: array[rows], data)

    def gather_and_update(self, state: Any, data: Any, rows: Any) -> Any:
        with numpyro.validation_enabled(False):  # while this is traced
            return self.svi.update(state, *self.gathered(data, rows))

    def losses(self, x: np.ndarray, label: np.ndarray | None, draws: int) -> np.ndarray:
        """The objective at the initial weights, in nats per datum, once for each draw of all z."""

        def loss(key: Any) -> Any:
            with numpyro.validation_enabled(False):
                return self.svi.loss.loss(key, self.weights, self.model, self.guide, x, label)

        keys = jax.random.split(jax.random.PRNGKey(1), draws)
        return np.asarray(jax.jit(lambda keys: jax.lax.map(loss, keys))(keys))

    # The two programs.

    def guide(self, x: Any, label: Any = None) -> None:
        h_1 = jax.nn.relu(self.layer("b1", x))
        h_2 = jax.nn.relu(self.layer("b2", h_1))
        with numpyro.handlers.scale(scale=1 / len(x)), numpyro.plate("rows", len(x)):
            for j, head in enumerate((self.layer("r1", h_1), self.layer("r2", h_2))):
                loc, raw = jnp.split(head.astype(jnp.float32), 2, -1)
                q = dist.Normal(loc, jnp.exp(5 * jnp.tanh(raw / 10)))
                numpyro.sample(f"z_{j}", q.to_event(1))

    def model(self, x: Any, label: Any = None) -> None:
        with numpyro.handlers.scale(scale=1 / len(x)), numpyro.plate("rows", len(x)):
            z = [self.latent(0), self.latent(1, label)]
            output = self.decode(*z).astype(jnp.float32)
            pixels = (
                dist.Bernoulli(logits=output)
                if self.scale is None
                else dist.Normal(output, self.scale)
            )
            numpyro.sample("x", pixels.to_event(1), obs=x)

    def latent(self, j: int, label: Any = None) -> Any:
        """z_j, from the mixture with its clusters summed out, or from known clusters."""
        logits, loc, raw_scale = (
            self.parameter(f"mixtures.{j}.{name}") for name in ("logits", "loc", "raw_scale")
        )
        each = dist.Normal(loc, 1e-4 + jax.nn.softplus(10 * raw_scale) / 10).to_event(1)
        weights = dist.Categorical(logits=logits)
        if label is None:
            return numpyro.sample(f"z_{j}", dist.MixtureSameFamily(weights, each))
        c = numpyro.sample(f"c_{j}", weights, obs=label)
        base = each.base_dist
        z = numpyro.sample(f"z_{j}", dist.Normal(base.loc[c], base.scale[c]).to_event(1))
        log_q = jax.nn.log_softmax(each.log_prob(z[:, None]) + jax.nn.log_softmax(logits))
        known = jnp.take_along_axis(log_q, c[:, None], 1)[:, 0]
        numpyro.factor(f"label_{j}", self.label_weight * known)
        return z

    def decode(self, z_1: Any, z_2: Any) -> Any:
        h_2 = jax.nn.relu(self.layer("down2", jax.nn.relu(self.layer("up2", z_2))))
        rung = jax.nn.relu(self.layer("up1", z_1))
        return self.layer("down1", jnp.concatenate([h_2, rung], -1))

    def layer(self, name: str, h: Any) -> Any:
        weight, bias = (self.parameter(f"{name}.{part}") for part in ("weight", "bias"))
        return h.astype(self.dtype) @ weight.astype(self.dtype) + bias.astype(self.dtype)

    def parameter(self, name: str) -> Any:
        return numpyro.param(name, self.weights[name])
