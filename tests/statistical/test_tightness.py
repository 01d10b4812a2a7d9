"""Importance weights against log p(x) by quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from elbocheck import importance_weighted_bounds

from guides import AmortizedGuide, FacetGuide, MarginalGuide, VaDEGuide
from inference import elbo
from inference.evaluation import log_importance_weights
from ppl_models import GaussianMixture, SharedMLP, VaDE
from tests.draws_of import SEED, gauss_hermite

pytestmark = pytest.mark.slow(10)

GUIDES = {
    "responsibilities": VaDEGuide,
    "z given c": lambda model: AmortizedGuide(model, conditional=True),
}


def build(form: str) -> tuple[FacetGuide, torch.Tensor]:
    torch.manual_seed(2)
    model = VaDE((4,), GaussianMixture(3, 1, scale=0.6), network=SharedMLP((5,), activation="tanh"))
    guide = GUIDES[form](model).double()
    return guide, torch.rand(6, 4, dtype=torch.float64)


@pytest.mark.parametrize("form", GUIDES)
def test_the_mean_weight_is_the_evidence(form: str) -> None:
    """Against p(x) by quadrature under the prior, within five standard errors."""
    guide, x = build(form)
    prior, num_draws = guide.model.facets["cluster"], 20_000
    torch.manual_seed(SEED)
    weights = log_importance_weights(guide, x, num_draws).exp()  # [S, N]
    nodes, node_weights = gauss_hermite(120, 1)
    each = prior.components()
    z = each.base_dist.loc + each.base_dist.scale * nodes.unsqueeze(1)  # [M, K, 1]
    likelihood = guide.model.decode({"cluster": z.unsqueeze(2)}).log_prob(x).exp()  # [M, K, N]
    evidence = torch.einsum("m,k,mkn->n", node_weights, prior.logits.softmax(-1), likelihood)
    error = weights.std(0) / math.sqrt(num_draws)
    assert (error / evidence < 0.02).all()  # so a misplaced log 2 would be found
    assert ((weights.mean(0) - evidence).abs() < 5 * error).all()


def test_bounds_rise_from_the_elbo_to_the_evidence() -> None:
    guide, x = build("responsibilities")
    torch.manual_seed(SEED)
    log_weights = log_importance_weights(guide, x, 4000)
    bounds = importance_weighted_bounds(log_weights, [1, 2, 10, 100, 4000])
    values = list(bounds.values())
    assert values == sorted(values)
    marginal = MarginalGuide(guide.model).double()
    marginal.encoder = guide.encoder
    mean, error = elbo(guide.model, marginal, x.repeat(40, 1), num_draws=100)  # 4,000 of each
    own_error = float(log_weights.mean(1).std()) / math.sqrt(4000)
    assert abs(bounds[1] - mean) < 5 * math.hypot(error, own_error)
    evidence = float((log_weights.logsumexp(0) - math.log(4000)).mean())
    assert bounds[4000] == pytest.approx(evidence)
