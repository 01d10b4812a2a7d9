"""Every estimator of the ELBO against its exact value, and every estimator broken on purpose.

The models are small and in float64, so that quadrature over z and enumeration over c give the expected loss to five
digits or more. Each test detects a bias of 0.01 nats per datum with probability 0.99 and raises a false alarm once in
a million runs; `assert_unbiased` fails where the draws are too few for that. A planted bias of 0.02 nats is found in
every one.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from functools import cache

import pyro
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, nn

from guides import FacetGuide, MarginalGuide, VaDEGuide
from inference import GuideEnum_ELBO, Loss
from inference.diagnostics import (
    assert_unbiased,
    compare_estimators,
    exact_objective,
    gauss_hermite,
    gradient_moments,
    loss_draws,
)
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, Prior, SharedMLP, StandardNormal

SEED = int(os.environ.get("FACETVAE_TEST_SEED", "0"))
DRAWS = 120_000
PRIORS: dict[str, Callable[[], Prior]] = {
    "diagonal": lambda: GaussianMixture(3, 1, scale=0.6),
    "full": lambda: GaussianMixture(2, 2, covariance="full", scale=0.9),
    "uniform": lambda: GaussianMixture(3, 1, weights="uniform", scale=0.6),
    "normal": lambda: StandardNormal(1),
}
GUIDES: dict[str, Callable[[MFCVAE], FacetGuide]] = {
    "responsibilities": VaDEGuide,
    "responsibilities, 2 draws": lambda model: VaDEGuide(model, 2),
    "marginal": MarginalGuide,
    "marginal, 2 draws": lambda model: MarginalGuide(model, 2),
}
BATCH = torch.tensor(
    [[0.0, 0.3, 1.0, 0.8], [1.0, 0.9, 0.1, 0.2], [0.5, 0.5, 0.0, 1.0], [0.7, 0.0, 0.6, 0.1]], dtype=torch.float64
)


def one_facet(prior: str, guide: str) -> FacetGuide:
    torch.manual_seed(2)
    model = MFCVAE((4,), {"z": PRIORS[prior]()}, network=SharedMLP((5,), activation="tanh"))
    if isinstance(model.priors["z"], GaussianMixture):
        nn.init.normal_(model.priors["z"].logits)
    return calm(GUIDES[guide](model).double())


def calm(guide: FacetGuide) -> FacetGuide:
    """Posteriors narrow enough that a bias shows in few draws, wide enough that the responsibilities vary with them."""
    with torch.no_grad():
        for rung in guide.encoder.rungs:
            d = rung.out_features // 2
            rung.bias[d:] = 2 * math.log(0.4)
    return guide


TRIPLES = list(itertools.product(PRIORS, GUIDES))


@cache
def exact_and_draws(prior: str, guide: str) -> tuple[FacetGuide, float, Tensor]:
    g = one_facet(prior, guide)
    with torch.no_grad():
        return g, float(exact_objective(g.model, g, BATCH)), loss_draws(Loss(g.model, g), BATCH, DRAWS, SEED)


@pytest.mark.parametrize(("prior", "guide"), TRIPLES)
def test_expected_loss_is_exact(prior: str, guide: str) -> None:
    _, exact, draws = exact_and_draws(prior, guide)
    assert_unbiased(draws, exact)


@pytest.mark.parametrize("weight", [0.0, 0.37])
def test_expected_loss_is_exact_for_two_facets_while_one_fades_in(weight: float) -> None:
    torch.manual_seed(3)
    facets = {"a": GaussianMixture(3, 1, scale=0.6), "b": GaussianMixture(2, 1, scale=0.6)}
    for form in (VaDEGuide, MarginalGuide):
        g = calm(form(MFCVAE((4,), facets, network=MLPLadder((4, 5), activation="tanh"))).double())
        g.model.gates = torch.tensor([weight, 1.0], dtype=torch.float64)
        g.model.kl_weights = g.model.gates.unsqueeze(-1).expand(-1, 2)
        assert_unbiased(loss_draws(Loss(g.model, g), BATCH, DRAWS, SEED), exact_objective(g.model, g, BATCH).item())


@pytest.mark.parametrize("prior", ["diagonal", "full"])
def test_pyros_own_objective_has_the_same_expectation(prior: str) -> None:
    """One draw at a time, so only as many as show that the two objectives are the same number for the same draws."""
    g = one_facet(prior, "responsibilities, 2 draws")
    ours = Loss(g.model, g, GuideEnum_ELBO(max_plate_nesting=2))
    theirs = Loss(g.model, g, TraceEnum_ELBO(max_plate_nesting=2))
    for seed in range(20):
        values = []
        for loss in (ours, theirs):
            pyro.set_rng_seed(seed)
            values.append(loss(BATCH))
        torch.testing.assert_close(*values, rtol=1e-12, atol=0)


class Fault(nn.Module):
    """What a faulty formula adds to the loss, as a module that `loss_draws` can draw from."""

    def __init__(self, loss: Loss, fault: Callable[[Loss, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss, self.fault = loss, fault

    def forward(self, x: Tensor) -> Tensor:
        return self.fault(self.loss, x)


def wrong_sign(loss: Loss, x: Tensor) -> Tensor:
    """Twice the mean of log p(z) under q: what a wrong sign in front of that term adds."""
    z = loss.guide.encode(x)["z"].rsample()
    return -2 * loss.model.priors["z"].log_prob(z).mean()


def dropped_weights(loss: Loss, x: Tensor) -> Tensor:
    """Minus log pi at the responsibilities: what leaving out log p(c) adds."""
    prior = loss.model.priors["z"]
    z = loss.guide.encode(x)["z"].rsample()
    log_pi = prior.logits.log_softmax(-1) if isinstance(prior, GaussianMixture) else z.new_full((1,), -1.0)
    return -(prior.log_joint(z).softmax(-1) * log_pi).sum(-1).mean()


def reused_responsibilities(loss: Loss, x: Tensor) -> Tensor:
    """KL from the responsibilities of one draw to those of another: the price of using one draw's for the other."""
    q, prior = loss.guide.encode(x)["z"], loss.model.priors["z"]
    first, second = (prior.log_joint(q.rsample()).log_softmax(-1) for _ in range(2))
    if first.shape[-1] == 1:  # a prior without components has no responsibilities: a plain offset stands in
        return q.mean.new_ones(())
    return (first.exp() * (first - second)).sum(-1).mean()


