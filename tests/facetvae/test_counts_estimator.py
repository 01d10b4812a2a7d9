"""Sparse matrices of counts in the estimator: what a start sees of them, and what is refused."""

from __future__ import annotations

import json
import pickle
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.counts import Centered, counts_view, logarithms
from facetvae.estimators.facets import number_of_facets
from lab.benchmarks import sparse_counts
from ppl_models import (
    Bernoulli,
    DirichletMultinomial,
    Likelihood,
    MLPLadder,
    Multinomial,
    NegativeBinomial,
    Normal,
)
from ppl_models.given.sparse import sparse_rows
from tests.agreement import agreement

ROWS, D, BATCHES = 300, 60, 3


@cache
def drawn(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts whose clusters and batches each have columns of their own, of very different totals;
    clusters and batches.
    """
    rng = np.random.default_rng(seed)
    label, batch = rng.integers(3, size=ROWS), rng.integers(BATCHES, size=ROWS)
    own, shift = rng.normal(size=(3, D)), rng.normal(size=(BATCHES, D))
    logits = np.where(np.arange(D) < D // 2, own[label], shift[batch])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return rng.multinomial(rng.lognormal(5, 0.7, ROWS).astype(int), p), label, batch


def coded() -> Any:
    x, _, batch = drawn()
    return sparse.csr_array(np.concatenate([x, batch[:, None]], 1).astype(np.float32))


def estimator(**options: Any) -> MultiFacetClustering:
    return MultiFacetClustering(random_state=0, epochs=3, **options)


@cache
def fitted() -> MultiFacetClustering:
    return estimator().fit(sparse.csr_array(drawn()[0]))


# What a start sees.


def directions(x: np.ndarray, num_batches: int = 1) -> int:
    return counts_view(sparse_rows(sparse.csr_array(x)), num_batches).weights.shape[1] // 4


def test_directions_are_one_fewer_than_the_clusters_of_each_labeling() -> None:
    x, _, _ = drawn()
    assert directions(x) == 4  # of three clusters and three batches
    assert directions(coded(), BATCHES) == 2
    for columns in (x[:, : D // 2], x[:, D // 2 :]):
        assert directions(columns) == 2


def test_rows_of_one_rate_have_no_facet() -> None:
    """Totals may show as a direction: a logarithm's mean depends on them. It has no clusters."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(D))
    x = sparse_rows(sparse.csr_array(rng.multinomial(rng.integers(5, 400, ROWS), p)))
    view = counts_view(x)
    assert view.weights.shape[1] <= 12  # three directions, of which two are the fewest
    assert number_of_facets(view.smooth(x, 0)).number == 0


def test_the_numbers_tell_the_clusters_whatever_the_totals() -> None:
    x, label, _ = drawn()
    rows = sparse_rows(coded())
    z = counts_view(rows, BATCHES).numbers(rows)
    assert z.var(0).mean() == pytest.approx(1, rel=0.01)
    # Regressed on clusters, little is left; on totals and batches, nearly everything.
    means = np.stack([z[label == k].mean(0) for k in range(3)])
    assert (z - means[label]).var() < 0.3 * z.var()
    totals = np.log(x.sum(1))
    assert np.abs(np.corrcoef(z.T, totals)[-1, :-1]).max() < 0.25


def test_centered_directions_are_those_of_the_dense_matrix() -> None:
    x, _, batch = drawn()
    large = np.arange(x.shape[1]) == 3
    seen = logarithms(sparse.csr_array(x).astype(float), large, np.array([100.0, 200.0]))
    n = x.sum(1, keepdims=True)
    rates = np.where(large, 200 * x / n, 100 * x / (n - x[:, [3]]))
    np.testing.assert_allclose(seen.toarray(), np.log1p(rates))
    centered = Centered.of(seen, batch, BATCHES)
    means = np.stack([seen.toarray()[batch == b].mean(0) for b in range(BATCHES)])
    dense = (seen.toarray() - means[batch]) * centered.scale
    sizes, turns = centered.directions(5, np.random.default_rng(0))
    _, want, vt = np.linalg.svd(dense)
    np.testing.assert_allclose(sizes, want[:5], rtol=1e-6)
    np.testing.assert_allclose(np.abs((turns * vt[:5]).sum(1)), 1, rtol=1e-5)


# Every other corner of a cube: along its axes each two coordinates are independent.
CORNERS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])


