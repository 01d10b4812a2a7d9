"""Families of q(z given x): densities by definition, and how close each comes to a known
posterior.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from guides import (
    ConditionalGuide,
    Diagonal,
    Family,
    FullCovariance,
    InverseAutoregressive,
    MarginalGuide,
    VaDEGuide,
)
from inference import SVIRunner, data_dependent_start, elbo
from ppl_models import (
    IVAE,
    MFCVAE,
    VAE,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    VaDE,
    VampPrior,
)
from tests.draws_of import gauss_hermite

FAMILIES = [Diagonal(), FullCovariance(), InverseAutoregressive()]
named = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)


def a_posterior(family: Family, dim: int = 3, n: int = 4) -> torch.distributions.Distribution:
    torch.manual_seed(0)
    layers = family.layers(dim)
    head = torch.randn(n, family.head_size(dim), dtype=torch.float64)
    return family.posterior(head, layers and layers.double())


def test_a_full_covariance_is_scipys() -> None:
    """The covariance put together from the head's numbers, one by one."""
    head = np.random.default_rng(0).normal(size=9)
    deviation = np.exp(10 * np.tanh(head[3:6] / 10) / 2)
    below = np.eye(3)
    below[1, 0], below[2, 0], below[2, 1] = head[6:]
    factor = deviation[:, None] * below
    known = multivariate_normal(head[:3], factor @ factor.T)
    q = FullCovariance().posterior(torch.as_tensor(head)[None], None)
    z = torch.randn(50, 1, 3, dtype=torch.float64)
    np.testing.assert_allclose(q.log_prob(z)[:, 0], known.logpdf(z[:, 0]), atol=1e-10)
    np.testing.assert_allclose(q.variance[0], np.diag(factor @ factor.T), atol=1e-12)