@pytest.mark.parametrize("fault", [wrong_sign, dropped_weights, reused_responsibilities])
@pytest.mark.parametrize(("prior", "guide"), TRIPLES)
def test_a_planted_bias_is_found(prior: str, guide: str, fault: Callable[[Loss, Tensor], Tensor]) -> None:
    g, exact, draws = exact_and_draws(prior, guide)
    loss = Loss(g.model, g)
    planted = loss_draws(Fault(loss, fault), BATCH, DRAWS, SEED + 1)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(draws + 0.02 * planted / planted.mean(), exact, detectable=0.02)


def test_too_few_draws_are_refused_rather_than_passed() -> None:
    g = one_facet("diagonal", "responsibilities")
    with pytest.raises(ValueError, match=r"detect a bias of .* take about [\d,]+ draws"):
        assert_unbiased(loss_draws(Loss(g.model, g), BATCH, 100, SEED), 0.0)


def test_false_alarms_and_power_are_as_promised() -> None:
    """On normal draws with a known bias: at a false-alarm rate of 5 % and a power of 90 %, 2,000 times each."""
    torch.manual_seed(SEED)
    n, alarms, found = 400, 0, 0
    detectable = (1.9600 + 1.2816) / math.sqrt(n)
    for bias in (0.0, 1.05 * detectable):  # 5 % above, for the error's own error
        for draws in torch.randn(2000, n, dtype=torch.float64) + bias:
            try:
                assert_unbiased(draws, 0.0, detectable=1.2 * detectable, false_alarm=0.05, power=0.9)
            except AssertionError:
                alarms, found = (alarms + 1, found) if bias == 0 else (alarms, found + 1)
    # Binomial deviations at 2,000: 0.0049 and 0.0067; five of them.
    assert abs(alarms / 2000 - 0.05) < 5 * 0.0049
    assert found / 2000 > 0.9 - 5 * 0.0067


