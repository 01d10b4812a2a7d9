"""Facets that add up: the density, what EM finds, and how facets and clusters are counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import normalized_mutual_info_score

from facetvae.estimators import MultiFacetClustering
from facetvae.table_rules.sums import (
    ONE,
    OWN,
    FacetSum,
    _mixture,
    agreeing,
    facets_that_add_up,
    share_alike,
)
from lab.protocols.embeddings import drawn_embeddings
from tests.agreement import agreement

# One draw, and in thorough tests two more.
DRAWS = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.thorough) for s in (1, 2))]
)


def drawn(
    n: int, numbers: tuple[int, ...], seed: int, size: float = 3.0
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows of 8 numbers that are sums, with noise that is correlated."""
    rng = np.random.default_rng(seed)
    labels = [rng.integers(k, size=n) for k in numbers]
    means = [size * rng.normal(size=(k, 8)) for k in numbers]
    noise = rng.normal(size=(n, 8)) @ (np.eye(8) + 0.3 * rng.normal(size=(8, 8)))
    return sum(m[own] for m, own in zip(means, labels, strict=True)) + noise, labels


def test_a_density_is_that_of_all_combinations() -> None:
    """The mixture of Ghahramani (1995), Eq. 2 and 3, with SciPy's normals."""
    rng = np.random.default_rng(0)
    means = [rng.normal(size=(k, 4)) for k in (2, 3)]
    weights = [rng.dirichlet(np.ones(k)) for k in (2, 3)]
    root = rng.normal(size=(4, 4))
    found = FacetSum(rng.normal(size=4), means, weights, root @ root.T + np.eye(4))
    x = rng.normal(size=(5, 4))
    expected = np.stack(
        [
            np.log(weights[0][i] * weights[1][j])
            + multivariate_normal(found.loc + means[0][i] + means[1][j], found.covariance).logpdf(x)
            for i, j in product(range(2), range(3))
        ],
        1,
    )
    np.testing.assert_allclose(found.log_joint(x).reshape(5, 6), expected, rtol=1e-9)
    np.testing.assert_allclose(found.log_density(x), logsumexp(expected, 1), rtol=1e-9)
    for own, axis in zip(found.responsibilities(x), (2, 1), strict=True):
        p = np.exp(expected - logsumexp(expected, 1, keepdims=True)).reshape(5, 2, 3)
        np.testing.assert_allclose(own, p.sum(axis), atol=1e-9)
    unit = rng.uniform(0.5, 2, 4)
    moved = found.divided_by(unit).log_density(x / unit) - np.log(unit).sum()
    np.testing.assert_allclose(moved, found.log_density(x), rtol=1e-9)


