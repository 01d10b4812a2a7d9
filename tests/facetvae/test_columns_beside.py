"""Ordinary columns, and labels, beside groupings hide none of these and add none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array, hstack
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.metrics import normalized_mutual_info_score as nmi

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.counts import counts_view
from facetvae.estimators.encoding import are_principal
from facetvae.estimators.mistaken import are_angles, are_counts_of_many, are_shares, code_of_missing
from facetvae.table_rules.levels import levels_of
from lab.benchmarks.sparse_counts import drawn_counts
from lab.protocols.sources import labelings
from ppl_models.given.sparse import sparse_rows
from tests.agreement import agreement

ROWS = 800
CATEGORY = np.random.default_rng(0).integers(4, size=ROWS)


def one_hot(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x, np.eye(4)[CATEGORY]])


def standardized_one_hot_with_gaps(x: np.ndarray) -> np.ndarray:
    whole = one_hot(x)
    gaps = np.random.default_rng(1).random(whole.shape) < 0.05
    return np.where(gaps, np.nan, (whole - whole.mean(0)) / whole.std(0))


def bools_of_a_frame(x: np.ndarray) -> pd.DataFrame:
    numbers = pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])
    return numbers.join(pd.get_dummies(pd.Series(CATEGORY, name="kind").astype(str)))


def two_answers(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x, np.random.default_rng(2).integers(2, size=(ROWS, 2))])


def rare_answers(x: np.ndarray) -> np.ndarray:
    """Yes in 2 % of the rows, which lie seven deviations from no."""
    rows = np.random.default_rng(5).random((4, len(x))).argsort(1)
    return np.column_stack([x, *(own < 16 for own in rows)])


def hour(x: np.ndarray) -> np.ndarray:
    angle = np.random.default_rng(3).uniform(0, 2 * np.pi, ROWS)
    return np.column_stack([x, np.sin(angle), np.cos(angle)])


def principal_components(x: np.ndarray) -> np.ndarray:
    return PCA().fit_transform(x)


def of_other_rows(x: np.ndarray) -> np.ndarray:
    return PCA().fit(x[:800]).transform(x)


def singular(x: np.ndarray) -> np.ndarray:
    return TruncatedSVD(60, random_state=0).fit_transform(x - x.min(0))


@pytest.mark.slow(10)
@pytest.mark.parametrize(
    ("change", "most"),
    [
        (one_hot, 2),
        (standardized_one_hot_with_gaps, 2),
        (bools_of_a_frame, 2),
        (two_answers, 2),
        (rare_answers, 2),
        (hour, 3),
        (principal_components, 2),
    ],
)
def test_columns_beside_hide_no_grouping(change: Callable[[np.ndarray], Any], most: int) -> None:
    """The worse of both groupings is told to 0.81 by the columns alone.

    :param most: facets; an hour on its circle is one.
    """
    drawn = labelings(ROWS, [5, 5], dims=[1, 3], width=11, separation=4, seed=50)
    found = MultiFacetClustering(network="linear", random_state=0).fit(change(drawn.x))
    assert min(agreement(found.labels_.T, drawn.labels)) > 0.74
    assert len(found.n_clusters_) <= most


@pytest.mark.slow(20)
@pytest.mark.parametrize(("seed", "gaps"), [(0, 0.1), (4, 0.0)])
def test_answers_from_1_to_5_show_their_groupings(seed: int, gaps: float) -> None:
    """Many are at an end of the scale; k-means that is told each grouping's own columns and number
    shares 0.84 and 0.75 with the groupings of seed 0, and 0.72 and 0.65 with those of seed 4.
    """
    rng = np.random.default_rng(seed)
    labels, opinions = [rng.integers(k, size=ROWS) for k in (4, 3)], rng.normal(size=(ROWS, 22))
    for label, (first, end) in zip(labels, ((0, 10), (10, 18)), strict=True):
        opinions[:, first:end] += 1.2 * rng.normal(size=(label.max() + 1, end - first))[label]
    answers = (3 + opinions).round().clip(1, 5)
    answers[rng.random(answers.shape) < gaps] = np.nan
    found = MultiFacetClustering(network="linear", random_state=0).fit(answers)
    assert min(agreement(found.labels_.T, labels)) > 0.55


def test_principal_components_are_told_by_their_correlations() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6))
    pca = PCA().fit(x)
    assert are_principal(pca.transform(x))
    assert are_principal(pca.transform(x)[:, :4].astype(np.float32))
    assert are_principal(np.column_stack([PCA(4).fit_transform(x), np.ones(300)]))
    assert are_principal(pca.transform(x)[:200])
    y = np.exp(x / x.std(0))
    assert are_principal(y @ np.linalg.svd(y, full_matrices=False)[2].T)
    assert not are_principal(x)
    assert not are_principal(pca.transform(x)[:, ::-1])
    assert not are_principal(pca.transform(x)[:200, :5]), "few may be uncorrelated by chance"
    assert not are_principal(PCA(whiten=True).fit_transform(x))
    assert not are_principal(rng.normal(size=(300, 8)) * [2, 1, 4, 3, 1, 5, 2, 3])
    falling = rng.normal(size=(300, 8)) * np.arange(9, 1, -1)
    assert not are_principal(falling + 3 * rng.normal(size=(300, 1)))


@pytest.mark.parametrize("change", [of_other_rows, singular])
def test_components_of_other_rows_and_singular_vectors_lose_no_grouping(
    change: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Of columns of equal weight, among 120 or 60 such, not one would be found."""
    drawn = labelings(1000, [5, 4], dims=[2, 3], width=120, separation=4, seed=53)
    found = MultiFacetClustering(network="linear", random_state=0).fit(change(drawn.x))
    assert min(agreement(found.labels_.T, drawn.labels)) > 0.5


