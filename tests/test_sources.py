"""The synthetic data of nonlinear ICA: what was promised of sources, mixing and seeds."""

from __future__ import annotations

import numpy as np
import pytest

from examples.sources import time_contrastive


def test_mixing_is_undone_by_its_inverse_and_by_nothing_linear() -> None:
    data = time_contrastive(200)
    np.testing.assert_allclose(data.mixing.inverse(data.x), data.sources, atol=1e-9)
    fitted = np.linalg.lstsq(data.x, data.sources, rcond=None)[0]
    unexplained = (data.sources - data.x @ fitted).var(0) / data.sources.var(0)
    assert unexplained.max() > 0.2, "four layers with leaky ReLU are not linear"


def test_matrices_are_orthogonal() -> None:
    """So that four layers lose no source: a unit step in any leaves a mark of the nonlinearity's slopes at least."""
    data = time_contrastive(50)
    for weight in data.mixing.weights:
        np.testing.assert_allclose(weight @ weight.T, np.eye(5), atol=1e-12)
    step = 1e-6 * np.eye(5)
    jacobian = np.stack([(data.mixing(data.sources + row) - data.x) / 1e-6 for row in step], -1)
    assert np.linalg.svd(jacobian, compute_uv=False).min() > 0.99 * 0.2**3


def test_segments_have_means_and_deviations_of_their_own() -> None:
    """From 20,000 draws a segment; a mean's error is at most 3 / sqrt(20,000) = 0.021, five of these."""
    data = time_contrastive(20_000)
    by_segment = data.sources.reshape(20, 20_000, 5)
    mean, scale = by_segment.mean(1), by_segment.std(1)
    assert np.abs(mean).max() < 3.11
    assert scale.min() > 0.009
    assert scale.max() < 3.08
    # Uniform on [-3, 3]: deviation 1.73; on [0.01, 3]: mean 1.5. A hundred of each.
    assert 1.3 < mean.std() < 2.2
    assert 1.2 < scale.mean() < 1.8
    np.testing.assert_array_equal(data.segment, np.repeat(np.arange(20), 20_000))
    for source in range(5):
        others = np.delete(np.arange(5), source)
        within = by_segment[3] - mean[3]
        correlation = np.corrcoef(within, rowvar=False)[source, others]
        assert np.abs(correlation).max() < 5 / np.sqrt(20_000)


def test_the_seed_fixes_everything_and_sizes_share_the_mixing() -> None:
    a, b, larger, other = (time_contrastive(n, seed=s) for n, s in ((50, 1), (50, 1), (100, 1), (50, 2)))
    np.testing.assert_array_equal(a.x, b.x)
    for ours, theirs in zip(a.mixing.weights, larger.mixing.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.allclose(a.mixing.weights[0], other.mixing.weights[0])


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="per_segment must be an integer of at least 1, got 0"):
        time_contrastive(0)
