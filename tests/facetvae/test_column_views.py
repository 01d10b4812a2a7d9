"""Groupings that are sets of columns, and which tables need more than linear maps."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_blobs
from sklearn.metrics import normalized_mutual_info_score as nmi
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.linear_maps import set_widths
from facetvae.table_rules.column_views import (
    ColumnView,
    ColumnViews,
    Statistics,
    SubspaceView,
    column_views,
    contrasts,
)
from facetvae.table_rules.column_views import _correlated as correlated
from facetvae.table_rules.column_views import _view as view_of
from facetvae.table_rules.counting import FacetCount, SubspaceEvidence
from facetvae.table_rules.merging import MergeTree
from facetvae.table_rules.subspaces import curvature_p_value
from lab.benchmarks.customer_tables import customer_table
from lab.benchmarks.numbers_found import NONE, SHAPES, standardized, without_clusters
from lab.protocols.sources import labelings
from tests.agreement import agreement

pytestmark = pytest.mark.slow(10)


@cache
def codes_and_numbers(gaps: float = 0.0) -> tuple[np.ndarray, list[int]]:
    """Two groupings: of three clusters in two numbers and codes, of two in two codes and a number;
    and a column of noise.
    """
    n, rng = 400, np.random.default_rng(3)
    a, b = rng.integers(3, size=n), rng.integers(2, size=n)

    def coded(label: np.ndarray, levels: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.9, label, rng.integers(levels, size=n))

    def number(label: np.ndarray) -> np.ndarray:
        return 3 * label + rng.normal(size=n)

    columns = [number(a), coded(b, 2), number(-a), coded(a, 3), coded(b, 2), number(b)]
    values = np.stack([*columns, rng.normal(size=n)], 1)
    values[rng.random(values.shape) < gaps] = np.nan
    return values, [0, 2, 0, 3, 2, 0, 0]


@cache
def found_in_codes_and_numbers(gaps: float) -> ColumnViews:
    return column_views(*codes_and_numbers(gaps))


@cache
def fitted_to_numbers() -> tuple[MultiFacetClustering, np.ndarray]:
    x = codes_and_numbers()[0][:, [0, 2, 5, 6]]
    return MultiFacetClustering(random_state=0).fit(x), x


def test_a_log_density_is_that_of_each_columns_own_distribution() -> None:
    """Against densities written out: of each row under clusters that are given."""
    values, levels = codes_and_numbers()
    r = np.random.default_rng(0).dirichlet(np.ones(2), len(values))
    statistics = Statistics(values, np.array(levels))
    found = statistics.features @ statistics.coefficients(r)
    known = np.zeros_like(found)
    for d, number in enumerate(levels):
        for k, weight in enumerate(r.T):
            own = values[:, d]
            if number:
                share = np.array([weight[own == level].sum() for level in range(number)])
                known[:, k] += np.log(share / share.sum())[own.astype(int)]
            else:
                mean = np.average(own, weights=weight)
                deviation = np.sqrt(np.average((own - mean) ** 2, weights=weight))
                known[:, k] += norm.logpdf(own, mean, deviation)
    np.testing.assert_allclose(found, known, atol=0.15)  # one row of a prior beside 200
    assert np.abs(found - known).mean() < 0.02


@pytest.mark.parametrize("gaps", [0.0, 0.15])
def test_sets_of_columns_are_found(gaps: float) -> None:
    found = found_in_codes_and_numbers(gaps)
    assert sorted(view.columns.tolist() for view in found.views) == [[0, 2, 3], [1, 4, 5]]
    assert sorted(view.num_clusters for view in found.views) == [2, 3]
    for r in found.responsibilities(codes_and_numbers(gaps)[0]):
        np.testing.assert_allclose(r.sum(1), 1)


@pytest.mark.parametrize("seed", range(3))
def test_small_clusters_are_found(seed: int) -> None:
    """Of one row in fifty, three deviations from the others in each of four columns beside four of
    another grouping: cut in fifths alone, too few of these depend on each other (missed in all of
    twelve such sets).
    """
    rng = np.random.default_rng(seed)
    small, other = np.arange(1000) < 20, rng.integers(3, size=1000)
    x = rng.normal(size=(1000, 8)) + 3.0 * np.stack([small] * 4 + [other] * 4, 1)
    found = column_views(x, [0] * 8)
    clusters = (r.argmax(1) for r in found.responsibilities(x))
    assert sorted(view.columns.tolist() for view in found.views) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert agreement(clusters, [small])[0] > 0.8


def test_columns_join_the_set_that_they_gain_most_in() -> None:
    """Of 100 rows, in which not all columns of a set depend on each other beyond chance."""
    joined = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        label = rng.integers(3, size=100)
        x = 1.5 * rng.normal(size=(3, 6))[label] + rng.normal(size=(100, 6))
        views = column_views(np.concatenate([x, rng.normal(size=(100, 4))], 1), [0] * 10).views
        joined.append(sum(len(np.intersect1d(view.columns, range(6))) for view in views))
    assert sum(joined) >= 25  # 18 if none joins


@pytest.mark.parametrize("number", [9, 12, pytest.param(16, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_many_clusters_are_found_beside_few(number: int, seed: int) -> None:
    """A set with eight clusters or more was taken for a curve: nothing was found of the many."""
    rng = np.random.default_rng(seed)
    labels = [rng.integers(k, size=1500) for k in (3, number)]
    x = np.concatenate([2.0 * rng.normal(size=(label.max() + 1, 6))[label] for label in labels], 1)
    found = column_views(x + rng.normal(size=x.shape), [0] * 12)
    assert sorted(view.columns.tolist() for view in found.views) == [[*range(6)], [*range(6, 12)]]
    assert min(agreement((view.r.argmax(1) for view in found.views), labels)) > 0.8
    assert not found.curved


def test_columns_on_a_curve_beside_a_grouping_are_told() -> None:
    """A circle's parts were seven clusters, and the grouping was lost."""
    rng = np.random.default_rng(0)
    label, angle = rng.integers(3, size=1000), rng.uniform(0, 2 * np.pi, 1000)
    numbers = 3 * rng.normal(size=(3, 4))[label] + rng.normal(size=(1000, 4))
    circle = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.1 * rng.normal(size=(1000, 2))
    x = pd.DataFrame(np.concatenate([numbers, circle], 1), columns=list("abcdef"))
    with pytest.warns(UserWarning, match=r"the columns \['e', 'f'\] of X depend on each other"):
        found = MultiFacetClustering(random_state=0, network="linear").fit(x)
    assert found.n_clusters_ == [3]
    assert nmi(label, found.labels_[:, 0]) > 0.6