def test_principal_components_are_encoded_without_a_loss() -> None:
    """Their density is that of the columns, as it is rotated; decoded they are as they were."""
    drawn = labelings(ROWS, [3, 3], dims=[2, 2], width=8, seed=51)
    X = PCA().fit_transform(drawn.x)
    found, plain = (MultiFacetClustering(random_state=0).fit(each) for each in (X, drawn.x))
    np.testing.assert_allclose(found.encoding_.decode(found.encode(X)), X, atol=1e-5)
    assert found.score(X) == pytest.approx(plain.score(drawn.x), abs=0.2)


def test_levels_are_two_values_or_a_few_with_one_in_most_rows() -> None:
    rng = np.random.default_rng(0)
    assert levels_of(rng.integers(2, size=100) / 3) == 2
    assert levels_of(np.repeat([0.0, 1.0, 2.0], [60, 30, 10])) == 3
    assert levels_of(np.repeat([0.0, 1.0, 2.0], [40, 30, 30])) == 0
    assert levels_of(np.zeros(10)) == levels_of(rng.normal(size=100)) == 0


def test_a_number_far_from_all_others_is_a_code() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(200, 4)), rng.integers(2, size=200)])
    x[:3, 0], x[:50, 1], x[:2, 2], x[:185, 3] = -999, 99, 1e6, -9
    assert [code_of_missing(column) for column in x.T] == [-999, 99, None, None, None]


def test_codes_of_missing_values_are_warned_of() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    x[::20, 1] = -999
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    for X, name in ((x, "column 1"), (frame, "column 'b'"), (frame.assign(d="e"), "column 'b'")):
        with pytest.warns(UserWarning, match=f"{name} of X has -999 in 10 rows.* give NaN"):
            MultiFacetClustering(epochs=1, random_state=0).fit(X)


def test_columns_of_angles_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    turns = rng.uniform(size=(300, 2))
    angles = np.column_stack([360 * turns, 2 * np.pi * (turns - 0.5)])
    angles[::10, 1] = np.nan
    others = [
        rng.normal(scale=scale, size=(2000, 50)) for scale in (0.8, 1.0, 1.2, 1.5, 50.0, 90.0)
    ]
    others += [rng.uniform(size=(2000, 2)) * [100, 3], 360 * rng.beta(2, 2, size=(2000, 50))]
    assert all(map(are_angles, angles.T))
    assert not any(map(are_angles, np.column_stack(others).T))
    x = np.column_stack([angles[:, 0], turns[:, :2], angles[:, 2]])
    with pytest.warns(UserWarning, match="columns 0, 3 of X hold angles.* cosine and sine") as told:
        MultiFacetClustering(epochs=1, random_state=0).fit(x)
    assert {each.filename for each in told} == {__file__}