@pytest.mark.parametrize("L", [1, 2, 5, 20])
def test_shared_responsibilities_against_separate_ones(L: int) -> None:
    """Separate responsibilities (num_particles = L, or the marginal form) keep the one-draw value at every L; shared
    ones (Eq. 58) start there and give a larger loss as L grows. Both against exact values for L = 1 and 2; beyond,
    quadrature is out of reach for the shared ones, and their ordering is tested."""
    torch.manual_seed(2)
    model = MFCVAE((4,), {"z": GaussianMixture(3, 1, scale=0.4)}, network=SharedMLP((5,), activation="tanh"))
    one, shared, separate = (calm(g.double()) for g in (VaDEGuide(model), VaDEGuide(model, L), MarginalGuide(model, L)))
    shared.encoder = separate.encoder = one.encoder
    at_one = exact_objective(model, one, BATCH).item()
    num_draws = max(DRAWS // L, 12_000)
    assert_unbiased(loss_draws(Loss(model, separate), BATCH, num_draws, SEED), at_one, detectable=0.015)
    draws = loss_draws(Loss(model, shared), BATCH, num_draws, SEED)
    if L <= 2:
        assert_unbiased(draws, exact_objective(model, shared, BATCH, num_nodes=60).item(), detectable=0.015)
    excess = (draws.mean() - at_one) / (draws.std() / math.sqrt(num_draws))
    assert abs(excess) < 5 if L == 1 else excess > 5


def test_gradients_are_unbiased_and_both_forms_agree() -> None:
    g = one_facet("diagonal", "responsibilities")
    marginal = MarginalGuide(g.model).double()
    marginal.encoder = g.encoder
    exact = exact_objective(g.model, g, BATCH)
    names = [name for name, p in g.named_parameters() if p.requires_grad]
    want = dict(zip(names, torch.autograd.grad(exact, [g.get_parameter(name) for name in names]), strict=True))
    for form in (g, marginal):
        moments = gradient_moments(Loss(g.model, form), BATCH, 20_000, SEED)
        worst = 0.0
        for key, mean in moments.mean.items():
            name = key.removeprefix("guide.")
            error = (moments.variance[key] / moments.num_draws).sqrt()
            # Entries behind a dead unit have no spread at all; quadrature is good to 1e-6 there and everywhere.
            worst = max(worst, ((mean - want[name]).abs() / (error + 1e-6)).max().item())
        # About 60 entries; beyond 5.5 deviations once in 400,000 runs.
        assert worst < 5.5


def test_streamed_moments_are_those_of_all_gradients_at_once() -> None:
    g = one_facet("full", "responsibilities")
    loss = Loss(g.model, g)
    one_chunk = gradient_moments(loss, BATCH, 300, SEED, chunk=300)
    many = gradient_moments(loss, BATCH, 3000, SEED, chunk=7)
    assert many.num_draws == 3000
    assert many.trace == pytest.approx(one_chunk.trace, rel=0.5)
    assert many.cosine(one_chunk.mean) > 0.9


def test_comparison_tells_a_biased_estimator_and_a_noisier_one() -> None:
    g = one_facet("diagonal", "marginal")
    more = MarginalGuide(g.model, 4).double()
    more.encoder = g.encoder
    exact = exact_objective(g.model, g, BATCH)
    reports = compare_estimators({"L = 1": Loss(g.model, g), "L = 4": Loss(g.model, more)}, BATCH, exact, 20_000, SEED)
    for report in reports.values():
        assert abs(report.bias) < 5 * report.bias_error
        assert report.cosine > 0.95
    # Four independent draws have a quarter of the variance; the ratio's own deviation here is below 5 %.
    assert reports["L = 4"].variance / reports["L = 1"].variance == pytest.approx(0.25, rel=0.25)


def test_quadrature_integrates_what_it_says() -> None:
    nodes, weights = gauss_hermite(12, 2)
    assert weights.sum().item() == pytest.approx(1)
    x, y = nodes.unbind(-1)
    assert (weights @ (x**4 * y**2)).item() == pytest.approx(3, rel=1e-12)
    g = one_facet("full", "responsibilities")
    coarse, fine = (exact_objective(g.model, g, BATCH, num_nodes=n).item() for n in (30, 45))
    assert coarse == pytest.approx(fine, abs=1e-5)


def test_unequal_weights_of_one_facet_are_refused() -> None:
    g = one_facet("diagonal", "responsibilities")
    g.model.kl_weights = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    with pytest.raises(ValueError, match="each facet's two KL weights must be equal"):
        exact_objective(g.model, g, BATCH)
