"""Metrics against cases worked out by hand, and against chance."""

from __future__ import annotations

import numpy as np
import pytest

from inference.metrics import cluster_accuracy, cluster_map, clustering_scores, mean_correlation, probe_accuracy

#          cluster 5: labels 0 0 1   cluster 7: 1 1   cluster 9: 2 0
LABELS = [0, 0, 1, 1, 1, 2, 0]
CLUSTERS = [5, 5, 5, 7, 7, 9, 9]


def test_majority_counts_the_commonest_label_of_each_cluster() -> None:
    assert cluster_accuracy(LABELS, CLUSTERS) == pytest.approx((2 + 2 + 1) / 7)


def test_hungarian_gives_each_class_one_cluster() -> None:
    assert cluster_map(LABELS, CLUSTERS, "hungarian") == {5: 0, 7: 1, 9: 2}
    # Four clusters for three classes: the fourth stands for nothing.
    clusters = [5, 5, 6, 7, 7, 9, 9]
    assert cluster_accuracy([0, 0, 0, 1, 1, 2, 2], clusters, "hungarian") == pytest.approx(6 / 7)
    assert cluster_accuracy([0, 0, 0, 1, 1, 2, 2], clusters) == 1


def test_map_from_another_split() -> None:
    train = ([0, 0, 1, 1], [3, 3, 4, 4])
    assert cluster_accuracy([0, 1, 1, 0], [3, 4, 3, 8], map_from=train) == pytest.approx(2 / 4)


def test_one_cluster_a_datum_flatters_the_majority_vote_only() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 200)
    own = np.arange(200)
    assert cluster_accuracy(labels, own) == 1
    assert cluster_accuracy(labels, own, "hungarian") == pytest.approx(10 / 200)


def test_scores_of_a_perfect_and_a_random_clustering() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 20_000)
    perfect = clustering_scores(labels, (labels + 3) % 10)
    assert all(value == pytest.approx(1) for value in perfect.values())
    chance = clustering_scores(labels, rng.integers(0, 10, 20_000))
    # ARI has mean 0 by chance; its spread at 20,000 data is below 2e-4, so 1e-3 is five deviations.
    assert abs(chance["ari"]) < 1e-3
    assert chance["accuracy"] < 0.13


def test_probe_reads_what_is_there_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 1500)
    told = rng.normal(size=(1500, 2)) * 0.1 + labels[:, None]
    untold = rng.normal(size=(1500, 2))
    assert probe_accuracy(told[:1000], labels[:1000], told[1000:], labels[1000:]) > 0.95
    # Chance is 1/3 with a deviation of 0.021 on 500 data: five of them above.
    assert probe_accuracy(untold[:1000], labels[:1000], untold[1000:], labels[1000:]) < 1 / 3 + 5 * 0.021


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_correlation_is_one_whatever_order_sign_and_scale(method: str) -> None:
    rng = np.random.default_rng(0)
    sources = rng.normal(size=(300, 4))
    latents = sources[:, [2, 0, 3, 1]] * np.array([-1.0, 5.0, 0.1, -7.0]) + 3
    assert mean_correlation(sources, latents, method) == pytest.approx(1)


def test_spearman_sees_through_a_monotone_map_that_pearson_does_not() -> None:
    rng = np.random.default_rng(0)
    sources = rng.normal(size=(300, 2))
    assert mean_correlation(sources, np.exp(3 * sources), "spearman") == pytest.approx(1)
    assert mean_correlation(sources, np.exp(3 * sources)) < 0.8


def test_a_dead_latent_counts_as_no_correlation() -> None:
    sources = np.random.default_rng(0).normal(size=(300, 3))
    latents = sources.copy()
    latents[:, 1] = 4.2
    for method in ("pearson", "spearman"):
        assert mean_correlation(sources, latents, method) == pytest.approx(2 / 3, abs=0.05)


def test_labels_may_be_strings() -> None:
    assert cluster_accuracy(["cat", "cat", "dog"], [0, 0, 1]) == 1


def test_correlation_of_noise_is_small() -> None:
    rng = np.random.default_rng(0)
    # Correlations of independent columns have deviation 1 / sqrt(10,000) = 0.01; the best of 9 stays below 0.05.
    assert mean_correlation(rng.normal(size=(10_000, 3)), rng.normal(size=(10_000, 3))) < 0.05
