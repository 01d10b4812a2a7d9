"""Programs of Pyro: its estimators, published faults made anew, exact values, and calibration.

Each test states what it can detect: a bias of the loss in nats, and of the gradient as a fraction
of its norm, each with probability 0.99; a right estimator fails once in a million runs. Most
estimators average 400 draws of their own, so that few draws of them are needed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    SVI,
    JitTrace_ELBO,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
)
from pyro.infer.autoguide import (
    AutoDelta,
    AutoLowRankMultivariateNormal,
    AutoNormal,
    AutoStructured,
)
from pyro.nn import PyroModule, PyroParam
from pyro.optim import Adam
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import constraints, kl_divergence

from elbocheck import Report, check
from elbocheck.pyro import Program, calibration, check_guide, exact_elbo

PARTICLES = 400
AVERAGED = {"num_particles": PARTICLES, "vectorize_particles": True, "max_plate_nesting": 1}
LEVEL = 1e-6
REALS = torch.tensor([-1.2, 0.4, 2.0], dtype=torch.float64)
COUNTS = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)


def verdict(model: Callable, guide: Callable, elbo: Any, *data: Any, **options: Any) -> Report:
    with_defaults = {"bias": 0.2, "gradient_bias": 0.2, "level": LEVEL} | options
    return check(Program(model, guide, elbo, *data), **with_defaults)


def names(report: Report) -> set[str]:
    """What is biased."""
    assert report.verdict == "biased", str(report)
    return {comparison.name for comparison in report.biased}


# Programs


def conjugate(x: Tensor) -> None:
    """The mean of some normal data."""
    m = pyro.param("m", torch.tensor(0.3).double())
    z = pyro.sample("z", dist.Normal(m, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z, 1.0), obs=x)


def normal(x: Tensor) -> None:
    loc = pyro.param("loc", torch.tensor(0.0).double())
    s = pyro.param("s", torch.tensor(0.7).double(), constraints.positive)
    pyro.sample("z", dist.Normal(loc, s))


def mixture(x: Tensor) -> None:
    """Two normal clusters; only some of seven data are seen, so that each counts more than once."""
    weights = pyro.param("weights", torch.tensor([0.3, 0.7]).double(), constraints.simplex)
    locs = pyro.param("locs", torch.tensor([-1.0, 1.5]).double())
    with pyro.plate("data", 7, subsample=torch.arange(3)):
        c = pyro.sample("c", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[c], 1.0), obs=x)


def clusters(x: Tensor) -> None:
    logits = pyro.param("logits", torch.tensor([[0.2, 0.6], [-0.5, 0.5], [1.0, 0.1]]).double())
    with pyro.plate("data", 7, subsample=torch.arange(3)):
        pyro.sample("c", dist.Categorical(logits=logits))


@config_enumerate
def hidden_mixture(x: Tensor) -> None:
    """The clusters are the model's alone."""
    weights = pyro.param("weights", torch.tensor([0.3, 0.7]).double(), constraints.simplex)
    shift = pyro.sample("shift", dist.Normal(torch.tensor(0.0).double(), 1.0))
    with pyro.plate("data", len(x)):
        c = pyro.sample("c", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(2.0 * c - 1 + shift, 1.0), obs=x)


@config_enumerate
def chain(x: Tensor) -> None:
    """A hidden Markov chain with an unknown shift."""
    moves = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).double()
    shift, state = pyro.sample("shift", dist.Normal(torch.tensor(0.0).double(), 1.0)), 0
    for i in pyro.markov(range(len(x))):
        state = pyro.sample(f"state {i}", dist.Categorical(moves[state]))
        pyro.sample(f"x {i}", dist.Normal(2.0 * state - 1 + shift, 1.0), obs=x[i])