@pytest.mark.parametrize("drawn", [OWN, ONE])
def test_covariances_are_drawn_to_what_they_have_in_common(drawn: float) -> None:
    """Of clusters that lie far apart: each one's own, weighted by its rows, and the mean of all,
    weighted by further rows, ``drawn`` for each of four columns; SciPy's normals of these.
    """
    rng = np.random.default_rng(0)
    label = rng.permutation(np.arange(90) % 9 // 2 % 3)  # of 40, 30 and 20 rows
    scale = np.exp(rng.normal(size=(3, 4)))[label]
    x = 20 * rng.normal(size=(3, 4))[label] + scale * rng.normal(size=(90, 4))
    rows = np.bincount(label)
    own = np.stack([np.cov(x[label == k].T, bias=True) for k in range(3)])
    mean = np.average(own, 0, rows)
    share = (rows / (rows + 4 * drawn))[:, None, None]
    each = zip((rows + 1) / 93, share * own + (1 - share) * mean, range(3), strict=True)
    expected = [
        np.log(w) + multivariate_normal(x[label == k].mean(0), covariance).logpdf(x)
        for w, covariance, k in each
    ]
    found = _mixture(x, 3, 0, drawn)
    np.testing.assert_allclose(found.log_density, logsumexp(expected, 0), atol=0.01)
    assert found.free == 3 * 4 + 2 + (3 if drawn < np.inf else 1) * 4 * 5 / 2


def test_coordinates_of_a_facet_know_nothing_of_the_others() -> None:
    """In each facet's coordinates the other's means are 0, and the rest's noise is uncorrelated
    with them.
    """
    x, _ = drawn(800, (3, 2), seed=1)
    found = facets_that_add_up(x, [3, 2])
    first, second, rest = found.subspaces.maps
    assert [len(first), len(second), len(rest)] == [2, 1, 5]
    np.testing.assert_allclose(first @ found.means[1].T, 0, atol=1e-8)
    np.testing.assert_allclose(second @ found.means[0].T, 0, atol=1e-8)
    np.testing.assert_allclose(rest @ np.concatenate(found.means).T, 0, atol=1e-8)
    np.testing.assert_allclose(rest @ found.covariance @ rest.T, np.eye(5), atol=1e-8)
    both = np.concatenate([first, second])
    np.testing.assert_allclose(rest @ found.covariance @ both.T, 0, atol=1e-8)


@DRAWS
def test_labelings_are_found_told_and_untold(seed: int) -> None:
    x, labels = drawn(900, (4, 3), seed)
    told, untold = facets_that_add_up(x, [4, 3]), facets_that_add_up(x)
    assert told.numbers == [4, 3]
    assert min(agreement(told.labels(x), labels)) > 0.9
    assert untold is not None
    assert len(untold.numbers) == 2
    assert min(agreement(untold.labels(x), labels)) > 0.8


def test_one_facet_of_known_clusters_is_linear_discriminant_analysis() -> None:
    """Scikit-learn's, with the covariance within its classes divided by N."""
    x, (label,) = drawn(400, (3,), seed=1, size=0.5)
    found = agreeing(x, facets_that_add_up(x, [2]), {0: label}, [None])
    rule = LinearDiscriminantAnalysis(solver="lsqr").fit(x, label)
    np.testing.assert_allclose(found.responsibilities(x)[0], rule.predict_proba(x), atol=0.02)


def test_a_facet_follows_its_labels_whichever_they_are_of() -> None:
    x, labels = drawn(900, (4, 3), seed=0)
    found = facets_that_add_up(x, [4, 3])
    for place, share in product((0, 1), (0.05, 1.0)):
        label = np.where(np.random.default_rng(0).random(900) < share, labels[place], -1)
        other, known = agreeing(x, found, {1: label}, [None, None]).labels(x)
        assert (known == labels[place]).mean() > 0.97, (place, share)
        assert agreement([other], [labels[1 - place]])[0] > 0.9, (place, share)
    firsts = np.unique(labels[1], return_index=True)[1]
    label = np.full(900, -1)
    label[firsts] = labels[1][firsts]
    assert agreeing(x, found, {0: label}, [None, None]).numbers[0] == 3, "one row of each"


def test_labels_of_the_weak_labeling_name_its_facet() -> None:
    """Of a tenth of the rows. All rows' likelihood says little of it, and a facet that began with
    the nearest labeled center shared 0.02 with it.
    """
    rows = drawn_embeddings(1200, (6, 4), (0.2, 0.05), width=384, common=0.5, seed=2)
    label = np.where(np.random.default_rng(0).random(1200) < 0.1, rows.labels[1], -1)
    found = MultiFacetClustering(("other", "known"), random_state=0)
    other, known = found.fit(rows.x, labels={"known": label}).labels_.T
    assert (known == rows.labels[1]).mean() > 0.95
    assert normalized_mutual_info_score(other, rows.labels[0]) > 0.9


def test_what_clusters_consist_of_is_no_further_facet() -> None:
    """Each of three clusters has three parts, which lie further apart than the second labeling's
    two clusters do. Looked for beside three clusters, a second facet is the parts: it shares at
    most 0.04 with the labeling in six draws, and 0.87 or more in five of them looked for beside
    the parts.
    """
    rng = np.random.default_rng(1)
    first, part, second = (rng.integers(k, size=600) for k in (3, 3, 2))
    whole, own, other = (rng.normal(size=(k, 24)) for k in (3, 9, 2))
    means = 4 * whole[first] + 2 * own[3 * first + part] + other[second]
    x = means + rng.normal(size=(600, 24))
    found = facets_that_add_up(x, [3, 2])
    assert found is not None
    assert min(agreement(found.labels(x), [first, second])) > 0.9


def test_clusters_that_are_combinations_hide_no_facet() -> None:
    """The lowest BIC is that of 12 clusters, nearly all combinations of three and five; beside
    these, what was found shared 0.42 and 0.80 with the labelings.
    """
    x, labels = drawn(600, (3, 5), seed=7, size=2.5)
    found = facets_that_add_up(x)
    assert found is not None
    assert min(agreement(found.labels(x), labels)) > 0.95


@DRAWS
def test_clusters_may_have_noise_of_their_own(seed: int) -> None:
    """Three clusters, each with its own covariance, and two beside them. With one covariance for
    all, the weaker of the two labelings shares 0.56 to 0.79 with what is found.
    """
    rng = np.random.default_rng(seed)
    labels = [rng.integers(k, size=1200) for k in (3, 2)]
    roots = rng.normal(size=(3, 16, 16)) * np.exp(0.7 * rng.normal(size=(3, 1, 16)))
    noise = np.einsum("nij,nj->ni", roots[labels[0]], rng.normal(size=(1200, 16)))
    means = [rng.normal(size=(k, 16)) for k in (3, 2)]
    x = sum(m[own] for m, own in zip(means, labels, strict=True)) + noise / noise.std(0)
    for found in (facets_that_add_up(x), facets_that_add_up(x, [2, 3])):
        assert found is not None
        assert found.numbers == [2, 3]
        assert min(agreement(found.labels(x), labels)) > 0.85


@DRAWS
def test_two_clusters_in_one_direction_are_a_facet_beside_others(seed: int) -> None:
    """Three deviations apart: the Bayes rule shares 0.65, and facets of six draws 0.48 to 0.67.
    By BIC two clusters would be one, for the parameters of 16 directions: in all six.
    """
    rng = np.random.default_rng(seed)
    labels = [rng.integers(k, size=1200) for k in (3, 2)]
    scales, centers = np.exp(0.5 * rng.normal(size=(3, 16))), 1.5 * rng.normal(size=(3, 16))
    scales[:, 0], centers[:, 0] = 1, 0
    x = centers[labels[0]] + scales[labels[0]] * rng.normal(size=(1200, 16))
    x[:, 0] = 1.5 * (x[:, 0] + 3 * labels[1])
    found = facets_that_add_up(x)
    assert found is not None
    first, second = agreement(found.labels(x), labels)
    assert first > 0.95
    assert second > 0.4


@pytest.mark.parametrize(("alike", "apart"), [(1.0, 0.0), (1.0, 1.0), (1.0, 3.0), (0.0, 1.0)])
def test_what_is_alike_is_a_share_of_variances(alike: float, apart: float) -> None:
    """Of a balanced two-way design, whose variances between cells are known; the share is right to
    a fiftieth, where one without the correction for chance is off by up to 0.13.
    """
    rng = np.random.default_rng(0)
    first, second = np.divmod(np.arange(2000) % 20, 5)
    own, cell = rng.normal(size=(5, 30)), rng.normal(size=(4, 5, 30))
    own -= own.mean(0)
    cell -= cell.mean(0) + cell.mean(1, keepdims=True) - cell.mean((0, 1))
    own, cell = (each / np.square(each).mean() ** 0.5 for each in (own, cell))
    x = np.sqrt(alike) * own[second] + np.sqrt(apart) * cell[first, second]
    x += 3 * rng.normal(size=(4, 30))[first] + 5 * rng.normal(size=x.shape)
    assert abs(share_alike(x, first, second) - alike / (alike + apart)) < 0.02


@DRAWS
def test_heavy_tails_are_no_second_facet(seed: int) -> None:
    """Of Student's t with five degrees of freedom."""
    rng = np.random.default_rng(seed)
    tails = np.sqrt(5 / rng.chisquare(5, size=(800, 1)))
    found = facets_that_add_up(tails * rng.normal(size=(800, 12)))
    assert found is None or len(found.numbers) == 1


@DRAWS
def test_skewed_variables_are_no_clusters(seed: int) -> None:
    """Of independent exponentials: mixtures of six to eight normals make them likelier than one."""
    rng = np.random.default_rng(seed)
    skewed = rng.exponential(size=(800, 6)) @ rng.normal(size=(6, 6))
    assert facets_that_add_up(skewed) is None


@DRAWS
def test_there_may_be_one_facet(seed: int) -> None:
    x, labels = drawn(300, (3,), seed)
    found = facets_that_add_up(x)
    assert found is not None
    assert found.numbers == [3]
    assert agreement(found.labels(x), labels)[0] > 0.9


def test_there_may_be_none() -> None:
    """Of three draws; a rule that called chance a facet half the time would pass once in 8."""
    for seed in range(3):
        assert facets_that_add_up(drawn(300, (3,), seed, size=0.0)[0]) is None, seed
    assert facets_that_add_up(np.ones((100, 3))) is None
    assert facets_that_add_up(np.random.default_rng(0).normal(size=(50, 3))) is None, "few rows"


def test_clusters_of_embeddings_may_be_more_than_directions() -> None:
    rows = drawn_embeddings(200, (3, 2), (0.3, 0.2), width=64, decay=0.5, seed=1).x
    found = MultiFacetClustering(2, n_clusters=[9, 8], random_state=0).fit(rows)
    assert found.settings_["start"] == "SumStrategy"
    assert found.predict(rows).shape == (200, 2)
    assert np.isfinite(found.score(rows))


def test_numbers_that_are_given_hold_where_they_are_too_many_for_sums() -> None:
    rows = drawn_embeddings(300, (3, 4), (0.3, 0.15), width=64, common=0.5, decay=1.2, seed=0).x
    how = {"network": "linear", "random_state": 0}
    assert MultiFacetClustering(**how).fit(rows).settings_["start"] == "SumStrategy"
    found = MultiFacetClustering(n_clusters=[25, 4], **how).fit(rows)
    assert [p.num_components for p in found.runner_.model.mixtures.values()] == [25, 4]


def test_a_grid_is_one_facet_to_whom_asks_for_one() -> None:
    rows = drawn_embeddings(600, (3, 2), (0.3, 0.25), width=64, decay=0.5, seed=1).x
    for how in ({}, {"n_clusters": 6}):
        found = MultiFacetClustering(1, random_state=0, **how).fit(rows)
        assert found.settings_["start"] == "SumStrategy"
        assert found.labels_.shape == (600, 1)


def test_a_fit_is_that_of_the_sum() -> None:
    """Its clusters are those of the start, and its bound is near the start's exact density."""
    embedded = drawn_embeddings(400, (3, 2), (0.3, 0.2), width=64, decay=0.5, seed=2)
    found = MultiFacetClustering(random_state=0).fit(embedded.x)
    assert found.settings_["model"].startswith("linear")
    assert min(agreement(found.labels_.T, embedded.labels)) > 0.9
    x = found.encode(embedded.x).astype(float)
    unit = found.reader_.view(x, found.encoding_).unit
    start = facets_that_add_up(x * unit).divided_by(unit)
    for own, label in zip(found.labels_.T, start.labels(x), strict=True):
        assert normalized_mutual_info_score(own, label) > 0.97
    exact = start.log_density(x).mean() - found.encoding_.log_volume(embedded.x).mean()
    assert exact - 2 < found.score(embedded.x) < exact + 0.1
