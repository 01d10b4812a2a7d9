"""What is measured of imputed tables: errors, what is known of drawn tables, and every method."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks import imputed_tables
from lab.benchmarks.imputed_tables import Coded, errors, known_values, measure, with_gaps
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
    drawn = mixed_table(50, 0, gaps=0).frame()
    coded = imputed_tables._coded(drawn, imputed_tables.COUNTS)
    coded = imputed_tables.replace(coded, left_out=left_out)
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


@pytest.mark.parametrize("table", ["drawn", *imputed_tables.REAL])
def test_every_method_is_measured(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table is not drawn, without a fit."""
    brief = partial(MultiFacetClustering, 1, n_clusters=2, n_latents=2, epochs=2)
    monkeypatch.setattr(imputed_tables, "MultiFacetClustering", brief)
    if table != "drawn":
        monkeypatch.setattr(imputed_tables, "_by_ours", lambda holed, seed: as_first(holed))
    found = measure(table, 60, 0, 0.2)
    assert ("known" in found) == (table == "drawn")
    assert {"ours", "column means", "IterativeImputer", "KNNImputer"} <= set(found)
    for scores in found.values():
        assert np.isfinite(list(scores.values())).all()
    assert found["column means"]["numbers"] == pytest.approx(1, abs=0.2)


def as_first(holed: pd.DataFrame) -> dict[str, np.ndarray]:
    """Each column's first value in its gaps."""
    return {name: values.bfill().ffill().to_numpy() for name, values in holed.items()}


def test_tables_and_shares_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(table: str, rows: int, seed: int, share: float) -> dict[str, dict[str, float]]:
        asked.append((table, rows, seed, share))
        return {"ours": {"numbers": share + seed}}

    asked: list[tuple[str, int, int, float]] = []
    monkeypatch.setattr(imputed_tables, "measure", measured)
    for last in (2, 3):
        flags = ["--rows", "50", "--seeds", "1", str(last), "--shares", "0.1", "0.5"]
        imputed_tables.main([*flags, "--out", str(tmp_path / "out.jsonl")])
    assert [each[2:] for each in asked] == [(1, 0.1), (1, 0.5), (2, 0.1), (2, 0.5)]
    assert "50% removed, ours" in capsys.readouterr().out