def line(x: Tensor) -> None:
    """Two latents that depend on each other, given the data."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(w[..., 0] + w[..., 1] * x, 1.0), obs=x)


def shifted(x: Tensor) -> None:
    pyro.sample("shift", dist.Normal(pyro.param("at", torch.tensor(0.2).double()), 0.5))


def rates(x: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0).double(), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


def positive(kind: type, a: float, b: float, free: bool = False) -> Callable[[Tensor], None]:
    def guide(x: Tensor) -> None:
        one = pyro.param("a", torch.tensor(a).double(), constraints.real if free else POSITIVE)
        pyro.sample("rate", kind(one, pyro.param("b", torch.tensor(b).double(), POSITIVE)))

    return guide


POSITIVE = constraints.positive


def coin(x: Tensor) -> None:
    p = pyro.sample("p", dist.Beta(torch.tensor(2.0).double(), 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Bernoulli(p), obs=x)


def beta(x: Tensor) -> None:
    pyro.sample("p", dist.Beta(pyro.param("a", torch.tensor(3.0).double(), POSITIVE), 2.0))


BITS = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
ENUMERATED = {"strict_enumeration_warning": False, **AVERAGED}
MODEL_SIDE = {"num_particles": 100, "vectorize_particles": True}
RENYI = {"vectorize_particles": True, "max_plate_nesting": 1}


def pairs(alpha: float) -> RenyiELBO:
    return RenyiELBO(alpha, num_particles=2, **RENYI)


RIGHT: dict[str, Callable[[], tuple]] = {
    "Trace": lambda: (conjugate, normal, Trace_ELBO(**AVERAGED), REALS),
    "TraceGraph": lambda: (conjugate, normal, TraceGraph_ELBO(**AVERAGED), REALS),
    "TraceMeanField": lambda: (conjugate, normal, TraceMeanField_ELBO(**AVERAGED), REALS),
    "TraceEnum": lambda: (conjugate, normal, TraceEnum_ELBO(**ENUMERATED), REALS),
    "JitTrace": lambda: (conjugate, normal, JitTrace_ELBO(**AVERAGED), REALS),
    "scores": lambda: (mixture, clusters, Trace_ELBO(**AVERAGED), REALS),
    "scores by graph": lambda: (mixture, clusters, TraceGraph_ELBO(**AVERAGED), REALS),
    "enumeration": lambda: (
        mixture, config_enumerate(clusters), TraceEnum_ELBO(max_plate_nesting=1), REALS
    ),
    "clusters of the model": lambda: (
        hidden_mixture, shifted, TraceEnum_ELBO(max_plate_nesting=1, **MODEL_SIDE), REALS
    ),
    "low rank": lambda: (
        line, AutoLowRankMultivariateNormal(line, rank=1), Trace_ELBO(**AVERAGED), REALS
    ),
    "hidden chain": lambda: (
        chain, shifted, TraceEnum_ELBO(max_plate_nesting=0, **MODEL_SIDE), REALS
    ),
    "gamma": lambda: (rates, positive(dist.Gamma, 3.0, 2.0), Trace_ELBO(**AVERAGED), COUNTS),
    "lognormal": lambda: (
        rates, positive(dist.LogNormal, 0.3, 0.4, free=True), Trace_ELBO(**AVERAGED), COUNTS
    ),
    "beta": lambda: (coin, beta, Trace_ELBO(**AVERAGED), BITS),
    "a point": lambda: (conjugate, AutoDelta(conjugate), Trace_ELBO(), REALS),
    "a transformed normal": lambda: (rates, AutoNormal(rates), Trace_ELBO(**AVERAGED), COUNTS),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_estimators_are_unbiased(name: str) -> None:
    """Detects 0.2 nats of 3 to 15 and a fifth of the gradient."""
    report = verdict(*RIGHT[name]())
    assert report.verdict == "unbiased", str(report)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_other_bounds_have_their_own_exact_value(alpha: float) -> None:
    """Of two draws: detects 0.3 nats of 6. The gradient of one is below, among the faults."""
    report = verdict(conjugate, normal, pairs(alpha), REALS, gradient=False, bias=0.3)
    assert report.verdict == "unbiased", str(report)
    exact = Program(conjugate, normal, pairs(alpha), REALS).reference().value
    assert exact < -float(exact_elbo(conjugate, normal, REALS).detach()) - 0.05  # a tighter bound

    def by_name(*, x: Tensor) -> None:
        conjugate(x)

    named = Program(by_name, normal, pairs(alpha), x=REALS).reference().value
    assert named == exact


# Faults


def gradients() -> list[Tensor]:
    found = [p.grad for p in pyro.get_param_store().get_state()["params"].values()]
    return [g for g in found if g is not None]


def changed(kind: type, loss: float = 1.0, gradient: float = 1.0, **options: Any) -> Any:
    """An ELBO whose ``loss_and_grads`` gives multiples of what it should."""

    class Changed(kind):
        def loss_and_grads(self, *args: Any, **kwargs: Any) -> float:
            value = super().loss_and_grads(*args, **kwargs)
            for each in gradients():
                each.mul_(gradient)
            return loss * value

    return Changed(**(AVERAGED | options))


EVERY = {
    Trace_ELBO: (conjugate, normal),
    TraceGraph_ELBO: (mixture, clusters),
    TraceMeanField_ELBO: (conjugate, normal),
    TraceEnum_ELBO: (conjugate, normal),
}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("fault", [{"gradient": -1}, {"loss": 50, "gradient": 50}, {"loss": 1000}])
def test_gross_faults_of_the_path_that_svi_takes_are_found(kind: type, fault: dict) -> None:
    unwarned = {"strict_enumeration_warning": False} if kind is TraceEnum_ELBO else {}
    elbo = changed(kind, **fault, **unwarned)
    found = names(verdict(*EVERY[kind], elbo, REALS, max_draws=50))
    assert ("gradient" in fault) == any(name.startswith("gradient") for name in found)
    assert "loss" not in found


class Detached(Messenger):
    def _pyro_post_param(self, msg: Any) -> None:
        if msg["name"] == "s":
            msg["value"] = msg["value"].detach()


def reversed_kl() -> Tensor:
    """The KL of the other direction, instead of the right one."""
    q, p = dist.Normal(0.0, pyro.param("s")), dist.Normal(pyro.param("m"), 1.0)
    return kl_divergence(p, q) - kl_divergence(q, p)


def nothing() -> Tensor:
    return 0 * pyro.param("m")


GRADIENT = "gradient along the reference's"
LOSS_BESIDE = "loss that comes with the gradient"
SUBTLE = {
    # What is done to both programs, what is added, and what is found.
    "a dropped scale": (partial(poutine.scale, scale=3 / 7), nothing, LOSS_BESIDE),
    "a detached parameter": (Detached(), nothing, GRADIENT),
    "the other KL": (lambda program: program, reversed_kl, LOSS_BESIDE),
}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("fault", SUBTLE)
def test_subtle_faults_are_found_in_every_objective(kind: type, fault: str) -> None:
    through, beside, found = SUBTLE[fault]

    class Changed(kind):
        def loss_and_grads(self, model: Any, guide: Any, *args: Any) -> float:
            value = super().loss_and_grads(through(model), through(guide), *args)
            (more := beside()).backward()
            return value + float(more.detach())

    biased = names(verdict(conjugate, normal, Changed(**AVERAGED), REALS))
    assert found in biased
    assert fault != "a detached parameter" or LOSS_BESIDE not in biased


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


def log_prob(trace: Trace, name: str) -> Tensor:
    return trace.nodes[name]["log_prob"]


def right(p: Trace, q: Trace) -> Tensor:
    return p.log_prob_sum() - q.log_prob_sum()


def scored(p: Trace, q: Trace, cost: Tensor, score: Tensor) -> Tensor:
    """The ELBO with the score function's gradient, its value unchanged."""
    surrogate = (score * cost.detach()).sum()
    return p.log_prob_sum() - q.log_prob_sum().detach() + surrogate - surrogate.detach()


