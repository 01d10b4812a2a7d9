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
from sklearn.metrics import adjusted_rand_score

from facetvae.describing import FacetClusters, FacetDescription, describe_clusters
from facetvae.describing.columns import columns_of, kinds_of
from facetvae.describing.description import number_text
from facetvae.describing.effects import (
    associated,
    mean_difference,
    share_intervals,
    variance_explained,
)
from facetvae.describing.figure import columns_figure, describe_figure
from facetvae.estimators import MultiFacetClustering
from ppl_models import Categorical, Columns, NegativeBinomial, Normal, Ordinal

NAN = float("nan")

# Measures and intervals


def normals(seed: int, means: tuple[float, ...] = (0.0, 0.4, 1.0), each: int = 25) -> np.ndarray:
    """A row of normal values for each group."""
    rng = np.random.default_rng(seed)
    return rng.normal(np.array(means)[:, None], 1.0, (len(means), each))


def test_variance_explained_is_what_the_f_statistic_says() -> None:
    parts = normals(0)
    k, n = len(parts), parts.size
    found = variance_explained(parts.ravel(), np.repeat(np.arange(k), parts.shape[1]))
    assert found is not None
    F = f_oneway(*parts).statistic
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
        found = variance_explained(normals(seed, means).ravel(), group)
        assert found is not None
        covered += found.interval[0] <= truth <= found.interval[1]
    error = np.sqrt(0.95 * 0.05 / tries)
    # Without any effect the lower end is never above it: 97.5 %.
    assert abs(covered / tries - (0.975 if truth == 0 else 0.95)) < 4 * error


def test_it_is_beyond_chance_where_a_test_rejects() -> None:
    group = np.repeat(np.arange(3), 25)
    for seed in range(60):
        values = normals(seed, (0.0, 0.2, 0.5))
        found = variance_explained(values.ravel(), group)
        assert found is not None
        assert found.beyond_chance == (f_oneway(*values).pvalue < 0.025)


@pytest.mark.parametrize(
    ("values", "share"), [([1, 1, 2, 2, 5, 5], 1.0), ([3] * 6, 0.0), ([0.1] * 6, 0.0)]
)
def test_columns_without_spread(values: list[float], share: float) -> None:
    found = variance_explained(np.array(values, float), np.array([0, 0, 1, 1, 2, 2]))
    assert found is not None
    assert (found.share, found.interval) == (share, (share, share))
    assert variance_explained(np.arange(4.0), np.zeros(4, int)) is None
    assert variance_explained(np.arange(3.0), np.arange(3)) is None


@pytest.mark.parametrize("far", [10.0, 2_000.0, 1e4, 1e5, 1e9])
def test_almost_all_of_a_column_can_be_explained(far: float) -> None:
    """Where the ends of the interval are close to 1, and to what a vast effect has: the spread of
    the sum of squares within groups. From an F of 1e8 on they are the share alone.
    """
    group = np.arange(60) % 2
    values = far * group + np.random.default_rng(0).normal(size=60)
    found = variance_explained(values, group)
    assert found is not None
    rest = sum(((values[group == k] - values[group == k].mean()) ** 2).sum() for k in (0, 1))
    ratio = ((values - values.mean()) ** 2).sum() / rest - 1
    below = [1 / (1 + ratio * chi2.ppf(q, 58) / 60) for q in (0.025, 0.975)]
    tolerance = {"rel": 2e-2 if far < 50 else 1e-3, "abs": 1e-6 if far > 9_000 else 0}
    assert [1 - end for end in found.interval] == pytest.approx(below, **tolerance)


@pytest.mark.parametrize("step", [20.0, 60.0])
def test_times_in_seconds_are_described_as_those_from_their_start(step: float) -> None:
    group = np.arange(2000) % 2
    seconds = step * group + np.random.default_rng(0).normal(0, 15, 2000).round(3)
    moved, plain = (variance_explained(v, group) for v in (1.75e9 + seconds, seconds))
    assert moved is not None
    assert plain is not None
    assert moved.interval == pytest.approx(plain.interval, rel=1e-5)
    assert 0 < moved.share < 1


def test_association_is_cramers_v_corrected_for_bias() -> None:
    table = np.array([[30, 12, 8], [10, 25, 15]])
    found = associated(np.insert(table, 1, 0, axis=0))  # a category without rows changes nothing
    assert found is not None
    n, r, k = 100, 2, 3
    chi2 = chi2_contingency(table, correction=False).statistic
    phi = chi2 / n - (r - 1) * (k - 1) / (n - 1)  # Bergsma 2013, Eq. 3 to 5
    rows, columns = r - (r - 1) ** 2 / (n - 1), k - (k - 1) ** 2 / (n - 1)
    assert found.share == pytest.approx(phi / min(rows - 1, columns - 1))
    for end, level in zip(found.interval, (0.975, 0.025), strict=True):
        assert ncx2.cdf(chi2, 2, n * end) == pytest.approx(level, abs=1e-4)
    assert associated(np.array([[4, 5], [0, 0]])) is None


