"""Every likelihood that a column of a table may have: its density against SciPy's, and its bound
and importance weights against log p(x) by quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from elbocheck import importance_weighted_bounds
from scipy import stats
from scipy.special import expit, log_softmax
from torch import nn

from guides import VaDEGuide
from inference import elbo
from inference.evaluation import log_importance_weights
from ppl_models import (
    MFCVAE,
    Bernoulli,
    Categorical,
    Columns,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
    SharedMLP,
    StandardNormal,
    StudentT,
)

NAN = float("nan")
SIZE, CUTS = 2.5, np.array([-0.7, -0.1, 1.8])


pytestmark = pytest.mark.usefixtures("float64")


@dataclass(frozen=True)
class Case:
    """A likelihood and its formula.

    :ivar build: a new one, with the parameters that the formula has.
    :ivar log_p: log-density of values given the decoder's outputs, one array for each parameter.
    :ivar draw: values within its support, from a random stream.
    :ivar outputs: of the decoder for each entry.
    """

    build: Callable[[], Likelihood]
    log_p: Callable[..., np.ndarray]
    draw: Callable[..., np.ndarray]
    outputs: int = 1


def sized(**options: object) -> NegativeBinomial:
    """With a size other than the first, which is learned."""
    likelihood = NegativeBinomial(**options)
    nn.init.constant_(likelihood.log_size, math.log(SIZE))
    return likelihood


def cut() -> Ordinal:
    """With cut points other than the first ones."""
    likelihood = Ordinal(len(CUTS) + 1)
    with torch.no_grad():
        likelihood.first_cut.fill_(CUTS[0])
        likelihood.log_steps.copy_(torch.as_tensor(np.diff(CUTS)).log())
    return likelihood


def placed(log_p: Callable[..., np.ndarray], loc: float, unit: float) -> Callable[..., np.ndarray]:
    """The formula in which ``loc + unit * output`` stands for the first output."""
    return lambda x, a, *others: log_p(x, loc + unit * a, *others)


def inflated(log_p: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """With zeros besides, of the probability expit(gate)."""

    def mixed(x: np.ndarray, a: np.ndarray, gate: np.ndarray) -> np.ndarray:
        zero, count = expit(gate), expit(-gate) * np.exp(log_p(x, a))
        return np.log(np.where(x == 0, zero, 0) + count)

    return mixed


def normal(x: np.ndarray, a: np.ndarray, scale: float) -> np.ndarray:
    return stats.norm.logpdf(x, a, scale)


def student(x: np.ndarray, a: np.ndarray, scale: float) -> np.ndarray:
    return stats.t.logpdf(x, 2.5, a, scale)


def lognormal(x: np.ndarray, a: np.ndarray, scale: float) -> np.ndarray:
    return stats.lognorm.logpdf(x, scale, scale=np.exp(a))


def bernoulli(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return stats.bernoulli.logpmf(x, expit(a))


def categorical(x: np.ndarray, *logits: np.ndarray) -> np.ndarray:
    return np.choose(x.astype(int), list(log_softmax(np.stack(logits), axis=0)))


def ordinal(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """McCullagh (1980): SciPy has none."""
    cuts, k = np.concatenate([[-np.inf], CUTS, [np.inf]]), x.astype(int)
    return np.log(stats.logistic.cdf(cuts[k + 1] - a) - stats.logistic.cdf(cuts[k] - a))


def poisson(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return stats.poisson.logpmf(x, np.exp(a))


def negative_binomial(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return stats.nbinom.logpmf(x, SIZE, SIZE / (SIZE + np.exp(a)))


def numbers(
    rng: np.random.Generator, n: tuple[int, ...], loc: float = 0, unit: float = 1
) -> np.ndarray:
    return rng.normal(loc, unit, n)


def positive(
    rng: np.random.Generator, n: tuple[int, ...], loc: float = 0, unit: float = 1
) -> np.ndarray:
    return rng.lognormal(loc, unit, n)


def codes(rng: np.random.Generator, n: tuple[int, ...], number: int) -> np.ndarray:
    return rng.integers(number, size=n).astype(float)


def counts(rng: np.random.Generator, n: tuple[int, ...]) -> np.ndarray:
    """With zeros, of which there may be more than a Poisson variable has."""
    return (rng.poisson(4, n) * rng.integers(2, size=n)).astype(float)


AGE, INCOME, VISITS = (
    {"loc": 40.0, "unit": 12.0},
    {"loc": 10.0, "unit": 0.8},
    {"loc": 1, "unit": 0.5},
)
CASES = {
    "Normal": Case(lambda: Normal(0.8), partial(normal, scale=0.8), numbers),
    "Normal, placed": Case(
        lambda: Normal(9.0, **AGE),
        placed(partial(normal, scale=9.0), **AGE),
        partial(numbers, **AGE),
    ),
    "Normal, placed, scale learned": Case(
        lambda: Normal(**AGE), placed(partial(normal, scale=6.0), **AGE), partial(numbers, **AGE)
    ),
    "StudentT": Case(lambda: StudentT(2.5, 0.8), partial(student, scale=0.8), numbers),
    "StudentT, placed": Case(
        lambda: StudentT(2.5, **AGE),
        placed(partial(student, scale=6.0), **AGE),
        partial(numbers, **AGE),
    ),
    "LogNormal": Case(lambda: LogNormal(0.8), partial(lognormal, scale=0.8), positive),
    "LogNormal, placed": Case(
        lambda: LogNormal(**INCOME),
        placed(partial(lognormal, scale=0.4), **INCOME),
        partial(positive, **INCOME),
    ),
    "Bernoulli": Case(Bernoulli, bernoulli, partial(codes, number=2)),
    "Categorical": Case(lambda: Categorical(3), categorical, partial(codes, number=3), 3),
    "Ordinal": Case(cut, ordinal, partial(codes, number=4)),
    "Poisson": Case(Poisson, poisson, counts),
    "Poisson, placed": Case(lambda: Poisson(**VISITS), placed(poisson, **VISITS), counts),
    "Poisson, inflated": Case(lambda: Poisson(True), inflated(poisson), counts, 2),
    "Poisson, inflated, placed": Case(
        lambda: Poisson(True, **VISITS), placed(inflated(poisson), **VISITS), counts, 2
    ),
    "NegativeBinomial": Case(sized, negative_binomial, counts),
    "NegativeBinomial, placed": Case(
        lambda: sized(**VISITS), placed(negative_binomial, **VISITS), counts
    ),
    "NegativeBinomial, inflated": Case(
        lambda: sized(zero_inflated=True), inflated(negative_binomial), counts, 2
    ),
    "NegativeBinomial, inflated, placed": Case(
        lambda: sized(zero_inflated=True, **VISITS),
        placed(inflated(negative_binomial), **VISITS),
        counts,
        2,
    ),
}


def drawn(n: int, share: float = 0.0) -> np.ndarray:
    """A column for each case ``[n, D]``; with gaps at random, and in all of the last row."""
    rng = np.random.default_rng(0)
    x = np.stack([case.draw(rng, (n,)) for case in CASES.values()], 1)
    if share:
        x[rng.random(x.shape) < share] = NAN
        x[-1] = NAN
    return x


def all_columns() -> Columns:
    return Columns({name: case.build() for name, case in CASES.items()})


def by_formula(case: Case, x: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Log-density of values ``[..., D]`` given outputs ``[..., P * D]``, 0 in gaps."""
    parameters = np.split(output, case.outputs, -1)
    return np.where(np.isnan(x), 0.0, case.log_p(np.where(np.isnan(x), 1.0, x), *parameters))


