"""Tables with gaps: these are filled by what is there before facets are looked for, and the
posterior of a row with a gap is improved before what it lacks is read from it.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

from facetvae.estimators import MultiFacetClustering, clustering, posteriors
from facetvae.estimators.arrays import View
from facetvae.estimators.gaps import fitted_fill, without_gaps
from facetvae.table_rules.linear_model import linear_model
from facetvae.table_rules.subspaces import Subspaces
from lab.protocols.sources import labelings
from ppl_models import MLPLadder, Normal
from tests.agreement import agreement

pytestmark = pytest.mark.slow(10)

# What of rows with gaps is improved: encoders of numbers see them filled by what is there.
READS = {"numbers": ("impute",), "columns": ("transform", "predict_proba", "impute")}
EACH = [(kind, way) for kind, ways in READS.items() for way in ways]


def holed(rows: int = 60, share: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 5)) + 3 * rng.integers(2, size=(rows, 1))
    return np.where(rng.random(x.shape) < share, np.nan, x)


def brief(**options: Any) -> MultiFacetClustering:
    given = {"n_clusters": 2, "n_latents": 2, "epochs": 3, "random_state": 0, **options}
    return MultiFacetClustering(("a", "b"), **given)


@cache
def fitted(kind: str) -> MultiFacetClustering:
    """To numbers, or to columns with a likelihood each."""
    if kind == "numbers":
        return brief(epochs=20).fit(holed())
    columns = {"x0": Normal(loc=1.5, unit=1.8)}
    return brief(epochs=20, columns=columns).fit(framed(holed()))


def framed(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])


def read(found: MultiFacetClustering, way: str, x: np.ndarray) -> np.ndarray:
    return np.asarray(getattr(found, way)(x if found.columns is None else framed(x)))


def unrefined(found: MultiFacetClustering) -> MultiFacetClustering:
    plain = copy.copy(found)
    plain.settings_ = found.settings_ | {"refined": False}
    return plain


@pytest.mark.parametrize("kind", READS)
def test_rows_with_gaps_have_better_bounds(kind: str) -> None:
    """By another sequence of points than the steps have; the fitted guide is left as it was."""
    found, rows = fitted(kind), posteriors.rows_with_gaps(holed())
    reader = found._precise()
    assert isinstance(reader, posteriors.ImprovedInGaps)
    x = found.encode(holed() if kind == "numbers" else framed(holed()))
    some = reader.guide.observed(x[rows], {}).x
    with torch.no_grad():
        better, before = (
            guide._bound(some, {}, guide.heads(some), 512)
            for guide in (reader.improved, reader.guide)
        )
    assert len(better) > 10
    assert (better > before).float().mean() > 0.9
    assert (better - before).mean() > 0.1
    family = found.runner_.guide.family
    read(found, "predict", holed())
    assert found.runner_.guide.family is family
    assert type(family).__name__ == "Diagonal"


@pytest.mark.parametrize("way", READS["columns"])
@pytest.mark.parametrize("kind", READS)
def test_what_is_read_of_these_rows_and_no_others_changes(kind: str, way: str) -> None:
    found, rows = fitted(kind), posteriors.rows_with_gaps(holed())
    ours, other = (read(each, way, holed()) for each in (found, unrefined(found)))
    if way not in READS[kind]:
        assert np.array_equal(ours, other)
        return
    assert (np.abs(ours - other)[rows].reshape(len(rows), -1).max(1) > 1e-6).mean() > 0.9
    assert np.array_equal(np.delete(ours, rows, 0), np.delete(other, rows, 0))


@pytest.mark.parametrize(("kind", "way"), EACH)
def test_a_row_does_not_depend_on_the_others(
    kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fitted(kind)
    together = read(found, way, holed())[:5]
    apart = np.concatenate([read(found, way, each[None]) for each in holed()[:5]])
    np.testing.assert_allclose(apart, together, 1e-8, 1e-8)
    monkeypatch.setattr(posteriors, "ENTRIES", 3 * 5)  # three rows at once
    np.testing.assert_allclose(read(found, way, holed())[:5], together, 1e-8, 1e-8)


def test_tables_without_gaps_and_large_ones_are_not_refined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert brief().fit(np.nan_to_num(holed())).settings_["refined"] is False
    monkeypatch.setattr(
        clustering, "MOST_IMPROVED", 5 * len(posteriors.rows_with_gaps(holed())) - 1
    )
    assert brief().fit(holed()).settings_["refined"] is False


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::facetvae.estimators.starts.UnstableFacetWarning")
@pytest.mark.parametrize(
    "options",
    [{"n_init": 2}, {"network": MLPLadder((8, 8))}, {}],
    ids=["starts", "ladder", "known"],
)
def test_every_way_to_fit_labels_as_it_predicts(options: dict[str, Any]) -> None:
    known = {"a": np.where(np.arange(60) < 9, np.arange(60) % 2, -1)} if not options else None
    found = brief(**options).fit(holed(), labels=known)
    assert found.settings_["refined"] is True
    assert np.array_equal(found.labels_, found.predict(holed()))
    assert sum(each["size"] for each in found.describe("a", holed()).clusters) == 60
    found.partial_fit(holed())
    assert np.array_equal(found.labels_, found.predict(holed()))


def test_rows_of_a_view_are_as_sure_as_they_are_right() -> None:
    """A row without an entry has the clusters' shares. Where three of five columns are hidden, the
    mean of the largest probabilities is within four standard errors (0.02 each at most) of the
    share of rows whose cluster stays; the encoder alone is sure of nearly all.
    """
    rng = np.random.default_rng(0)
    label = rng.choice(3, 600, p=[0.5, 0.3, 0.2])
    x = rng.normal(size=(3, 5))[label] * 2 + rng.normal(size=(600, 5))
    x[rng.random(x.shape) < 0.2] = np.nan
    found = MultiFacetClustering(1, n_clusters=3, random_state=0).fit(x)
    assert found.settings_["start"] == "ViewStrategy"
    shares = np.bincount(found.labels_[:, 0]) / 600
    of_none = found.predict_proba(np.full((2, 5), np.nan))[:, 0]
    np.testing.assert_allclose(of_none, [shares] * 2, atol=0.05)
    hidden = np.where(np.arange(5) < 3, np.nan, x)
    p = found.predict_proba(hidden)[:, 0]
    right = (p.argmax(1) == found.labels_[:, 0]).mean()
    assert abs(p.max(1).mean() - right) < 4 * np.sqrt(0.25 / 600)


def density(x: np.ndarray, covariance: np.ndarray) -> float:
    """The mean log-density of what is there, of a normal around 0."""
    each = [
        multivariate_normal(cov=covariance[there][:, there]).logpdf(row[there])
        for row, there in zip(x, ~np.isnan(x), strict=True)
    ]
    return float(np.mean(each))


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_models_of_tables_with_gaps_are_near_the_density(share: float) -> None:
    """Of columns drawn from three factors: what fills their gaps has the density of new rows, to
    0.1 nats, and the linear model's bound is at most 0.4 below it, since all rows have posteriors
    of one width. With the columns' means in gaps it would be 2.4 and 3.6 nats below.
    """
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(3, 12))
    loadings *= np.sqrt(0.96 / (loadings**2).sum(0))
    covariance = loadings.T @ loadings + 0.04 * np.eye(12)
    x = rng.multivariate_normal(np.zeros(12), covariance, 2000)
    x[rng.random(x.shape) < share] = np.nan
    fill, known = fitted_fill(x[:1000]), density(x[1000:], covariance)
    found = (fill.weights.T @ fill.weights + fill.noise.diag()).numpy()
    assert known - 0.1 < density(x[1000:], found) < known + 0.02
    facet = np.linalg.solve(covariance, loadings[0])[None]
    facets = Subspaces(np.zeros(12), [facet / np.sqrt(facet @ covariance @ facet.T)])
    view = View(gaps=fill)
    model = linear_model(view.filled(x[:1000]), facets)
    assert known - 0.4 < model.bound(view.filled(x[1000:])) < known + 0.05


def test_gaps_leave_facets_as_they_are() -> None:
    """With the column's mean in a tenth of the entries, two clusters were found of the labeling of
    five, which told 0.58 of it.
    """
    drawn = labelings(400, (3, 5), seed=1)
    x = np.where(np.random.default_rng(0).random(drawn.x.shape) < 0.1, np.nan, drawn.x)
    found = MultiFacetClustering(random_state=0).fit(x)
    assert sorted(found.n_clusters_) == [3, 5]
    assert min(agreement(found.labels_.T, drawn.labels)) > 0.9


def test_columns_in_any_units_are_filled() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(300, 2)) @ rng.normal(size=(2, 4))) * [1e-6, 1.0, 1e6, 0.0] + 7
    holed = np.where(rng.random(x.shape) < 0.2, np.nan, x)
    ((filled, log_q),), gone = without_gaps(holed), np.isnan(holed)
    assert np.isfinite(filled).all()
    assert (log_q[~gone.any(1)] == 0).all()
    assert filled[~gone] == pytest.approx(x[~gone], rel=1e-9)
    for column in range(3):
        own = gone[:, column]
        errors = (filled - x)[own, column] / x[:, column].std()
        assert np.sqrt((errors**2).mean()) < 0.7, "of draws in place of 1.4"
