"""Diagnostics of any Pyro program: what is left as it was, what is refused, what is promised."""

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
from pyro.infer import RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints, kl_divergence

from guides import MarginalGuide
from inference import GuideEnum_ELBO, Loss
from inference.diagnostics import (
    assert_elbo_unbiased,
    assert_unbiased,
    calibration,
    exact_elbo,
    gradient_moments,
    loss_draws,
)
from inference.diagnostics.programs import check_program
from inference.diagnostics.sampling import Known, Sampled, settle
from ppl_models import MFCVAE, GaussianMixture, Normal, SharedMLP

X = torch.tensor([0.5, -1.0, 2.0])


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


USES: dict[str, Callable[..., Any]] = {
    "loss_draws": lambda g, e: loss_draws((model, g, e), X, 3),
    "gradient_moments": lambda g, e: gradient_moments((model, g, e), X, 3),
    "assert_elbo_unbiased": lambda g, e: assert_elbo_unbiased(
        model, g, e, X, bias=2, gradient_bias=3, level=0.01
    ),
    "exact_elbo": lambda g, e: exact_elbo(model, g, X),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
def test_everything_is_left_as_it_was(use: str, elbo: Callable) -> None:
    """With a module in training mode, gradients of its own, and a store that holds something."""
    store, encoder, objective = pyro.get_param_store(), Encoder(), elbo()
    with store.scope():
        kept = pyro.param("kept", torch.tensor(1.0))
        kept.grad = torch.tensor(2.0)
        for p in encoder.parameters():
            p.grad = torch.ones_like(p)
        torch.manual_seed(5), np.random.seed(5), random.seed(5)  # noqa: NPY002
        drawn = np.random.get_state()[1].copy()  # noqa: NPY002
        before = (torch.get_rng_state(), drawn, random.getstate())
        USES[use](encoder, objective)
        USES[use](guide, objective)
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


def test_names_and_values_of_parameters_are_those_of_the_store() -> None:
    draws = gradient_moments((model, guide, TraceMeanField_ELBO()), X, 50)
    assert set(draws.mean) == {"loc", "s"}
    again = gradient_moments((model, guide, RenyiELBO(0.0, num_particles=1)), X, 50)
    assert set(again.mean) == {"loc", "s"}
    with pyro.get_param_store().scope():
        pyro.param("loc", torch.tensor(1e4))
        far = loss_draws((model, guide, Trace_ELBO()), X, 2)
    assert float(far.mean()) > 1e7


def test_draws_are_reproducible_and_differ() -> None:
    draw = partial(loss_draws, (model, guide, Trace_ELBO()), (X,), 5)
    assert torch.equal(draw(), draw())
    assert len(draw().unique()) == 5
    assert not torch.equal(draw(), draw(seed=1))


def test_our_own_objective_is_mapped_and_agrees_with_its_module() -> None:
    torch.manual_seed(0)
    facets = {"a": GaussianMixture(3, 1, scale=1.0)}
    ours = MFCVAE((3,), facets, Normal(0.5), SharedMLP((4,), activation="tanh"))
    g = MarginalGuide(ours).double()
    x = torch.rand(4, 3, dtype=torch.float64)
    elbo = GuideEnum_ELBO(max_plate_nesting=g.max_plate_nesting)
    program = partial(loss_draws, (ours, g, elbo), **g.options)
    assert torch.allclose(program(x, 20, chunk=20), 4 * loss_draws(Loss(ours, g), x, 20, chunk=20))
    moments = gradient_moments((ours, g, elbo), x, 20, **g.options)
    theirs = gradient_moments(Loss(ours, g), x, 20)
    assert moments.trace == pytest.approx(16 * theirs.trace, rel=1e-6)


def two_sites(correlated: bool) -> tuple[Callable, Callable]:
    def joint() -> None:
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
        z = pyro.sample("z", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))
        y = pyro.sample("y", dist.Bernoulli(0.4))
        pyro.sample("x", dist.Normal(z.sum() + c + y, 1.0), obs=torch.tensor(1.0))

    def posterior() -> None:
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.3, 0.3, 0.4])))
        chol = torch.tensor([[0.8, 0.0], [-0.5 * correlated, 0.6]])
        loc = torch.stack([0.2 * c, torch.tensor(0.1)])
        pyro.sample("z", dist.MultivariateNormal(loc, scale_tril=chol))
        pyro.sample("y", dist.Bernoulli(0.2 + 0.2 * c))

    return joint, posterior


