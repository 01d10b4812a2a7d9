"""Tables of many rows: read a part at a time, searched in a random part, without a further copy."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import normalized_mutual_info_score
from sklearn.neighbors import LocalOutlierFactor

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
    clustering,
    linear_maps,
)
from facetvae.estimators.encoding import encoding_of
from facetvae.estimators.facets import only_rows
from facetvae.table_rules import outliers, rows
from facetvae.table_rules.known import labeled_first
from facetvae.table_rules.outliers import Outliers
from facetvae.table_rules.rows import Arranged, some_rows, without_copies
from lab.benchmarks import million_rows
from lab.protocols.sources import labelings
from tests.agreement import agreement

pytestmark = pytest.mark.slow(10)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many rows are many."""

    def to(number: int) -> None:
        for module in (rows, linear_maps, clustering):
            monkeypatch.setattr(module, "MANY", number)

    return to


def drawn(n: int = 600, width: int = 5) -> tuple[np.ndarray, list[np.ndarray]]:
    """Two labelings, of two and three clusters."""
    found = labelings(n, (2, 3), (1, 2), width, seed=1)
    return found.x.astype(np.float32), found.labels


def brief(**options: Any) -> MultiFacetClustering:
    """One that neither looks for facets nor counts clusters."""
    return MultiFacetClustering(2, n_clusters=2, n_latents=2, epochs=1, random_state=0, **options)


def test_the_order_of_rows_says_nothing() -> None:
    """Every second row is of one of two clusters: every second row alone would show one."""
    truth, rng = np.arange(3000) % 2, np.random.default_rng(0)
    x = rng.normal(size=(3000, 6))
    x[:, :3] = x[:, :3] / 2 + 4 * truth[:, None]
    found = MultiFacetClustering(random_state=0).fit(x)
    assert normalized_mutual_info_score(truth, found.labels_[:, 0]) > 0.99


def test_a_column_that_was_constant_is_left_out_later() -> None:
    x, labels = drawn(300, 4)
    x = np.column_stack([x, np.full(300, 2023.0)])
    found = MultiFacetClustering(random_state=0).fit(x)
    later = x + np.eye(5)[4] * 10
    np.testing.assert_array_equal(found.predict(later), found.labels_)
    assert found.score(later) == pytest.approx(found.score(x))
    np.testing.assert_allclose(found.sample(3, noise=False)[0][:, 4], 2023)
    frame = pd.DataFrame(dict(zip("abcd", x.T, strict=False))).assign(year=2023, flag=0)
    frame["town"] = np.array(["Oslo", "Bath"])[labels[0]]
    mixed = brief().fit(frame)
    np.testing.assert_array_equal(mixed.predict(frame.assign(year=2033, flag=5)), mixed.labels_)


def test_dim_values_of_8_bits_are_said() -> None:
    with pytest.warns(UserWarning, match="the largest of X is 16: if that is the brightest"):
        encoding_of(np.arange(17, dtype=np.uint8).reshape(1, 17), None)


@pytest.mark.parametrize("wrong", [[5], [5, 9, 77]], ids=len)
def test_broken_records_do_not_hide_the_others(wrong: list[int]) -> None:
    """Beside 1e12 all other rows are equal in single precision."""
    x, labels = drawn(300, 4)
    x[wrong] = 1e12
    found = MultiFacetClustering(random_state=0).fit(x)
    np.testing.assert_array_equal(np.flatnonzero(found.outliers_), wrong)
    assert min(agreement(found.labels_.T, labels)) > 0.9


@pytest.mark.parametrize(("few", "mixed"), [(1, False), (15, False), (8, True)])
def test_a_column_that_is_constant_but_for_a_few_rows(few: int, mixed: bool) -> None:
    """The model is fitted to what it is later given, and the column adds nothing absurd."""
    x, labels = drawn(300, 4)
    x = np.column_stack([x, np.where(np.arange(300) < few, 3.0, 0.1)])
    X: Any = x
    if mixed:
        X = pd.DataFrame(x).rename(columns=str).assign(kind=np.array(list("ab"))[labels[0]])
    found = MultiFacetClustering(random_state=0).fit(X)
    assert found.outliers_.sum() <= few
    np.testing.assert_array_equal(found.predict(X), found.labels_)
    assert -20 < found.score(X) < 5


def test_an_outlying_row_with_a_label_is_left_out_but_the_only_ones_of_a_label_are_not() -> None:
    x, (label, _) = drawn(300, 4)
    x[5] = 1e4
    known = np.where(np.arange(300) < 150, label, -1)
    found = MultiFacetClustering(("a", "b"), random_state=0).fit(x, labels={"a": known})
    assert found.outliers_[5]
    assert (found.labels_[:150, 0] == label[:150]).mean() > 0.95
    known[5] = 2
    np.testing.assert_array_equal(only_rows({"a": known}, found.outliers_), found.outliers_)