def test_a_wide_cluster_stays_one() -> None:
    """K-means with three clusters divides it and joins two narrow ones, so four were found."""
    for seed in (0, 4):
        rng = np.random.default_rng(seed)
        label = rng.choice(3, 1000, p=[0.6, 0.2, 0.2])
        loc, scale = np.array([[0, 0, 0], [9, 0, 0], [9, 3.5, 3.5]]), np.array([3, 1, 1])
        x = loc[label] + scale[label][:, None] * rng.normal(size=(1000, 3))
        found = view_of(Statistics(x, np.zeros(3, int)), np.arange(3), 0)
        assert found.num_clusters == 3
        assert nmi(label, found.r.argmax(1)) > 0.9


def test_a_row_without_values_has_the_weights() -> None:
    for r in found_in_codes_and_numbers(0.0).responsibilities(np.full((1, 7), np.nan)):
        assert 1 / 6 < r.min() <= r.max() < 0.6


def test_a_number_of_clusters_can_be_told() -> None:
    found = found_in_codes_and_numbers(0.0)
    told = found.only([1], [4])
    assert [view.num_clusters for view in told.views] == [4]
    np.testing.assert_array_equal(told.views[0].columns, found.views[1].columns)


@pytest.mark.parametrize("gaps", [0.0, 0.3])
@pytest.mark.parametrize("kind", NONE)
def test_columns_without_clusters_have_no_views(kind: str, gaps: float) -> None:
    """Correlated numbers, too: one normal is likelier than any clusters."""
    found: list[ColumnViews] = []
    for seed in range(3):
        x = standardized(without_clusters(kind, 40 + seed))
        x[np.random.default_rng(seed).random(x.shape) < gaps] = np.nan
        found.append(column_views(x, [0] * x.shape[1]))
    assert sum(each.number for each in found) == 0