def test_unrelated_categories_are_beyond_chance_as_rarely_as_the_level_says() -> None:
    rng, tries, beyond = np.random.default_rng(0), 400, 0
    for _ in range(tries):
        table = np.zeros((4, 3), int)
        np.add.at(table, (rng.integers(4, size=200), rng.integers(3, size=200)), 1)
        found = associated(table)
        assert found is not None
        beyond += found.beyond_chance
    assert beyond / tries < 0.025 + 4 * np.sqrt(0.025 * 0.975 / tries)


def test_a_column_of_two_categories_is_told_as_its_numbers_are() -> None:
    rng = np.random.default_rng(1)
    group = np.arange(400) % 2
    value = rng.random(400) < 0.3 + 0.4 * group
    as_number = variance_explained(value.astype(float), group)
    table = np.array([[(value == v)[group == g].sum() for g in (0, 1)] for v in (0, 1)])
    as_category = associated(table)
    assert as_number is not None
    assert as_category is not None
    assert as_category.share == pytest.approx(as_number.share, abs=0.002)


def test_a_difference_has_welchs_interval() -> None:
    a, b = np.array([3.0, 5.0, 9.0, 1.0]), np.array([2.0, 2.5, 1.0, 0.0, 3.0, 2.0])
    difference, interval = mean_difference(a, b)
    expected = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert difference == pytest.approx(a.mean() - b.mean())
    assert interval == pytest.approx((expected.low, expected.high))
    assert mean_difference(np.ones(3), np.zeros(3)) == (1, None)
    assert mean_difference(np.ones(3), np.zeros(0)) == (None, None)


def test_shares_have_wilsons_intervals() -> None:
    counts = np.array([0, 3, 17, 20])
    for count, found in zip(counts, share_intervals(counts, 20), strict=True):
        expected = binomtest(int(count), 20).proportion_ci(0.95, "wilson")
        assert found == pytest.approx(tuple(expected), abs=1e-12)


# Columns


def test_kinds_of_columns() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.normal(40, 9, 60),
            "city": rng.choice(["Oslo", "Bath"], 60),
            "size": pd.Categorical(rng.choice(["S", "L"], 60), ["S", "M", "L"], ordered=True),
            "member": rng.random(60) < 0.5,
            "visits": rng.poisson(20, 60) * rng.integers(1, 4, 60),
            "rating": rng.integers(1, 6, 60),
            "active": pd.array(rng.random(60) < 0.5, "boolean"),
            "calls": pd.array(rng.integers(0, 400, 60), "Int64"),
            "zero_one": rng.integers(0, 2, 60).astype(float),
        }
    )
    frame.iloc[3, [0, 1, 6, 7]] = None
    columns = {each.name: each for each in columns_of("X", frame)}
    assert {name: each.kind for name, each in columns.items()} == {
        "age": "numbers",
        "city": "categories",
        "size": "categories",
        "member": "categories",
        "visits": "numbers",
        "rating": "numbers",
        "active": "categories",
        "calls": "numbers",
        "zero_one": "categories",
    }
    assert columns["size"].levels == ("S", "L"), "in the dtype's order, those that occur"
    assert columns["zero_one"].levels == ("0", "1")
    assert not columns["city"].observed[3]
    assert not columns["active"].observed[3]
    (chosen,) = columns_of("X", frame[["rating"]], {"rating": "categories"})
    assert chosen.levels == ("1", "2", "3", "4", "5")
    images = columns_of("X", np.zeros((4, 2, 3)))
    assert [each.name for each in images] == ["(0,0)", "(0,1)", "(0,2)", "(1,0)", "(1,1)", "(1,2)"]


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
    assert "ARI" not in told.to_markdown()


def test_a_likelihood_says_what_a_column_is() -> None:
    parts = {"a": Normal(), "b": Categorical(3), "c": NegativeBinomial(), "d": Ordinal(3)}
    kinds = kinds_of(Columns(parts))
    assert kinds == {"a": "numbers", "b": "categories"}, "values tell of the others"
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
    assert kind_of(np.arange(60) % 4, "categories") == "categories"
    with pytest.raises(ValueError, match="column 'a' of X is no column of numbers"):
        kind_of(["x", "y"] * 30, "numbers")


