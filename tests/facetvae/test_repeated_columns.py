"""Columns that say what others say, or depend on them but for clusters, change no grouping."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import normalized_mutual_info_score as nmi

from facetvae.estimators import MultiFacetClustering
from facetvae.table_rules.levels import atom_of, levels_of_one
from facetvae.table_rules.repeated import Recoding, codes_told, numbers_told
from lab.benchmarks.customer_tables import customer_table
from tests.agreement import agreement

pytestmark = pytest.mark.slow(10)


def one_hot(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.get_dummies(frame)


def category_again(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(again="of " + frame["first_category_0"].astype(str))


def classes(frame: pd.DataFrame) -> pd.DataFrame:
    own = pd.qcut(frame["second_number_0"], 5).astype(str)
    return frame.assign(classes=own)


def near_copies(frame: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    near = {
        f"near {name}": frame[name] + 0.48 * frame[name].std() * rng.normal(size=len(frame))
        for name in ("second_number_0", "second_count_2")
    }
    return frame.assign(**near)


@pytest.mark.parametrize("change", [one_hot, category_again, classes, near_copies])
def test_columns_that_others_tell_change_no_grouping(
    change: Callable[[pd.DataFrame], pd.DataFrame],
) -> None:
    """The worse of both groupings, told to 0.70 by nine columns, was told to 0.39 with one-hot
    columns, 0.55 with a category twice, 0.60 with classes of a number, and 0.44 with near copies.
    """
    table = customer_table(401, rows=800, columns=9)
    frame = change(table.frame())
    found = MultiFacetClustering(random_state=0).fit(frame)
    assert min(agreement(found.labels_.T, table.labels.values())) > 0.66
    assert (found.predict(frame) == found.labels_).mean() > 0.99


def test_correlated_noise_hides_no_sets_of_columns() -> None:
    """Subspaces took their place, with 0.51 and 0.52, as the noise was no part of the sets."""
    table, rng = customer_table(402, rows=800, columns=9), np.random.default_rng(0)
    both = rng.normal(size=800)
    noise = {f"n{i}": both + 0.33 * rng.normal(size=800) for i in range(2)}
    found = MultiFacetClustering(random_state=0).fit(table.frame().assign(**noise))
    first, second = agreement(found.labels_.T, table.labels.values())
    assert first > 0.6
    assert second > 0.75


def test_levels_of_one_category_are_seen() -> None:
    """Also where one is left out, or is rare; answers that do not exclude each other are none."""
    rng = np.random.default_rng(0)
    a = rng.choice(4, 1000, p=[0.5, 0.3, 0.17, 0.03])
    answers = rng.random((1000, 5)) < 0.4
    values = np.column_stack([answers, a[:, None] == [0, 1, 2, 3]]).astype(float)
    levels = np.full(9, 2)
    assert [np.sort(own).tolist() for own in levels_of_one(values, levels)] == [[5, 6, 7, 8]]
    assert [np.sort(own).tolist() for own in levels_of_one(values[:, :8], levels[:8])] == [
        [5, 6, 7]
    ]
    recoding = Recoding.of(values, levels)
    (own,) = recoding.sets
    assert nmi(recoding(values)[:, own[0]], a) == pytest.approx(1)
    assert recoding.levels[own].tolist() == [5, 1, 1, 1]
    assert not levels_of_one(rng.random((1000, 64)) < 0.1, np.full(64, 2))


def often_zero(frame: pd.DataFrame) -> pd.DataFrame:
    none = np.random.default_rng(0).random(len(frame)) < 0.33
    return frame.assign(second_number_0=frame["second_number_0"].mask(none, 0.0))


def test_an_amount_that_is_often_zero_is_a_number_where_it_is_not() -> None:
    """Clusters of zeros told the grouping to 0.44, less than the 0.59 that other columns tell."""
    table = customer_table(401, rows=800, columns=9)
    found = MultiFacetClustering(random_state=0).fit(often_zero(table.frame()))
    assert agreement(found.labels_.T, [table.labels["second"]])[0] > 0.62


def test_a_value_of_its_own_is_seen() -> None:
    """Zeros among amounts, and 999 for unknown ages; not the commonest of counts or of ages."""
    rng = np.random.default_rng(0)
    amount = np.where(rng.random(1000) < 0.3, 0, rng.lognormal(3, 1, 1000))
    age = np.where(rng.random(1000) < 0.12, 999, rng.integers(18, 90, 1000)).astype(float)
    assert atom_of(amount) == 0
    assert atom_of(age) == 999
    assert atom_of(rng.poisson(1.0, 1000)) is atom_of(age[age < 999]) is None
    values = np.where(rng.random((1000, 2)) < 0.1, np.nan, np.column_stack([amount, age]))
    recoding = Recoding.of(values, np.zeros(2, int))
    read = recoding(values)
    assert recoding.levels.tolist() == [0, 0, 2, 2]
    np.testing.assert_array_equal(np.isnan(read[:, 2]), np.isnan(values[:, 0]))
    np.testing.assert_array_equal(read[:, 2] == 1, values[:, 0] == 0)
    np.testing.assert_array_equal(np.isnan(read[:, 0]), ~(values[:, 0] > 0))


def test_codes_that_others_tell() -> None:
    """A copy, a coarser category, and classes of a number, with one row in a thousand wrong; not a
    category that agrees in nine rows of ten.
    """
    rng = np.random.default_rng(0)
    city, age = rng.integers(6, size=1000), rng.normal(40, 12, 1000)
    grown, region = np.searchsorted([20, 35, 60], age), city // 2
    near = np.where(rng.random(1000) < 0.9, city, rng.integers(6, size=1000))
    grown[0] = (grown[0] + 2) % 4
    values = np.column_stack([city, age, 5 - city, region, grown, near]).astype(float)
    assert codes_told(values, np.array([6, 0, 6, 3, 4, 6]), []) == [0, 3, 4]
    assert codes_told(values[:, 3:], np.array([3, 4, 6]), []) == []


def test_numbers_that_those_before_them_tell() -> None:
    x = np.random.default_rng(0).normal(size=(500, 3))
    more = np.column_stack([x, x[:, 0], x @ [1, 2, -1], x[:, 1] + 0.3 * x[:, 2]])
    assert numbers_told(np.corrcoef(more.T)).tolist() == [False] * 3 + [True] * 3
