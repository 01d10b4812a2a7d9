"""Guides with a network for the clusters: against the formula, against Pyro's own objectives; their
moving parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO
from torch.distributions import Independent, Normal

from guides import (
    AmortizedGuide,
    Annealed,
    FacetGuide,
    GumbelSoftmax,
    MarginalGuide,
    ScoreFunction,
    VaDEGuide,
)
from inference import ImportanceWeighted_ELBO, Loss, SVIRunner, elbo, fit_mixtures
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, SharedMLP, VaDE, VampPrior
from ppl_models import Normal as NormalLikelihood
from tests.catalog import OBJECTIVES, PAIRS, given

pytestmark = pytest.mark.slow(20)

BATCH, PIXELS = 6, 11


def two_facets(covariance: str = "diag") -> MFCVAE:
    facets = {
        "style": GaussianMixture(3, 2, covariance=covariance, scale=0.7),
        "digit": GaussianMixture(4, 3, covariance=covariance, scale=0.9),
    }
    for prior in facets.values():
        torch.nn.init.normal_(prior.logits)
    return MFCVAE((PIXELS,), facets, network=MLPLadder((7, 8)))


def value_and_gradient(loss: torch.Tensor, guide: FacetGuide) -> list[torch.Tensor]:
    parameters = [p for p in guide.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [loss.detach(), *(torch.zeros(()) if g is None else g for g in gradients)]


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("L", [1, 3])
def test_enumerated_objective_equals_the_formula(conditional: bool, L: int) -> None:
    """E_q [log p(x, z, c) - log q(z, c given x)] written out, on the guide's own draws."""
    model = two_facets()
    guide = AmortizedGuide(model, L, conditional=conditional).double()
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    pyro.set_rng_seed(3)
    trace = poutine.trace(
        poutine.enum(guide, first_available_dim=-1 - guide.max_plate_nesting)
    ).get_trace(x)
    heads = guide.heads(x)
    draws, weights, total = {}, torch.ones(1, 1, 1, 1, dtype=torch.float64), 0.0
    for j, name in enumerate(("style", "digit")):
        p = model.facets[name]
        K, d = p.num_components, p.dim
        loc, log_variance, logits = heads[name].split((d, d, K), -1)
        if conditional:
            shift = guide.shifts[name].weight.T.reshape(K, 1, 2 * d)
            loc, log_variance = loc + shift[..., :d], log_variance + shift[..., d:]
        scale = (5 * torch.tanh(log_variance / 10)).exp()
        q_c = logits.softmax(-1).T.unsqueeze(1)  # [K, 1, B]
        z = trace.nodes[f"z_{name}"]["value"].reshape(-1, L, BATCH, d)  # [K or 1, L, B, d]
        draws[name] = z.unsqueeze(
            1 - j
        )  # style's clusters before the digit's: [K, 1, L, B, d] and [1, K, ...]
        log_q_z = Independent(Normal(loc.unsqueeze(-3), scale.unsqueeze(-3)), 1).log_prob(z)
        if conditional:
            weights = weights * q_c.unsqueeze(1 - j)
        log_p_z = Independent(Normal(p.loc.view(K, 1, 1, d), p.scale.view(K, 1, 1, d)), 1).log_prob(
            z
        )
        kl = log_q_z - log_p_z + q_c.log() - p.logits.log_softmax(-1).view(K, 1, 1)
        total = total + (q_c * kl).sum() / L
    logits = model.decode(draws).base_dist.logits
    log_p_x = (x * logits - torch.nn.functional.softplus(logits)).sum(-1)
    total = total - (weights * log_p_x).sum() / L
    pyro.set_rng_seed(3)
    got = value_and_gradient(Loss(model, guide)(x) * BATCH, guide)
    torch.testing.assert_close(got, value_and_gradient(total, guide), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("conditional", [False, True])
def test_scored_objective_has_the_value_of_pyros_own(conditional: bool) -> None:
    """Gradients differ draw by draw (ours leaves out what a cluster cannot change)."""
    model = two_facets()
    guide = AmortizedGuide(model, discrete=ScoreFunction("none"), conditional=conditional).double()
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    pyro.set_rng_seed(5)
    ours = Loss(model, guide)(x)
    pyro.set_rng_seed(5)
    theirs = Loss(model, guide, Trace_ELBO()).objective.loss(model, guide, x) / BATCH
    assert ours.item() == pytest.approx(theirs, rel=1e-12)


def test_importance_weighted_bound_equals_pyros_own() -> None:
    model = two_facets()
    guide = MarginalGuide(model).double()
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    pyro.set_rng_seed(5)
    ours = Loss(model, guide, ImportanceWeighted_ELBO(7))(x)
    theirs = RenyiELBO(alpha=0, num_particles=7, vectorize_particles=True, max_plate_nesting=1)
    marginal = partial(model, marginal=True)
    pyro.set_rng_seed(5)
    assert ours.item() == pytest.approx(theirs.loss(marginal, guide, x) / BATCH, rel=1e-10)


def test_posterior_of_a_conditional_guide_is_the_mixture_over_its_clusters() -> None:
    model = VaDE((PIXELS,), GaussianMixture(3, 2))
    guide = AmortizedGuide(model, conditional=True)
    x = torch.rand(BATCH, PIXELS)
    q, head = guide.posterior(x)["cluster"], guide.heads(x)["cluster"]
    probs = torch.as_tensor(guide.predict_proba(x)["cluster"])
    each = [guide.latent_given("cluster", head, c.expand(BATCH, 3)) for c in torch.eye(3)]
    z = torch.randn(BATCH, 2)
    want = sum(probs[:, k] * each[k].log_prob(z).exp() for k in range(3)).log()
    torch.testing.assert_close(q.log_prob(z), want)
    mean = sum(probs[:, k, None] * each[k].mean for k in range(3)).detach().numpy()
    np.testing.assert_allclose(guide.embed(x)["cluster"], mean, rtol=1e-5, atol=1e-6)


def test_temperature_falls_with_the_steps_and_is_saved(tmp_path) -> None:
    model = VaDE((PIXELS,), GaussianMixture(3, 2))
    guide = AmortizedGuide(model, discrete=GumbelSoftmax(Annealed(2.0, 0.5, steps=8)))
    runner = SVIRunner(model, guide).fit(
        torch.rand(10, PIXELS), epochs=3, batch_size=5, progress=False
    )
    # As it is after 6 steps, for the next one.
    assert guide.discrete.temperature.item() == pytest.approx(2.0 * (0.5 / 2.0) ** (6 / 8))
    loaded = SVIRunner.load(runner.save(tmp_path)).guide
    assert loaded.discrete.temperature.item() == guide.discrete.temperature.item()
    assert guide.discrete.schedule(torch.tensor(100.0)).item() == pytest.approx(0.5)


def test_what_is_reported_of_a_relaxed_guide_is_the_elbo() -> None:
    """Soft draws at a high temperature bias the objective by far, and the report not."""
    model = VaDE((PIXELS,), GaussianMixture(3, 2, scale=0.3), network=SharedMLP((32,)))
    torch.nn.init.normal_(model.facets["cluster"].loc, std=4.0)
    guide = AmortizedGuide(model, discrete=GumbelSoftmax(5.0)).double()
    enumerated = AmortizedGuide(model).double()
    enumerated.encoder = guide.encoder
    x = torch.rand(50, PIXELS, dtype=torch.float64)
    (relaxed, error), (exact, exact_error) = (
        elbo(model, g, x, num_draws=200) for g in (guide, enumerated)
    )
    assert abs(relaxed - exact) < 5 * np.hypot(error, exact_error)
    assert abs(-Loss(model, guide)(x).item() - exact) > 50 * error
    assert not guide.discrete.hard


def test_decaying_average_follows_training_and_nothing_else() -> None:
    model = VaDE((PIXELS,), GaussianMixture(3, 2), network=SharedMLP((32,)))
    guide = AmortizedGuide(model, discrete=ScoreFunction("average"))
    average = guide.discrete.baselines["cluster"]
    x = torch.rand(20, PIXELS)
    elbo(model, guide, x, num_draws=2)
    assert average.average.item() == 0
    # So slow that the costs stay where they are: those of a mean-field cluster are its facet's KL.
    SVIRunner(model, guide, lr=1e-9).fit(x, epochs=60, batch_size=20, progress=False)
    terms = [Loss(model, guide).terms(x) for _ in range(100)]
    kl = torch.stack([t["kl_z_cluster"] + t["kl_c_cluster"] for t in terms])
    # An average of decay 0.9 has 0.1 / 1.9 of one draw's variance.
    error = kl.std().item() * (0.1 / 1.9 + 1 / 100) ** 0.5
    assert average.average.item() == pytest.approx(kl.mean().item(), abs=5 * error)


def test_learned_baseline_learns_and_teaches_no_one() -> None:
    model = VaDE((PIXELS,), GaussianMixture(3, 2))
    guide = AmortizedGuide(model, discrete=ScoreFunction("learned"), conditional=True)
    baseline = guide.discrete.baselines["cluster"]
    x = torch.rand(20, PIXELS)
    guess = baseline(x)
    own = list(baseline.parameters())
    others = [p for p in guide.parameters() if not any(p is q for q in own)]
    lesson = baseline.loss(guess, torch.full((20,), 5.0))
    assert all(
        g is None for g in torch.autograd.grad(lesson, others, allow_unused=True, retain_graph=True)
    )
    stepped = [p - 1e-4 * g for p, g in zip(own, torch.autograd.grad(lesson, own), strict=True)]
    names = [name for name, _ in baseline.named_parameters()]
    after = torch.func.functional_call(baseline, dict(zip(names, stepped, strict=True)), (x,))
    assert ((after - 5) ** 2).sum() < ((guess - 5) ** 2).sum()


def blobs(n: int = 600) -> torch.Tensor:
    return torch.randn(n, 2) * 0.2 + torch.tensor([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]]).repeat(
        n // 3, 1
    )


