"""Densities against torch's own, draws against their densities, and the parametrisations against
their inverses.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro import validation_enabled
from scipy.special import gammaln
from scipy.stats import ks_2samp, multivariate_normal
from torch import nn
from torch.distributions import Independent, MultivariateNormal, kl_divergence
from torch.distributions import Normal as TorchNormal

from guides import AmortizedGuide, VaDEGuide
from inference import Loss, cold_start, fit_mixtures
from inference.evaluation import exact_objective
from inference.training.recording import record
from ppl_models import (
    MFCVAE,
    Bernoulli,
    ContinuousBernoulli,
    DirichletWeights,
    GaussianMixture,
    Incomplete,
    Mixture,
    Normal,
    Ordinal,
    SharedMLP,
    VaDE,
    VampPrior,
)
from ppl_models.configurable import from_config, to_config
from ppl_models.distributions import (
    SMALL_INTERMEDIATE,
    Component,
    DiagonalNormal,
    InPlates,
    LogitContinuousBernoulli,
    mark_enumerated,
    normal_log_probs,
    product_pays,
)
from tests.draws_of import loss_draws

pytestmark = pytest.mark.usefixtures("float64")


def mixture(covariance: str, K: int = 4, d: int = 3) -> GaussianMixture:
    prior = GaussianMixture(K, d, covariance=covariance)
    factor = torch.randn(K, d, d)
    prior.place(
        loc=torch.randn(K, d),
        covariances=factor @ factor.mT + 0.1 * torch.eye(d),
        weights=torch.rand(K) + 0.1,
    )
    return prior


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_log_joint_is_that_of_multivariate_normals(covariance: str) -> None:
    prior = mixture(covariance)
    z = 3 * torch.randn(50, 3)
    weights = torch.softmax(prior.logits, -1)
    for k in range(prior.num_components):
        covariance_k = (prior.scale_tril[k] @ prior.scale_tril[k].T).detach()
        scipy_value = multivariate_normal(
            prior.loc[k].detach().numpy(), covariance_k.numpy()
        ).logpdf(z.numpy())
        np.testing.assert_allclose(
            prior.log_joint(z)[:, k].detach() - weights[k].log().item(), scipy_value, rtol=1e-10
        )


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_the_density_of_a_chosen_component_is_its_row_of_the_joint(covariance: str) -> None:
    prior = mixture(covariance)
    z = torch.randn(6, 3)
    for k in range(prior.num_components):
        one_hot = torch.eye(prior.num_components)[k]
        got = prior.latent(one_hot).log_prob(z) + prior.component().log_prob(one_hot)
        torch.testing.assert_close(got, prior.log_joint(z)[:, k])


class MadeOf(Mixture):
    """Components of any kind, as a user's own subclass has them."""

    def __init__(self, components: dist.TorchDistribution) -> None:
        super().__init__(*components.batch_shape, *components.event_shape)
        self._components = components

    def components(self) -> dist.TorchDistribution:
        return self._components

    def place(self, loc: torch.Tensor, *given: object) -> None:
        raise NotImplementedError


def test_chosen_components_are_of_the_family_of_all() -> None:
    K, d, z = 3, 2, torch.randn(3, 2)
    one = torch.eye(K)
    for family in (
        dist.Normal(torch.randn(K, d), torch.rand(K, d) + 0.1),
        dist.StudentT(torch.tensor(3.0), torch.randn(K, d), torch.rand(K, 1) + 0.1),
        dist.Laplace(torch.randn(K, d), torch.rand(K, d) + 0.1),
    ):
        components = family.to_event(1)
        prior = MadeOf(components)
        chosen = prior.latent(one)
        assert type(chosen.base_dist) is type(family)
        torch.testing.assert_close(chosen.log_prob(z), components.log_prob(z))
        half = prior.latent(torch.full((K,), 1 / K))
        torch.testing.assert_close(half.base_dist.loc, family.loc.mean(0))
    whole = dist.MultivariateNormal(torch.zeros(K, d), torch.eye(d))
    with pytest.raises(NotImplementedError, match=r"MultivariateNormal, but .* override `latent`"):
        MadeOf(whole).latent(one)