def costs(p: Trace, q: Trace) -> Tensor:
    """log p - log q of each datum, with the plate's scale."""
    return log_prob(p, "x") + log_prob(p, "c") - log_prob(q, "c")


def unscaled(q: Trace) -> Tensor:
    return q.nodes["c"]["unscaled_log_prob"]


def once(p: Trace, q: Trace) -> Tensor:
    return scored(p, q, costs(p, q), unscaled(q))


def and_entropy(p: Trace, q: Trace) -> Tensor:
    """With the derivative of -log q, whose mean is 0."""
    return once(p, q) - q.log_prob_sum() + q.log_prob_sum().detach()


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


def unnormalized(x: Tensor) -> None:
    rows = torch.tensor([[0.4, 0.6], [0.3, 0.7], [0.7, 0.3]], dtype=torch.float64)
    raw = pyro.param("raw", rows)
    with pyro.plate("data", 3):
        pyro.sample("c", Unnormalized(raw))


def whole_mixture(x: Tensor) -> None:
    with pyro.plate("data", 3):
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.3, 0.7]).double()))
        pyro.sample("x", dist.Normal(torch.tensor([-1.0, 1.5]).double()[c], 1.0), obs=x)


def twice(*args: Any) -> Tensor:
    loss = averaged(right)(*args)
    return loss + (loss - loss.detach())


