"""MFCVAE's Theorems 1 to 3, numerically: which q(c given x) is best, what it costs, and that others
cost more.

Expectations over z are Gauss-Hermite sums in float64, good to 1e-12 here; no draws, so no false
alarms. A numerical optimizer that knows nothing of the theorems looks for a better q(c given x)
from many starts.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppl_models import GaussianMixture
from tests.draws_of import gauss_hermite

pytestmark = pytest.mark.slow(5)

STARTS = 12


def mixture(K: int, d: int, seed: int) -> GaussianMixture:
    torch.manual_seed(seed)
    prior = GaussianMixture(K, d, covariance="full", scale=0.8).double()
    torch.nn.init.normal_(prior.logits)
    return prior.requires_grad_(False)


def log_posterior(prior: GaussianMixture, z: Tensor) -> Tensor:
    """log p(c given z): ``[M, d] -> [M, K]``."""
    return prior.log_joint(z).log_softmax(-1)


def cost(log_q: Tensor, log_p_c_z: Tensor, weights: Tensor) -> Tensor:
    """E over q(z given x) of KL(q(c given x) to p(c given z)), to be minimized (Eq. 5)."""
    return (log_q.exp() * (log_q - weights @ log_p_c_z)).sum()


def best_found(log_p_c_z: Tensor, weights: Tensor) -> list[float]:
    """The costs that an optimizer reaches from several random starts."""
    return [found_from(seed, log_p_c_z, weights) for seed in range(STARTS)]


def found_from(seed: int, log_p_c_z: Tensor, weights: Tensor) -> float:
    generator = torch.Generator().manual_seed(seed)
    logits = (
        3 * torch.randn(log_p_c_z.shape[-1], dtype=torch.float64, generator=generator)
    ).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = cost(logits.log_softmax(-1), log_p_c_z, weights)
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


def assert_optimal(log_p_c_z: Tensor, weights: Tensor) -> Tensor:
    """The optimizer comes to the theorem's q and its cost -log Z; returns the best log q."""
    expected = weights @ log_p_c_z
    log_z = expected.logsumexp(-1)
    log_pi = expected - log_z  # Eq. 8, 12, 48
    minimum = cost(log_pi, log_p_c_z, weights)
    torch.testing.assert_close(minimum, -log_z, rtol=0, atol=1e-12)  # Eq. 7, 11, 47
    found = best_found(log_p_c_z, weights)
    assert min(found) >= minimum.item() - 1e-10
    assert min(found) <= minimum.item() + 1e-7
    return log_pi


@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("K", [2, 5])
def test_theorem_1(K: int, spread: float) -> None:
    prior = mixture(K, 2, seed=K)
    nodes, weights = gauss_hermite(40, 2)
    assert_optimal(log_posterior(prior, 0.3 + spread * nodes), weights)


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_vades_own_posterior_is_worse_wherever_z_has_spread(spread: float) -> None:
    """B.1.1: q(c given x) = E p(c given z) does not make the term vanish, nor minimize it."""
    prior = mixture(4, 2, seed=1)
    nodes, weights = gauss_hermite(40, 2)
    log_p_c_z = log_posterior(prior, 0.3 + spread * nodes)
    optimal = cost(assert_optimal(log_p_c_z, weights), log_p_c_z, weights)
    original = cost((weights @ log_p_c_z.exp()).log(), log_p_c_z, weights)
    assert optimal > 1e-3
    assert original > optimal + 1e-3


def test_the_two_posteriors_meet_where_z_has_no_spread() -> None:
    prior = mixture(4, 2, seed=1)
    nodes, weights = gauss_hermite(40, 2)
    log_p_c_z = log_posterior(prior, 0.3 + 1e-5 * nodes)
    original = (weights @ log_p_c_z.exp()).log()
    torch.testing.assert_close(original, (weights @ log_p_c_z).log_softmax(-1), rtol=0, atol=1e-8)
    assert cost(original, log_p_c_z, weights).abs() < 1e-8


def joint_log_posterior(priors: list[GaussianMixture], z: Tensor) -> Tensor:
    """log p(c_1, c_2 given z_1, z_2) = sum of the facets' own (Eq. 45): ``[M, K_1 K_2]``."""
    first, second = (log_posterior(prior, z[:, [j]]) for j, prior in enumerate(priors))
    return (first.unsqueeze(-1) + second.unsqueeze(-2)).flatten(1)


def test_theorem_2_the_best_joint_posterior_factorizes() -> None:
    """The best of all joint q(c_1, c_2 given x) is the product of the facets' own."""
    priors = [mixture(3, 1, seed=2), mixture(2, 1, seed=3)]
    nodes, weights = gauss_hermite(40, 2)
    z = torch.tensor([0.2, -0.4]) + torch.tensor([0.7, 1.1]) * nodes
    log_pi = assert_optimal(joint_log_posterior(priors, z), weights).view(3, 2)
    factors = [
        (weights @ log_posterior(prior, z[:, [j]])).log_softmax(-1)
        for j, prior in enumerate(priors)
    ]
    torch.testing.assert_close(log_pi, factors[0].unsqueeze(-1) + factors[1], rtol=0, atol=1e-10)


def test_theorem_3_holds_for_a_posterior_whose_facets_are_correlated() -> None:
    priors = [mixture(3, 1, seed=2), mixture(2, 1, seed=3)]
    nodes, weights = gauss_hermite(40, 2)
    factor = torch.tensor([[0.7, 0.0], [0.9, 0.5]], dtype=torch.float64)
    assert_optimal(
        joint_log_posterior(priors, torch.tensor([0.2, -0.4]) + nodes @ factor.T), weights
    )


def test_the_one_draw_coincidence_ends_at_two() -> None:
    """Eq. 34 at L = 1 is log p(z) (Eq. 35); at L = 2 it is less than the mean of two such."""
    prior = mixture(4, 2, seed=1)
    z = torch.randn(2, 50, 2, dtype=torch.float64)
    one = prior.log_joint(z[:1]).mean(0).logsumexp(-1)
    torch.testing.assert_close(one, prior.log_prob(z[0]), rtol=1e-12, atol=1e-12)
    two = prior.log_joint(z).mean(0).logsumexp(-1)
    mean_of_ones = prior.log_prob(z).mean(0)
    assert (two <= mean_of_ones + 1e-12).all()
    assert (two < mean_of_ones - 1e-3).any()
