"""The test of ELBO estimators on programs that are not ours: Pyro's ELBOs, and broken ones.

Each test states what it can detect: a bias of the loss in nats, and of the gradient as a fraction
of its norm, each with probability 0.99; a right estimator fails once in a million runs. Most
estimators average 400 draws of their own, so that few draws of them are needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    ELBO,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
)
from pyro.poutine import Trace
from torch import Tensor, nn
from torch.distributions import constraints

from inference.diagnostics import (
    CalibrationReport,
    assert_elbo_unbiased,
    calibration,
    exact_elbo,
    gauss_hermite,
)

pytestmark = pytest.mark.slow(35)

SEED = int(os.environ.get("FACETVAE_TEST_SEED", "0"))
PARTICLES = 400
AVERAGED = {"num_particles": PARTICLES, "vectorize_particles": True, "max_plate_nesting": 1}
LEVEL = 1e-6
unbiased = partial(assert_elbo_unbiased, bias=0.2, gradient_bias=0.2, level=LEVEL, seed=SEED)


# Three programs


class TinyVAE:
    """A variational autoencoder in the way of Pyro's example: modules in the store, one latent
    vector in a plate.
    """

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.decoder = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 3)).double()

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(len(x), 1), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        loc, log_scale = self.encoder(x).split(1, -1)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


BITS = torch.tensor(
    [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64
)


def mixture(x: Tensor) -> None:
    """Two Normal clusters; only some of six data are seen, so that each counts twice."""
    weights = pyro.param("weights", torch.tensor([0.3, 0.7]).double(), constraints.simplex)
    locs = pyro.param("locs", torch.tensor([-1.0, 1.5]).double())
    with pyro.plate("data", 6, subsample=torch.arange(3)):
        c = pyro.sample("c", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[c], 1.0), obs=x)


def clusters(x: Tensor) -> None:
    logits = pyro.param("logits", torch.tensor([[0.2, 0.6], [-0.5, 0.5], [1.0, 0.1]]).double())
    with pyro.plate("data", 6, subsample=torch.arange(3)):
        pyro.sample("c", dist.Categorical(logits=logits))


REALS = torch.tensor([-1.2, 0.4, 2.0], dtype=torch.float64)


def conjugate(x: Tensor) -> None:
    """The mean of some Normal data."""
    m = pyro.param("m", torch.tensor(0.3).double())
    z = pyro.sample("z", dist.Normal(m, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z, 1.0), obs=x)


def normal(x: Tensor, scale: Callable[[Tensor], Tensor] = lambda s: s) -> None:
    loc = pyro.param("loc", torch.tensor(0.0).double())
    s = pyro.param("s", torch.tensor(0.7).double(), constraints.positive)
    pyro.sample("z", dist.Normal(loc, scale(s)))


# Pyro's estimators


@pytest.mark.parametrize("kind", [TraceMeanField_ELBO, TraceEnum_ELBO])
def test_pyros_estimators_of_a_vae_are_unbiased(kind: type[ELBO]) -> None:
    """Detects 0.2 nats of 9.5 and a fifth of the gradient."""
    vae = TinyVAE()
    elbo = kind(**AVERAGED, strict_enumeration_warning=False)
    assert not unbiased(vae.model, vae.guide, elbo, BITS).biased


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Trace_ELBO, TraceGraph_ELBO])
def test_pyros_score_function_estimators_are_unbiased(kind: type[ELBO]) -> None:
    """Detects 0.2 nats of 13 and a fifth of the gradient."""
    unbiased(mixture, clusters, kind(**AVERAGED), REALS)


def test_pyros_enumeration_is_exact() -> None:
    """Without noise: detects 0.001 nats of 13 and a thousandth of the gradient."""
    elbo = TraceEnum_ELBO(max_plate_nesting=1)
    unbiased(mixture, config_enumerate(clusters), elbo, REALS, bias=1e-3, gradient_bias=1e-3)


@pytest.mark.parametrize("kind", [Trace_ELBO, TraceGraph_ELBO])
def test_pyros_estimators_of_a_conjugate_normal_are_unbiased(kind: type[ELBO]) -> None:
    """Detects 0.1 nats of 6 and a fifth of the gradient."""
    unbiased(conjugate, normal, kind(**AVERAGED), REALS, bias=0.1)


COPIES = 20


def copied(program: Callable) -> Callable:
    """Independent copies side by side: their mean takes fewer draws, at the same power for each."""

    def copies(x: Tensor) -> None:
        with pyro.plate("copies", COPIES, dim=-2):
            program(x)

    return copies


def of_copies(
    bound: Callable[[Callable, Callable, Tensor], Tensor], model: Callable, guide: Callable
) -> Callable:
    """The bound of all copies, from that of one."""
    return lambda _model, _guide, x: COPIES * bound(model, guide, x)


def two_draws() -> RenyiELBO:
    return RenyiELBO(0.0, num_particles=2, vectorize_particles=True, max_plate_nesting=2)


def importance_weighted(model: Callable, guide: Callable, x: Tensor) -> Tensor:
    """The bound of two importance-weighted draws of one Normal latent, by quadrature."""
    q = poutine.trace(guide).get_trace(x).nodes["z"]["fn"]
    noise, weights = gauss_hermite(20, 1)
    logs = []
    for node in noise[:, 0]:
        value = q.loc + q.scale * node
        conditioned = poutine.condition(model, data={"z": value})
        logs.append(poutine.trace(conditioned).get_trace(x).log_prob_sum() - q.log_prob(value))
    log_w = torch.stack(logs)
    pairs = torch.logaddexp(log_w[:, None], log_w) - torch.tensor(2.0).log()
    return weights @ pairs @ weights


def test_pyros_importance_weighted_estimator_is_unbiased() -> None:
    """Of its own bound, which is not the ELBO: detects 0.3 nats of 6 and two fifths of the
    gradient.
    """
    reference = of_copies(importance_weighted, conjugate, normal)
    test = partial(unbiased, copied(conjugate), copied(normal), two_draws(), REALS)
    test(reference=reference, bias=0.3 * COPIES, gradient_bias=0.4)


@pytest.mark.thorough
def test_a_long_run_of_another_estimator_is_a_reference() -> None:
    """Detects 0.1 nats of 9 and two fifths of the gradient, the reference's error included."""
    vae, known = TinyVAE(), Trace_ELBO(**AVERAGED)
    test = partial(unbiased, vae.model, vae.guide, reference=known, bias=0.1, gradient_bias=0.4)
    test(TraceMeanField_ELBO(**AVERAGED), BITS)
    with pytest.raises(AssertionError, match="loss that comes with the gradient: estimate"):
        test(averaged(wrong_sign), BITS)