def test_gaps_among_strings_are_gaps_and_levels_print_differently() -> None:
    (column,) = columns_of("X", {"a": ["a", NAN, "b", "a"] * 9})
    assert column.levels == ("a", "b")
    with pytest.raises(ValueError, match="column 'a' of X has '1' as values of several types"):
        columns_of("X", {"a": [1, "1"] * 18})


@pytest.mark.parametrize("form", [list, np.array, pd.array, pd.Series])
def test_pandas_missing_values_are_gaps_in_any_container(form: Callable[[Any], Any]) -> None:
    words = pd.array(["a", pd.NA, "b", "a"] * 9, dtype="string")
    whole = pd.array([1, 2, pd.NA, 4] * 9, dtype="Int64")
    given = {
        name: form(np.array(each, dtype=object) if form is np.array else each)
        for name, each in {"words": words, "whole": whole}.items()
    }
    found = columns_of("X", given)
    assert [(each.kind, each.observed.sum()) for each in found] == [
        ("categories", 27),
        ("numbers", 27),
    ]


@pytest.mark.parametrize("town", ["Oslo", np.array([["a", "b"]] * 9), 3.0])
def test_a_column_has_a_value_for_each_row(town: Any) -> None:
    with pytest.raises(ValueError, match=r"'town' of X has shape .*, but one value a row is"):
        columns_of("X", {"town": town})


def test_names_of_columns_are_compared_as_text() -> None:
    frame = pd.DataFrame(np.arange(18).reshape(9, 2))
    assert [each.kind for each in columns_of("X", frame, {0: "categories"})] == [
        "categories",
        "numbers",
    ]
    assert [each.name for each in columns_of("X", frame[1])] == ["1"]
    with pytest.raises(ValueError, match="two columns are called '1': rename one of them"):
        columns_of("X", {1: np.arange(9), "1": np.arange(9)})


def test_a_user_may_say_what_an_estimators_columns_are() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)).round(), columns=list("abc"))
    found = MultiFacetClustering(1, n_clusters=2, epochs=1, random_state=0).fit(frame)
    about = found.describe(0, frame, kinds={"b": "categories"})
    assert {each["column"]: each["kind"] for each in about.columns}["b"] == "categories"


def test_numbers_have_three_digits() -> None:
    shown = [number_text(value) for value in (0.0123456, 999.4, 999.6, -999.9, 12345.6, 1e6)]
    assert shown == ["0.0123", "999", "1000", "-1000", "12346", "1e+06"]


def test_a_kind_is_for_a_column_that_is_there() -> None:
    table = {"age": np.arange(9.0), "town": ["Oslo"] * 9}
    with pytest.raises(ValueError, match=r"X has no column 'Age', but \['age', 'town'\]"):
        columns_of("X", table, {"Age": "numbers"})
    with pytest.raises(ValueError, match="give X as a data frame or mapping"):
        columns_of("X", np.zeros((9, 2)), {"x0": "numbers"})


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
    names = [each["column"] for each in told().columns]
    effects = [each["effect"] for each in told().columns]
    assert effects == sorted(effects, reverse=True)
    assert names[-1] == "noise"
    beyond = {each["column"]: each["beyond_chance"] for each in told().columns}
    assert beyond == {"noise": False, "height": True, "visits": True, "town": True}


def test_numbers_are_in_the_users_units() -> None:
    group, seen, _ = people()
    height = next(each for each in told().columns if each["column"] == "height")
    assert (height["observed"], height["missing"]) == (291, 9)
    for each in height["clusters"]:
        own = seen["height"][group == each["cluster"]]
        others = seen["height"][group != each["cluster"]]
        assert each["mean"] == pytest.approx(own.mean())
        assert each["difference"] == pytest.approx(own.mean() - others.mean())
        assert each["interval"][0] < each["difference"] < each["interval"][1]
    visits = next(each for each in told().columns if each["column"] == "visits")
    own = seen["visits"][group == 2].mean() - seen["visits"][group != 2].mean()
    assert visits["clusters"][2]["difference"] == pytest.approx(own)


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
        assert each["adjusted_rand"] == pytest.approx(adjusted_rand_score(labels, group))
    assert kind["table"] == {
        k: v.tolist() for k, v in zip("xyz", np.diag(np.bincount(group)), strict=True)
    }
    assert not found["beyond_chance"]
    assert year["effect"] == 1.0


ROWS = pd.DataFrame({"a": range(6)}, index=list("uvwxyz"))
MIXED = ROWS.set_axis(["u", 1, "w", 3, "y", 5])