def rounded(p: Trace, q: Trace) -> Tensor:
    """7 // 3 in the place of 7 / 3."""
    return right(p, q) * 2 / (7 / 3)


PUBLISHED: dict[str, tuple[Callable[[], tuple], set[str], set[str]]] = {
    # What is found, and what is not.
    "pyro 1982: loss_and_grads returns the ELBO": (
        lambda: (conjugate, normal, changed(TraceGraph_ELBO, loss=-1), REALS),
        {LOSS_BESIDE}, {"loss", GRADIENT},
    ),
    "pyro 2798: and so does the compiled one": (
        lambda: (conjugate, normal, changed(JitTrace_ELBO, loss=-1), REALS),
        {LOSS_BESIDE}, {"loss", GRADIENT},
    ),
    "pyro 531: the cost carries the plate's scale, and so does the score": (
        lambda: (
            mixture, clusters,
            averaged(lambda p, q: scored(p, q, costs(p, q), log_prob(q, "c"))), REALS,
        ),
        {"gradient of 'logits'"}, {LOSS_BESIDE},
    ),
    "pyro 2611, in review: the plate's scale is a whole number": (
        lambda: (mixture, clusters, averaged(rounded), REALS),
        {LOSS_BESIDE}, set(),
    ),
    "numpyro 1512: the probabilities' sum is differentiated": (
        lambda: (whole_mixture, unnormalized, averaged(once), REALS),
        {GRADIENT}, {LOSS_BESIDE},
    ),
    "numpyro 1724: particles are summed": (
        lambda: (conjugate, normal, changed(Trace_ELBO, loss=50, gradient=50), REALS),
        {LOSS_BESIDE, GRADIENT}, {"loss"},
    ),
    "numpyro 1412, in review: the path through log q is cut": (
        lambda: (
            conjugate, normal,
            averaged(lambda p, q: p.log_prob_sum() - q.log_prob_sum().detach()), REALS,
        ),
        {"gradient of 's'"}, {LOSS_BESIDE},
    ),
    "pyro 1.9, numpyro 1625: analytic KL of a transformed normal": (
        lambda: (rates, AutoNormal(rates), TraceMeanField_ELBO(**AVERAGED), COUNTS),
        {GRADIENT}, set(),
    ),
    "pyro 1.9: RenyiELBO does not train discrete guides": (
        lambda: (
            lambda: pyro.sample("x", dist.Normal(pyro.sample("c", fair), 1.0), obs=REALS[1]),
            lambda: pyro.sample("c", dist.Bernoulli(logits=pyro.param("l", REALS[1].clone()))),
            RenyiELBO(0.0, num_particles=2, vectorize_particles=True, max_plate_nesting=0),
        ),
        {GRADIENT}, {"loss", LOSS_BESIDE},
    ),
    "pyro 1.9: the compiled loss is differentiated twice": (
        lambda: (conjugate, normal, twice, REALS),
        {GRADIENT}, {LOSS_BESIDE},
    ),
    "a baseline of the draw itself": (
        lambda: (
            mixture, clusters,
            averaged(lambda p, q: scored(p, q, costs(p, q) / 2, unscaled(q))), REALS,
        ),
        {"gradient of 'logits'"}, {LOSS_BESIDE},
    ),
    "a site that is left out": (
        lambda: (
            conjugate, normal,
            averaged(lambda p, q: log_prob(p, "x").sum() - q.log_prob_sum()), REALS,
        ),
        {LOSS_BESIDE}, set(),
    ),
}  # fmt: skip
fair = dist.Bernoulli(torch.tensor(0.5).double())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_faults_are_found(name: str) -> None:
    """Made anew from their descriptions; detects 0.2 nats and a fifth of the gradient."""
    program, found, right = PUBLISHED[name]
    biased = names(verdict(*program(), level=1e-4))
    assert found <= biased
    assert not right & biased


