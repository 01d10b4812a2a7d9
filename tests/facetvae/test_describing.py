"""What a facet is about: measures and intervals against their formulas and SciPy's, and what is
told of clusters that are known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, chi2, chi2_contingency, f_oneway, ncf, ncx2, ttest_ind
from scipy.stats.contingency import association
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from facetvae.describing import FacetClusters, FacetDescription, describe_clusters
from facetvae.describing.columns import columns_of, kinds_of
from facetvae.describing.description import number_text
from facetvae.describing.effects import (
    Effect,
    associated,
    mean_difference,
    rate_ratio,
    share_intervals,
    variance_explained,
)
from facetvae.describing.figure import describe_figure
from facetvae.estimators import MultiFacetClustering
from ppl_models import Categorical, Columns, NegativeBinomial, Normal, Ordinal
from tests.facetvae.test_mixed_tables import frame

NAN = float("nan")

# Measures and intervals


def normals(seed: int, means: tuple[float, ...] = (0.0, 0.4, 1.0), each: int = 25) -> np.ndarray:
    """A row of normal values for each group."""
    rng = np.random.default_rng(seed)
    return rng.normal(np.array(means)[:, None], 1.0, (len(means), each))


def explained(values: Any, group: np.ndarray) -> Effect:
    found = variance_explained(np.asarray(values, float), group)
    assert found is not None
    return found


def test_variance_explained_is_what_the_f_statistic_says() -> None:
    parts = normals(0)
    k, n = len(parts), parts.size
    found = explained(parts.ravel(), np.repeat(np.arange(k), parts.shape[1]))
    F = f_oneway(*parts).statistic
    assert found.raw == pytest.approx(F * (k - 1) / (F * (k - 1) + n - k))
    assert found.share == pytest.approx((F - 1) * (k - 1) / (F * (k - 1) + n - k))
    for end, level in zip(found.interval, (0.975, 0.025), strict=True):
        noncentrality = n * end / (1 - end)
        assert ncf.cdf(F, k - 1, n - k, noncentrality) == pytest.approx(level, abs=1e-4)


@pytest.mark.parametrize("means", [(0.0, 0.0, 0.0), (0.0, 0.4, 1.0), (0.0, 3.0, 9.0)])
def test_the_interval_of_variance_explained_covers(means: tuple[float, ...]) -> None:
    between = 25 * ((np.array(means) - np.mean(means)) ** 2).sum()
    truth = between / (between + 75)
    group, tries = np.repeat(np.arange(3), 25), 400
    covered = 0
    for seed in range(tries):
        low, high = explained(normals(seed, means).ravel(), group).interval
        covered += low <= truth <= high
    error = np.sqrt(0.95 * 0.05 / tries)
    # Without any effect the lower end is never above it: 97.5 %.
    assert abs(covered / tries - (0.975 if truth == 0 else 0.95)) < 4 * error


@pytest.mark.parametrize(("values", "share"), [([1, 1, 2, 2, 5, 5], 1.0), ([0.1] * 6, 0.0)])
def test_columns_without_spread(values: list[float], share: float) -> None:
    found = explained(values, np.array([0, 0, 1, 1, 2, 2]))
    assert (found.share, found.interval) == (share, (share, share))
    assert variance_explained(np.arange(4.0), np.zeros(4, int)) is None
    assert variance_explained(np.arange(3.0), np.arange(3)) is None


@pytest.mark.parametrize("far", [10.0, 1e4, 1e9])
def test_almost_all_of_a_column_can_be_explained(far: float) -> None:
    """Where the ends of the interval are close to 1, and to what a vast effect has: the spread of
    the sum of squares within groups.
    """
    group = np.arange(60) % 2
    values = far * group + np.random.default_rng(0).normal(size=60)
    rest = sum(((values[group == k] - values[group == k].mean()) ** 2).sum() for k in (0, 1))
    ratio = ((values - values.mean()) ** 2).sum() / rest - 1
    below = [1 / (1 + ratio * chi2.ppf(q, 58) / 60) for q in (0.025, 0.975)]
    found = [1 - end for end in explained(values, group).interval]
    assert found == pytest.approx(below, rel=2e-2 if far < 50 else 1e-3)


def test_times_in_seconds_are_described_as_those_from_their_start() -> None:
    group = np.arange(2000) % 2
    seconds = 20 * group + np.random.default_rng(0).normal(0, 15, 2000).round(3)
    moved, plain = (explained(v, group) for v in (1.75e9 + seconds, seconds))
    assert moved.interval == pytest.approx(plain.interval, rel=1e-5)
    assert 0 < moved.share < 1


def test_association_is_cramers_v_corrected_for_bias() -> None:
    table = np.array([[30, 12, 8], [10, 25, 15]])
    found = associated(np.insert(table, 1, 0, axis=0))  # a category without rows changes nothing
    assert found is not None
    n, r, k = 100, 2, 3
    assert found.raw == pytest.approx(association(table, method="cramer"))
    chi2 = chi2_contingency(table, correction=False).statistic
    phi = chi2 / n - (r - 1) * (k - 1) / (n - 1)  # Bergsma 2013, Eq. 3 to 5
    rows, columns = r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)
    assert found.share == pytest.approx(phi / min(rows - 1, columns - 1))
    for end, level in zip(found.interval, (0.975, 0.025), strict=True):
        assert ncx2.cdf(chi2, 2, n * end) == pytest.approx(level, abs=1e-4)
    assert associated(np.array([[4, 5], [0, 0]])) is None


def test_a_difference_has_welchs_interval() -> None:
    a, b = np.array([3.0, 5.0, 9.0, 1.0]), np.array([2.0, 2.5, 1.0, 0.0, 3.0, 2.0])
    found = mean_difference(a, b, 0.9)
    expected = ttest_ind(a, b, equal_var=False).confidence_interval(0.9)
    assert found.value == pytest.approx(a.mean() - b.mean())
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert mean_difference(np.ones(3), np.zeros(3)).interval is None
    assert mean_difference(np.ones(3), np.zeros(0)).value is None


def test_a_ratio_of_counts_covers_also_where_they_vary_more_than_poissons() -> None:
    rng, tries, covered = np.random.default_rng(0), 400, 0
    for _ in range(tries):
        ours, others = (
            rng.poisson(mean * rng.gamma(2.0, 0.5, 150)).astype(float) for mean in (12.0, 4.0)
        )
        low, high = rate_ratio(ours, others).interval or (NAN, NAN)
        covered += low <= 3.0 <= high
    assert abs(covered / tries - 0.95) < 4 * np.sqrt(0.95 * 0.05 / tries)
    assert rate_ratio(np.ones(3), np.zeros(3)).value is None
    assert rate_ratio(np.zeros(3), np.ones(3)).interval is None


def test_shares_have_wilsons_intervals() -> None:
    counts = np.array([0, 3, 17, 20])
    for count, found in zip(counts, share_intervals(counts, 20, 0.9), strict=True):
        expected = binomtest(int(count), 20).proportion_ci(0.9, "wilson")
        assert found == pytest.approx(tuple(expected), abs=1e-12)


# Columns


def test_kinds_of_columns() -> None:
    whole = frame(gaps=False)
    columns = {
        each.name: each for each in columns_of("X", frame().assign(flag=whole["member"] * 1.0))
    }
    categories = ("city", "size", "plan", "member", "active", "word", "flag")
    assert {name: each.kind for name, each in columns.items()} == {
        **dict.fromkeys(categories, "categories"),
        **dict.fromkeys(("visits", "calls"), "counts"),
        **dict.fromkeys(("age", "rating", "year", "debt"), "numbers"),
    }
    assert columns["size"].levels == ("S", "M", "L"), "in the dtype's order"
    assert columns["plan"].levels == ("a", "b"), "those that occur"
    assert columns["flag"].levels == ("0", "1")
    for name in ("city", "active"):
        assert columns[name].observed.sum() == 57
    (chosen,) = columns_of("X", whole[["rating"]], {"rating": "categories"})
    assert chosen.levels == ("1", "2", "3", "4", "5")
    images = columns_of("X", np.zeros((4, 2, 2)))
    assert [each.name for each in images] == ["(0,0)", "(0,1)", "(1,0)", "(1,1)"]


@pytest.mark.parametrize(
    "form", [list, np.array, pd.Series, lambda v: pd.Series(v, dtype="string")]
)
def test_strings_of_digits_are_categories(form: Callable[[list[str]], Any]) -> None:
    (column,) = columns_of("metadata", {"digit": form(["7", "0", "7", "1"] * 5)})
    assert column.levels == ("0", "1", "7")
    (asked,) = columns_of("X", {"digit": form(["7", "0", "7", "1"] * 5)}, {"digit": "numbers"})
    assert asked.kind == "numbers"


def test_masked_entries_of_an_array_are_gaps() -> None:
    X = np.ma.masked_equal(np.where(np.arange(60)[:, None] % 4, np.arange(60.0)[:, None], -9), -9)
    told = describe_clusters(FacetClusters("kind", np.eye(2)[np.arange(60) % 2]), X)
    assert told.columns[0]["missing"] == 15
    assert told.columns[0]["mean"] == pytest.approx(X.mean())


def test_a_column_that_is_not_observed_agrees_with_nothing() -> None:
    found = FacetClusters("kind", np.eye(2)[np.arange(60) % 2])
    told = describe_clusters(found, np.zeros((60, 1)), {"town": np.full(60, NAN)})
    assert told.metadata[0]["adjusted_rand"] is None
    assert "AMI" not in told.to_markdown()


def test_a_likelihood_says_what_a_column_is() -> None:
    parts = {"a": Normal(), "b": Categorical(3), "c": NegativeBinomial(), "d": Ordinal(3)}
    kinds = {"a": "numbers", "b": "categories", "c": "counts"}  # levels tell of the last
    assert kinds_of(Columns(parts)) == kinds
    assert kinds_of(Normal()) == {}


def test_columns_that_tell_nothing_come_last() -> None:
    group = np.arange(60) % 2
    size = group + np.random.default_rng(0).normal(0, 0.1, 60)
    X = {"flag": np.zeros(60), "site": ["Oslo"] * 60, "size": size}
    told = describe_clusters(FacetClusters("kind", np.eye(2)[group]), X, columns=1)
    assert [each["column"] for each in told.columns] == ["size"]


def test_a_kind_that_is_given_is_taken_or_refused() -> None:
    def kind_of(values: Any, kind: str) -> str:
        return columns_of("X", {"a": values}, {"a": kind})[0].kind

    assert kind_of(np.arange(60) % 2 > 0, "numbers") == "numbers"
    assert kind_of(np.arange(60), "counts") == "counts"
    for values in (["x", "y"] * 30, np.arange(60) - 0.5):
        with pytest.raises(ValueError, match=r"column 'a' of X .* no co"):
            kind_of(values, "counts")
    for values in (np.zeros((60, 2)), "Oslo", 3.0):
        with pytest.raises(ValueError, match=r"'a' of X has shape .*, but one value a row is need"):
            columns_of("X", {"a": values})


def test_gaps_among_strings_are_gaps_and_levels_print_differently() -> None:
    (column,) = columns_of("X", {"a": ["a", NAN, "b", "a"] * 9})
    assert column.levels == ("a", "b")
    with pytest.raises(ValueError, match="column 'a' of X has '1' as values of several types"):
        columns_of("X", {"a": [1, "1"] * 18})


@pytest.mark.parametrize("form", [list, lambda v: np.array(v, object), pd.array, pd.Series])
def test_pandas_missing_values_are_gaps_in_any_container(form: Callable[[Any], Any]) -> None:
    words = pd.array(["a", pd.NA, "b", "a"] * 9, dtype="string")
    whole = pd.array([1, 2, pd.NA, 4] * 9, dtype="Int64")
    found = columns_of("X", {"words": form(words), "whole": form(whole)})
    kinds = [(each.kind, each.observed.sum()) for each in found]
    assert kinds == [("categories", 27), ("numbers", 27)]


def test_as_many_categories_as_one_says() -> None:
    towns = [f"t{i}" for i in range(30)]
    (column,) = columns_of("X", {"town": towns}, {"town": "categories"})
    assert column.observed.all()


def test_names_of_columns_are_compared_as_text() -> None:
    table = pd.DataFrame(np.arange(18).reshape(9, 2))
    assert [each.kind for each in columns_of("X", table, {0: "counts"})] == ["counts", "numbers"]
    assert [each.name for each in columns_of("X", table[1])] == ["1"]
    with pytest.raises(ValueError, match="two columns are called '1': rename one of them"):
        columns_of("X", {1: np.arange(9), "1": np.arange(9)})


def test_numbers_have_three_digits() -> None:
    shown = [number_text(value) for value in (0.0123456, 999.4, 999.6, -999.9, 12345.6, 1e6)]
    assert shown == ["0.0123", "999", "1000", "-1000", "12346", "1e+06"]


def test_a_kind_is_for_a_column_that_is_there() -> None:
    table = {"age": np.arange(9.0), "town": ["Oslo"] * 9}
    with pytest.raises(ValueError, match=r"X has no column 'Age', but \['age', 'town'\]"):
        columns_of("X", table, {"Age": "numbers"})
    with pytest.raises(ValueError, match="give X as a data frame or mapping"):
        columns_of("X", np.zeros((9, 2)), {"x0": "counts"})


# A description of known clusters


@cache
def people(n: int = 300) -> tuple[np.ndarray, pd.DataFrame, pd.DataFrame]:
    """Clusters, columns that differ by them and some that do not, and what was not seen."""
    rng = np.random.default_rng(0)
    group = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    seen = pd.DataFrame(
        {
            "noise": rng.normal(size=n),
            "height": rng.normal(170 + 8 * group, 6),
            "visits": rng.poisson(rng.gamma(5.0, 2.0 * (1 + group))),
            "town": np.where(
                rng.random(n) < 0.8, np.array(["Oslo", "Bath", "Lyon"])[group], "Rome"
            ),
        }
    )
    seen.iloc[:9, 1] = None
    seen.iloc[9:14, 3] = None
    unseen = pd.DataFrame({"kind": np.array(["x", "y", "z"])[group], "year": 1990 + 3 * group})
    return group, seen, unseen


def clusters_of(group: np.ndarray, **options: object) -> FacetClusters:
    return FacetClusters("kind", np.eye(3)[group] * 0.94 + 0.02, **options)  # type: ignore[arg-type]


@cache
def told() -> FacetDescription:
    group, seen, unseen = people()
    return describe_clusters(clusters_of(group), seen, unseen)


def test_columns_come_in_the_order_of_what_the_clusters_explain() -> None:
    effects = [each["effect"] for each in told().columns]
    assert effects == sorted(effects, reverse=True)
    assert told().columns[-1]["column"] == "noise"
    beyond = {each["column"]: each["beyond_chance"] for each in told().columns}
    assert beyond == {"noise": False, "height": True, "visits": True, "town": True}


def test_numbers_are_in_the_users_units() -> None:
    group, seen, _ = people()
    columns = {each["column"]: each for each in told().columns}
    height, visits = columns["height"], columns["visits"]
    assert (height["observed"], height["missing"]) == (291, 9)
    for each in height["clusters"]:
        own = seen["height"][group == each["cluster"]]
        others = seen["height"][group != each["cluster"]]
        assert each["mean"] == pytest.approx(own.mean())
        assert each["difference"] == pytest.approx(own.mean() - others.mean())
        assert each["interval"][0] < each["difference"] < each["interval"][1]
    assert visits["kind"] == "counts"
    ratio = seen["visits"][group == 2].mean() / seen["visits"][group != 2].mean()
    assert visits["clusters"][2]["ratio"] == pytest.approx(ratio)


def test_categories_have_shares() -> None:
    group, seen, _ = people()
    town = next(each for each in told().columns if each["column"] == "town")
    expected = pd.crosstab(group, seen["town"], normalize="index")
    for each in town["clusters"]:
        assert each["shares"] == pytest.approx(expected.loc[each["cluster"]].to_dict())
        for level, share in each["shares"].items():
            low, high = each["intervals"][level]
            assert low - 1e-12 <= share <= high + 1e-12
    overall = seen["town"].value_counts(normalize=True)
    assert town["shares"] == pytest.approx(overall.to_dict())


def test_what_the_model_has_not_seen_is_compared_with_the_clusters() -> None:
    group, _, unseen = people()
    kind, year = told().metadata
    shuffled = np.random.default_rng(1).permutation(unseen["kind"].to_numpy())
    found = describe_clusters(clusters_of(group), unseen[["year"]], {"mixed": shuffled}).metadata[0]
    for labels, each in ((unseen["kind"], kind), (shuffled, found)):
        information = adjusted_mutual_info_score(labels, group)
        assert each["adjusted_rand"] == pytest.approx(adjusted_rand_score(labels, group))
        assert each["adjusted_mutual_information"] == pytest.approx(information)
    table = np.diag(np.bincount(group)).tolist()
    assert kind["table"] == dict(zip("xyz", table, strict=True))
    assert not found["beyond_chance"]
    assert year["effect"] == 1.0


ROWS = pd.DataFrame({"a": range(6)}, index=list("uvwxyz"))
MIXED = ROWS.set_axis(["u", 1, "w", 3, "y", 5])


@pytest.mark.parametrize(
    ("X", "metadata"),
    [
        (ROWS, {"b": np.arange(6), "c": ROWS["a"][::-1]}),
        (ROWS, ROWS["a"][::-1]),
        (ROWS[:4], ROWS[2:]),
        (ROWS, {"b": pd.Series(range(6))}),
        (MIXED, MIXED[::-1]),
        ({"a": ROWS["a"], "b": ROWS["a"][::-1]}, None),
        (ROWS.to_numpy(), {"X": ROWS["a"], "c": ROWS["a"][::-1]}),
        (ROWS.set_axis([0, 0, 1, 1, 2, 2]), {"b": ROWS["a"].set_axis([0, 1, 0, 1, 2, 2])}),
    ],
)
def test_rows_in_another_order_are_refused(X: Any, metadata: Any) -> None:
    found = clusters_of(np.arange(len(X) if hasattr(X, "shape") else 6) % 3)
    with pytest.raises(ValueError, match=r"has other rows than .*X.*: give .*\.loc\["):
        describe_clusters(found, X, metadata)


@pytest.mark.parametrize("form", [list, np.array, lambda values: ROWS["a"] * 0 + values, "polars"])
def test_what_has_no_index_goes_by_place(form: Any) -> None:
    values = [1.0, 0.5, 2.0, 1.5, 3.0, 2.5]
    X, metadata = ROWS, {"b": values if form == "polars" else form(values)}
    if form == "polars":
        polars = pytest.importorskip("polars")
        X, metadata = polars.DataFrame({"a": range(6)}), polars.DataFrame({"b": values})
    found = describe_clusters(clusters_of(np.arange(6) % 2), X, metadata)
    assert [each["column"] for each in (*found.columns, *found.metadata)] == ["a", "b"]
    assert found.metadata[0]["clusters"][0]["mean"] == 2.0


def test_typical_rows_are_sure_central_and_distinct() -> None:
    probabilities = np.array(
        [[0.9, 0.1], [0.85, 0.15], [0.99, 0.01], [0.6, 0.4], [0.1, 0.9], [0.9, 0.1]]
    )
    typicality = -np.array([[3.0, 9], [1, 9], [2, 9], [0.5, 1], [9, 1], [1.5, 9]])
    found = FacetClusters("kind", probabilities, typicality)
    assert found.typical(0).tolist() == [1, 5, 2, 0, 3], "the unsure one comes last"
    X = np.array([[0.0, 1], [4, 4], [7, 8], [1, 1], [2, 2], [4, 4]])
    first, second = describe_clusters(found, X, exemplars=3).clusters
    assert first["exemplars"] == [1, 2, 0], "row 5 has the values of row 1"
    assert second["exemplars"] == [4]
    assert first["mean"] == X[[0, 1, 2, 3, 5]].mean(0).tolist()


def test_how_sure_and_how_stable() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    left_out = np.array([False, False, False, True])
    found = FacetClusters("kind", probabilities, None, left_out, 0.7)
    description = describe_clusters(found, np.arange(4.0)[:, None])
    assert description.certainty["mean"] == pytest.approx(np.mean([0.9, 0.6, 0.8]))
    assert description.certainty["unsure"] == pytest.approx(1 / 3)
    assert (description.stability, description.left_out) == (0.7, 1)
    assert [each["size"] for each in description.clusters] == [2, 1]
    assert "1 rows belong to no cluster" in str(description)


def test_a_description_is_json_and_a_page() -> None:
    whole = json.loads(json.dumps(told().as_dict(), allow_nan=False))
    assert whole["clusters"] == told().clusters
    whole["columns"].clear()
    told().as_dict()["columns"].clear()
    assert told().columns, "a copy"
    page = str(told())
    assert page == told().to_markdown()
    assert page.startswith("# kind: 3 clusters of 300 rows")
    assert "| town | " in page
    assert "kind (AMI 1.00)" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert max(map(len, lines)) < 500


@pytest.mark.parametrize("X", [np.zeros((5, 2)), np.full((5, 2), NAN)], ids=["constant", "empty"])
def test_columns_that_say_nothing(X: np.ndarray) -> None:
    found = FacetClusters("kind", np.eye(2)[[0, 1, 0, 1, 0]])
    description = describe_clusters(found, X)
    assert [each["beyond_chance"] in (False, None) for each in description.columns] == [True, True]
    json.dumps(description.as_dict(), allow_nan=False)
    assert str(description)


def test_one_cluster_has_nothing_to_tell_apart() -> None:
    found = FacetClusters("kind", np.ones((6, 1)))
    description = describe_clusters(found, np.arange(12.0).reshape(6, 2))
    assert [each["effect"] for each in description.columns] == [None, None]
    assert str(description)


# From an estimator


def test_an_estimator_describes_the_clusters_that_it_predicts() -> None:
    _, seen, _ = people()
    found = MultiFacetClustering(1, n_clusters=3, n_latents=2, epochs=4, random_state=0).fit(seen)
    some = seen.iloc[100:200]
    description = found.describe(0, some, {"row": np.arange(100)})
    labels, probabilities = found.predict(some)[:, 0], found.predict_proba(some)[:, 0]
    sizes = {each["cluster"]: each["size"] for each in description.clusters}
    assert sizes == {k: n for k, n in enumerate(np.bincount(labels).tolist()) if n}
    assert description.certainty["mean"] == pytest.approx(probabilities.max(1).mean())
    for each in description.clusters:
        assert (labels[each["exemplars"]] == each["cluster"]).all()
    assert description.stability is None
    assert found.facet(0).describe(some).as_dict()["columns"] == description.columns
    kinds = {each["column"]: each["kind"] for each in description.columns}
    numbers = dict.fromkeys(("noise", "height"), "numbers")
    assert kinds == {**numbers, "visits": "counts", "town": "categories"}


@pytest.mark.parametrize("as_frame", [False, True], ids=["array", "frame"])
def test_numbers_of_an_array_and_of_a_frame(as_frame: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)) * 0.3 + 100 * (np.arange(80) % 2)[:, None]
    X[3] = 1e4
    given = pd.DataFrame(X, columns=["x0", "x1", "x2"]) if as_frame else X
    found = MultiFacetClustering(1, n_clusters=2, epochs=5, mark_outliers=True, random_state=0)
    description = found.fit(given).describe(-1, given)
    assert description.left_out == (found.labels_ < 0).sum() >= 1
    assert {each["column"] for each in description.columns} == {"x0", "x1", "x2"}
    assert ("mean" in description.clusters[0]) == (not as_frame)
    first = description.columns[0]
    kept = X[found.labels_[:, 0] >= 0, int(first["column"][1])]
    assert first["deviation"] == pytest.approx(kept.std(ddof=1))
    if as_frame:  # numbers that are written as text, as a file may have them, are numbers here too
        assert found.describe(-1, given.astype(str)).as_dict() == description.as_dict()


# The figure


def test_the_figure_has_a_panel_for_each_of_the_first_columns() -> None:
    figure = describe_figure(told(), columns=4)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["explained by kind", *(each["column"] for each in told().columns)]
    marks = figure.axes[0].get_yticklabels()
    assert [text.get_text() for text in marks] == [*titles[1:], "kind", "year"]
    (panel,) = (ax for ax in figure.axes if ax.get_title() == "height")
    height = next(each for each in told().columns if each["column"] == "height")
    drawn = [line.get_xdata()[0] for line in panel.lines if len(line.get_xdata()) == 1]
    assert drawn == [each["mean"] for each in height["clusters"]]
    figure.savefig("/dev/null", format="png")


def test_the_figure_of_images_has_their_means() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(40) % 2
    X = (rng.random((40, 5, 4)) * 0.2 + 0.6 * group[:, None, None] * np.eye(5, 4)) * 255
    found = FacetClusters("stroke", np.eye(2)[group])
    figure = describe_figure(describe_clusters(found, X.astype(np.uint8)))
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["mean", "less the others'"]
    (image,) = ax.images
    canvas = np.asarray(image.get_array())
    assert canvas.shape[:2] == (2 * 5 + 1, 2 * 4 + 1)
    assert (canvas[6, 0], canvas[6, 5]) == pytest.approx((0.0, 1.0)), "the first diagonal differs"


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_images_with_gaps_are_compared_with_the_other_rows_that_were_seen() -> None:
    group = np.repeat(np.arange(3), 10)
    X = np.ones((30, 2, 2)) * group[:, None, None]
    X[:9, 0, 0] = X[group == 2, 1, 1] = np.nan
    told = describe_clusters(FacetClusters("k", np.eye(3)[group]), X)
    means = np.array([np.nanmean(X[group == k], 0) for k in range(3)])
    others = np.array([np.nanmean(X[group != k], 0) for k in range(3)])
    for name, wanted in (("mean", means), ("mean_of_others", others)):
        found = np.array([each[name] for each in told.clusters], float)
        np.testing.assert_allclose(found, wanted)
    lower = np.asarray(describe_figure(told).axes[0].images[0].get_array())[3:]
    shown = [lower[:, 3 * k : 3 * k + 2] for k in range(3)]
    most = np.nanmax(np.abs(means - others))
    np.testing.assert_allclose(shown, 0.5 + (means - others) / (2 * most))