# Planted faults


def traces(model: Callable, guide: Callable, *args: Any) -> tuple[Trace, Trace]:
    """Of model and guide, for as many particles side by side."""
    particles = pyro.plate("particles", PARTICLES, dim=-2)
    q = poutine.trace(particles(guide)).get_trace(*args)
    p = poutine.trace(poutine.replay(particles(model), trace=q)).get_trace(*args)
    for trace in (p, q):
        trace.compute_log_prob()
    return p, q


def averaged(elbo: Callable[[Trace, Trace], Tensor]) -> Callable:
    """The estimator that SVI takes of a function from two traces to an ELBO."""

    def loss(model: Callable, guide: Callable, *args: Any) -> Tensor:
        return -elbo(*traces(model, guide, *args)) / PARTICLES

    return loss


def log_probs(trace: Trace) -> dict[str, Tensor]:
    return {
        name: site["log_prob"]
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and "log_prob" in site
    }


def total(trace: Trace) -> Tensor:
    return trace.log_prob_sum()


def right(p: Trace, q: Trace) -> Tensor:
    return total(p) - total(q)


def wrong_sign(p: Trace, q: Trace) -> Tensor:
    """KL(q, p) is added."""
    return log_probs(p)["x"].sum() + total(q) - log_probs(p)["z"].sum()


def dropped_site(p: Trace, q: Trace) -> Tensor:
    """log p(z) is missing."""
    return log_probs(p)["x"].sum() - total(q)


def test_wrong_terms_of_a_vae_are_found() -> None:
    """Detects 0.1 nats of 9; the wrong sign moves the loss by 0.12, log p(z) by 5."""
    vae = TinyVAE()
    unbiased(vae.model, vae.guide, averaged(right), BITS, bias=0.1)
    for fault in (wrong_sign, dropped_site):
        with pytest.raises(AssertionError, match="loss that comes with the gradient: estimate"):
            unbiased(vae.model, vae.guide, averaged(fault), BITS, bias=0.1)


def test_a_path_that_is_cut_is_found_by_the_gradient_alone() -> None:
    """Detects 0.1 nats, a bias that there is not, and a fifth of the gradient, of which the scale's
    is more.
    """
    detached = partial(normal, scale=Tensor.detach)
    cut = averaged(right)
    with pytest.raises(AssertionError, match="gradient of 's'") as caught:
        unbiased(conjugate, normal, lambda m, _, x: cut(m, detached, x), REALS, bias=0.1)
    assert "loss" not in str(caught.value)


def scaled_twice(p: Trace, q: Trace) -> Tensor:
    """The plate's scale multiplies log p(x) once more."""
    return right(p, q) + (p.nodes["x"]["scale"] - 1) * log_probs(p)["x"].sum()