@pytest.mark.parametrize("answers", [3, 5])
def test_answers_that_factors_explain_are_no_clusters(answers: int) -> None:
    """Two factors, without clusters, and answers on a scale."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        factors, left = rng.normal(size=(1000, 2)), rng.normal(size=(1000, 16))
        opinions = factors @ rng.normal(size=(2, 16)) + left
        at = norm.ppf(np.arange(1, answers) / answers) * opinions.std()
        assert not column_views(np.searchsorted(at, opinions).astype(float), [answers] * 16).views


def test_rotated_labelings_are_no_sets_of_columns() -> None:
    for seed in (7003, 7007):
        x = standardized(SHAPES["linear"](seed).x)
        assert column_views(x, [0] * x.shape[1]).number == 0


def test_more_columns_than_are_looked_at_have_no_views() -> None:
    assert column_views(np.zeros((30, 65)), [0] * 65).number == 0


def test_a_column_without_values_in_the_rows_that_are_looked_at() -> None:
    values, levels = codes_and_numbers()
    values = np.where(np.isin(np.arange(7), [4, 5]), np.nan, values)
    assert [view.columns.tolist() for view in column_views(values, levels).views] == [[0, 2, 3]]


def test_contrasts_keep_distances() -> None:
    r = np.random.default_rng(0).dirichlet(np.ones(4), 20)
    np.testing.assert_allclose(
        np.linalg.norm(r[:10] - r[10:], axis=1),
        np.linalg.norm(contrasts(r)[:10] - contrasts(r)[10:], axis=1),
    )


@cache
def customers() -> tuple[MultiFacetClustering, pd.DataFrame, dict[str, np.ndarray]]:
    table = customer_table(4, rows=800, columns=9)
    frame = table.frame()
    return MultiFacetClustering(random_state=0).fit(frame), frame, table.known


def test_an_estimator_finds_what_the_bayes_rule_does() -> None:
    found, frame, known = customers()
    assert found.settings_["model"].startswith("columns"), found.settings_
    assert found.settings_["ended"] == "not trained"
    assert min(agreement(found.labels_.T, known.values())) > 0.9
    assert (found.predict(frame) == found.labels_).mean() > 0.999


@pytest.mark.parametrize("more", ["a copy", "a sum"])
def test_a_column_that_others_tell_changes_no_grouping(more: str) -> None:
    """With a sum of two columns one grouping was told to 0.56, which is told to 0.86 without."""
    table = customer_table(305, rows=800, columns=9)
    x = table.frame().select_dtypes("number").to_numpy(float)
    told = x[:, 0] if more == "a copy" else x[:, 0] + x[:, 1]
    found = MultiFacetClustering(random_state=0).fit(np.column_stack([x, told]))
    assert found.settings_["start"] == "ViewStrategy"
    assert min(agreement(found.labels_.T, table.labels.values())) > 0.8


@pytest.mark.parametrize("times", [0.3, 3])
def test_posteriors_are_as_wide_as_the_bound_wants(times: float) -> None:
    found, frame, _ = customers()
    changed = copy.deepcopy(found)
    guide = changed.runner_.guide
    of_one = guide.encode(torch.as_tensor(found.encode(frame[:1])))
    set_widths(guide, times * np.concatenate([q.variance[0].detach() for q in of_one.values()]))
    assert changed.score(frame) < found.score(frame) - 0.1


def test_a_column_that_a_facet_determines_costs_no_bound() -> None:
    """It would be 100 nats and more if its latents were as wide as their clusters."""
    found, x = fitted_to_numbers()
    more = np.column_stack([x, np.where(x[:, 2] > 1.5, 5.0, 0.0)])
    assert MultiFacetClustering(random_state=0).fit(more).score(more) > found.score(x) - 3


def test_an_empty_column_says_nothing() -> None:
    found, x = fitted_to_numbers()
    empty = np.column_stack([x, np.full(len(x), np.nan)])
    again = MultiFacetClustering(random_state=0).fit(empty)
    assert again.settings_["start"] == "ViewStrategy"
    assert min(nmi(*both) for both in zip(found.labels_.T, again.labels_.T, strict=True)) > 0.95


@cache
def rotated_and_coded(gaps: float = 0.0) -> tuple[pd.DataFrame, list[np.ndarray]]:
    """Two labelings in six rotated numbers, of which none is a set of columns; one in codes."""
    drawn, rng = labelings(800, (2, 3), (2, 2), 6, seed=0), np.random.default_rng(0)
    code = rng.integers(3, size=800)
    frame = pd.DataFrame(drawn.x, columns=list("abcdef"))
    for name in ("city", "plan", "way"):
        own = np.where(rng.random(800) < 0.85, code, rng.integers(3, size=800))
        frame[name] = np.array(["x", "y", "z"])[own]
    return frame.mask(rng.random(frame.shape) < gaps), [*drawn.labels, code]


@pytest.mark.parametrize("gaps", [0.0, 0.1])
def test_rotated_numbers_have_facets_in_subspaces_beside_codes(gaps: float) -> None:
    """With a column's mean in each gap the rotated labelings were told to 0.85 and 0.89."""
    frame, labels = rotated_and_coded(gaps)
    found = MultiFacetClustering(random_state=0).fit(frame)
    assert found.settings_["found"].count("in a subspace of 6 columns") == 2
    best = agreement(found.labels_.T, labels)
    assert min(best[:2]) > 0.9
    assert best[2] > 0.75
    told = MultiFacetClustering(3, n_clusters=[2, 4, 3], random_state=0).fit(frame)
    assert sorted(told.settings_["n_clusters"].values()) == [2, 3, 4]