def test_components_with_a_fixed_option_are_not_built_anew_without_it() -> None:
    loc = torch.randn(3, 2)
    ones = torch.ones_like(loc)
    stable = dist.Stable(1.5 * ones, 0.9 * ones, ones, loc, coords="S")
    squashed = dist.TransformedDistribution(
        dist.Normal(loc, ones), [dist.transforms.SigmoidTransform()]
    )
    for each in (stable, squashed):
        with pytest.raises(
            NotImplementedError, match="only ones that are averaged: override `latent`"
        ):
            MadeOf(each.to_event(1)).latent(torch.eye(3))


def test_draws_need_no_mean() -> None:
    loc = torch.zeros(3, 2)
    prior = MadeOf(dist.StudentT(torch.ones(3, 2), loc, torch.ones(3, 2)).to_event(1))
    assert prior.sample(20).isfinite().all()
    assert prior.sample(20, cluster=1).isfinite().all()


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_gradients_of_the_density(covariance: str) -> None:
    prior = mixture(covariance)
    z = torch.randn(3, 3, requires_grad=True)
    parameters = list(prior.parameters())
    assert torch.autograd.gradcheck(lambda *_: prior.log_prob(z), (z, *parameters))


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_initialize_and_read_back(covariance: str) -> None:
    prior = GaussianMixture(3, 2, covariance=covariance, scale=0.1)
    torch.testing.assert_close(prior.scale_tril, 0.1 * torch.eye(2).expand(3, 2, 2))
    factor = torch.randn(3, 2, 2)
    covariances = factor @ factor.mT + 0.01 * torch.eye(2)
    weights = torch.tensor([0.2, 0.3, 0.5])
    prior.place(covariances=covariances, weights=weights)
    got = prior.scale_tril @ prior.scale_tril.mT
    want = (
        covariances
        if covariance == "full"
        else torch.diag_embed(torch.diagonal(covariances, dim1=-2, dim2=-1))
    )
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(prior.component().probs, weights)


def test_draws_have_the_moments_of_the_mixture() -> None:
    prior = mixture("full", K=2, d=2)
    n = 200_000
    z = prior.sample(n)
    weights = torch.softmax(prior.logits, -1)
    mean = weights @ prior.loc
    error = z.std(0) / math.sqrt(n)
    assert ((z.mean(0) - mean).abs() < 5 * error).all()  # false alarm below 1.2e-6 for both entries
    variance = torch.einsum("k,kij->ij", weights, prior.scale_tril @ prior.scale_tril.mT)
    variance = variance + torch.einsum("k,ki,kj->ij", weights, prior.loc - mean, prior.loc - mean)
    deviations = (z - z.mean(0)).unsqueeze(-1) * (z - z.mean(0)).unsqueeze(-2)
    assert ((deviations.mean(0) - variance).abs() < 5 * deviations.std(0) / math.sqrt(n)).all()


def test_far_from_every_mean_nothing_overflows() -> None:
    prior = mixture("full", K=5, d=200).float()
    z = torch.full((2, 200), 1e3, dtype=torch.float32, requires_grad=True)
    log_prob = prior.log_prob(z)
    assert log_prob.isfinite().all()
    (gradient,) = torch.autograd.grad(log_prob.sum(), z)
    assert gradient.isfinite().all()
    assert torch.allclose(
        prior.log_joint(z).softmax(-1).sum(-1), torch.ones(2, dtype=torch.float32)
    )


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_covariances_stay_positive_definite_under_wild_steps(covariance: str) -> None:
    prior = GaussianMixture(4, 3, covariance=covariance)
    for _ in range(50):
        with torch.no_grad():
            for parameter in prior.parameters():
                parameter += torch.randn_like(parameter)
        # A Cholesky factor with a positive diagonal is that of a positive definite matrix.
        assert (torch.diagonal(prior.scale_tril, dim1=-2, dim2=-1) >= 1e-4).all()
        assert prior.log_prob(prior.loc).isfinite().all()
        torch.testing.assert_close(prior.component().probs.sum(), torch.tensor(1.0))


