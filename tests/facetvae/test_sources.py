"""The synthetic data of nonlinear ICA: what was promised of sources, mixing and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from lab.protocols.sources import labelings, time_contrastive


@pytest.mark.parametrize("bends_sources", [False, True])
def test_mixing_is_undone_by_its_inverse_and_by_nothing_linear(bends_sources: bool) -> None:
    data = time_contrastive(200, bends_sources=bends_sources)
    np.testing.assert_allclose(data.mixing.inverse(data.x), data.sources, atol=1e-9)
    fitted = np.linalg.lstsq(data.x, data.sources, rcond=None)[0]
    unexplained = (data.sources - data.x @ fitted).var(0) / data.sources.var(0)
    assert unexplained.max() > 0.2, "four layers with leaky ReLU are not linear"


def test_matrices_are_orthogonal() -> None:
    """So that four layers lose no source: a unit step in any leaves a mark of the nonlinearity's
    slopes at least.
    """
    data = time_contrastive(50)
    for weight in data.mixing.weights:
        np.testing.assert_allclose(weight @ weight.T, np.eye(5), atol=1e-12)
    step = 1e-6 * np.eye(5)
    jacobian = np.stack([(data.mixing(data.sources + row) - data.x) / 1e-6 for row in step], -1)
    assert np.linalg.svd(jacobian, compute_uv=False).min() > 0.99 * 0.2**3


def test_segments_have_means_and_deviations_of_their_own() -> None:
    """From 20,000 draws a segment; a mean's error is at most 3 / sqrt(20,000) = 0.021, five of
    these.
    """
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
    a, b, larger, other = (
        time_contrastive(n, seed=s) for n, s in ((50, 1), (50, 1), (100, 1), (50, 2))
    )
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.mixing.weights, larger.mixing.weights)
    assert not np.allclose(a.mixing.weights[0], other.mixing.weights[0])


def test_labelings_are_independent_and_each_is_in_its_own_subspace() -> None:
    """Undone, the mixing leaves the clusters around their centers, and noise of the given deviation
    in the rest.

    20,000 rows: a mean's error is below 0.02 (about 1,700 rows a cluster of both, deviation 1),
    five of these.
    """
    data = labelings(20_000, (3, 4), (2, 3), width=7, scales=(1, 2), noise=0.1, seed=1)
    undone = data.mixing.inverse(data.x)
    np.testing.assert_allclose(undone[:, 5:].std(0), 0.1, atol=0.005)
    np.testing.assert_array_equal(data.sources[:, 5:], 0)
    own = {0: undone[:, :2], 1: undone[:, 2:5] / 2}
    for which, (coordinates, centers, label) in enumerate(
        zip(own.values(), data.centers, data.labels, strict=True)
    ):
        other = data.labels[1 - which]
        for k, center in enumerate(centers):
            np.testing.assert_allclose(
                coordinates[label == k].std(0), np.sqrt(1 + (0.1 / (1 + which)) ** 2), atol=0.07
            )
            for both in (0, 1, 2):
                rows = coordinates[(label == k) & (other == both)]
                np.testing.assert_allclose(rows.mean(0), center, atol=0.15)
        neighbors = np.linalg.norm(centers - np.roll(centers, 1, axis=0), axis=1)
        np.testing.assert_allclose(neighbors, 6, atol=1e-9)
    joint = np.histogram2d(*data.labels, bins=(3, 4))[0] / 20_000
    np.testing.assert_allclose(joint, 1 / 12, atol=5 * np.sqrt(1 / 12 / 20_000))


def test_the_bayes_rule_errs_as_often_as_it_must() -> None:
    """K clusters on a line err with probability 2 (K - 1) / K Phi(-separation / (2 deviation)), the
    deviation being that of a cluster and of the noise; five standard errors.
    """
    n, noise, scales = 20_000, 0.6, (1.0, 3.0)
    data = labelings(n, (2, 5), (1, 1), 6, separation=3.0, scales=scales, noise=noise, seed=1)
    for K, scale, label, found in zip((2, 5), scales, data.labels, data.likeliest(), strict=True):
        expected = 2 * (K - 1) / K * norm.cdf(-1.5 / np.hypot(1, noise / scale))
        deviation = np.sqrt(expected * (1 - expected) / n)
        assert (found != label).mean() == pytest.approx(expected, abs=5 * deviation)


def test_labelings_on_a_line_and_mixed_by_more_than_a_rotation() -> None:
    data, same, other = (
        labelings(500, (5,), (1,), width=3, num_layers=3, noise=0.0, seed=seed)
        for seed in (2, 2, 3)
    )
    np.testing.assert_allclose(np.diff(data.centers[0], axis=0), 6)
    np.testing.assert_allclose(data.mixing.inverse(data.x), data.sources, atol=1e-9)
    np.testing.assert_array_equal(same.x, data.x)
    assert not np.array_equal(other.labels[0], data.labels[0])
