"""Every estimator of the ELBO against its exact value, and every estimator broken on purpose.

The models are small and in float64, so that quadrature over z and enumeration over c give the
expected loss to five digits or more. Each test detects a bias of 0.01 nats per datum with
probability 0.99 and raises a false alarm once in a million runs; `assert_unbiased` fails where the
draws are too few for that. A planted bias of 0.02 nats is found in every one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import pyro
import pytest
import torch
from elbocheck import compare_estimators
from elbocheck.pytorch import Program
from elbocheck.pytorch import exact as exact_value
from pyro.infer import ELBO
from scipy.special import roots_genlaguerre
from scipy.stats import norm
from torch import Tensor, nn

from guides import (
    AmortizedGuide,
    FacetGuide,
    FullCovariance,
    GumbelSoftmax,
    InverseAutoregressive,
    MarginalGuide,
    Refined,
    ScoreFunction,
    VaDEGuide,
)
from inference import (
    GuideEnum_ELBO,
    ImportanceWeighted_ELBO,
    Loss,
    MeanField_ELBO,
    ScoreFunction_ELBO,
)
from inference.evaluation import exact_objective
from ppl_models import (
    MFCVAE,
    DirichletWeights,
    GaussianMixture,
    Mixture,
    MLPLadder,
    Prior,
    SharedMLP,
    StandardNormal,
    VampPrior,
)
from ppl_models.distributions import Component
from ppl_models.program import ScaleSites
from tests.draws_of import SEED, assert_unbiased, gauss_hermite, loss_draws, worst_gradient_error

pytestmark = pytest.mark.slow(45)

PRIORS: dict[str, Callable[[], Prior]] = {
    "diagonal": lambda: GaussianMixture(3, 1, scale=0.6),
    "full": lambda: GaussianMixture(2, 2, covariance="full", scale=0.9),
    "uniform": lambda: GaussianMixture(3, 1, weights="uniform", scale=0.6),
    "Dirichlet": lambda: GaussianMixture(
        3, 1, weights=DirichletWeights(50, concentration=0.3), scale=0.6
    ),
    "vamp": lambda: VampPrior(3, 1, (4,), support=(0, 1)),
    "normal": lambda: StandardNormal(1),
}


def full(guide: type, num_samples: int = 1) -> Callable[[MFCVAE], FacetGuide]:
    return lambda model: guide(model, num_samples, family=FullCovariance())


def flow(guide: type, num_samples: int = 1) -> Callable[[MFCVAE], FacetGuide]:
    family = InverseAutoregressive(widths=(3,), num_features=2)
    return lambda model: guide(model, num_samples, family=family)


def refined(guide: type, num_samples: int = 1) -> Callable[[MFCVAE], FacetGuide]:
    family = Refined(FullCovariance(), num_steps=3)
    return lambda model: guide(model, num_samples, family=family)


# Each guide with the objectives that estimate the same loss; the guide's own where None.
GUIDES: dict[str, tuple[Callable[[MFCVAE], FacetGuide], type[ELBO] | None]] = {
    "responsibilities": (VaDEGuide, None),
    "responsibilities, 2 draws": (lambda model: VaDEGuide(model, 2), None),
    "marginal": (MarginalGuide, None),
    "marginal, 2 draws": (lambda model: MarginalGuide(model, 2), None),
    "marginal, closed-form KL": (MarginalGuide, MeanField_ELBO),
    "marginal, score objective": (MarginalGuide, ScoreFunction_ELBO),  # with nothing to score
    "responsibilities, full covariance": (full(VaDEGuide), None),
    "responsibilities, flow": (flow(VaDEGuide), None),
    "marginal, 2 draws, full covariance": (full(MarginalGuide, 2), None),
    "marginal, 2 draws, flow": (flow(MarginalGuide, 2), None),
    "responsibilities, refined": (refined(VaDEGuide), None),
    "marginal, 2 draws, refined": (refined(MarginalGuide, 2), None),
    "network": (AmortizedGuide, None),
    "network, 2 draws": (lambda model: AmortizedGuide(model, 2), None),
    "network, z given c": (lambda model: AmortizedGuide(model, conditional=True), None),
    "straight-through": (
        lambda model: AmortizedGuide(model, discrete=GumbelSoftmax(hard=True)),
        None,
    ),
    "straight-through, 2 draws": (
        lambda model: AmortizedGuide(model, 2, GumbelSoftmax(hard=True)),
        None,
    ),
    "straight-through, z given c": (
        lambda model: AmortizedGuide(model, discrete=GumbelSoftmax(hard=True), conditional=True),
        None,
    ),
    "score function": (lambda model: AmortizedGuide(model, discrete=ScoreFunction()), None),
    "score function, 2 draws": (lambda model: AmortizedGuide(model, 2, ScoreFunction()), None),
    "score function, z given c": (
        lambda model: AmortizedGuide(model, discrete=ScoreFunction(), conditional=True),
        None,
    ),
}
BATCH = torch.tensor(
    [[0.0, 0.3, 1.0, 0.8], [1.0, 0.9, 0.1, 0.2], [0.5, 0.5, 0.0, 1.0], [0.7, 0.0, 0.6, 0.1]],
    dtype=torch.float64,
)


def one_facet(prior: str, guide: str) -> FacetGuide:
    torch.manual_seed(2)
    model = MFCVAE((4,), {"z": PRIORS[prior]()}, network=SharedMLP((5,), activation="tanh"))
    if isinstance(model.priors["z"], Mixture) and prior != "uniform":
        nn.init.normal_(model.priors["z"].logits)
    return calm(GUIDES[guide][0](model).double())


def loss_of(guide: FacetGuide, name: str) -> Loss:
    kind = GUIDES[name][1]
    objective = None if kind is None else kind(max_plate_nesting=guide.max_plate_nesting)
    return Loss(guide.model, guide, objective)


def calm(guide: FacetGuide) -> FacetGuide:
    """Posteriors narrow enough that a bias shows in few draws, wide enough that the
    responsibilities vary with them.
    """
    with torch.no_grad():
        for d, rung in zip(guide.model.dims, guide.encoder.rungs, strict=True):
            rung.bias[d : 2 * d] = 2 * math.log(0.4)
        for shift in getattr(guide, "shifts", {}).values():
            nn.init.normal_(shift.weight, std=0.5)  # they start at 0, where z would not depend on c
    return guide


# A VampPrior refuses guides whose z depends on c.
TRIPLES = [
    (p, g)
    for p, g in itertools.product(PRIORS, GUIDES)
    if not (p == "vamp" and g.endswith("given c"))
    # Of one coordinate all families are the same.
    and (p == "full" or not g.endswith(("full covariance", "flow", "refined")))
]


@cache
def exact_and_draws(prior: str, guide: str) -> tuple[FacetGuide, float, Tensor]:
    g = one_facet(prior, guide)
    loss = loss_of(g, guide)
    with torch.no_grad():
        return (
            g,
            float(exact_objective(g.model, g, BATCH, 16 if prior == "full" else 30)),
            loss_draws(loss, BATCH, draws_needed(loss), SEED),
        )


def draws_needed(loss: nn.Module, detectable: float = 0.01) -> int:
    """So many that `assert_unbiased` can detect a bias at its own power and false-alarm rate, by a
    pilot of 4,000.

    The pilot's deviation is good to 1.1 %, its square to 2.3 %; five of these, and no fewer than
    20,000 draws.
    """
    pilot = float(loss_draws(loss, BATCH, 4000, SEED + 1000).std())
    needed = (norm.isf(0.5e-6) + norm.isf(0.01)) * pilot / detectable
    return max(20_000, math.ceil(1.12 * needed**2))


@pytest.mark.parametrize(("prior", "guide"), TRIPLES)
def test_expected_loss_is_exact(prior: str, guide: str) -> None:
    _, exact, draws = exact_and_draws(prior, guide)
    assert_unbiased(draws, exact)


TWO_FACETS: list[Callable[[MFCVAE], FacetGuide]] = [
    VaDEGuide,
    MarginalGuide,
    AmortizedGuide,
    lambda model: AmortizedGuide(model, conditional=True),
    lambda model: AmortizedGuide(model, 2, GumbelSoftmax(hard=True), conditional=True),
    lambda model: AmortizedGuide(model, 2, ScoreFunction(), conditional=True),
]


@pytest.mark.parametrize(
    ("form", "weight"), [*((form, 0.37) for form in TWO_FACETS), (VaDEGuide, 0.0)]
)
def test_expected_loss_is_exact_for_two_facets_while_one_fades_in(
    form: Callable[[MFCVAE], FacetGuide], weight: float
) -> None:
    torch.manual_seed(3)
    facets = {"a": GaussianMixture(3, 1, scale=0.6), "b": GaussianMixture(2, 1, scale=0.6)}
    g = calm(form(MFCVAE((4,), facets, network=MLPLadder((4, 5), activation="tanh"))).double())
    gates = torch.tensor([weight, 1.0], dtype=torch.float64)
    loss = Loss(g.model, g)
    with g.model.annealed(gates.unsqueeze(-1).expand(-1, 2), gates):
        draws = loss_draws(loss, BATCH, draws_needed(loss), SEED)
        assert_unbiased(draws, exact_objective(g.model, g, BATCH, num_nodes=20).item())


@contextmanager
def wrong_sign() -> Iterator[None]:
    """KL(z) enters with the wrong sign."""
    with ScaleSites({"z_z": -1.0}):
        yield


class Unweighted(Component):
    """A choice whose density was forgotten."""

    @property
    def log_probs(self) -> Tensor:
        return torch.zeros_like(self.logits)


@contextmanager
def dropped_weights() -> Iterator[None]:
    """log p(c) is left out, of the model and of the responsibilities."""
    right = Mixture.component
    with patch.object(Mixture, "component", lambda prior: Unweighted(logits=right(prior).logits)):
        yield


@contextmanager
def reused_responsibilities() -> Iterator[None]:
    """Responsibilities of one draw are used for another: z is drawn anew for them."""
    right = VaDEGuide.draw_latents

    def draw_latents(guide: VaDEGuide, x: Tensor, num_samples: int) -> dict[str, Tensor]:
        z = right(guide, x, num_samples)
        return {name: guide.encode(x)[name].sample(value.shape[:-2]) for name, value in z.items()}

    with patch.object(VaDEGuide, "draw_latents", draw_latents):
        yield


FAULTS = [wrong_sign, dropped_weights, reused_responsibilities]


def has_it(fault: Callable, prior: str, guide: str) -> bool:
    """Without components there are no weights, and only one guide has responsibilities."""
    return fault is wrong_sign or (
        prior != "normal" and (fault is dropped_weights or guide.startswith("responsibilities"))
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("prior", "guide", "fault"),
    [(p, g, f) for (p, g), f in itertools.product(TRIPLES, FAULTS) if has_it(f, p, g)],
)
def test_a_planted_bias_is_found(
    prior: str, guide: str, fault: Callable[[], AbstractContextManager]
) -> None:
    """The broken estimator itself, mixed into the right one so thinly that the bias is 0.02
    nats.
    """
    g, exact, draws = exact_and_draws(prior, guide)
    draws = draws[
        : len(draws) // 2
    ]  # a quarter is enough for twice the bias, but the broken one has noise of its own
    with fault():
        broken = loss_draws(loss_of(g, guide), BATCH, len(draws), SEED + 1)
    effect = broken.mean() - exact
    assert abs(effect) > 10 * broken.std() / math.sqrt(len(draws)), "there is no fault to find"
    share = (0.02 / effect).abs()
    assert share < 1
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased((1 - share) * draws + share * broken, exact, detectable=0.02)


def exact_with_shared_responsibilities(guide: FacetGuide, L: int) -> float:
    """Eq. 58 at any L for one facet with d = 1, from the draws' sufficient statistics.

    The mean of log p(z_l, c) over L draws is a function of their mean and their sum of squares
    about it, which are independent: Normal(m, s^2 / L), and s^2 times a chi-square of L - 1 degrees
    (a Gamma, integrated by Laguerre).
    """
    q, prior = guide.encode(BATCH)["z"], guide.model.priors["z"]
    m, s = q.mean.squeeze(-1), q.stddev.squeeze(-1)
    nodes, weights = gauss_hermite(80, 1)
    mean = m + s / math.sqrt(L) * nodes  # [M, B]
    if L == 1:
        squares, square_weights = torch.zeros(1, 1, dtype=m.dtype), torch.ones(1, dtype=m.dtype)
    else:
        points, raw = (torch.as_tensor(a) for a in roots_genlaguerre(80, (L - 1) / 2 - 1))
        squares, square_weights = 2 * s**2 * points.unsqueeze(-1), raw / raw.sum()  # [S, B]
    # The mean over draws of (z - mu_c)^2 is the squares about the draws' mean, over L, and that
    # mean's own distance.
    distance = (
        squares[:, None, :, None] / L + (mean[..., None] - prior.loc[:, 0]) ** 2
    )  # [S, M, B, K]
    scale = prior.scale[:, 0]
    log_joint = (
        -0.5 * distance / scale**2
        - scale.log()
        - 0.5 * math.log(2 * math.pi)
        + prior.logits.log_softmax(-1)
    )
    log_p = torch.einsum("s,m,smb->b", square_weights, weights, log_joint.logsumexp(-1))
    at_one = exact_objective(guide.model, with_one_draw(guide), BATCH)
    one = torch.einsum("m,mb->b", weights, prior.log_prob((m + s * nodes).unsqueeze(-1)))
    return float((at_one + (one - log_p).mean()).detach())


def with_one_draw(guide: FacetGuide) -> VaDEGuide:
    """The same posterior with one draw."""
    one = VaDEGuide(guide.model).double()
    one.encoder = guide.encoder
    return one


@pytest.mark.parametrize("L", [1, 2, 5, 20])
def test_shared_responsibilities_against_separate_ones(L: int) -> None:
    """Separate responsibilities (num_particles = L, or the marginal form) keep the one-draw value
    at every L; shared ones (Eq. 58) start there and give a larger loss as L grows. Both against
    exact values.
    """
    torch.manual_seed(2)
    model = MFCVAE(
        (4,), {"z": GaussianMixture(3, 1, scale=0.4)}, network=SharedMLP((5,), activation="tanh")
    )
    one, shared, separate = (
        calm(g.double()) for g in (VaDEGuide(model), VaDEGuide(model, L), MarginalGuide(model, L))
    )
    shared.encoder = separate.encoder = one.encoder
    at_one = exact_objective(model, one, BATCH).item()
    for guide, exact in (
        (separate, at_one),
        (shared, exact_with_shared_responsibilities(shared, L)),
    ):
        loss = Loss(model, guide)
        draws = loss_draws(loss, BATCH, draws_needed(loss), SEED)
        assert_unbiased(draws, exact)
    if L == 2:  # two ways of integrating
        assert exact == pytest.approx(
            exact_objective(model, shared, BATCH, num_nodes=60).item(), abs=1e-5
        )
    assert exact == pytest.approx(at_one, abs=1e-9) if L == 1 else exact > at_one + 0.01


@pytest.mark.parametrize("L", [2, 5])
def test_num_particles_keeps_the_value_of_one_draw(L: int) -> None:
    g = one_facet("diagonal", "responsibilities")
    loss = Loss(g.model, g, GuideEnum_ELBO(max_plate_nesting=1, num_particles=L))
    assert_unbiased(
        loss_draws(loss, BATCH, draws_needed(loss), SEED), exact_objective(g.model, g, BATCH).item()
    )


def with_baseline(name: str) -> Callable[[MFCVAE], FacetGuide]:
    def build(model: MFCVAE) -> FacetGuide:
        guide = AmortizedGuide(model, discrete=ScoreFunction(name), conditional=True)
        for baseline in guide.discrete.baselines.values():
            if name == "average":
                baseline.average.fill_(3.0)
        return guide

    return build


UNBIASED_GRADIENTS: dict[str, Callable[[MFCVAE], FacetGuide]] = {
    "responsibilities": VaDEGuide,
    "marginal": MarginalGuide,
    "network": AmortizedGuide,
    "network, z given c": lambda model: AmortizedGuide(model, conditional=True),
    "score function, mean field": lambda model: AmortizedGuide(
        model, discrete=ScoreFunction("none")
    ),
    "score function": with_baseline("none"),
    "score function, average": with_baseline("average"),
    "score function, learned": with_baseline("learned"),
}


def gradient_error(guide: FacetGuide) -> float:
    """In standard errors; quadrature is good to 1e-6."""
    exact = exact_objective(guide.model, guide, BATCH)
    return worst_gradient_error(Loss(guide.model, guide), BATCH, exact, 1e-6)


@pytest.mark.parametrize("prior", ["diagonal", "full"])
@pytest.mark.parametrize("form", UNBIASED_GRADIENTS)
def test_gradients_are_unbiased(form: str, prior: str) -> None:
    """About 90 entries each; beyond 5.5 deviations once in 300,000 runs. The relaxed ones below are
    found out.
    """
    torch.manual_seed(2)
    model = MFCVAE((4,), {"z": PRIORS[prior]()}, network=SharedMLP((5,), activation="tanh"))
    nn.init.normal_(model.priors["z"].logits)
    assert gradient_error(calm(UNBIASED_GRADIENTS[form](model).double())) < 5.5


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "straight-through"])
def test_relaxed_gradients_are_biased(hard: bool) -> None:
    """What exact clusters would give is not what relaxed ones give, and the test above would see
    it.
    """
    torch.manual_seed(2)
    model = MFCVAE(
        (4,), {"z": GaussianMixture(3, 1, scale=0.6)}, network=SharedMLP((5,), activation="tanh")
    )
    guide = AmortizedGuide(model, discrete=GumbelSoftmax(0.5, hard=hard), conditional=True).double()
    assert gradient_error(calm(guide)) > 10


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_soft_clusters_are_biased_by_as_much_as_integration_says(temperature: float) -> None:
    """Two clusters: the relaxed draw is a logistic variable through a sigmoid, and one integral
    gives its loss.
    """
    torch.manual_seed(2)
    model = MFCVAE(
        (4,), {"z": GaussianMixture(2, 1, scale=0.6)}, network=SharedMLP((5,), activation="tanh")
    )
    guide = calm(AmortizedGuide(model, discrete=GumbelSoftmax(temperature)).double())
    head = guide.heads(BATCH)["z"]
    q, prior, logits = guide.encode(BATCH)["z"], model.priors["z"], guide.cluster_logits("z", head)
    points, weights = (torch.as_tensor(a) for a in np.polynomial.legendre.leggauss(2000))
    uniform = (points + 1) / 2
    first = torch.sigmoid(
        (logits[:, 0] - logits[:, 1] + torch.logit(uniform)[:, None]) / temperature
    )  # [U, B]

    def kl_z(c: Tensor) -> Tensor:
        loc, scale = (c @ prior.loc).squeeze(-1), (c @ prior.scale).squeeze(-1)
        m, s = q.mean.squeeze(-1), q.stddev.squeeze(-1)
        return (scale / s).log() + (s**2 + (m - loc) ** 2) / (2 * scale**2) - 0.5

    relaxed = (weights / 2) @ kl_z(torch.stack((first, 1 - first), -1))
    given_each = torch.stack(
        [kl_z(one_hot.expand(len(BATCH), 2)) for one_hot in torch.eye(2, dtype=q.mean.dtype)], -1
    )
    exact = exact_objective(model, guide, BATCH)
    want = float((exact + (relaxed - (logits.softmax(-1) * given_each).sum(-1)).mean()).detach())
    loss = Loss(model, guide)
    draws = loss_draws(loss, BATCH, draws_needed(loss), SEED)
    assert_unbiased(draws, want)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(draws, exact.item())


@pytest.mark.parametrize("prior", PRIORS)
def test_importance_weighted_bound_is_exact(prior: str) -> None:
    """Two draws of z: quadrature on the grid of both."""
    g = one_facet(prior, "marginal")
    q, p = g.encode(BATCH)["z"], g.model.priors["z"]
    nodes, weights = gauss_hermite(60 if p.dim == 1 else 24, p.dim)
    z = q.mean + q.stddev * nodes.unsqueeze(1)  # [M, B, d]
    log_w = g.model.decode({"z": z}).log_prob(BATCH) + p.log_prob(z) - q.log_prob(z)  # [M, B]
    pair = torch.logaddexp(log_w[:, None], log_w[None]) - math.log(2)
    want = -float(torch.einsum("m,n,mnb->b", weights, weights, pair).mean().detach())
    loss = Loss(g.model, g, ImportanceWeighted_ELBO(2))
    assert_unbiased(loss_draws(loss, BATCH, draws_needed(loss), SEED), want)
    one = Loss(g.model, g, ImportanceWeighted_ELBO(1))
    assert_unbiased(
        loss_draws(one, BATCH, draws_needed(one), SEED), exact_objective(g.model, g, BATCH).item()
    )


def test_comparison_tells_a_biased_estimator_and_a_noisier_one() -> None:
    """Against an exact value, and against many draws of one of them."""
    g = one_facet("diagonal", "marginal")
    more, network = MarginalGuide(g.model, 4).double(), one_facet("diagonal", "network, z given c")
    more.encoder = g.encoder
    losses = {"L = 1": Loss(g.model, g), "L = 4": Loss(g.model, more)}
    soft = AmortizedGuide(network.model, discrete=GumbelSoftmax(0.5), conditional=True).double()
    soft.encoder, soft.shifts = network.encoder, network.shifts
    programs = {name: Program(loss, BATCH) for name, loss in losses.items()}
    value = exact_value(exact_objective(g.model, g, BATCH), losses["L = 1"])
    for reference in (value, programs["L = 1"]):
        reports = compare_estimators(programs, reference, 20_000, SEED)
        for report in reports.values():
            assert abs(report.bias) < 5 * report.bias_error
            # 2,000 gradients of a signal-to-noise ratio above 1 leave an angle whose cosine is off
            # by less than this.
            assert abs(report.cosine - 1) < 5 / (2000 * report.signal_to_noise**2) + 0.01
        # Four independent draws have a quarter of the variance. A ratio of two variances of 20,000
        # draws has a relative deviation of about 2 sqrt((kurtosis - 1) / 20,000), which is 0.04 at
        # a kurtosis of 9.
        assert reports["L = 4"].variance / reports["L = 1"].variance == pytest.approx(0.25, rel=0.2)
    twin = Program(Loss(network.model, network), BATCH)
    relaxed = Program(Loss(network.model, soft), BATCH)
    biased = compare_estimators({"soft": relaxed}, twin, 20_000, SEED)
    assert abs(biased["soft"].bias) > 10 * biased["soft"].bias_error


def test_the_score_counts_what_the_guide_alone_adds() -> None:
    """A term of the guide's own that depends on the draw. The mean gradient of 20,000 data has a
    standard error below 0.01; without the term it would be off by 0.7.
    """
    added = torch.tensor([0.0, 3.0])

    def model(logits: Tensor) -> None:
        with pyro.plate("data", 20_000):
            pyro.sample("c", pyro.distributions.Categorical(torch.full((2,), 0.5)))

    def guide(logits: Tensor) -> None:
        with pyro.plate("data", 20_000):
            c = pyro.sample("c", pyro.distributions.Categorical(logits=logits))
            pyro.factor("own", added[c], has_rsample=True)

    logits = torch.tensor([0.2, -0.1], requires_grad=True)
    q = logits.softmax(0)
    exact = torch.autograd.grad((q * (q.log() - math.log(0.5) + added)).sum(), logits)[0]
    pyro.set_rng_seed(SEED)
    loss = ScoreFunction_ELBO(max_plate_nesting=1).differentiable_loss(model, guide, logits)
    torch.testing.assert_close(
        torch.autograd.grad(loss / 20_000, logits)[0], exact, rtol=0, atol=0.05
    )


def test_quadrature_integrates_what_it_says() -> None:
    nodes, weights = gauss_hermite(12, 2)
    assert weights.sum().item() == pytest.approx(1)
    x, y = nodes.unbind(-1)
    assert (weights @ (x**4 * y**2)).item() == pytest.approx(3, rel=1e-12)
    g = one_facet("full", "responsibilities")
    coarse, fine = (exact_objective(g.model, g, BATCH, num_nodes=n).item() for n in (30, 45))
    assert coarse == pytest.approx(fine, abs=1e-5)


@pytest.mark.parametrize("num_nodes", [400, 1000])
def test_many_nodes_integrate_too(num_nodes: int) -> None:
    nodes, weights = gauss_hermite(num_nodes, 1)
    moments = [float(weights @ nodes[:, 0] ** power) for power in (0, 2, 4)]
    assert moments == pytest.approx([1, 1, 3], rel=1e-9)


def test_a_quadrature_that_has_not_converged_is_refused() -> None:
    """Between narrow components thirty nodes were 3.6 % off, without a word."""
    torch.manual_seed(0)
    prior, network = GaussianMixture(2, 1, scale=0.1), SharedMLP((8,), activation="tanh")
    guide = VaDEGuide(MFCVAE((4,), {"z": prior}, network=network)).double()
    few, many = (partial(exact_objective, guide.model, guide, BATCH, n) for n in (30, 900))
    with pytest.raises(ValueError, match=r"with num_nodes=30 is .* with 23: take more nodes"):
        few()
    assert many().isfinite()


def test_unequal_weights_of_one_facet_are_refused() -> None:
    g = one_facet("diagonal", "responsibilities")
    unequal = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    with (
        g.model.annealed(unequal),
        pytest.raises(ValueError, match="each facet's two KL weights must be equal"),
    ):
        exact_objective(g.model, g, BATCH)