@named
def test_a_density_follows_from_the_map_of_noise(family: Family) -> None:
    """log q(z) = log Normal(noise) - log |dz / dnoise|, by automatic differentiation."""
    q = a_posterior(family)
    noise = torch.randn(4, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(q.from_noise, noise)
    each = torch.stack([jacobian[i, :, i] for i in range(4)])
    expected = -0.5 * noise.square().sum(-1) - 1.5 * math.log(2 * math.pi)
    expected = expected - torch.linalg.slogdet(each).logabsdet
    torch.testing.assert_close(q.log_prob(q.from_noise(noise)), expected, atol=1e-10, rtol=0)


@named
def test_the_density_of_a_draw_is_that_of_the_same_values(family: Family) -> None:
    q = a_posterior(family).expand(torch.Size([5, 4]))
    z = q.rsample()
    assert z.shape == (5, 4, 3)
    again = a_posterior(family).log_prob(z.clone())
    torch.testing.assert_close(q.log_prob(z), again, atol=1e-10, rtol=0)


@named
def test_mean_and_variance_are_those_of_draws(family: Family) -> None:
    """Five standard errors of 100,000 draws, and what 256 points leave of an average."""
    q = a_posterior(family)
    draws = q.rsample(torch.Size([100_000]))
    deviation = draws.std(0)
    assert ((draws.mean(0) - q.mean).abs() < 0.03 * deviation).all()
    assert ((deviation / q.variance.sqrt()).log().abs() < 0.1).all()


def test_the_variance_of_values_far_from_zero_is_positive() -> None:
    """In single precision, 20,000 deviations away, against double precision."""
    family = InverseAutoregressive()
    torch.manual_seed(0)
    layers = family.layers(3)
    head = torch.randn(4, family.head_size(3))
    head[:, :3] += 200
    head[:, 3:6] = -9
    found, wanted = (
        family.posterior(head.to(dtype), layers.to(dtype)).variance
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(found.double(), wanted, rtol=0.2, atol=0)


def shortfall(family: Family, log_joint: Callable[[Tensor], Tensor], evidence: float) -> float:
    """How far the best bound of the family stays below the evidence, for one datum, in nats; the
    expectation is by quadrature, so that nothing is random.
    """
    torch.manual_seed(0)
    layers = family.layers(2)
    head = nn.Parameter(0.1 * torch.randn(1, family.head_size(2), dtype=torch.float64))
    parameters = [head, *(layers.double().parameters() if layers else ())]
    nodes, weights = gauss_hermite(15, 2)
    optimizer = torch.optim.LBFGS(parameters, max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        q = family.posterior(head, layers)
        z = q.from_noise(nodes.unsqueeze(1))
        value = weights @ (q.log_prob(z) - log_joint(z))[:, 0] + evidence
        value.backward()
        return value

    optimizer.step(loss)
    return loss().item()


def test_what_a_diagonal_leaves_of_a_normal_posterior_others_reach() -> None:
    """x = W z + noise, of which p(z given x) is Normal with precision P: the diagonal's best bound
    is short by (sum log P_ii - log |P|) / 2.
    """
    w = torch.tensor([[1.0, 0.9], [0.2, 1.0], [0.5, -0.1]], dtype=torch.float64)
    scale, x = 0.3, torch.tensor([0.5, -0.2, 1.0], dtype=torch.float64)
    precision = torch.eye(2) + w.T @ w / scale**2
    covariance = w @ w.T + scale**2 * torch.eye(3)
    evidence = float(multivariate_normal(np.zeros(3), covariance).logpdf(x))

    def log_joint(z: Tensor) -> Tensor:
        log_p = torch.distributions.Normal(z @ w.T, scale).log_prob(x).sum(-1)
        return log_p + torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)

    known = float(precision.diagonal().log().sum() - torch.linalg.slogdet(precision).logabsdet) / 2
    assert known > 0.2
    assert shortfall(Diagonal(), log_joint, evidence) == pytest.approx(known, abs=1e-5)
    assert shortfall(FullCovariance(), log_joint, evidence) == pytest.approx(0, abs=1e-6)
    assert shortfall(InverseAutoregressive(), log_joint, evidence) < 0.05 * known


def test_a_flow_follows_a_bent_posterior() -> None:
    """z_2 near z_1 squared: no Normal is near, whatever its covariance."""

    def log_joint(z: Tensor) -> Tensor:
        first = torch.distributions.Normal(0.0, 1.0).log_prob(z[..., 0])
        return first + torch.distributions.Normal(z[..., 0].square(), 0.3).log_prob(z[..., 1])

    full = shortfall(FullCovariance(), log_joint, 0.0)
    assert full > 0.5
    assert shortfall(InverseAutoregressive(num_layers=2), log_joint, 0.0) < 0.2 * full


@named
def test_a_guide_of_each_kind_trains_and_is_kept(family: Family, tmp_path: Path) -> None:
    pyro.set_rng_seed(0)
    x, label = torch.rand(60, 6), torch.arange(60) % 3
    facets = {"a": GaussianMixture(2, 2), "b": GaussianMixture(3, 3)}
    models = [
        (VaDEGuide, MFCVAE((6,), facets, Normal(0.3), MLPLadder((8, 9))), {}),
        (MarginalGuide, VAE((6,), 2, Normal(0.3), SharedMLP((8,))), {}),
        (ConditionalGuide, IVAE((6,), 3, 2, Normal(0.3), SharedMLP((8,))), {"label": label}),
    ]
    for kind, model, given in models:
        runner = SVIRunner(model, kind(model, family=family), seed=0)
        runner.fit(x, 2, batch_size=20, progress=False, **given)
        for name, parameter in runner.guide.named_parameters():
            assert not parameter.requires_grad or parameter.grad is not None, name
        again = SVIRunner.load(runner.save(tmp_path / kind.__name__))
        bounds = []
        for run in (runner, again):
            pyro.set_rng_seed(1)
            bounds.append(elbo(run.model, run.guide, x, num_draws=2, **given)[0])
        assert bounds[0] == bounds[1]
        assert type(again.guide.family) is type(family)
        for name, values in again.guide.embed(x, **given).items():
            assert values.shape == (60, model.priors[name].dim)


def test_of_one_coordinate_a_flow_is_a_normal() -> None:
    assert InverseAutoregressive().layers(1) is None
    assert InverseAutoregressive().head_size(1) == 2


def test_what_a_family_does_not_go_with_is_refused() -> None:
    vamp = VaDE((6,), VampPrior(3, 2, (6,)), network=SharedMLP((8,)))
    with pytest.raises(ValueError, match="a VampPrior is made of diagonal posteriors"):
        VaDEGuide(vamp, family=FullCovariance())


@named
def test_a_value_of_one_datum_is_scored_under_all(family: Family) -> None:
    q, value = a_posterior(family), torch.zeros(3, dtype=torch.float64)
    expected = q.log_prob(value.expand(4, 3).clone())
    torch.testing.assert_close(q.log_prob(value), expected)
    assert q.log_prob(value.expand(5, 1, 3)).shape == (5, 4)


def test_the_density_of_a_draw_without_a_gradient_has_one() -> None:
    layers = InverseAutoregressive().layers(3)
    head = torch.randn(4, InverseAutoregressive().head_size(3), requires_grad=True)
    q = InverseAutoregressive().posterior(head, layers)
    assert q.log_prob(q.sample()).requires_grad


def test_a_data_dependent_start_leaves_flows_alone() -> None:
    guide = VaDEGuide(VAE((6,), 2, network=SharedMLP((8,))), family=InverseAutoregressive())
    before = copy.deepcopy(guide.layers.state_dict())
    data_dependent_start(guide, torch.rand(50, 6))
    torch.testing.assert_close(guide.layers.state_dict(), before, rtol=0, atol=0)
