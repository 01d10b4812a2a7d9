"""What is measured of imputed tables: errors, what is known of the tables, and every method."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks import imputed_tables
from lab.benchmarks.imputed_tables import (
    Coded,
    coded_drawn,
    errors,
    known_values,
    measure,
    with_gaps,
)
from lab.benchmarks.mixed_tables import mixed_table

NAN = float("nan")


def test_errors_are_in_deviations_logarithms_and_shares() -> None:
    whole = pd.DataFrame({"a": [0.0, 4.0], "n": [0, 3], "k": ["x", "y"]})
    coded = Coded(["a", "n", "k"], {"k": ["x", "y"]}, ["n"])
    filled = {"a": np.array([2.0, 4.0]), "n": np.array([1.0, 0.0]), "k": np.array(["x", "x"])}
    found = errors(whole, filled, np.ones((2, 3), bool), coded)
    assert found["numbers"] == pytest.approx(np.sqrt((1 + 0) / 2))  # the deviation is 2
    assert found["counts"] == pytest.approx(np.sqrt((np.log(2) ** 2 + np.log(4) ** 2) / 2))
    assert found["categories"] == 0.5
    some = errors(whole, filled, np.array([[False, False, True], [True, False, False]]), coded)
    assert some == {"numbers": 0.0, "categories": 1.0}


@pytest.mark.parametrize("left_out", [0, 1])
def test_frames_come_back_from_numbers(left_out: int) -> None:
    table = mixed_table(50, 0, gaps=0)
    drawn, coded = table.frame(), replace(coded_drawn(table), left_out=left_out)
    back = coded.decode(coded.encode(drawn))
    for name, values in drawn.items():
        if values.dtype.kind in "fi":
            np.testing.assert_allclose(back[name].astype(float), values, atol=1e-9)
        else:
            assert back[name].tolist() == values.tolist()
    holed, gaps = with_gaps(drawn, 0.3, 0)
    assert holed.isna().to_numpy().tolist() == gaps.tolist()
    assert np.isnan(coded.encode(holed)).any(0).all()


def test_known_means_are_those_of_the_drawn_distributions() -> None:
    """A missing number, given a row, by Bayes' rule in the coordinates that were drawn; categories
    given the cluster that other columns tell, by counting in a large table.
    """
    drawn = mixed_table(6000, 0, gaps=0)
    whole = drawn.frame()
    holed = whole.assign(
        age=NAN, city=pd.Categorical([None] * len(whole), whole["city"].cat.categories)
    )
    found = known_values(drawn, holed)
    # With a squared error no estimate is better than the conditional mean, whose error is
    # uncorrelated with everything that is observed.
    left = (whole["age"] - found["age"]).to_numpy()
    error = left.std() / np.sqrt(len(left))
    assert abs(left.mean()) < 5 * error
    for seen in ("income", "ratio", "balance"):
        r = stats.pearsonr(left, whole[seen]).statistic
        assert abs(r) < 5 / np.sqrt(len(left))
    # Three clusters: the best guess is its own category in about 0.8 of the rows.
    told = [whole["city"][drawn.labels["kinds"] == k].value_counts().max() for k in range(3)]
    right = (found["city"] == whole["city"].to_numpy()).mean()
    assert right == pytest.approx(sum(told) / len(whole), abs=0.02)


def test_every_method_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = partial(MultiFacetClustering, 1, n_clusters=2, n_latents=2, epochs=2)
    monkeypatch.setattr(imputed_tables, "MultiFacetClustering", brief)
    found = measure(60, 0, 0.2)
    assert set(found) == {"ours", "column means", "IterativeImputer", "KNNImputer", "known"}
    for scores in found.values():
        assert np.isfinite(list(scores.values())).all()
    assert found["column means"]["numbers"] == pytest.approx(1, abs=0.2)