def test_mixtures_are_fitted_to_a_trained_conditional_guide_as_well() -> None:
    """Latents that depend on the cluster end up where their mixture was, and the new clusters are
    the responsibilities; a facet that is not fitted keeps its own.
    """
    facets = {name: GaussianMixture(3, 2) for name in ("kept", "fitted")}
    network = MLPLadder((32, 32))
    model = MFCVAE((2,), facets, NormalLikelihood(0.1), network)
    guide = AmortizedGuide(model, conditional=True)
    for shift in guide.shifts.values():
        torch.nn.init.normal_(shift.weight)
    x = blobs()
    before, proba = guide.embed(x), guide.predict_proba(x)
    with torch.no_grad():
        fit_mixtures(guide, x, facets=["fitted"], n_init=5)
    after = guide.embed(x)
    assert all(
        np.abs(after[name] - before[name]).mean() < 0.15 * before[name].std() for name in facets
    )
    assert np.abs(guide.predict_proba(x)["kept"] - proba["kept"]).max() < 0.1
    responsibilities = model.facets["fitted"].log_joint(after["fitted"]).argmax(-1)
    assert (guide.predict(x)["fitted"] == responsibilities.numpy()).mean() > 0.9
    assert all(p.grad is None for p in guide.parameters())


def test_refit_in_the_middle_of_a_run() -> None:
    model = VaDE((2,), GaussianMixture(3, 2), NormalLikelihood(0.1), SharedMLP((32, 32)))
    guide, x, locs = VaDEGuide(model), blobs(), []

    def note(runner: SVIRunner, record: dict) -> None:
        locs.append(model.facets["cluster"].loc.detach().clone())

    def refit(runner: SVIRunner, record: dict) -> None:
        if record["epoch"] == 2:
            fit_mixtures(runner.guide, x, n_init=2)

    SVIRunner(model, guide, lr=1e-9).fit(x, epochs=3, callbacks=[refit, note], progress=False)
    assert not torch.allclose(locs[0], locs[1], atol=1e-3)
    torch.testing.assert_close(locs[1], locs[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "ours", "theirs"),
    [
        (build, ours, theirs)
        for build, _, suitable in PAIRS
        for ours, theirs in (
            ("GuideEnum", "Pyro's TraceEnum"),
            ("MeanField", "Pyro's TraceMeanField"),
        )
        if {ours, theirs} <= suitable
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_pyros_objectives_are_ours_on_the_same_draws(
    build: Callable[[], FacetGuide], ours: str, theirs: str
) -> None:
    guide = build().double()
    x = torch.rand(5, *guide.model.x_shape, dtype=torch.float64)
    beside = given(guide, 5)
    results = []
    for name in (ours, theirs):
        pyro.set_rng_seed(3)
        results.append(
            value_and_gradient(
                Loss(guide.model, guide, OBJECTIVES[name](guide))(x, **beside), guide
            )
        )
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_a_score_function_belongs_to_one_guide() -> None:
    model, discrete = MFCVAE((PIXELS,), {"z": VampPrior(3, 2, (PIXELS,))}), ScoreFunction()
    AmortizedGuide(two_facets(), discrete=discrete)
    with pytest.raises(ValueError, match="give each guide its own"):
        AmortizedGuide(model, discrete=discrete)
    AmortizedGuide(model, discrete=ScoreFunction())  # a guide that is refused leaves the model free