def answers(rows: int = 800) -> tuple[np.ndarray, list[np.ndarray]]:
    """Sixteen questions with yes or no: the first eight depend on one grouping, and eight on
    another.
    """
    rng = np.random.default_rng(1)
    labels = [rng.integers(k, size=rows) for k in (2, 3)]
    shares = [
        rng.random((k, 8)).clip(0.05, 0.95)[label] for k, label in zip((2, 3), labels, strict=True)
    ]
    return (rng.random((rows, 16)) < np.concatenate(shares, 1)).astype(float), labels


def frame_of(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(np.where(x, "yes", "no")).astype("category")


@pytest.mark.parametrize(
    "of", [np.asarray, lambda x: x > 0, lambda x: 0.8 * x + 0.1, lambda x: frame_of(x > 0)]
)
def test_answers_of_yes_and_no_are_columns(of: Callable[[np.ndarray], np.ndarray]) -> None:
    """As zeros and ones, truth values, any other two numbers, and a frame of categories alone."""
    x, labels = answers()
    found = MultiFacetClustering(random_state=0).fit(of(x))
    assert found.settings_["start"] == "ViewStrategy"
    told = np.array([[nmi(y, own) for own in found.labels_.T] for y in labels])
    assert told.shape == (2, 2)
    assert told.max(1).min() > 0.5
    assert told.min(1).max() < 0.05
    assert (found.predict(of(x)) == found.labels_).mean() > 0.99
    own = found.settings_["likelihood"] == "Bernoulli()"
    assert own == (found.settings_["values"] == "binary")


@pytest.mark.parametrize("rows", [12, 80])
def test_a_single_column_has_one_facet(rows: int) -> None:
    x = np.random.default_rng(0).random((rows, 1)) < 0.5
    found = MultiFacetClustering(epochs=1, random_state=0)
    with pytest.warns(UserWarning, match="no column of X tells of another"):
        found.fit(x)
    assert found.labels_.shape == (rows, 1)


def test_pictures_of_zeros_and_ones_are_no_columns() -> None:
    """Their one view has many clusters, and neighbors tell more."""
    found = MultiFacetClustering(epochs=1, random_state=0).fit(load_digits().data[:400] > 7)
    assert found.settings_["start"] == "NeighborStrategy"


def test_a_decoder_of_few_answers_has_no_infinite_weights() -> None:
    """Independent columns have a bound of -6.6 nats, at the shares of the ten columns; the sampled
    shares have a standard error of 0.01 each.
    """
    rng = np.random.default_rng(1)
    a, b = rng.integers(3, size=400), rng.integers(2, size=400)
    clean = np.stack([*(a == k for k in (0, 1, 2, 0, 1, 2)), *[b == 1] * 4], 1)
    x = np.where(rng.random(clean.shape) < 0.1, rng.random(clean.shape) < 0.5, clean).astype(float)
    found = MultiFacetClustering(random_state=0).fit(x)
    assert sorted(found.n_clusters_) == [2, 3]
    assert -5 < found.score(x) < -3
    np.testing.assert_allclose(found.sample(4000)[0].mean(0), x.mean(0), atol=0.08)


def test_answers_that_do_not_depend_on_each_other_are_told() -> None:
    x = np.random.default_rng(0).random((200, 6)) < 0.4
    with pytest.warns(UserWarning, match="no column of X tells of another beyond chance") as told:
        MultiFacetClustering(epochs=1, random_state=0).fit(x)
    assert told[0].filename == __file__


def test_a_grid_is_two_facets() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(3, size=600), rng.integers(2, size=600)
    both = np.stack([4 * a + 3 * b, 4 * a - 3 * b, 3 * b - a], 1) + rng.normal(size=(600, 3))
    found = column_views(np.column_stack([both, a, b]), [0, 0, 0, 3, 2])
    assert sorted(view.num_clusters for view in found.views) == [2, 3]
    for r in found.responsibilities(np.column_stack([both, a, b])):
        assert nmi(a if r.shape[1] == 3 else b, r.argmax(1)) > 0.95


def test_densities_of_views_and_subspaces_are_of_the_same_rows() -> None:
    """Both against a normal's own density, where there are no clusters, less BIC's cost."""
    x = np.random.default_rng(0).normal(size=(400, 3))
    views = column_views(x, [0, 0, 0])
    one = MergeTree(GaussianMixture(1).fit(x - x.mean(0)), np.zeros((0, 2), int), np.zeros(0))
    group = SubspaceEvidence(np.arange(3), one, 1.0, False)
    count = FacetCount([group], x.mean(0), np.eye(3))
    cost = np.log(400) / 800
    apart = norm.logpdf(x, x.mean(0), x.std(0)).sum(1) - 6 * cost
    joint = multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x) - (9 + 12) * cost
    np.testing.assert_allclose(views.log_density(), apart, atol=0.02)
    np.testing.assert_allclose(count.log_density(x), joint, atol=0.02)


