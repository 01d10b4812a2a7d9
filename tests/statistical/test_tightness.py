"""Importance weights against log p(x) by quadrature, and tails against a case whose shape is
known.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from guides import AmortizedGuide, FacetGuide, MarginalGuide, VaDEGuide
from inference import elbo
from inference.diagnostics import (
    gauss_hermite,
    importance_weighted_bounds,
    log_importance_weights,
    pareto_k,
)
from ppl_models import GaussianMixture, SharedMLP, VaDE

pytestmark = pytest.mark.slow(10)

SEED = int(os.environ.get("FACETVAE_TEST_SEED", "0"))
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


def test_tails_have_their_known_shape() -> None:
    """Weights u^-k of uniform u are Pareto with shape k, whatever the scale."""
    uniform = torch.from_numpy(np.random.default_rng(SEED).uniform(size=(20_000, 8)))
    for k in (0.2, 0.6, 1.2):
        estimates = pareto_k(-k * uniform.log())
        # The largest 3 sqrt(n) = 424 draws make the fit: a deviation of about (1 + k) / sqrt(424)
        # each.
        assert np.abs(estimates - k).max() < 5 * (1 + k) / math.sqrt(424)


def test_weights_beyond_float64_have_no_mean_and_equal_ones_no_tail() -> None:
    """A draw that outweighs all others had k = 0.05, the best verdict; equal weights were refused,
    and with them all other data.
    """
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    one = (3 * noise).index_fill(0, torch.tensor([7]), 1000.0)
    none = torch.full((1000,), -math.inf, dtype=torch.float64)
    columns = [one, 5000 * noise, none, torch.full_like(noise, -100.0), noise]
    k = pareto_k(torch.stack(columns, 1))
    assert np.isposinf(k[:3]).all()
    assert k[3] == 0
    assert k[4] == pareto_k(noise[:, None])[0]  # whatever data are beside it
