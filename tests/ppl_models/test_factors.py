"""Missing entries filled given the others: against the conditional normal of a joint one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from ppl_models import FactorFill, Incomplete, Normal
from ppl_models.configurable import from_config, to_config


def factors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "weights": rng.normal(size=(2, 5)),
        "loc": rng.normal(size=5),
        "noise": rng.uniform(0.1, 1, 5),
    }


def conditional(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a row's missing entries given the others."""
    own, there = factors(), ~np.isnan(row)
    covariance = own["weights"].T @ own["weights"] + np.diag(own["noise"])
    gain = covariance[~there][:, there] @ np.linalg.inv(covariance[there][:, there])
    mean = own["loc"][~there] + gain @ (row - own["loc"])[there]
    return mean, covariance[~there][:, ~there] - gain @ covariance[there][:, ~there]


ROWS = np.array(
    [[0.3, np.nan, -1.0, np.nan, 2.0], [np.nan] * 5, [1.0, 2.0, 0.0, -1.0, 0.5]], np.float64
)


def test_gaps_hold_the_mean_given_the_others() -> None:
    fill = FactorFill(**factors()).double()
    found = fill(torch.as_tensor(ROWS)).numpy()
    for row, own in zip(ROWS, found, strict=True):
        np.testing.assert_allclose(own[np.isnan(row)], conditional(row)[0], rtol=1e-5)
        np.testing.assert_array_equal(own[~np.isnan(row)], row[~np.isnan(row)])
    apart = torch.stack([fill(row) for row in torch.as_tensor(ROWS)])
    torch.testing.assert_close(torch.as_tensor(found), apart, msg="without a batch")


def test_the_density_is_that_of_what_is_there() -> None:
    own, found = factors(), FactorFill(**factors()).double().log_prob(torch.as_tensor(ROWS))
    covariance = own["weights"].T @ own["weights"] + np.diag(own["noise"])
    for row, value in zip(ROWS[[0, 2]], found[[0, 2]], strict=True):
        there = ~np.isnan(row)
        joint = multivariate_normal(own["loc"][there], covariance[there][:, there])
        assert float(value) == pytest.approx(joint.logpdf(row[there]), rel=1e-5)
    assert float(found[1]) == 0, "nothing is there"


def test_draws_have_the_conditional_mean_and_covariance() -> None:
    """To four standard errors of 20,000 draws."""
    torch.manual_seed(0)
    n, row = 20_000, ROWS[0]
    drawn = FactorFill(**factors()).double().draw(torch.as_tensor(row).expand(n, 5)).numpy()
    mean, covariance = conditional(row)
    deviation = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(drawn[:, [1, 3]].mean(0), mean, atol=4 * deviation.max() / n**0.5)
    found = np.cov(drawn[:, [1, 3]].T)
    np.testing.assert_allclose(found, covariance, atol=4 * covariance.max() * (2 / n) ** 0.5)
    assert (drawn[:, [0, 2, 4]] == row[[0, 2, 4]]).all()


def test_a_likelihood_shows_encoders_what_is_filled_and_is_built_again() -> None:
    likelihood = Incomplete(Normal(0.5), FactorFill(**factors()))
    x = torch.as_tensor(ROWS).float()
    seen = likelihood.features(x)
    torch.testing.assert_close(seen, FactorFill(**factors())(x))
    again = from_config(to_config(likelihood))
    torch.testing.assert_close(again.features(x), seen)
    assert "factors=2, columns=5" in repr(again)