def test_numbers_of_clusters_and_facets_that_are_told() -> None:
    _, frame, _ = customers()
    one = MultiFacetClustering(1, n_clusters=3, random_state=0).fit(frame)
    assert one.labels_.shape == (800, 1)
    assert one.settings_["n_clusters"] == {"facet_0": 3}
    assert one.settings_["counted"] == {"facet_0": "as given"}
    single = MultiFacetClustering(2, n_clusters=[1, 3], random_state=0).fit(frame)
    assert single.n_clusters_ == [1, 3]
    again = MultiFacetClustering(n_init=2, random_state=0).fit(frame)
    assert (again.stability_ > 0.6).all()


def test_a_view_of_known_clusters_is_naive_bayes_in_the_columns_that_tell_them_apart() -> None:
    """By scikit-learn's, which knows no prior; rows of a gap in a hundred."""
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=600)
    noise = rng.normal(size=600)
    x = np.column_stack([label + rng.normal(size=600), noise, rng.normal(size=600) - label])
    rows = Statistics(x, np.zeros(3, int))
    start = ColumnView(rows, np.array([1]), 0.0, np.ones((600, 1)))
    found = start.known(rows, label, 3)
    np.testing.assert_array_equal(found.columns, [0, 2])
    expected = GaussianNB().fit(x[:, [0, 2]], label).predict_proba(x[:, [0, 2]])
    np.testing.assert_allclose(found.responsibilities(rows), expected, atol=0.03)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_labels_do_not_make_their_facet_worse(share: float) -> None:
    """A facet of a tenth of the rows' labels had 0.65 where none of them had 0.87."""
    drawn = customer_table(1, rows=1500)
    truth = drawn.labels["first"]
    label = np.where(np.random.default_rng(0).random(1500) < share, truth, -1)
    found = MultiFacetClustering(("other", "known"), random_state=0).fit(
        drawn.frame(), labels={"known": label}
    )
    assert found.settings_["start"] == "ViewStrategy"
    other, known = found.labels_.T
    assert (known == truth).mean() > (drawn.known["first"] == truth).mean() - 0.02
    assert (
        nmi(drawn.labels["second"], other)
        > nmi(drawn.labels["second"], drawn.known["second"]) - 0.03
    )


