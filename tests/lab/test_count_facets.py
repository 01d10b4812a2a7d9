"""Swaps and samples are counted, and Eq. 12's expectation is that of its formula."""

import json
from pathlib import Path

import pytest
import torch

from lab import short_runs
from lab.benchmarks import count_facets
from ppl_models import GaussianMixture


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_clusters_follow_from_the_mean_of_the_log_density(covariance: str) -> None:
    """Against means over 40,000 draws, each cluster's within 5 standard errors."""
    torch.manual_seed(0)
    prior = GaussianMixture(3, 2, covariance)
    z, variance = torch.randn(4, 2), torch.rand(4, 2)
    draws = prior.log_joint(z + variance.sqrt() * torch.randn(40_000, 4, 2))
    mean, error = draws.mean(0), draws.std(0) / 200
    assert ((count_facets.expected(prior, z, variance) - mean).abs() < 5 * error).all()
    assert not ((prior.log_joint(z) - mean).abs() < 5 * error).all()  # that is what it could detect


def test_a_run_is_counted(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "counted"
    short_runs.run("lab.protocols.mfcvae --smoke", run)
    count_facets.main([str(run), "--dataset", "digits", "--out", str(out)])
    found = json.loads((out / "scores.json").read_text())
    assert all(0 <= share <= 100 for share in found["swaps"].values())
    assert found["swaps"]["reader, real images"] > 85
    assert 1 <= found["samples"]["digit: samples, labels"] <= 10