def test_the_missing_term_of_pyro_2894_is_no_bias() -> None:
    """Draw by draw, Trace_ELBO's gradient is not the analytic one: the derivative of log q is left
    out. Its mean is 0, so that both are unbiased, to a fifth of the gradient.
    """
    for elbo in (once, and_entropy):
        assert verdict(mixture, clusters, averaged(elbo), REALS).verdict == "unbiased"
    assert verdict(whole_mixture, unnormalized, averaged(and_entropy), REALS).verdict == "unbiased"


def test_another_estimator_is_a_reference() -> None:
    """Detects 0.2 nats of 6 and two fifths of the gradient, the reference's error included."""
    known = Program(conjugate, normal, Trace_ELBO(**AVERAGED), REALS)
    options = {"reference": known, "gradient_bias": 0.4}
    assert verdict(conjugate, normal, averaged(right), REALS, **options).verdict == "unbiased"
    assert names(verdict(conjugate, normal, twice, REALS, **options)) >= {GRADIENT}


class Forgetful(dist.Normal):
    """The log-density of a transform's input for that of its output."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + self.scale.log()


def forgotten(x: Tensor) -> None:
    s = pyro.param("s", torch.tensor(0.7).double(), constraints.positive)
    pyro.sample("z", Forgetful(pyro.param("loc", torch.tensor(0.0).double()), s))


class OncePerChannel(dist.Independent):
    """A scale for each channel, whose log-determinant is counted once rather than at each place
    (tensorflow/probability 238).
    """

    def log_prob(self, value: Tensor) -> Tensor:
        scale = self.base_dist.scale.log()
        return super().log_prob(value) + scale.sum((-2, -1)) - scale[..., 0].sum(-1)


def per_channel(x: Tensor) -> None:
    s = pyro.param("s", torch.full((2, 1), 0.7).double(), constraints.positive)
    pyro.sample("z", OncePerChannel(dist.Normal(torch.zeros(2, 3).double(), s), 2))


def test_a_guide_s_log_density_is_checked_apart() -> None:
    """A forgotten log-determinant passes every estimator, and its own exact value."""
    assert verdict(conjugate, forgotten, Trace_ELBO(**AVERAGED), REALS).verdict == "unbiased"
    tested = partial(check_guide, num_draws=1200, bias=0.35)
    assert [r.verdict for r in tested(normal, REALS)] == ["unbiased", "unbiased"]
    for guide in (forgotten, per_channel):
        assert [r.verdict for r in tested(guide, REALS)] == ["biased", "biased"]
    gamma = positive(dist.Gamma, 3.0, 2.0)
    for guide in (AutoStructured(conjugate), gamma):
        assert {r.verdict for r in tested(guide, COUNTS)} == {"unbiased"}


# Exact values


def test_exact_values_are_those_of_formulas() -> None:
    """No draws: to 1e-6."""
    normal(REALS), conjugate(REALS)
    exact = exact_elbo(conjugate, normal, REALS)
    s = pyro.param("s")
    q, p = dist.Normal(0.0, s), dist.Normal(pyro.param("m"), 1.0)
    fit = dist.Normal(0.0, 1.0).log_prob(REALS).sum() - 3 * s**2 / 2
    torch.testing.assert_close(exact, fit - kl_divergence(q, p), rtol=1e-6, atol=0)
    guide = positive(dist.Gamma, 3.0, 2.0)
    guide(COUNTS)
    exact = exact_elbo(rates, guide, COUNTS)
    a, b = torch.tensor(3.0).double(), torch.tensor(2.0).double()
    log_rate = torch.digamma(a) - b.log()
    fit = COUNTS.sum() * log_rate - 3 * a / b - torch.lgamma(COUNTS + 1).sum()
    kl = kl_divergence(dist.Gamma(a, b), dist.Gamma(torch.tensor(2.0).double(), 1.0))
    torch.testing.assert_close(exact.detach(), fit - kl, rtol=1e-5, atol=0)


def test_latents_of_the_model_alone_are_summed_out() -> None:
    """As by the forward algorithm, and as by a mixture's density; given the guide's one point."""
    at, means = torch.tensor(0.2).double(), torch.tensor([-1.0, 1.0]).double()
    prior = dist.Normal(torch.tensor(0.0).double(), 1.0).log_prob(at)

    def point(x: Tensor) -> None:
        pyro.sample("shift", dist.Delta(at))

    parts = dist.Normal(means + at, 1.0).log_prob(REALS[:, None])
    mixed = (parts + torch.tensor([0.3, 0.7]).double().log()).logsumexp(1).sum()
    torch.testing.assert_close(exact_elbo(hidden_mixture, point, REALS).detach(), prior + mixed)
    moves = torch.tensor([[0.8, 0.2], [0.3, 0.7]]).double()
    forward, total = moves[0], torch.tensor(0.0)
    for part in parts:
        total = (forward * part.exp()).sum()
        forward = (forward * part.exp()) @ moves
    torch.testing.assert_close(exact_elbo(chain, point, REALS), prior + total.log())


def test_entries_without_a_plate_are_summed_over() -> None:
    bits = dist.Bernoulli(torch.tensor([0.2, 0.7]).double()).to_event(1)

    def model() -> None:
        z = pyro.sample("z", dist.Bernoulli(torch.tensor([0.5, 0.5]).double()).to_event(1))
        pyro.factor("f", z.prod(-1))

    expected = 0.2 * 0.7 - kl_divergence(
        bits, dist.Bernoulli(probs=torch.full((2,), 0.5).double()).to_event(1)
    )
    torch.testing.assert_close(exact_elbo(model, one(bits)), expected)


def test_vectors_side_by_side_have_their_own_covariances() -> None:
    """As many vectors as dimensions: their noise was multiplied from the wrong side."""
    scale_tril = torch.tensor([[[1.0, 0.0], [0.7, 0.5]], [[0.6, 0.0], [-0.4, 2.0]]])
    vectors = dist.MultivariateNormal(torch.zeros(2, 2), scale_tril=scale_tril).to_event(1)

    def weighted() -> None:
        z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
        pyro.factor("f", (z.prod(-1)).sum())

    exact = exact_elbo(weighted, one(vectors), points=3)
    prior = dist.MultivariateNormal(torch.zeros(2, 2), scale_tril=torch.eye(2).expand(2, 2, 2))
    divergence = kl_divergence(vectors.base_dist, prior).sum()
    covariances = (scale_tril @ scale_tril.mT)[:, 0, 1].sum()
    torch.testing.assert_close(exact, covariances - divergence)


X = torch.tensor([0.5, -1.0, 2.0])


def test_members_of_plates_share_one_grid() -> None:
    """The exact value of three data at once is the sum of their own."""

    def each(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            c = pyro.sample("c", dist.Bernoulli(0.3))
            z = pyro.sample("z", dist.Normal(c, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def posterior(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            c = pyro.sample("c", dist.Bernoulli(logits=x))
            pyro.sample("z", dist.Normal((x + c) / 2, 0.7))

    together = exact_elbo(each, posterior, X)
    alone = torch.stack([exact_elbo(each, posterior, x[None]) for x in X]).sum()
    torch.testing.assert_close(together, alone)


def test_one_hot_latents_in_plates_are_summed_over() -> None:
    """As by number, with Pyro's checks on: what is moved in a plate stays within the support."""
    logits = torch.tensor([0.3, -0.2, 0.5])

    def program(site: type, observe: bool) -> Callable[[Tensor], None]:
        def run(x: Tensor) -> None:
            with pyro.plate("data", len(x)):
                c = pyro.sample("c", site(logits=(0 if observe else 1) * logits))
                if observe:
                    loc = c @ torch.arange(3.0) if c.dim() > 1 else 1.0 * c
                    pyro.sample("x", dist.Normal(loc, 1.0), obs=x)

        return run

    found = []
    for site in (dist.OneHotCategorical, dist.Categorical):
        for seed in range(4):
            pyro.set_rng_seed(seed)
            with pyro.validation_enabled():
                found.append(exact_elbo(program(site, True), program(site, False), X))
    torch.testing.assert_close(torch.stack(found), found[-1].expand(8))