@pytest.mark.parametrize(
    ("X", "metadata"),
    [
        (ROWS, {"b": ROWS["a"][::-1]}),
        (ROWS, {"b": np.arange(6), "c": ROWS["a"][::-1]}),
        (ROWS, ROWS["a"][::-1]),
        (ROWS[:4], ROWS[2:]),
        (ROWS, {"b": pd.Series(range(6))}),
        (MIXED, MIXED[::-1]),
        (MIXED, {"b": MIXED["a"][::-1]}),
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
    assert "kind (ARI 1.00)" in page
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
    description = describe_clusters(
        FacetClusters("kind", np.ones((6, 1))), np.arange(12.0).reshape(6, 2)
    )
    assert [each["effect"] for each in description.columns] == [None, None]
    assert str(description)


# From an estimator


@cache
def fitted() -> tuple[MultiFacetClustering, pd.DataFrame]:
    _, seen, _ = people()
    found = MultiFacetClustering(1, n_clusters=3, n_latents=2, epochs=4, random_state=0)
    return found.fit(seen), seen


def test_an_estimator_describes_the_clusters_that_it_predicts() -> None:
    found, seen = fitted()
    some = seen.iloc[100:200]
    description = found.describe(0, some, {"row": np.arange(100)})
    labels, probabilities = found.predict(some)[:, 0], found.predict_proba(some)[:, 0]
    sizes = {each["cluster"]: each["size"] for each in description.clusters}
    assert sizes == {k: n for k, n in enumerate(np.bincount(labels).tolist()) if n}
    assert description.certainty["mean"] == pytest.approx(probabilities.max(1).mean())
    for each in description.clusters:
        assert (labels[each["exemplars"]] == each["cluster"]).all()
    assert {each["column"] for each in description.columns} == set(seen.columns)
    assert description.stability is None
    kinds = {each["column"]: each["kind"] for each in description.columns}
    assert kinds == {
        "noise": "numbers",
        "height": "numbers",
        "visits": "numbers",
        "town": "categories",
    }


@pytest.mark.parametrize("as_frame", [False, True], ids=["array", "frame"])
def test_numbers_of_an_array_and_of_a_frame(as_frame: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)) * 0.3 + 100 * (np.arange(80) % 2)[:, None]
    X[3] = 1e4
    given = pd.DataFrame(X, columns=["a", "b", "c"]) if as_frame else X
    found = MultiFacetClustering(1, n_clusters=2, epochs=5, mark_outliers=True, random_state=0)
    description = found.fit(given).describe(-1, given)
    assert description.left_out == (found.labels_ < 0).sum() >= 1
    assert {each["column"] for each in description.columns} == set(
        "abc" if as_frame else ["x0", "x1", "x2"]
    )
    first = description.columns[0]
    j = "abc".index(first["column"]) if as_frame else int(first["column"][1])
    kept = X[found.labels_[:, 0] >= 0, j]
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


def test_columns_stand_with_the_facet_that_explains_most_of_them() -> None:
    """Two of four clusters and one column of noise: which shares are drawn, and in which order."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(2, size=300), rng.integers(4, size=300)
    X = np.stack([second, 2 * first, 4 * second, np.zeros(300)], 1) + rng.normal(size=(300, 4))
    groups = {"first": np.eye(2)[first], "second": np.eye(4)[second]}
    described = [describe_clusters(FacetClusters(k, p), X) for k, p in groups.items()]
    (ax,) = columns_figure(described).axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["x1", "x2", "x0", "x3"]
    shares = [{each["column"]: each["effect"] for each in of.columns} for of in described]
    cells = [(0, 0, shares[0]["x1"]), (1, 1, shares[1]["x2"]), (1, 2, shares[1]["x0"])]
    written = {(*text.get_position(), int(text.get_text().split()[0])) for text in ax.texts}
    assert written == {(facet, row, round(100 * share)) for facet, row, share in cells}
    (fewer,) = columns_figure(described, columns=2).axes
    assert [text.get_text() for text in fewer.get_yticklabels()] == ["x2", "x0"]


@pytest.mark.parametrize("left_out", [False, True])
def test_images_of_fewer_than_two_clusters_have_no_figure(left_out: bool) -> None:
    found = FacetClusters("k", np.ones((9, 1)), left_out=np.full(9, left_out))
    told = describe_clusters(found, np.random.default_rng(0).random((9, 4, 4)))
    with pytest.raises(ValueError, match=r"has [01] clusters with rows: there is nothing to tell"):
        describe_figure(told)
    with pytest.raises(ValueError, match="no facet has two clusters"):
        columns_figure([told])