def test_labels_number_the_clusters_of_a_subspace_too() -> None:
    x, label = make_blobs(300, centers=6 * np.eye(3, 2), random_state=0)
    mixture = GaussianMixture(3, random_state=1).fit(x)
    rows = Statistics(x, np.zeros(2, int))
    view = SubspaceView(
        rows, np.arange(2), np.zeros(2), np.cov(x.T), np.eye(2), mixture, np.arange(3)
    )
    told = view.known(rows, np.where(np.arange(300) < 30, label, -1), 3)
    assert (told.responsibilities(rows).argmax(1) == label).all()


def test_what_a_user_asks_for_is_trained() -> None:
    _, frame, _ = customers()
    found = MultiFacetClustering(network="deep", epochs=3, random_state=0).fit(frame)
    assert found.settings_["model"] == "deep: asked for"
    assert "held-out bound" in found.settings_["ended"]


def test_a_curve_is_seen_where_there_is_one() -> None:
    """Level and power: sources that x follows linearly, with noise of any kind, and with a bend of
    a tenth of the noise's variance.
    """
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 2)) * rng.choice([0.5, 2], (500, 1))
    plain = z @ rng.normal(size=(2, 6))
    level = [curvature_p_value(plain + rng.normal(size=(500, 6)), z) for _ in range(100)]
    assert np.mean(np.array(level) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    bent = plain + 0.35 * np.outer((z[:, 0] ** 2 - 1) / np.std(z[:, 0] ** 2), np.ones(6))
    assert all(curvature_p_value(bent + rng.normal(size=(500, 6)), z) < 0.001 for _ in range(20))
    assert curvature_p_value(z, z) == 1, "nothing is left"


@pytest.mark.parametrize(("shape", "model"), [("linear", "linear"), ("curved", "deep")])
def test_networks_are_trained_where_data_are_curved(shape: str, model: str) -> None:
    x = SHAPES[shape](7001).x
    found = MultiFacetClustering(random_state=0).fit(x)
    assert found.settings_["model"].startswith(f"{model}: what linear maps leave")
    if model == "linear":
        asked = MultiFacetClustering(network="deep", epochs=2, random_state=0).fit(x)
        assert asked.settings_["model"] == "deep: asked for"
    else:
        kept = MultiFacetClustering(network="linear", random_state=0).fit(x)
        assert kept.settings_["model"] == "linear: asked for"


def test_the_bound_of_linear_maps_is_near_the_density() -> None:
    """That data are drawn from, in held-out rows; with noise of a tenth to 0.6 of a column's
    deviation it was 3.1 nats below. Standard error of the density's mean: 0.06.
    """
    rng = np.random.default_rng(2)
    centers = [4 * rng.normal(size=(k, 2)) for k in (3, 4)]
    turn, deviation = rng.normal(size=(4, 8)), rng.uniform(0.3, 1, 8)
    clusters = [own[rng.integers(len(own), size=2000)] for own in centers]
    z = np.concatenate(clusters, 1) + rng.normal(size=(2000, 4))
    x = z @ turn + deviation * rng.normal(size=(2000, 8))
    covariance = turn.T @ turn + np.diag(deviation**2)
    each = [
        multivariate_normal(np.r_[a, b] @ turn, covariance).logpdf(x[1000:])
        for a in centers[0]
        for b in centers[1]
    ]
    density = (logsumexp(each, 0) - np.log(12)).mean()
    found = MultiFacetClustering(random_state=0).fit(x[:1000])
    assert found.settings_["model"].startswith("linear: what")
    assert density - 1.5 < found.score(x[1000:]) < density + 4 * 0.06


def test_linear_maps_are_no_worse_than_one_normal() -> None:
    """Of columns that nearly follow from others held-out rows were 121 nats less likely."""
    x = np.random.default_rng(0).permutation(load_breast_cancer().data)
    fitted, held_out = x[::2], x[1::2]
    found = MultiFacetClustering(network="linear", random_state=0).fit(fitted)
    normal = LedoitWolf().fit(found.encode(fitted)).score(found.encode(held_out))
    normal -= found.encoding_.log_volume(held_out).mean()
    assert found.score(held_out) > normal - 0.2


def test_networks_go_on_from_linear_maps_if_held_out_rows_tell() -> None:
    x = load_breast_cancer().data
    found = MultiFacetClustering(random_state=0).fit(x)
    assert found.settings_["model"].startswith("deep: what linear maps leave")
    kept = MultiFacetClustering(network="linear", random_state=0).fit(x)
    assert found.score(x) > kept.score(x)
    few = MultiFacetClustering(random_state=0).fit(load_wine().data)
    assert re.fullmatch("linear: .* p = .*e-\\d+; too few rows .*", few.settings_["model"])


@pytest.mark.parametrize("gaps", [0.0, 0.4])
def test_one_normal_is_as_likely_as_its_density_is(gaps: float) -> None:
    """By what is there, less BIC's half of a logarithm for each mean and covariance. The likeliest
    normal is found by an optimizer that knows nothing of gaps.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)) + rng.normal(size=(300, 1))
    x[rng.random(x.shape) < gaps] = np.nan
    there = ~np.isnan(x)
    patterns = [own for own in np.unique(there, axis=0) if own.any()]
    alike = [(x[(there == own).all(1)][:, own], own) for own in patterns]

    def unlikely(factor: np.ndarray) -> float:
        root = np.zeros((3, 3))
        root[np.tril_indices(3)] = factor
        covariance, loc = root @ root.T, np.nanmean(x, 0)
        each = (
            multivariate_normal(loc[own], covariance[np.ix_(own, own)]).logpdf(rows).sum()
            for rows, own in alike
        )
        return -float(sum(each))

    joint = -minimize(unlikely, np.eye(3)[np.tril_indices(3)]).fun
    rows, columns = Statistics(x, np.zeros(3, int)), np.arange(3)
    one = ColumnView(rows, columns, float(rows.alone.sum()), np.ones((300, 1)))
    assert correlated(one).fit == pytest.approx(joint - 9 * np.log(300) / 2, abs=0.3)