@pytest.mark.parametrize("copies", ["each five times", "drawn"])
def test_copies_of_rows_are_no_clusters(copies: str) -> None:
    x, _ = drawn(100, 4)
    rng = np.random.default_rng(0)
    rows = np.arange(100).repeat(5) if copies == "each five times" else rng.integers(100, size=900)
    found = MultiFacetClustering(random_state=0).fit(x[rows])
    assert sorted(found.n_clusters_) == [2, 3]
    survey = rng.integers(4, size=(300, 3))
    assert without_copies(survey) is survey, "few answers repeat each other"


def test_estimators_that_leave_no_row_out_tell_of_broken_records() -> None:
    x, (label, _) = drawn(300, 4)
    x[5, 1] = 1e9
    for fit in (
        lambda: SemiSupervisedClassifier(epochs=1).fit(x, label),
        lambda: ContentStyleTransformer(epochs=1).fit(x, groups=label),
    ):
        with pytest.warns(UserWarning, match=r"rows \[5\] of X have nearly all of a column's"):
            fit()


def test_images_of_other_units_are_told() -> None:
    x = np.random.default_rng(0).integers(256, size=(60, 8, 8)).astype(np.uint8)
    found = brief().fit(x)
    with pytest.warns(UserWarning, match="values up to 1, and the training data had 8 bits"):
        found.predict(x / 255.0)
    broken = x / 255.0
    broken[5, 2, 2] = 1e6
    with pytest.warns(UserWarning, match=r"rows \[5\] of X have nearly all"):
        brief().fit(broken)


def test_frames_whose_columns_or_rows_change_places_are_refused() -> None:
    x, (label, _) = drawn(300, 4)
    frame = pd.DataFrame(x)
    found = brief().fit(frame)
    with pytest.raises(ValueError, match="the training data had them in the order"):
        found.predict(frame[[1, 0, 2, 3]])
    with pytest.raises(ValueError, match=r"labels\['facet_0'\] has other rows than X"):
        brief().fit(frame, labels={"facet_0": pd.Series(label).iloc[::-1]})


def test_rows_change_places_without_a_copy(many: Callable) -> None:
    many(7)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    before, arranged = x.copy(), Arranged(x)
    for _ in range(6):
        kind = rng.integers(3, size=50)
        groups = [np.flatnonzero(kind == each) for each in (0, 1)]
        for group, view in zip(groups, arranged.first(*groups), strict=True):
            assert np.array_equal(view, before[group])
            assert np.shares_memory(view, x)
        assert np.array_equal(arranged.back(x), before)


def test_chosen_rows_are_in_order_and_random(many: Callable) -> None:
    many(100)
    assert np.array_equal(some_rows(np.arange(100)), np.arange(100))
    chosen = some_rows(np.arange(1000), seed=2)
    assert len(set(chosen)) == 100
    assert (np.diff(chosen) > 0).all()
    assert abs(chosen.mean() - 500) < 5 * 1000 / np.sqrt(12 * 100)
    labels = np.full(1000, -1), np.where(np.arange(1000) % 50 == 3, 1, -1)
    assert set(range(3, 1000, 50)) < set(labeled_first(labels, 100, seed=2))


