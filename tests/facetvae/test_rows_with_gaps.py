"""Tables with gaps: the posterior of a row with a gap is improved before anything is read from
it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from facetvae.estimators import MultiFacetClustering, clustering, posteriors
from ppl_models import MLPLadder

pytestmark = pytest.mark.slow(10)

READS = ("transform", "predict_proba", "impute")


def holed(rows: int = 60, share: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 5)) + 3 * rng.integers(2, size=(rows, 1))
    return np.where(rng.random(x.shape) < share, np.nan, x)


def brief(**options: Any) -> MultiFacetClustering:
    given = {"n_clusters": 2, "n_latents": 2, "epochs": 3, "random_state": 0, **options}
    return MultiFacetClustering(("a", "b"), **given)


@pytest.fixture(scope="module")
def fitted() -> MultiFacetClustering:
    return brief(epochs=20).fit(holed())


def unrefined(found: MultiFacetClustering) -> MultiFacetClustering:
    plain = copy.copy(found)
    plain.settings_ = found.settings_ | {"refined": False}
    return plain


def test_rows_with_gaps_have_better_bounds(fitted: MultiFacetClustering) -> None:
    """By another sequence of points than the steps have; the fitted guide is left as it was."""
    read = fitted._precise()
    assert isinstance(read, posteriors.ImprovedInGaps)
    some = read.guide.observed(fitted.encode(holed())[posteriors.rows_with_gaps(holed())], {}).x
    with torch.no_grad():
        better, before = (
            guide._bound(some, {}, guide.heads(some), 512) for guide in (read.improved, read.guide)
        )
    assert len(better) > 10
    assert (better > before).float().mean() > 0.9
    assert (better - before).mean() > 0.1
    family = fitted.runner_.guide.family
    fitted.predict(holed())
    assert fitted.runner_.guide.family is family
    assert type(family).__name__ == "Diagonal"


@pytest.mark.parametrize("way", READS)
def test_what_is_read_of_these_rows_and_no_others_changes(
    fitted: MultiFacetClustering, way: str
) -> None:
    rows = posteriors.rows_with_gaps(holed())
    ours, other = (getattr(each, way)(holed()) for each in (fitted, unrefined(fitted)))
    assert (np.abs(ours - other)[rows].reshape(len(rows), -1).max(1) > 1e-4).mean() > 0.9
    assert np.array_equal(np.delete(ours, rows, 0), np.delete(other, rows, 0))


@pytest.mark.parametrize("way", READS[1:])
def test_a_row_does_not_depend_on_the_others(
    fitted: MultiFacetClustering, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = getattr(fitted, way)(holed())[:5]
    apart = np.concatenate([getattr(fitted, way)(each[None]) for each in holed()[:5]])
    np.testing.assert_allclose(apart, together, 1e-8, 1e-8)
    monkeypatch.setattr(posteriors, "ENTRIES", 3 * 5)  # three rows at once
    np.testing.assert_allclose(getattr(fitted, way)(holed())[:5], together, 1e-8, 1e-8)


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
    assert np.array_equal(found.facet("b").predict(holed()), found.labels_[:, 1])
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