def test_a_dense_array_of_counts_is_warned_of() -> None:
    x = drawn_counts(200, 100, seed=0).x.toarray()
    assert are_counts_of_many(x)
    assert not are_counts_of_many(x[:, :20])
    assert not are_counts_of_many(np.where(x > 0, 16, 0))
    assert not are_counts_of_many(x - 1)
    with pytest.warns(UserWarning, match="csr_array"):
        MultiFacetClustering(epochs=1, random_state=0).fit(x)
    answers = pd.DataFrame(x.clip(0, 2)[:, :32]).rename(columns=str).assign(city=list("ab") * 100)
    MultiFacetClustering(epochs=1, random_state=0).fit(answers)  # each column by its kind


def test_whitened_components_are_warned_of() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 6)) @ rng.normal(size=(6, 6))
    with pytest.warns(UserWarning, match="as whitened principal components are"):
        MultiFacetClustering(epochs=1, random_state=0).fit(PCA(whiten=True).fit_transform(x))
    MultiFacetClustering(epochs=1, random_state=0).fit((x - x.mean(0)) / x.std(0))


@pytest.mark.parametrize("whole", [1, 100])
def test_shares_of_a_whole_are_warned_of(whole: int) -> None:
    x = np.random.default_rng(0).lognormal(size=(60, 6))
    with_zeros = np.where(x > 1, x, 0) + np.eye(6)[0]
    for parts in (x, with_zeros):
        shares = whole * parts / parts.sum(1, keepdims=True)
        with pytest.warns(UserWarning, match=r"give np.sqrt\(X\) if .* else log-ratios"):
            MultiFacetClustering(epochs=1, random_state=0).fit(shares)
    shares = whole * x / x.sum(1, keepdims=True)
    ratios = np.log(shares) - np.log(shares).mean(1, keepdims=True)
    for other in (ratios, np.sqrt(shares), shares[:, :5]):
        MultiFacetClustering(epochs=1, random_state=0).fit(other)
    assert not are_shares(2 * np.eye(6)[x.argmax(1)])  # one-hot columns


def test_few_bounded_columns_are_no_images() -> None:
    """Whatever their clusters look like, here none, in complete rows and in rows with gaps."""
    x = np.random.default_rng(0).uniform(size=(60, 15))
    gaps = np.where(np.arange(900).reshape(60, 15) % 7, x, np.nan)
    for X in (x, gaps, (255 * x).astype(np.uint8)):
        found = MultiFacetClustering(epochs=1, random_state=0).fit(X)
        assert found.settings_["values"] == "real"


def test_a_word_in_every_row_moves_no_other() -> None:
    """Whose numbers are as they were without it; and both groupings are found, where there was
    none.
    """
    drawn = drawn_counts(ROWS, 400, seed=50)
    common = np.random.default_rng(0).poisson(40, size=(ROWS, 3))
    beside = csr_array(hstack([drawn.x, csr_array(common.astype(float))]))
    plain, view = counts_view(sparse_rows(drawn.x)), counts_view(sparse_rows(beside))
    assert view.large.tolist() == [False] * 400 + [True] * 3
    assert view.totals[0] == plain.totals[0] == plain.totals[1]
    sizes = [
        np.linalg.svd(each.numbers(sparse_rows(x)), compute_uv=False)[:6]
        for each, x in ((plain, drawn.x), (view, beside))
    ]
    np.testing.assert_allclose(*sizes, rtol=0.05, atol=1)
    found = MultiFacetClustering(network="linear", random_state=0).fit(beside)
    assert min(agreement(found.labels_.T, drawn.labels.values())) > 0.8


@pytest.mark.slow(10)
def test_labels_of_one_class_name_their_grouping() -> None:
    """Rows without a label are compared with those that have one; the facet was the other."""
    drawn = labelings(ROWS, [5, 5], dims=[1, 3], width=11, separation=4, seed=50)
    other, truth = drawn.labels
    some = np.random.default_rng(0).random(ROWS) < 0.3
    label = np.where(some & (truth == 0), 0, -1)
    found = MultiFacetClustering(["known", "other"], n_clusters=[5, None], random_state=0)
    found.fit(drawn.x, labels={"known": label})
    for facet, own in zip(found.labels_.T, (truth, other), strict=True):
        assert nmi(own[label < 0], facet[label < 0]) > 0.7
