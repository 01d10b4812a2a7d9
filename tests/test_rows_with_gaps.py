"""Tables with gaps: each row's posterior is improved before anything is read from it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from inference.estimators import MultiFacetClustering, clustering

pytestmark = pytest.mark.slow(10)


def holed(rows: int = 60, share: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 5)) + 3 * rng.integers(2, size=(rows, 1))
    return np.where(rng.random(x.shape) < share, np.nan, x)


def brief() -> MultiFacetClustering:
    return MultiFacetClustering(2, n_clusters=2, n_latents=2, epochs=20, random_state=0)


@pytest.fixture(scope="module")
def fitted() -> MultiFacetClustering:
    return brief().fit(holed())


def unrefined(found: MultiFacetClustering) -> MultiFacetClustering:
    plain = copy.copy(found)
    plain.settings_ = found.settings_ | {"refined": False}
    return plain


def bounds(found: MultiFacetClustering, x: np.ndarray) -> torch.Tensor:
    """Each row's bound at the posterior that predictions read, by another sequence of points than
    the steps have.
    """
    guide = found._precise()
    with torch.no_grad():
        rows = guide.observed(found._encoded(x), {}).x
        return guide._bound(rows, {}, guide.heads(rows), 512)


def test_rows_have_better_bounds(fitted: MultiFacetClustering) -> None:
    gain = bounds(fitted, holed()) - bounds(unrefined(fitted), holed())
    assert (gain > 0).float().mean() > 0.9
    assert gain.mean() > 0.1


def test_all_that_is_read_of_a_row_is_refined(fitted: MultiFacetClustering) -> None:
    plain = unrefined(fitted)
    for way in ("transform", "predict_proba", "impute"):
        ours, other = (getattr(each, way)(holed()) for each in (fitted, plain))
        assert np.abs(ours - other).max() > 1e-3, way


def test_a_row_does_not_depend_on_the_others(fitted: MultiFacetClustering) -> None:
    x = holed()
    for way in ("transform", "predict_proba", "impute"):
        apart = np.concatenate([getattr(fitted, way)(each[None]) for each in x[:5]])
        np.testing.assert_allclose(apart, getattr(fitted, way)(x)[:5], 1e-8, 1e-8, err_msg=way)


def test_tables_without_gaps_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert brief().fit(np.nan_to_num(holed())).settings_["refined"] is False
    monkeypatch.setattr(clustering, "MANY", 50)
    assert brief().fit(holed()).settings_["refined"] is False


def test_the_fitted_guide_is_left_as_it_was(fitted: MultiFacetClustering) -> None:
    family = fitted.runner_.guide.family
    fitted.predict(holed())
    assert fitted.runner_.guide.family is family
    assert type(family).__name__ == "Diagonal"
