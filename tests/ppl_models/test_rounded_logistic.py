"""The logistic distribution rounded to 8 bits: a probability mass, its limits, its draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import log_expit
from scipy.stats import chi2, logistic

from ppl_models import DiscretizedLogistic
from ppl_models.distributions import RoundedLogistic

VALUES = torch.arange(256, dtype=torch.float64) / 255


def log_mass(loc: float, scale: float) -> torch.Tensor:
    return RoundedLogistic(
        torch.tensor(loc, dtype=torch.float64), torch.tensor(scale).double()
    ).log_prob(VALUES)


@pytest.mark.parametrize("loc", [-0.3, 0.0, 0.37, 1.0, 2.0])
@pytest.mark.parametrize("scale", [1e-3, 0.02, 0.5, 30.0])
def test_masses_sum_to_one_and_are_differences_of_the_distribution_function(
    loc: float, scale: float
) -> None:
    """Kingma et al., C.5, the ends taking all beyond them."""
    ours = log_mass(loc, scale).numpy()
    assert math.fsum(np.exp(ours)) == pytest.approx(1, rel=1e-10)
    edges = np.concatenate([[-np.inf], (np.arange(255) + 0.5) / 255, [np.inf]])
    with np.errstate(divide="ignore"):
        naive = np.log(np.diff(logistic(loc, scale).cdf(edges)))
    kept = naive > -15  # below, the difference of numbers near one has few digits left
    assert kept.any()
    np.testing.assert_allclose(ours[kept], naive[kept], rtol=1e-6, atol=1e-12)


def test_far_tails_keep_their_digits_and_gradients_in_float32() -> None:
    loc = torch.tensor([-4.0, 5.0], requires_grad=True)
    scale = torch.tensor(0.01, requires_grad=True)
    log_prob = RoundedLogistic(loc, scale).log_prob(torch.tensor([128 / 255, 100 / 255]))
    for value, x, mean in zip(log_prob.tolist(), (128 / 255, 100 / 255), (-4.0, 5.0), strict=True):
        near, far = sorted(abs(x + h - mean) / 0.01 for h in (-0.5 / 255, 0.5 / 255))
        # log(s(-near) - s(-far)), s the sigmoid
        expected = log_expit(-near) + math.log1p(-math.exp(log_expit(-far) - log_expit(-near)))
        assert value == pytest.approx(expected, rel=1e-4)
    log_prob.sum().backward()
    assert loc.grad.isfinite().all()
    assert loc.grad.abs().min() > 50
    assert scale.grad.isfinite()


def test_gradients_are_those_of_the_masses() -> None:
    loc = torch.tensor([0.1, 0.5, 0.9, -0.2, 1.4], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    value = torch.tensor([0.0, 100.0, 255.0, 3.0, 254.0], dtype=torch.float64) / 255
    assert torch.autograd.gradcheck(
        lambda loc, scale: RoundedLogistic(loc, scale).log_prob(value), (loc, scale)
    )


def test_draws_follow_the_masses() -> None:
    """Chi-squared of 50,000 draws at the level 1e-6, which finds a shift of one step."""
    torch.manual_seed(0)
    p = RoundedLogistic(torch.tensor(0.8), torch.tensor(0.05))
    counts = np.bincount((255 * p.sample((50_000,))).round().long().numpy(), minlength=256)
    for shift, rejected in ((0.0, False), (1 / 255, True)):
        expected = 50_000 * np.exp(log_mass(0.8 + shift, 0.05).numpy())
        often = expected > 5
        statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
        assert (chi2(often.sum() - 1).sf(statistic) < 1e-6) == rejected


@pytest.mark.parametrize(("loc", "scale"), [(0.5, 0.05), (0.02, 0.1), (1.3, 0.4)])
def test_mean_and_variance_are_those_of_the_rounded_values(loc: float, scale: float) -> None:
    p = RoundedLogistic(torch.tensor(loc).double(), torch.tensor(scale).double())
    mass = log_mass(loc, scale).exp()
    mean = float((VALUES * mass).sum())
    assert float(p.mean) == pytest.approx(mean, rel=1e-6)
    assert float(p.variance) == pytest.approx(float(((VALUES - mean) ** 2 * mass).sum()), rel=1e-5)


def test_the_likelihood_is_around_the_middle_and_learns_its_scale() -> None:
    likelihood = DiscretizedLogistic(scale=0.07)
    p = likelihood(torch.zeros(2, 3, 4, 4), 3)
    assert (p.batch_shape, p.event_shape) == ((2,), (3, 4, 4))
    assert float(p.base_dist.loc.mean()) == 0.5
    x = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    likelihood.check(x)
    likelihood.check(x / 255)
    p.log_prob(likelihood.prepare(x)).sum().backward()
    assert likelihood.log_scale.grad != 0
    assert repr(likelihood) == "DiscretizedLogistic(scale=0.07)"