def by_columns(x: np.ndarray, output: np.ndarray) -> np.ndarray:
    """The same, a case for each column."""
    parts = np.split(output, np.cumsum([case.outputs for case in CASES.values()])[:-1], -1)
    each = zip(CASES.values(), parts, np.split(x, len(CASES), -1), strict=True)
    return np.concatenate([by_formula(case, column, part) for case, part, column in each], -1)


@pytest.mark.parametrize("name", CASES)
def test_a_density_is_that_of_scipy(name: str) -> None:
    """Of two entries, whose parameters the decoder gives side by side."""
    case = CASES[name]
    x = case.draw(np.random.default_rng(0), (40, 2))
    output = 1.5 * torch.randn(40, 2 * case.outputs)
    p = case.build()(output, 1)
    want = by_formula(case, x, output.numpy())
    found = p.log_prob(torch.as_tensor(x)).detach()
    np.testing.assert_allclose(found, want.sum(1), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_densities_of_a_table_are_those_of_scipy(share: float) -> None:
    x = drawn(40, share)
    output = 1.5 * torch.randn(40, sum(case.outputs for case in CASES.values()))
    p, want = all_columns()(output, 1), by_columns(x, output.numpy())
    found = p.log_probs(torch.as_tensor(x)).detach()
    np.testing.assert_allclose(found, want, atol=1e-10, rtol=1e-10)
    total = p.log_prob(torch.as_tensor(x)).detach()
    np.testing.assert_allclose(total, want.sum(1), atol=1e-9, rtol=1e-10)
    assert (total[-1] == 0) == bool(share)


# The bound. Everything but the network's output is computed by SciPy.

ROWS, COPIES, DRAWS = 8, 500, 30


@dataclass(frozen=True)
class Truth:
    """By quadrature over the one latent, of each datum ``[N]``: log p(x) and the ELBO."""

    evidence: np.ndarray
    bound: np.ndarray


def one_latent(width: int, likelihood: Likelihood, steepness: float) -> VaDEGuide:
    """A smooth decoder, so that quadrature is exact, whose output depends on the latent."""
    network = SharedMLP((6,), activation="tanh")
    guide = VaDEGuide(MFCVAE((width,), {"z": StandardNormal(1)}, likelihood, network)).double()
    with torch.no_grad():
        for parameter in guide.model.decoder.parameters():
            parameter.mul_(steepness)
    return guide


@torch.no_grad()
def by_quadrature(guide: VaDEGuide, x: np.ndarray, log_p: Callable, nodes: int) -> Truth:
    """By the trapezoidal rule: on z for log p(x), on q's standardized draw for the ELBO."""
    u = np.linspace(-9, 9, nodes)
    prior = stats.norm.logpdf

    def log_joint(z: np.ndarray) -> np.ndarray:
        """log p(x, z) for z ``[nodes, N or 1]``."""
        output = guide.model.decoder([torch.as_tensor(z)[..., None]], guide.model.gates)
        return log_p(x, output.numpy()).sum(-1) + prior(z)

    q = guide.posterior(torch.as_tensor(x))["z"]
    mean, scale = q.mean.numpy()[:, 0], q.variance.sqrt().numpy()[:, 0]
    log_q = prior(u)[:, None] - np.log(scale)
    gap = log_joint(mean + scale * u[:, None]) - log_q
    return Truth(
        np.log(np.trapezoid(np.exp(log_joint(u[:, None])), u, axis=0)),
        np.trapezoid(gap * stats.norm.pdf(u)[:, None], u, axis=0),
    )


def check_bounds(guide: VaDEGuide, x: np.ndarray, log_p: Callable) -> None:
    truth, coarser = (by_quadrature(guide, x, log_p, nodes) for nodes in (1201, 601))
    np.testing.assert_allclose(truth.evidence, coarser.evidence, atol=1e-9)
    np.testing.assert_allclose(truth.bound, coarser.bound, atol=1e-9)
    assert (truth.bound < truth.evidence).all()
    loss = float((truth.evidence - truth.bound).mean())

    copies = np.tile(x, (COPIES, 1))
    bound, error = elbo(guide.model, guide, copies, num_draws=DRAWS)
    assert abs(bound - truth.bound.mean()) < 5 * error
    assert 5 * error < loss, "the ELBO is told from log p(x)"

    log_weights = log_importance_weights(guide, copies, DRAWS).reshape(-1, len(x))
    weights = (log_weights - torch.as_tensor(truth.evidence)).exp()  # of mean 1
    error = weights.std(0) / math.sqrt(len(weights))
    assert (error < 0.04).all(), "so that a misplaced log 2 would be found"
    assert ((weights.mean(0) - 1).abs() < 5 * error).all()
    # The error of a mean of logarithms is that of the means, as these are close to 1.
    most = importance_weighted_bounds(log_weights, [len(log_weights)])[len(log_weights)]
    assert abs(most - truth.evidence.mean()) < 5 * float(error.square().mean().sqrt())


@pytest.mark.parametrize("name", CASES)
def test_the_bound_is_below_log_p_and_importance_weights_find_it(name: str) -> None:
    case = CASES[name]
    x = case.draw(np.random.default_rng(1), (ROWS, 2))
    check_bounds(one_latent(2, case.build(), 2.0), x, partial(by_formula, case))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_same_of_all_columns_together(share: float) -> None:
    """With gaps, log p(x) is that of what is observed; a row of gaps alone has log p(x) = 0."""
    x = drawn(ROWS, share)
    guide = one_latent(len(CASES), all_columns(), 1.0)
    check_bounds(guide, x, by_columns)
    if share:
        assert by_quadrature(guide, x, by_columns, 1201).evidence[-1] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("mean", [1e4, 1e6, 1e7])
@pytest.mark.parametrize("likelihood", [Poisson(), sized(), NegativeBinomial()], ids=repr)
def test_probabilities_of_large_counts_are_exact(likelihood: Any, mean: float) -> None:
    """In single precision, against SciPy at the parameters that it holds."""
    output = torch.tensor([np.log(mean)], dtype=torch.float32)
    rate = np.exp(float(output.double()))
    x = np.round(mean * np.linspace(0.9, 1.1, 9)).astype(np.float32)
    found = likelihood(output, 0).log_prob(torch.tensor(x)).detach()
    if isinstance(likelihood, Poisson):
        wanted = stats.poisson.logpmf(x.astype(float), rate)
    else:
        size = float(likelihood.log_size.detach().double().exp())
        wanted = stats.nbinom.logpmf(x.astype(float), size, size / (size + rate))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-4)


def test_a_large_size_is_a_poisson_with_a_quiet_gradient() -> None:
    likelihood = NegativeBinomial()
    with torch.no_grad():
        likelihood.log_size.fill_(np.log(1e6))
    p = likelihood(torch.tensor([np.log(5.0)], dtype=torch.float32), 0)
    assert p.log_prob(torch.arange(60.0)).exp().sum().item() == pytest.approx(1, abs=1e-5)
    p.log_prob(torch.tensor([3.0])).sum().backward()
    # d log p / d log size = (x - (x - m)^2) / (2 size) to first order, where m is the mean.
    assert likelihood.log_size.grad.item() == pytest.approx((4 - 3) / 2e6 * -1, rel=0.1)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(), Poisson(True)], ids=repr)
def test_what_is_no_count_is_refused_with_pyros_checks_on(likelihood: Any) -> None:
    with pyro.validation_enabled(), pytest.raises(ValueError, match="within the support"):
        likelihood(torch.zeros(2), 1).log_prob(torch.tensor([-1.0, 2.0]))
