"""What speaks for facets: against data whose groups are known, and data without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.trust import _shuffled

pytestmark = pytest.mark.slow(15)


def two_groupings(n: int = 300) -> np.ndarray:
    """In the first three columns, and in the others, turned so that no column shows them alone."""
    rng = np.random.default_rng(0)
    centers = [rng.normal(size=(k, 3)) * 4 for k in (2, 3)]
    parts = [own[rng.integers(len(own), size=n)] for own in centers]
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return (np.concatenate(parts, 1) + rng.normal(size=(n, 6))) @ turn


def test_facets_that_are_there_are_found_again() -> None:
    x = two_groupings()
    found = MultiFacetClustering(random_state=0).fit(x)
    told = found.trust(x, repeats=1)
    assert min(map(min, told.found_again.values())) > 0.8
    assert {name: len(of) for name, of in told.bounds.items()} == {
        "this model": 1, "one normal": 1, "shuffled columns": 1
    }  # fmt: skip
    bounds = {name: np.mean(of) for name, of in told.bounds.items()}
    assert bounds["this model"] > bounds["one normal"] + 0.5 > bounds["shuffled columns"] + 1
    assert "| one normal | -" in str(told)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_noise_has_no_facet_to_trust(gaps: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    x[rng.random(x.shape) < gaps] = np.nan
    told = MultiFacetClustering(random_state=0).fit(x).trust(x, repeats=1)
    assert (told.found_again, told.by_chance) == ({"facet_0": []}, [])
    np.testing.assert_allclose(told.bounds["this model"], told.bounds["one normal"], atol=0.5)
    assert "In shuffled columns no facet has two clusters." in told.to_markdown()


def test_clusters_that_are_asked_for_are_not_there_by_that() -> None:
    """A fit to all rows and one to half of them divide a normal in three alike (0.5); two halves
    do not.
    """
    x = np.random.default_rng(1).normal(size=(300, 4))
    found = MultiFacetClustering(1, n_clusters=3, network="linear", random_state=0).fit(x)
    told = found.trust(x, repeats=2)
    assert max(told.found_again["facet_0"] + told.by_chance) < 0.3
    assert len(told.by_chance) == 2


TABLE = np.stack([np.arange(50), np.arange(50) % 3 == 0], 1)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, np.asarray, csr_array])
def test_shuffled_columns_hold_what_they_held_and_share_nothing(kind: Any) -> None:
    drawn = _shuffled(kind(TABLE), 0)
    assert type(drawn) is type(kind(TABLE))
    values = drawn.toarray() if kind is csr_array else np.asarray(drawn)
    np.testing.assert_array_equal(np.sort(values, axis=0), np.sort(TABLE, axis=0))
    assert not np.array_equal(values[:, 0] % 3 == 0, values[:, 1].astype(bool))


def test_images_have_no_columns_to_shuffle() -> None:
    x = np.random.default_rng(0).random((40, 6, 6))
    found = MultiFacetClustering(1, n_clusters=2, epochs=1, random_state=0).fit(x)
    with pytest.raises(ValueError, match=r"trust is for columns.*give n_init=, and see stability_"):
        found.trust(x)