def test_diagonal_normal_is_an_independent_normal() -> None:
    loc, scale = torch.randn(4, 1, 3), torch.rand(5, 3) + 0.1
    ours, theirs = (
        DiagonalNormal(*torch.broadcast_tensors(loc, scale)),
        Independent(TorchNormal(loc, scale), 1),
    )
    value = torch.randn(4, 5, 3)
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value), rtol=1e-13, atol=1e-13)
    expanded = ours.expand(torch.Size([2, 4, 5]))
    assert type(expanded) is DiagonalNormal
    assert expanded.rsample().shape == (2, 4, 5, 3)
    torch.testing.assert_close(kl_divergence(ours, theirs), torch.zeros(4, 5))


def direct_log_probs(z: torch.Tensor, loc: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return DiagonalNormal(loc, scale).log_prob(z.unsqueeze(-2))


def latents_and_normals(reach: float, scale: float) -> tuple[torch.Tensor, ...]:
    """Latents near the means of Normals, in float32, and the latents before they were rounded."""
    torch.manual_seed(0)
    loc = (reach * (2 * torch.rand(20, 5) - 1)).float()
    scales = (scale * (1 + torch.rand(20, 5))).float()
    own = torch.randint(20, (100,))
    z = loc[own] + scales[own] * torch.randn(100, 5)
    return z.float(), loc, scales, z


def value_and_gradients(
    formula: Callable[..., torch.Tensor], weights: torch.Tensor, *given: torch.Tensor
) -> list[torch.Tensor]:
    leaves = [each.clone().requires_grad_() for each in given]
    value = formula(*leaves)
    gradients = torch.autograd.grad(value, leaves, weights.to(value))
    return [each.detach().double() for each in (value, *gradients)]


@pytest.mark.parametrize("reach", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("scale", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_a_product_of_matrices_is_as_accurate_as_the_direct_formula(
    reach: float, scale: float
) -> None:
    z, loc, scales, unrounded = latents_and_normals(reach, scale)
    given = z.double(), loc.double(), scales.double()
    truth = direct_log_probs(*given)
    weights = truth.softmax(-1)
    exact = value_and_gradients(direct_log_probs, weights, *given)
    ours, direct = (
        value_and_gradients(formula, weights, z, loc, scales)
        for formula in (normal_log_probs, direct_log_probs)
    )
    # A sum of 2 d + 1 products in float64, whose factors have up to three roundings each, and the
    # rounding of the result to float32.
    sizes = ((z.double().abs().unsqueeze(-2) + given[1].abs()) / given[2]).square().sum(-1)
    terms = 0.5 * sizes + given[2].log().abs().sum(-1) + 5
    tolerance = (2 * 5 + 8) * 2**-53 * terms + 2**-24 * truth.abs() * (1 + 1e-6)
    assert ((ours[0] - truth).abs() <= tolerance).all()
    for one, other, want in zip(ours[1:], direct[1:], exact[1:], strict=True):
        assert (one - want).norm() <= (other - want).norm()
    if reach / scale < 1e5:
        assert (ours[0] - truth).norm() <= (direct[0] - truth).norm()
    # Elsewhere, what a latent loses by its own rounding is more than the difference.
    before = direct_log_probs(unrounded, *given[1:])
    assert (ours[0] - before).norm() <= 1.001 * (direct[0] - before).norm()


@pytest.mark.parametrize("covariance", ["diag", "full"])
@pytest.mark.parametrize("B", [3, 2000])
@pytest.mark.parametrize("plates", [1, 2, 3])
def test_components_in_plates_are_each_component(covariance: str, B: int, plates: int) -> None:
    prior = mixture(covariance)
    assert product_pays(torch.zeros(2, B, 3), prior.loc) == (B == 2000)
    each = [
        MultivariateNormal(loc, scale_tril=factor)
        for loc, factor in zip(prior.loc, prior.scale_tril, strict=True)
    ]
    placed = InPlates(prior.components(), plates)
    shape = (2, 1, B)[-plates:]
    assert placed.batch_shape == (4, *[1] * plates)
    shared, own = torch.randn(*shape, 3), torch.randn(4, *shape, 3)
    of_shared = torch.stack([one.log_prob(shared) for one in each])
    of_own = torch.stack([one.log_prob(z) for one, z in zip(each, own, strict=True)])
    for batch in (placed, placed.expand(torch.Size([4, *shape]))):
        torch.testing.assert_close(batch.log_prob(shared), of_shared)
        torch.testing.assert_close(batch.log_prob(shared.unsqueeze(0)), of_shared)
        torch.testing.assert_close(batch.log_prob(own), of_own)
    # Without its plates, as a latent of one sample for all.
    assert placed.log_prob(torch.zeros(3)).shape == placed.batch_shape


MADE: dict[str, Callable[[], dist.TorchDistribution]] = {
    "Student's t": lambda: dist.StudentT(
        torch.rand(4, 3) + 1, torch.randn(4, 3), torch.rand(4, 3) + 0.5
    ).to_event(1),
    "Laplace": lambda: dist.Laplace(torch.randn(4, 3), torch.rand(4, 3) + 0.5).to_event(1),
    "low rank": lambda: dist.LowRankMultivariateNormal(
        torch.randn(4, 3), torch.randn(4, 3, 1), torch.rand(4, 3) + 0.5
    ),
}


@pytest.mark.parametrize("kind", MADE)
def test_components_of_any_family_keep_it_in_plates(kind: str) -> None:
    """Also where every component has values and draws of its own."""
    torch.manual_seed(0)
    components = MADE[kind]()
    one_hot = mark_enumerated(torch.eye(4).reshape(4, 1, 4))
    placed = MadeOf(components).latent(one_hot).expand(torch.Size([4, 2000]))
    own, others = placed.sample(), components.sample(torch.Size([2000]))
    assert own.shape == (4, 2000, 3)
    assert placed.sample(torch.Size([5])).shape == (5, 4, 2000, 3)
    want = torch.stack([components.log_prob(z[:, None])[:, k] for k, z in enumerate(own)])
    torch.testing.assert_close(placed.log_prob(own), want)
    torch.testing.assert_close(
        placed.log_prob(torch.zeros(3))[:, 0], components.log_prob(torch.zeros(3))
    )
    for k, d in product(range(4), range(3)):
        assert ks_2samp(own[k, :, d].numpy(), others[:, k, d].numpy()).pvalue > 1e-4
    assert placed.has_rsample
    assert placed.support.check(own.movedim(0, 1)).all()


def test_a_mixture_of_ones_own_keeps_its_density_under_a_conditional_guide() -> None:
    """Student's t of two degrees of freedom, of which Normals of the same scales are ten nats off;
    could show a hundredth of a nat.
    """

    class Tails(Mixture):
        def __init__(self, num_components: int, dim: int) -> None:
            super().__init__(num_components, dim)
            self.loc = nn.Parameter(torch.randn(num_components, dim))

        def components(self) -> dist.TorchDistribution:
            return dist.StudentT(2.0, self.loc, 0.3 * torch.ones_like(self.loc)).to_event(1)

        def place(self, *given: object) -> None: ...

    torch.manual_seed(0)
    model = MFCVAE((3,), {"a": Tails(3, 1)}, Normal(0.5), SharedMLP((8, 8), "tanh"))
    guide = AmortizedGuide(model, conditional=True)
    nn.init.normal_(guide.shifts["a"].weight)
    x = torch.rand(4, 3)
    exact = float(exact_objective(model, guide, x, num_nodes=400).detach())
    drawn = loss_draws(Loss(model, guide), x, 4000)
    assert abs(drawn.mean() - exact) < 5 * drawn.std() / len(drawn) ** 0.5


def test_a_recorded_program_computes_each_facets_densities_once() -> None:
    K, layer = SMALL_INTERMEDIATE // 16, torch.ops.aten.addmm.default
    for facets in (1, 2, 3):
        priors = {f"facet_{j}": GaussianMixture(K, 2) for j in range(facets)}
        model = MFCVAE((3,), priors, Normal(1.0), network=SharedMLP((4,)))
        loss = Loss(model, VaDEGuide(model))
        with validation_enabled(False):
            nodes = record(partial(_values, loss), [torch.randn(16, 3)]).graph.nodes
        shapes = [node.meta["val"].shape for node in nodes if node.target is layer]
        assert shapes.count(torch.Size([16, K])) == facets


def _values(loss: Loss, x: torch.Tensor) -> list[torch.Tensor]:
    return [loss(x)]


def test_component_is_a_one_hot_categorical_and_its_expectation_when_relaxed() -> None:
    component = Component(logits=torch.randn(5, 4))
    values = torch.eye(4).unsqueeze(1)
    want = torch.distributions.OneHotCategorical(logits=component.logits).log_prob(
        values.expand(4, 5, 4)
    )
    torch.testing.assert_close(component.log_prob(values), want)
    relaxed = torch.softmax(torch.randn(5, 4), -1)
    torch.testing.assert_close(
        Component(logits=component.logits, validate_args=False).log_prob(relaxed),
        (relaxed * component.logits).sum(-1),
    )
    with pytest.raises(ValueError, match="to be within the support"):
        Component(logits=component.logits, validate_args=True).log_prob(2 * relaxed)


def test_threshold_binarizes_once() -> None:
    likelihood = Bernoulli(threshold=0.5)
    x = torch.tensor([[0, 100, 200]], dtype=torch.uint8)
    once = likelihood.prepare(x, torch.float64)
    torch.testing.assert_close(once, torch.tensor([[0.0, 0.0, 1.0]]))
    torch.testing.assert_close(likelihood.prepare(once), once)


@pytest.mark.parametrize(
    "logit", [0.0, 1e-3, 0.1, 0.499, 0.501, 3.0, 20.0, 100.0, -0.3, -20.0, -100.0]
)
def test_continuous_bernoulli_is_a_truncated_exponential(logit: float) -> None:
    """Against double precision: density, gradient, mean, variance and quantiles, for any logit."""
    output = torch.tensor([logit], requires_grad=True)
    p = ContinuousBernoulli()(output, 0)
    x = torch.tensor([0.03])
    wide = LogitContinuousBernoulli(logits=output.detach().double())
    mean, variance = (
        (1 / -np.expm1(-logit) - 1 / logit, logit**-2 - 0.25 / np.sinh(logit / 2) ** 2)
        if logit
        else (0.5, 1 / 12)
    )
    rate = (logit / np.expm1(logit)) if logit else 1.0
    assert p.log_prob(x).item() == pytest.approx(0.03 * logit + np.log(rate), rel=1e-5, abs=1e-6)
    assert p.mean.item() == pytest.approx(mean, rel=1e-5)
    assert p.variance.item() == pytest.approx(variance, rel=1e-4)
    p.log_prob(x).sum().backward()
    assert output.grad.item() == pytest.approx(0.03 - mean, abs=1e-6)
    u = np.array([0.001, 0.3, 0.7, 0.999])
    wanted = np.log1p(u * np.expm1(logit)) / logit if logit else u
    np.testing.assert_allclose(wide.icdf(torch.tensor(u)), wanted, rtol=1e-6, atol=1e-8)
    assert p.expand([5, 1]).rsample().shape == (5, 1)


@pytest.mark.parametrize("step", [-20.0, -80.0, -3.0])
def test_small_steps_between_levels_have_finite_probabilities(step: float) -> None:
    likelihood = Ordinal(4)
    with torch.no_grad():
        likelihood.first_cut.fill_(-2)
        likelihood.log_steps.copy_(torch.tensor([step, 0.5]))
    output = torch.tensor([[0.3]], requires_grad=True)
    log_probs = [likelihood(output, 1).log_prob(torch.tensor([[float(k)]])) for k in range(4)]
    torch.cat(log_probs).sum().backward()
    gradients = [output.grad, likelihood.first_cut.grad, likelihood.log_steps.grad]
    assert all(each.isfinite().all() for each in [*log_probs, *gradients])
    cut, gap = -2 - 0.3, np.exp(step)
    wanted = -np.log1p(np.exp(-cut - gap)) - np.log1p(np.exp(cut)) + np.log(-np.expm1(-gap))
    assert log_probs[1].item() == pytest.approx(wanted, rel=1e-4)


def test_gaps_have_no_part_in_a_misfit() -> None:
    likelihood, output = Incomplete(Normal(0.3)), torch.ones(2, 3, requires_grad=True)
    nan = float("nan")
    x = torch.tensor([[1.0, nan, 3.0], [nan, nan, nan]])
    misfit = likelihood.misfit(likelihood(output, 1), x)
    misfit.backward()
    assert misfit.item() == 2
    torch.testing.assert_close(output.grad, torch.tensor([[0.0, 0, -2], [0, 0, 0]]))
    assert likelihood.misfit(likelihood(output[1:], 1), x[1:]).item() == 0


def test_dirichlet_weights_hold_the_evidence_of_the_counts() -> None:
    """Given the clusters, the posterior of the weights is exact, and so the terms of all data add
    up to the Dirichlet-multinomial probability of those clusters: any wrong constant would show.
    """
    counts, alpha = torch.tensor([5.0, 2.0, 13.0]), 0.3
    N = int(counts.sum())
    prior = GaussianMixture(3, 2, weights=DirichletWeights(N, concentration=alpha)).double()
    prior.set_weights((counts / N).double())
    total = (counts * prior.component().log_probs).sum().item()
    want = (
        gammaln(3 * alpha)
        - gammaln(3 * alpha + N)
        + (gammaln(alpha + counts.numpy()) - gammaln(alpha)).sum()
    )
    assert total == pytest.approx(want, rel=1e-6)
    z = torch.randn(7, 2, dtype=torch.float64)
    torch.testing.assert_close(prior.latent().log_prob(z), prior.log_prob(z))
    one_hot = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(
        prior.component().expand([3]).log_prob(one_hot), prior.component().log_probs
    )


def components_in_use(weights: str | DirichletWeights) -> int:
    """How many of eight keep more than a hundredth of 300 points in two clusters."""
    torch.manual_seed(0)
    z = torch.cat([torch.randn(200, 2) - 3, torch.randn(100, 2) + 3])
    prior = GaussianMixture(8, 2, weights=weights, scale=1.0)
    prior.place(loc=z[torch.randperm(300)[:8]])
    optimizer = torch.optim.Adam(prior.parameters(), lr=0.05)
    for _ in range(700):
        optimizer.zero_grad()
        (-prior.log_prob(z).mean()).backward()
        optimizer.step()
    return int((prior.logits.softmax(-1) > 0.01).sum())


@pytest.mark.slow(5)
def test_dirichlet_weights_empty_what_is_not_needed() -> None:
    assert components_in_use(DirichletWeights(40, concentration=0.01)) == 2
    assert components_in_use("learned") > 4


def test_vamp_prior_is_the_mixture_of_the_guides_posteriors() -> None:
    model = VaDE((6,), VampPrior(4, 2, (6,), support=(0, 1)))
    guide, prior = VaDEGuide(model), model.facets["cluster"]
    with torch.no_grad():
        prior.pseudo_inputs.add_(0.5)  # some leave the support, and are clamped
    q = guide.encode(prior.pseudo_inputs.clamp(0, 1))["cluster"]
    z = torch.randn(5, 2)
    want = torch.stack(
        [q.expand([5, 4]).log_prob(z.unsqueeze(1).expand(5, 4, 2))[:, k] for k in range(4)], -1
    )
    torch.testing.assert_close(prior.log_joint(z), want - math.log(4))
    # A copy is made of its own guide's posteriors.
    other = copy.deepcopy(guide)
    with torch.no_grad():
        for p in other.encoder.parameters():
            p.mul_(2)
    assert not torch.allclose(other.model.facets["cluster"].loc, prior.loc)


@pytest.mark.parametrize("start", [cold_start, fit_mixtures])
def test_vamp_prior_starts_from_data(start: Callable[..., None]) -> None:
    guide = VaDEGuide(VaDE((6,), VampPrior(3, 2, (6,))))
    x = torch.rand(40, 6)
    start(guide, x)
    distances = torch.cdist(guide.model.facets["cluster"].pseudo_inputs.detach(), x)
    assert (distances.min(-1).values < 1e-6).all()
    # 8-bit images are taken as the model sees them.
    guide = VaDEGuide(VaDE((6,), VampPrior(3, 2, (6,), support=(0, 1)), Bernoulli(threshold=0.5)))
    start(guide, torch.randint(0, 256, (40, 6), dtype=torch.uint8))
    assert set(guide.model.facets["cluster"].pseudo_inputs.unique().tolist()) == {0.0, 1.0}


def test_a_learned_scale_ends_at_the_root_of_the_mean_square() -> None:
    """d log p / d log s is sum of (x - mean)^2 / s^2 - 1, which is 0 there."""
    likelihood = Normal(0.7, learned=True).double()
    x, mean = torch.randn(2, 40, 3, dtype=torch.float64)
    likelihood(mean, 1).log_prob(x).sum().backward()
    expected = ((x - mean).square() / 0.7**2 - 1).sum()
    torch.testing.assert_close(likelihood.log_scale.grad, expected)
    root = (x - mean).square().mean().sqrt()
    best = Normal(root.item(), learned=True).double()
    best(mean, 1).log_prob(x).sum().backward()
    assert abs(best.log_scale.grad) < 1e-5 * x.numel()
    fixed = Normal(0.7).double()(mean, 1).log_prob(x)
    torch.testing.assert_close(likelihood(mean, 1).log_prob(x), fixed, rtol=0, atol=1e-6)
    assert repr(likelihood) == "Normal(scale=0.7, learned=True)"
    assert [name for name, _ in Normal(0.7).named_parameters()] == []


def test_each_entry_may_have_its_own_scale() -> None:
    """Also with the axes that enumeration adds, and learned: then at its best the scale of an entry
    is the root of its mean squared residual.
    """
    rng = torch.Generator().manual_seed(0)
    mean, x = torch.randn(5, 1, 4, 2, 3, generator=rng), torch.randn(4, 2, 3, generator=rng)
    scale = torch.rand(2, 3, generator=rng) + 0.2
    found = Normal(scale)(mean, 2).log_prob(x)
    torch.testing.assert_close(found, Independent(TorchNormal(mean, scale), 2).log_prob(x))
    root = x.square().mean(0).sqrt()
    learned = Normal(root.tolist(), learned=True)
    (-learned(torch.zeros(4, 2, 3), 2).log_prob(x).sum()).backward()
    assert learned.log_scale.grad is not None
    torch.testing.assert_close(learned.log_scale.grad, torch.zeros(2, 3), atol=1e-5, rtol=0)
    assert repr(Normal([0.5, 0.25])) == "Normal(scale=0.25 to 0.5)"
    kept = from_config(to_config(Normal(scale)))
    torch.testing.assert_close(kept.scale, scale)