@pytest.mark.parametrize("correlated", [False, True])
def test_sites_that_depend_on_one_another_are_exact(correlated: bool) -> None:
    """Posteriors that depend on discrete latents: detects half a nat."""
    joint, posterior = two_sites(correlated)
    exact = partial(exact_elbo, points=6)
    assert_elbo_unbiased(joint, posterior, Trace_ELBO(), gradient=False, bias=0.5, reference=exact)


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


def one(fn: Any) -> Callable:
    """A program with a single latent."""

    def program() -> None:
        pyro.sample("z", fn)

    return program


def near_optimum() -> None:
    pyro.sample("z", dist.Normal(pyro.param("near", torch.tensor(1e-7)), 1.0))


def subsampled() -> None:
    with pyro.plate("data", 4, subsample_size=2):
        pyro.sample("z", dist.Normal(0.0, 1.0))


UNIT = dist.Normal(0.0, 1.0)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an infinite support": (
        lambda: exact_elbo(one(dist.Poisson(1.0)), one(dist.Poisson(1.0))),
        "site 'z' of the guide is Poisson",
    ),
    "a latent that the guide lacks": (
        lambda: exact_elbo(one(UNIT), lambda: None),
        "latent 'z' of the model is not in the guide",
    ),
    "a random subsample": (
        lambda: exact_elbo(subsampled, subsampled),
        "plate 'data' takes a random subsample",
    ),
    "members that depend on one another": (
        lambda: exact_elbo(*plated(lambda z: z.cumsum(-1))),
        "site 'x' depends on 'z' of other members of plate 'data'",
    ),
    "discrete entries without a plate": (
        lambda: exact_elbo(*[one(dist.Bernoulli(torch.full((2,), 0.3)).to_event(1))] * 2),
        r"site 'z' .* discrete entries \(.to_event\), which are not enumerated: use a plate",
    ),
    "a batch without a plate": (
        lambda: exact_elbo(*plated(lambda z: z, plates=False)),
        "has 3 entries and no plate",
    ),
    "too few draws": (
        lambda: assert_elbo_unbiased(model, guide, Trace_ELBO(), X, bias=1e-3, max_draws=999),
        r"needs about [\d,]+ draws, more than max_draws=999",
    ),
    "parameters at the optimum": (
        lambda: assert_elbo_unbiased(one(UNIT), near_optimum, Trace_ELBO()),
        "gradient is 0 within its noise.* move the parameters",
    ),
    "an ELBO without a gradient": (
        lambda: gradient_moments((model, guide, SimpleNamespace(loss=lambda *_: 0.0)), X, 3),
        "has neither differentiable_loss nor loss_and_grads",
    ),
    "several losses": (
        lambda: loss_draws((model, guide, lambda *_: (0.0, 1.0)), X, 3),
        "returns several losses",
    ),
    "draws that are not finite": (
        lambda: assert_elbo_unbiased(
            model, guide, lambda *_: torch.tensor(math.nan), X, gradient=False
        ),
        "100 of 100 draws are not finite",
    ),
    "a quadrature that has not converged": (
        lambda: assert_elbo_unbiased(
            lambda: pyro.sample("x", dist.Laplace(40 * pyro.sample("z", UNIT), 0.1), obs=X[0]),
            one(UNIT),
            Trace_ELBO(),
            gradient=False,
        ),
        "its quadrature has not converged",
    ),
    "data whose place is not clear": (
        lambda: calibration(lambda x, y: model(x), guide, X, X),
        "give arguments=",
    ),
    "too few ranks": (
        lambda: calibration(model, guide, X, num_simulations=2, num_draws=9),
        "2 ranks in 10 bins are too few",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_point_estimate_counts_as_one_point() -> None:
    with pyro.get_param_store().scope():
        delta = AutoDelta(model)
        exact = exact_elbo(model, delta, X)
        z = delta.median(X)["z"].detach()
    expected = dist.Normal(0.0, 1.0).log_prob(z) + dist.Normal(z, 1.0).log_prob(X).sum()
    torch.testing.assert_close(exact.detach(), expected)


def test_false_alarms_and_power_are_as_promised() -> None:
    """By draws that are Normal, 200 times: at a level of 5 % and a power of 90 %, whose binomial
    deviations are 0.0154 and 0.0212; four of these.
    """
    generator = torch.Generator().manual_seed(0)
    threshold, reach, bias = 1.96, 1.96 + 1.2816, 0.18
    rates = []
    for shift in (0.0, bias):
        beyond = 0
        for _ in range(200):
            draws = torch.randn(600, 1, generator=generator, dtype=torch.float64) + shift
            rows = iter(draws)
            sampled = Sampled(lambda rows=rows: next(rows))
            known = Known(torch.zeros(1).double(), torch.zeros(1).double())
            settle(sampled, known, torch.tensor([bias / reach]).double(), 600)
            error = float(sampled.squared_error.sqrt())
            assert reach * error <= bias
            beyond += abs(float(sampled.mean)) > threshold * error
        rates.append(beyond / 200)
    assert abs(rates[0] - 0.05) < 4 * 0.0154
    assert rates[1] > 0.9 - 4 * 0.0212


def test_means_that_rounding_hides_are_named() -> None:
    large = Sampled(lambda: 2e5 + torch.randn(1, dtype=torch.float64))
    known = Known(torch.full((1,), 2e5).double(), torch.zeros(1).double())
    with pytest.raises(ValueError, match=r"means of 200,000 nats are known to 0\.19 within"):
        settle(large, known, torch.tensor([0.1]).double(), 10_000)


def test_draws_make_up_for_rounding_and_double_precision_has_little() -> None:
    """Single precision gives means of 60,000 an error of 0.057, of the 0.06 that are allowed."""
    epsilon = torch.finfo(torch.float32).eps
    known = Known(torch.full((1,), 6e4).double(), torch.zeros(1).double())
    for eps in (epsilon, epsilon**2):
        sampled = Sampled(lambda: 6e4 + torch.randn(1, dtype=torch.float64), eps)
        settle(sampled, known, torch.tensor([0.06]).double(), 10_000)
        assert float(sampled.squared_error) <= 0.06**2

    def doubled() -> None:
        pyro.sample("z", dist.Normal(X[0].double(), 1.0))

    def mixed() -> None:
        pyro.sample("z", dist.Normal(X[0].double(), 1.0))
        pyro.factor("f", X[1])

    assert check_program(doubled, doubled, Trace_ELBO(), (), {}).epsilon() < 1e-15
    assert check_program(mixed, doubled, Trace_ELBO(), (), {}).epsilon() == epsilon


def test_discrete_latents_and_arguments_of_ones_own_are_calibrated() -> None:
    """Ties broken at random: the exact posterior passes, its mirror image fails."""

    def coins(count: int, x: Tensor | None = None) -> None:
        with pyro.plate("data", count):
            c = pyro.sample("c", dist.Bernoulli(0.4))
            pyro.sample("x", dist.Normal(2 * c, 1.0), obs=x)

    def posterior(x: Tensor, sign: float = 1.0) -> None:
        logits = math.log(0.4 / 0.6) + sign * (2 * x - 2)
        with pyro.plate("data", len(x)):
            pyro.sample("c", dist.Bernoulli(logits=logits))

    test = partial(
        calibration,
        lambda count: coins(count, torch.zeros(count)),
        arguments=lambda drawn: (drawn["x"],),
        num_simulations=5,
    )
    test(posterior, 200, seed=1).check()
    assert test(partial(posterior, sign=-1.0), 200).miscalibrated == ("c[0]",)


def test_a_latent_of_all_data_is_not_counted_for_each_of_them() -> None:
    """With a latent outside the plate its members are not independent."""

    def both(x: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(m, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def prior(x: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(m, 1.0))

    report = calibration(both, prior, X, num_simulations=60, num_draws=19, seed=3)
    assert {name: ranks.shape for name, ranks in report.ranks.items()} == {
        "m": (60, 1),
        "z": (60, 3),
    }
    assert report.miscalibrated == ()  # a prior is calibrated too, and says nothing


def test_members_that_share_any_latent_of_the_model_are_not_counted() -> None:
    """Whether the guide has it or not; and plates side by side have no members in common."""

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
            pyro.sample("z", dist.Normal(0.0, 2**0.5))

    for model in (shared, beside):
        report = calibration(model, summed_out, X, num_simulations=50, num_draws=9)
        assert report.ranks["z"].shape == (50, 3)


def test_what_a_model_computes_is_no_observation() -> None:
    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(pyro.deterministic("mean", z), 1.0), obs=x)

    def exact(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(x / 2, 0.5**0.5))

    report = calibration(model, exact, X.new_zeros(100), num_simulations=5, num_draws=19)
    report.check()
    assert report.ranks["z"].shape == (500, 1)


def test_draws_without_noise_are_compared_within_rounding() -> None:
    """In single precision 0.1 is 1.5e-9 too large; a difference of 1e-5 is found still."""
    exact = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        draws = torch.full((100,), 0.1, dtype=dtype)
        assert abs(assert_unbiased(draws, exact)) < 1
        with pytest.raises(AssertionError, match="biased"):
            assert_unbiased(draws, 0.10001)
    assert assert_unbiased(torch.tensor([0, 1] * 100_000), 0.5) == 0