def scored(p: Trace, q: Trace, cost: Tensor, score: Tensor) -> Tensor:
    """The ELBO with the score function's gradient, its value unchanged."""
    surrogate = (score * cost.detach()).sum()
    return total(p) - total(q).detach() + surrogate - surrogate.detach()


def costs(p: Trace, q: Trace) -> Tensor:
    """log p - log q of each datum, with the plate's scale."""
    return log_probs(p)["x"] + log_probs(p)["c"] - log_probs(q)["c"]


def unscaled(q: Trace) -> Tensor:
    site = q.nodes["c"]
    return site["fn"].log_prob(site["value"])


def score_function(p: Trace, q: Trace) -> Tensor:
    return scored(p, q, costs(p, q), unscaled(q))


def drawn_baseline(p: Trace, q: Trace) -> Tensor:
    """Half of the cost of the very draw is subtracted from it as a baseline."""
    return scored(p, q, costs(p, q) / 2, unscaled(q))


@pytest.mark.parametrize(
    ("fault", "found"),
    [(scaled_twice, "loss that comes"), (drawn_baseline, "gradient of 'logits'")],
)
def test_faults_with_discrete_latents_are_found(fault: Callable, found: str) -> None:
    """Detects 0.2 nats of 13 and a fifth of the gradient, which a right one passes (below)."""
    with pytest.raises(AssertionError, match=found):
        unbiased(mixture, clusters, averaged(fault), REALS)


# Published faults, each made anew from its description


class PositiveLoss(TraceGraph_ELBO):
    """Pyro #1982 (TraceGraph_ELBO) and #2798 (JitTraceGraph_ELBO): ``loss`` is right, and
    ``loss_and_grads`` returns the ELBO for the loss. The gradient is right.
    """

    def loss_and_grads(self, *args: Any, **kwargs: Any) -> float:
        return -super().loss_and_grads(*args, **kwargs)


def test_the_sign_of_pyro_1982_and_2798_is_found() -> None:
    """Detects 0.2 nats; the fault is twice the loss."""
    with pytest.raises(AssertionError, match=r"1 of \d+ comparisons") as caught:
        unbiased(conjugate, normal, PositiveLoss(**AVERAGED), REALS)
    assert "loss that comes with the gradient" in str(caught.value)


def score_scaled_twice(p: Trace, q: Trace) -> Tensor:
    """Pyro #531: the cost carries the plate's scale, and so does the score."""
    return scored(p, q, costs(p, q), log_probs(q)["c"])


def test_the_scale_of_pyro_531_is_found() -> None:
    """Detects a fifth of the gradient, of which the fault doubles the guide's part; the value is
    right.
    """
    with pytest.raises(AssertionError, match="gradient of 'logits'") as caught:
        unbiased(mixture, clusters, averaged(score_scaled_twice), REALS)
    assert "loss" not in str(caught.value)


def score_and_entropy(p: Trace, q: Trace) -> Tensor:
    """The score function's gradient with the derivative of -log q, whose mean is 0."""
    return score_function(p, q) - total(q) + total(q).detach()


def test_the_missing_term_of_pyro_2894_is_no_bias() -> None:
    """Draw by draw, Trace_ELBO's gradient is not the analytic one: the derivative of log q is left
    out. Its mean is 0, so that both are unbiased, to a fifth of the gradient.
    """
    for elbo in (averaged(score_function), averaged(score_and_entropy)):
        unbiased(mixture, clusters, elbo, REALS)


class Unnormalized(dist.Categorical):
    """Its log-probability is the logarithm of a parameter that nothing holds to a sum of 1."""

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw
        super().__init__(probs=raw.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        rows = self.raw.log().expand(*torch.broadcast_shapes(value.shape, self.raw.shape[:-1]), -1)
        return rows.gather(-1, value.expand(rows.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Unnormalized:
        return Unnormalized(self.raw.expand(*batch_shape, self.raw.shape[-1]))


def unnormalized_clusters(x: Tensor) -> None:
    rows = torch.tensor([[0.4, 0.6], [0.3, 0.7], [0.7, 0.3]], dtype=torch.float64)
    raw = pyro.param("raw", rows)
    with pyro.plate("data", 3):
        pyro.sample("c", Unnormalized(raw))


def whole_mixture(x: Tensor) -> None:
    with pyro.plate("data", 3):
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.3, 0.7]).double()))
        pyro.sample("x", dist.Normal(torch.tensor([-1.0, 1.5]).double()[c], 1.0), obs=x)