# What is left as it was, and what is refused


def model(x: Tensor) -> None:
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z, 1.0), obs=x)


def guide(x: Tensor) -> None:
    loc = pyro.param("loc", lambda: torch.randn(()))
    pyro.sample("z", dist.Normal(loc, pyro.param("s", torch.tensor(0.6), constraints.positive)))


class Encoder(PyroModule):
    """A guide with parameters of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.net = PyroModule[nn.Linear](3, 1)
        self.scale = PyroParam(torch.tensor(0.6), constraints.positive)

    def forward(self, x: Tensor) -> None:
        pyro.sample("z", dist.Normal(self.net(x).squeeze(-1), self.scale))


def test_everything_is_left_as_it_was() -> None:
    """With a module in training mode, gradients of its own, and a store that holds something."""
    store, encoder, objective = pyro.get_param_store(), Encoder(), Trace_ELBO()
    kept = pyro.param("kept", torch.tensor(1.0))
    kept.grad = torch.tensor(2.0)
    for p in encoder.parameters():
        p.grad = torch.ones_like(p)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)  # noqa: NPY002
    drawn = np.random.get_state()[1].copy()  # noqa: NPY002
    before = (torch.get_rng_state(), drawn, random.getstate())
    for each in (encoder, guide):
        check(Program(model, each, objective, X), bias=2, gradient_bias=3, level=0.01)
        check_guide(each, X, num_draws=30)
    after = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]
    assert list(store) == ["kept"]
    assert pyro.param("kept") is kept
    assert kept.grad == 2
    assert all(bool((p.grad == 1).all()) for p in encoder.parameters())
    assert encoder.training
    assert objective.max_plate_nesting == math.inf
    assert torch.distributions.Distribution._validate_args


def test_draws_are_those_of_the_store_and_of_their_seed() -> None:
    program = Program(model, guide, Trace_ELBO(), X)
    assert program.parameters == {"loc": 1, "s": 1}
    draws = program.draw(5, 0)
    assert len(set(draws.values["loss"])) == 5
    assert np.array_equal(draws.gradient, program.draw(5, 0).gradient)
    assert not np.array_equal(draws.gradient, program.draw(5, 1).gradient)
    pyro.param("loc", torch.tensor(1e4))
    assert program.draw(2, 0).values["loss"].mean() > 1e7


def one(fn: Any) -> Callable:
    """A program with a single latent."""

    def program() -> None:
        pyro.sample("z", fn)

    return program


def plated(term: Callable[[Tensor], Tensor], plates: bool = True) -> tuple[Callable, Callable]:
    """Three latents, and an observation that depends on them in some way."""

    def joint() -> None:
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(term(z), 1.0).to_event(1), obs=torch.zeros(3))

    def posterior() -> None:
        if plates:
            with pyro.plate("data", 3):
                pyro.sample("z", dist.Normal(0.0, 1.0))
        else:
            pyro.sample("z", dist.Normal(torch.zeros(3), 1.0))

    return joint, posterior


def subsampled() -> None:
    with pyro.plate("data", 4, subsample_size=2):
        pyro.sample("z", dist.Normal(0.0, 1.0))


UNIT = dist.Normal(0.0, 1.0)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an infinite support": (
        lambda: exact_elbo(one(dist.Poisson(1.0)), one(dist.Poisson(1.0))),
        "site 'z' of the guide is Poisson, whose support",
    ),
    "a latent that the guide lacks": (
        lambda: exact_elbo(one(UNIT), lambda: None),
        "latent 'z' of the model is not in the guide, and is not discrete",
    ),
    "a random subsample": (
        lambda: exact_elbo(subsampled, subsampled),
        "plate 'data' takes a random subsample: give it subsample=, or give reference=",
    ),
    "members that depend on one another": (
        lambda: exact_elbo(*plated(lambda z: z.cumsum(-1))),
        "site 'x' depends on 'z' of other members of plate 'data'",
    ),
    "a batch without a plate": (
        lambda: exact_elbo(*plated(lambda z: z, plates=False)),
        "has 3 entries and no plate",
    ),
    "too many points": (lambda: exact_elbo(one(UNIT), one(UNIT), points=10**5), "has 100,000"),
    "an ELBO without a gradient": (
        lambda: Program(model, guide, SimpleNamespace(loss=lambda *_: 0.0), X),
        "has neither differentiable_loss nor loss_and_grads",
    ),
    "a class": (lambda: Program(model, guide, Trace_ELBO, X), "the ELBO must be an instance"),
    "no model": (lambda: Program(None, guide, Trace_ELBO(), X), "the model must be a function"),
    "several losses": (
        lambda: Program(model, guide, lambda *_: (0.0, 1.0), X),
        "returns several losses",
    ),
    "draws that are not finite": (
        lambda: verdict(model, guide, lambda *_: torch.tensor(math.nan), X, gradient=False),
        "128 of 128 draws are not finite",
    ),
    "data whose place is not clear": (
        lambda: calibration(lambda x, y: model(x), guide, X, X),
        "give arguments=",
    ),
    "too few ranks": (
        lambda: calibration(model, amortized, X, num_simulations=2, num_draws=9),
        "2 ranks in 10 bins are too few",
    ),
    "nothing to rank": (lambda: calibration(model, lambda x: None, X), "nothing to rank"),
    "a guide that does not read the data": (
        lambda: calibration(model, guide, X),
        "the guide draws the same whatever the data.* give fit=",
    ),
}


def amortized(x: Tensor) -> None:
    pyro.sample("z", dist.Normal(x.sum() / (1 + len(x)), (1 + len(x)) ** -0.5))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_quadrature_that_has_not_converged_leaves_it_undecided() -> None:
    def rough() -> None:
        pyro.sample("x", dist.Laplace(40 * pyro.sample("z", UNIT), 0.1), obs=X[0])

    report = verdict(rough, one(UNIT), Trace_ELBO(), gradient=False)
    assert report.verdict == "undecided"
    assert "the reference's error" in str(report)


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


@pytest.mark.parametrize("fault", [{}, {"scale": 0.7}, {"scale": 1.4}, {"shift": 0.3}])
def test_a_posterior_of_another_width_or_place_is_found(fault: dict[str, float]) -> None:
    """1,000 ranks of two dimensions detect 0.79 times the scale."""
    test = partial(calibration, data, num_simulations=10, level=LEVEL)
    report = test(partial(posterior, **fault), torch.zeros(100, 2))
    assert report.miscalibrated == (("z[0]", "z[1]") if fault else ())
    assert 0.75 < report.narrow < 0.85
    assert report.ranks["z"].shape == (1000, 2)


def test_a_guide_that_is_fitted_to_each_simulation_is_calibrated_or_not() -> None:
    """Of correlated latents a normal of independent entries is too narrow: 0.3 times here."""

    def regression(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        features = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        pyro.sample("x", dist.Normal(features @ w, 0.1).to_event(1), obs=x)

    def fitted(kind: type) -> Callable[[Tensor], Any]:
        def fit(x: Tensor) -> Any:
            guide = kind(regression, init_scale=0.3)
            step = SVI(regression, guide, Adam({"lr": 0.2}), TraceMeanField_ELBO()).step
            for _ in range(40):
                step(x)
            return guide

        return fit

    test = partial(calibration, regression, lambda x: None, torch.zeros(2))
    narrow = test(fit=fitted(AutoNormal), num_simulations=30, num_draws=9, bins=5)
    assert narrow.miscalibrated


def test_members_that_share_any_latent_of_the_model_are_not_counted() -> None:
    """With a latent outside the plate its members are not independent, whether the guide has it or
    not; and plates side by side have no members in common.
    """

    def shared(x: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(m, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def beside(x: Tensor) -> None:
        with pyro.plate("groups", len(x)):
            m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(m[0], 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def summed_out(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(0 * x, 2**0.5 + 0 * x))

    fit = {"fit": lambda x: None, "num_simulations": 50, "num_draws": 9}
    for program in (shared, beside):
        assert calibration(program, summed_out, X, **fit).ranks["z"].shape == (50, 3)


def test_what_a_model_computes_is_no_observation() -> None:
    def program(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(pyro.deterministic("mean", z), 1.0), obs=x)

    def exact(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(x / 2, 0.5**0.5))

    report = calibration(program, exact, X.new_zeros(100), num_simulations=5, num_draws=19)
    assert report.assert_calibrated().ranks["z"].shape == (500, 1)
