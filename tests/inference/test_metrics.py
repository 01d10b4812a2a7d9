"""Metrics against cases worked out by hand, and against chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cross_decomposition import CCA

from inference.metrics import (
    HeldOutCorrelation,
    cluster_accuracy,
    cluster_map,
    clustering_scores,
    held_out_correlation,
    mean_correlation,
    probe_accuracy,
)

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
    assert (
        probe_accuracy(untold[:1000], labels[:1000], untold[1000:], labels[1000:])
        < 1 / 3 + 5 * 0.021
    )
    # 200 epochs of one step each are too few to converge, which is no news and gives no warning.
    assert probe_accuracy(told[:50], labels[:50], told[50:], labels[50:]) > 1 / 3


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
    for dtype in (object, "string", "category"):
        labels = pd.Series(["cat", "cat", "dog"], dtype=dtype)
        assert clustering_scores(labels, [0, 0, 1])["accuracy"] == 1


@pytest.mark.parametrize(
    "labels",
    [
        np.ma.array([0, 9, 1], mask=[0, 1, 0]),
        pd.array([0, None, 1], dtype="Int64"),
        pd.Series(["cat", None, "dog"]),
        np.array([0, np.inf, 1]),
    ],
    ids=["masked", "pandas.NA", "None", "infinity"],
)
def test_labels_that_lack_some_are_refused(labels: Any) -> None:
    with pytest.raises(ValueError, match="labels hold NaN, infinity or missing entries"):
        clustering_scores(labels, [0, 0, 1])


def test_correlation_of_noise_is_small() -> None:
    rng = np.random.default_rng(0)
    # Correlations of independent columns have deviation 1 / sqrt(10,000) = 0.01; the best of 9
    # stays below 0.05.
    assert mean_correlation(rng.normal(size=(10_000, 3)), rng.normal(size=(10_000, 3))) < 0.05


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_held_out_correlation_of_permuted_flipped_and_scaled_sources_is_one(method: str) -> None:
    sources = np.random.default_rng(0).laplace(size=(200, 5))
    latents = sources[:, [3, 0, 4, 2, 1]] * [-1, 2, -0.1, 30, -7] + 4
    found = held_out_correlation(sources, latents, method)
    assert (found.in_sample, found.out_of_sample) == (pytest.approx(1), pytest.approx(1))


def test_alignment_undoes_any_linear_mixing_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    sources = rng.laplace(size=(400, 5))
    mixed = sources @ rng.normal(size=(5, 5)) + 1
    assert held_out_correlation(sources, mixed).out_of_sample < 0.9
    aligned = held_out_correlation(sources, mixed, align=True)
    assert (aligned.in_sample, aligned.out_of_sample) == (pytest.approx(1), pytest.approx(1))
    bent = held_out_correlation(sources, np.tanh(2 * mixed) ** 3, align=True)
    assert bent.out_of_sample < 0.98


@pytest.mark.parametrize("align", [False, True])
def test_noise_correlates_in_sample_and_not_out_of_sample(align: bool) -> None:
    """200 trials of 60 data in 5 dimensions: out of sample the mean is 0 within four of its
    standard errors.

    A leak of the scored half into the map would show as a mean of 0.2 and more, which is what the
    other half has.
    """
    rng = np.random.default_rng(2)
    trials = [
        held_out_correlation(rng.normal(size=(60, 5)), rng.normal(size=(60, 5)), align=align)
        for _ in range(200)
    ]
    out = np.array([trial.out_of_sample for trial in trials])
    assert abs(out.mean()) < 4 * out.std(ddof=1) / np.sqrt(len(out))
    assert out.std(ddof=1) / np.sqrt(len(out)) < 0.01
    assert np.mean([trial.in_sample for trial in trials]) > 0.2


def test_rematched_is_the_mean_correlation_of_the_second_half_alone() -> None:
    """As the paper's authors score what CCA has aligned: the map is the first half's, the match is
    of the half that is scored.
    """
    rng = np.random.default_rng(4)
    one, other = rng.normal(size=(2, 80, 4))
    found = held_out_correlation(one, other)
    assert found.rematched == pytest.approx(mean_correlation(one[40:], other[40:]))
    assert found.rematched > found.out_of_sample
    map_ = CCA(n_components=3, max_iter=5000).fit(other[:40], one[:40])
    z, s = map_.transform(other[40:], one[40:])
    aligned = held_out_correlation(one, other, align=True, num_variates=3)
    # CCA iterates to a tolerance, from another basis here.
    assert aligned.rematched == pytest.approx(mean_correlation(s, z), rel=1e-3)


def test_the_best_variates_alone_leave_out_what_is_not_shared() -> None:
    """Three shared coordinates and two of noise, mixed: three of five variates are perfect."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(4000, 3))
    one, other = (
        np.concatenate([shared, rng.normal(size=(4000, 2))], 1) @ rng.normal(size=(5, 5))
        for _ in range(2)
    )
    best = held_out_correlation(one, other, align=True, num_variates=3)
    assert (best.in_sample, best.out_of_sample) == (pytest.approx(1), pytest.approx(1))
    assert held_out_correlation(one, other, align=True).out_of_sample == pytest.approx(
        0.6, abs=0.05
    )


@pytest.mark.parametrize("lost", ["dead", "copied", "all dead"])
def test_latents_of_lower_rank_align_as_far_as_they_go(lost: str) -> None:
    """Four of five variates are perfect; a dead latent made it 0.2 to 0.7, by the draw."""
    rng = np.random.default_rng(0)
    sources = rng.normal(size=(400, 5))
    latents = sources @ rng.normal(size=(5, 5))
    latents[:, 0] = 0.1 if lost == "dead" else latents[:, 1]
    if lost == "all dead":
        latents[:] = 0.1
    found = held_out_correlation(sources, latents, align=True)
    expected = 0 if lost == "all dead" else 0.8
    for value in (found.in_sample, found.out_of_sample, found.rematched):
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.5, 0.0, 0.1, 1 / 3, -1e300])
@pytest.mark.parametrize("rows", [50, 100], ids=["in the first half", "everywhere"])
def test_constant_latents_correlate_with_nothing(value: float, rows: int) -> None:
    sources, latents = np.random.default_rng(0).normal(size=(2, 100, 2))
    latents[:rows] = value
    found = held_out_correlation(sources, latents, align=True)
    assert found == HeldOutCorrelation(0.0, 0.0, 0.0)


@pytest.mark.parametrize("size", [1e-170, 1e200])
def test_correlation_is_the_same_in_any_unit(size: float) -> None:
    sources, noise = np.random.default_rng(0).normal(size=(2, 100, 3))
    latents = sources + noise
    found = mean_correlation(size * sources, latents / size)
    assert found == pytest.approx(mean_correlation(sources, latents))