def test_the_shift_of_numpyro_1512_is_found() -> None:
    """Gradients by probabilities that are not normalized: without the derivative of log q each
    entry is off by 1, the derivative of the probabilities' sum; with it the gradient is that of
    enumeration. Detects a fifth of the gradient.
    """
    unbiased(whole_mixture, unnormalized_clusters, averaged(score_and_entropy), REALS)
    with pytest.raises(AssertionError, match="gradient along the reference's"):
        unbiased(whole_mixture, unnormalized_clusters, averaged(score_function), REALS)


def test_a_value_that_is_differentiated_twice_is_found() -> None:
    """``loss + surrogate - surrogate.detach()``, where the loss was not detached: the gradient is
    doubled, as that of Pyro 1.9's ``JitTrace_ELBO.differentiable_loss``. Detects a fifth of it.
    """
    once = averaged(right)

    def twice(*args: Any) -> Tensor:
        loss = once(*args)
        return loss + (loss - loss.detach())

    with pytest.raises(AssertionError, match="gradient along the reference's"):
        unbiased(conjugate, normal, twice, REALS)


def importance_weighted_clusters(model: Callable, guide: Callable, x: Tensor) -> Tensor:
    """The bound of two importance-weighted draws for each datum of a mixture, by enumeration."""
    q = poutine.trace(guide).get_trace(x).nodes["c"]["fn"]
    logs = []
    for c in q.enumerate_support():
        p = poutine.trace(poutine.condition(model, data={"c": c})).get_trace(x)
        p.compute_log_prob()
        logs.append(log_probs(p)["x"] + log_probs(p)["c"] - q.log_prob(c))
    log_w = torch.stack(logs)
    pairs = torch.logaddexp(log_w[:, None], log_w) - torch.tensor(2.0).log()
    return torch.einsum("bi,bj,ijb->", q.probs, q.probs, pairs)


def free_clusters(x: Tensor) -> None:
    logits = pyro.param("logits", torch.tensor([[0.2, 0.6], [-0.5, 0.5], [1.0, 0.1]]).double())
    with pyro.plate("data", 3):
        pyro.sample("c", dist.Categorical(logits=logits))


def test_that_renyi_elbo_does_not_train_discrete_guides_is_found() -> None:
    """Pyro 1.9: at alpha = 0 RenyiELBO's value is right, and its gradient by the parameters of a
    guide without reparameterized draws is 0. Detects two fifths of the gradient.
    """
    reference = of_copies(importance_weighted_clusters, whole_mixture, free_clusters)
    test = partial(unbiased, copied(whole_mixture), copied(free_clusters), two_draws(), REALS)
    with pytest.raises(AssertionError, match="estimate 0,") as caught:
        test(reference=reference, bias=0.4 * COPIES, gradient_bias=0.4)
    assert "loss" not in str(caught.value)


# Calibration


def data(x: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), torch.tensor([1.0, 2.0])).to_event(1))
        pyro.sample("x", dist.Normal(z, 1.0).to_event(1), obs=x)


def posterior(x: Tensor, scale: float = 1.0, shift: float = 0.0) -> None:
    variance = 1 / (1 + 1 / torch.tensor([1.0, 4.0]))
    with pyro.plate("data", len(x)):
        q = dist.Normal(variance * x + shift, scale * variance.sqrt())
        pyro.sample("z", q.to_event(1))


def simulated(guide: Callable) -> CalibrationReport:
    x = torch.zeros(100, 2)
    return calibration(data, guide, x, num_simulations=10, level=LEVEL, seed=SEED)


def test_an_exact_posterior_is_calibrated() -> None:
    """1,000 ranks of two dimensions detect 0.79 times the scale."""
    report = simulated(posterior)
    report.check()
    assert report.ranks["z"].shape == (1000, 2)
    assert 0.75 < report.narrow < 0.85


@pytest.mark.parametrize("fault", [{"scale": 0.7}, {"scale": 1.4}, {"shift": 0.3}])
def test_a_posterior_of_another_width_or_place_is_not(fault: dict[str, float]) -> None:
    """1,000 ranks of two dimensions detect 0.79 times the scale."""
    guide = partial(posterior, **fault)
    report = simulated(guide)
    with pytest.raises(AssertionError, match=r"z\[0\], z\[1\] are not uniform"):
        report.check()


def test_exact_values_are_those_of_formulas() -> None:
    """No draws: to 1e-6."""
    with pyro.get_param_store().scope():
        normal(REALS)
        conjugate(REALS)
        exact = exact_elbo(conjugate, normal, REALS)
        s = pyro.param("s")
        q, p = dist.Normal(0.0, s), dist.Normal(pyro.param("m"), 1.0)
        fit = dist.Normal(0.0, 1.0).log_prob(REALS).sum() - 3 * s**2 / 2
        expected = fit - torch.distributions.kl_divergence(q, p)
        torch.testing.assert_close(exact, expected, rtol=1e-6, atol=0)