def test_four_clusters_at_equal_distances_are_one_facet() -> None:
    rng = np.random.default_rng(0)
    four, two = rng.integers(4, size=800), rng.integers(2, size=800)
    z = np.concatenate([CORNERS[four], 2 * two[:, None] - 1], 1) * 3
    z = (z + rng.normal(size=z.shape)) @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    x = (z - z.mean(0)) / z.std(0)
    found = number_of_facets(x)
    assert sorted(found.numbers) == [2, 4]
    for label, facet in ((four, 4), (two, 2)):
        (group,) = [each for each in found.facets if each.tree.modes == facet]
        u = (x - found.loc) @ found.maps[group.columns].T
        assert adjusted_rand_score(label, group.tree.labels(u, facet)) > 0.95


def test_four_clusters_that_overlap_are_one_facet() -> None:
    """Half of them are told from the other half with errors of 1, 4 and 7 %."""
    rng = np.random.default_rng(0)
    z = CORNERS[rng.integers(4, size=2000)] * [2.2, 1.8, 1.5] + rng.normal(size=(2000, 3))
    assert number_of_facets((z - z.mean(0)) / z.std(0)).numbers == [4]


# The estimator.


def test_clusters_and_batches_are_facets_of_sparse_counts() -> None:
    x, label, batch = drawn()
    found, matrix = fitted(), sparse.csr_array(drawn()[0])
    assert found.settings_["values"] == "counts"
    assert found.settings_["likelihood"].startswith("DirichletMultinomial(num_columns=60")
    assert sorted(found.settings_["n_clusters"].values()) == [3, 3]
    assert min(agreement(found.labels_.T, (label, batch))) > 0.9
    np.testing.assert_array_equal(found.predict(matrix), found.labels_)
    np.testing.assert_array_equal(found.predict(matrix[:7]), found.labels_[:7])
    assert np.isfinite(found.score(matrix))
    drawn_rows, clusters = found.sample(5)
    assert sparse.issparse(drawn_rows)
    assert (drawn_rows.shape, clusters.shape) == ((5, D), (5, 2))
    total = found.runner_.model.likelihood.total
    assert (drawn_rows.sum(1) == total).all()
    assert total == pytest.approx(np.median(x.sum(1)), abs=1)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(matrix), found.labels_)


def test_batches_that_are_given_are_no_facet() -> None:
    _, label, batch = drawn()
    found = estimator(likelihood=DirichletMultinomial(num_batches=BATCHES)).fit(coded())
    assert agreement(found.labels_.T, [label])[0] > 0.9
    assert agreement(found.labels_.T, [batch])[0] < 0.1
    assert found.sample(4)[0].shape == (4, D + 1)


def test_a_dense_array_is_counts_if_the_likelihood_says_so() -> None:
    x, _, _ = drawn()
    found = estimator(likelihood=DirichletMultinomial()).fit(x)
    np.testing.assert_array_equal(found.labels_, fitted().labels_)
    np.testing.assert_array_equal(found.predict(x), found.labels_)
    assert isinstance(found.sample(3)[0], np.ndarray)
    frame = pd.DataFrame(x, columns=[f"word {i}" for i in range(D)])
    found = estimator(likelihood=DirichletMultinomial()).fit(frame)
    means = found.sample(3, noise=False)[0]
    for returned in (means, found.sample(3)[0], found.impute(frame)):
        pd.testing.assert_index_equal(returned.columns, frame.columns)
    assert (means % 1 > 0).to_numpy().any(), "no whole numbers"


def test_rows_without_a_count_are_left_out() -> None:
    x = np.concatenate([drawn()[0], np.zeros((3, D), int)])
    found = estimator().fit(sparse.csr_array(x))
    np.testing.assert_array_equal(np.flatnonzero(found.outliers_), ROWS + np.arange(3))
    assert found.n_clusters_ == fitted().n_clusters_


@pytest.mark.parametrize(
    "options", [{"likelihood": NegativeBinomial()}, {"network": MLPLadder((16, 16))}, {}]
)
def test_other_settings_take_sparse_counts_too(options: dict[str, Any]) -> None:
    matrix = sparse.csr_array(drawn()[0])
    given = {"facets": 2, "n_clusters": 2, "n_latents": 1, "epochs": 1, "random_state": 0}
    found = MultiFacetClustering(**given, **options).fit(matrix)
    assert found.predict(matrix).shape[0] == ROWS
    found.partial_fit(matrix)