KINDS = {
    "real": lambda rng: np.concatenate(
        [rng.normal(3, 2, (60, 3)), rng.normal(size=(60, 1)) ** 3], 1
    ),
    "huge and tiny": lambda rng: rng.normal(size=(60, 4)) * [1e200, 1e-200, 1.0, 0.0],
    "with gaps": lambda rng: np.where(rng.random((60, 4)) < 0.3, np.nan, rng.normal(9, 1, (60, 4))),
    "an empty column": lambda rng: rng.normal(size=(60, 3)) * [1.0, np.nan, 1.0],
    "8-bit": lambda rng: rng.integers(256, size=(60, 3)).astype(np.uint8),
    "images": lambda rng: rng.normal(4, 2, (60, 2, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", [False, True])
def test_scales_are_those_of_all_rows_at_once(kind: str, chosen: bool, many: Callable) -> None:
    """Moments against NumPy's, up to rounding; everything else is equal."""
    rng = np.random.default_rng(5)
    x, counts = KINDS[kind](rng), rng.random(60) < 0.8 if chosen else None
    at_once = encoding_of(x, None, counts)
    encoded = at_once.encode(x)
    many(7)
    in_part = encoding_of(x, None, counts)
    assert in_part.values == at_once.values
    assert in_part.missing == pytest.approx(at_once.missing)
    assert np.array_equal(in_part.exponent, at_once.exponent)
    np.testing.assert_allclose(in_part.loc, at_once.loc, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(in_part.scale, at_once.scale, rtol=1e-12)
    if kind in ("with gaps", "real"):
        own = x if counts is None else x[counts]
        np.testing.assert_allclose(in_part.loc, np.nanmean(own, 0), rtol=1e-12)
        np.testing.assert_allclose(in_part.scale, np.nanstd(own, 0), rtol=1e-12)
    assert np.array_equal(at_once.encode(x), encoded, equal_nan=True)


def test_outlying_rows_of_many_are_those_of_all_at_once(
    many: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outliers, "MOST_ROWS", 1200)
    x, _ = drawn(3000, 8)
    far = np.random.default_rng(3).normal(size=(3000, 8))
    x[::100] += (20 * far / np.linalg.norm(far, axis=1, keepdims=True))[::100]
    usual = Outliers(x)
    exact = usual.among(x)
    assert exact[::100].mean() > 0.9
    assert exact.sum() < 40
    many(500)
    assert np.array_equal(usual.among(x), exact)
    # Against scikit-learn, on the rows that were compared with.
    factors = -LocalOutlierFactor(n_neighbors=20, novelty=True).fit(usual._rows).score_samples(x)
    assert np.array_equal(usual.among(x), factors > 2.5)


@pytest.mark.thorough
def test_many_rows_are_searched_in_part_and_all_get_clusters(many: Callable) -> None:
    many(300)
    x, labels = drawn()
    x[::60] *= 12  # outlying rows
    given = x.copy()
    found = MultiFacetClustering(mark_outliers=True, epochs=2, random_state=0).fit(x)
    assert np.array_equal(x, given)
    assert found.settings_["searched"] == 300
    assert found.outliers_[::60].all()
    assert found.outliers_.sum() == 10
    assert np.array_equal(found.labels_, found.predict(x))
    usual = ~found.outliers_
    assert (found.labels_[~usual] == -1).all()
    told = agreement(found.labels_[usual].T, (truth[usual] for truth in labels))
    assert min(told) > 0.85
    proba = found.predict_proba(x[:400])
    assert np.array_equal(proba.argmax(-1)[usual[:400]], found.labels_[:400][usual[:400]])
    gaps = np.where(np.random.default_rng(0).random(x.shape) < 0.1, np.nan, x)
    with_gaps = brief().fit(gaps)
    assert not np.isnan(with_gaps.impute(gaps)).any()
    assert with_gaps.transform(gaps).shape[0] == 600


def test_labeled_rows_are_seen_though_few_are_searched(many: Callable) -> None:
    """20 labeled rows of 600, of which 200 are searched, decide which facet is which, and how its
    clusters are numbered.
    """
    many(200)
    x, (first, second) = drawn()
    few = np.full((2, 600), -1)
    few[:, ::30] = 1 - first[::30], 2 - second[::30]
    names = ("one", "other")
    fit = MultiFacetClustering(names, epochs=2, random_state=0)
    found = fit.fit(x, labels=dict(zip(names, few, strict=True)))
    for truth, column in zip((1 - first, 2 - second), found.labels_.T, strict=True):
        assert (truth == column).mean() > 0.8


def test_8_bit_data_keep_their_rows(many: Callable) -> None:
    x = np.random.default_rng(0).integers(256, size=(60, 6)).astype(np.uint8)
    before = x.copy()
    brief().fit(x)
    assert np.array_equal(x, before)


def peak(work: Callable[[], object]) -> int:
    """Bytes that NumPy holds at most beyond what it held."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_data_are_copied_once(
    many: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Encoding, outlying rows and clusters take one copy in float32, and less than 0.6 of another
    (parts of 25 rows of 3,000); of a memory map the file is not copied beside.
    """
    x, _ = drawn(3000, 40)
    x[::300] *= 12
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    fit = brief().fit(x[:100])
    many(25)
    monkeypatch.setattr(outliers, "MOST_ROWS", 80)
    monkeypatch.setitem(sys.modules, "faiss", None)
    for given in (x, mapped):
        assert (
            peak(lambda given=given: fit._newly_encoded(fit._newly_checked(given))) < 1.6 * x.nbytes
        )
        assert peak(lambda given=given: fit.predict(given)) < 1.6 * x.nbytes


def test_progress_is_shown_on_request(many: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    many(200)
    x, _ = drawn()
    brief(verbose=True).fit(x)
    said = capsys.readouterr().err
    phases = ("reads the data", "looks for outlying rows", "fits mixtures", "trains all together")
    assert all(f"MultiFacetClustering {phase}\n" in said for phase in phases)
    assert said.index(" finds ") < said.index(" fits mixtures")
    assert "step/s" in said
    brief().fit(x)
    assert not capsys.readouterr().err


@pytest.mark.thorough
def test_a_large_table_is_measured_in_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(million_rows, "START", "fork")  # quick, and no data are held here
    sizes = ["--rows", "400", "--columns", "5", "--seeds", "0", "1"]
    million_rows.main([*sizes, "--out", str(tmp_path / "out.jsonl")])
    said = capsys.readouterr().out
    measured = ("fits mixtures, seconds", "copies", "told 3, seconds", "predict, s")
    assert all(each in said for each in measured)