def test_sparse_rows_are_described_as_dense_ones_are() -> None:
    x = drawn()[0]
    told = fitted().describe(0, sparse.csr_array(x))
    assert str(told) == str(fitted().describe(0, x))
    tensor = torch.as_tensor(x).to_sparse_coo()
    np.testing.assert_array_equal(fitted().predict(tensor), fitted().labels_)


# Refusals.


@pytest.mark.parametrize(
    ("value", "message"),
    [(-1, "x has values such as -1, but"), (0.5, "such as 0.5, but Di"), (np.nan, "holds NaN or")],
)
def test_what_is_no_count_is_refused(value: float, message: str) -> None:
    x = sparse.csr_array(np.where(drawn()[0] == 2, value, drawn()[0]))
    for refused in (estimator().fit, fitted().predict):
        with pytest.raises(ValueError, match=f"X is sparse, and so read as counts: .*{message}"):
            refused(x)


ONE_HOT = np.eye(4)[np.arange(60) % 4]


@pytest.mark.parametrize("rows", [ONE_HOT / 3, np.c_[ONE_HOT, np.linspace(-1, 1, 60)]])
@pytest.mark.parametrize("likelihood", [None, DirichletMultinomial(), Normal()])
def test_sparse_rows_that_are_no_counts_are_to_be_made_dense(
    rows: np.ndarray, likelihood: Likelihood | None
) -> None:
    with pytest.raises(ValueError, match=r"give .*X.toarray\(\)") as refusal:
        estimator(likelihood=likelihood).fit(sparse.csr_array(rows))
    assert "use Normal" not in str(refusal.value)


@pytest.mark.parametrize("rows", [ONE_HOT, np.c_[ONE_HOT, np.eye(3)[np.arange(60) % 3]]])
def test_a_one_hot_table_is_told_from_counts(rows: np.ndarray) -> None:
    with pytest.warns(UserWarning, match="as the columns of a one-hot table do") as warned:
        estimator(n_clusters=2).fit(sparse.csr_array(rows))
    assert sum("one-hot" in str(each.message) for each in warned) == 1
    estimator(n_clusters=2, likelihood=DirichletMultinomial()).fit(sparse.csr_array(rows))


def test_other_misfits_are_refused_in_a_sentence() -> None:
    matrix = sparse.csr_array(drawn()[0])
    with pytest.raises(ValueError, match="X has 59 features, but MultiFacetClustering is expect"):
        fitted().predict(matrix[:, 1:])
    with pytest.raises(ValueError, match="codes of batches, which are 0 to 1, but one is 2"):
        estimator(likelihood=Multinomial(num_batches=2)).fit(coded())
    with pytest.raises(ValueError, match="given a likelihood of counts, and read as counts: x has"):
        estimator(likelihood=Multinomial()).fit(np.random.default_rng(0).random((30, 4)))
    with pytest.raises(ValueError, match=r"X is sparse, .* which Bernoulli\(\) does not describe"):
        estimator(likelihood=Bernoulli()).fit(matrix)
    with pytest.raises(ValueError, match=r"mark_outliers=True is for .* read as 'counts'"):
        estimator(mark_outliers=True).fit(matrix)
    with pytest.raises(ValueError, match="the rows of X do not differ"):
        estimator().fit(sparse.csr_array(np.ones((40, 5))))


# The benchmarks.


def test_every_method_is_scored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = partial(MultiFacetClustering, epochs=2)
    monkeypatch.setattr(sparse_counts, "MultiFacetClustering", few)
    flags = ["--rows", "120", "--columns", "40", "--seeds", "0", "1"]
    sparse_counts.main([*flags, "--out", str(tmp_path / "counts.jsonl")])
    first, second = map(json.loads, (tmp_path / "counts.jsonl").read_text().splitlines())
    assert "ours, batches given" in second["scores"]
    assert "ours, batches given" not in first["scores"]
    for scores in (first["scores"], second["scores"]):
        assert all(0 <= each["first"] <= 1 for each in scores.values())
