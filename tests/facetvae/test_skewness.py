"""Skewed columns: the transformation, its density, and when it is chosen."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata, yeojohnson

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.encoding import UnskewedModule, encoding_of
from facetvae.table_rules.skewness import (
    Logarithms,
    NormalScores,
    Powers,
    Unskewed,
    unskewed_if_better,
)
from lab.benchmarks.numbers_found import linear, standardized
from tests.agreement import agreement

NAN = float("nan")


def amounts(n: int = 400, columns: int = 6) -> np.ndarray:
    """Logarithms are normal and depend on each other."""
    rng = np.random.default_rng(0)
    return np.exp(rng.normal(size=(n, columns)) @ rng.normal(size=(columns, columns)) / 2)


# The location and scale of four columns.
UNIT = (np.full(4, 0.3), np.full(4, 1.7))


def example() -> Powers:
    """With the powers 0 and 2, at which the transformation has another form."""
    return Powers(*UNIT, np.array([0.0, 0.5, 1.0, 2.0]))


def test_powers_are_those_of_yeo_and_johnson() -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    columns = zip(x.T, example().power, strict=True)
    expected = np.stack([yeojohnson(column, power) for column, power in columns], 1)
    np.testing.assert_allclose(example().apply(x), (expected - 0.3) / 1.7, atol=1e-12)
    np.testing.assert_allclose(example().undo(example().apply(x)), x, atol=1e-12)


# Further forms of four columns.
OTHERS = (
    Logarithms(*UNIT, np.full(4, -5.0)),
    NormalScores(*UNIT, np.full(4, -5.0), np.full(4, 6.0)),
)


@pytest.mark.parametrize("how", [example(), *OTHERS], ids=str)
def test_slopes_by_differences(how: Unskewed) -> None:
    x, h = np.random.default_rng(1).normal(size=(50, 4)), 1e-6
    slope = (how.apply(x + h) - how.apply(x - h)) / (2 * h)
    np.testing.assert_allclose(how.log_slope(x), np.log(slope), atol=1e-6)
    np.testing.assert_allclose(how.undo(how.apply(x)), x, atol=1e-9)
    module = UnskewedModule(how)(torch.as_tensor(x))
    np.testing.assert_allclose(module, how.apply(x), 1e-12, 1e-12)


def test_missing_entries_stay_missing_and_any_output_has_a_counterpart() -> None:
    x = np.array([[NAN, 1.0, NAN, -2.0]])
    assert (np.isnan(example().apply(x)) == np.isnan(x)).all()
    far = np.array([[-1e3], [1e3]]) * np.ones(4)
    for how in (example(), *OTHERS):
        assert not np.isnan(how.undo(far)).any()


def test_amounts_are_transformed_and_what_is_linear_is_not() -> None:
    found = unskewed_if_better(standardized(amounts()))
    assert isinstance(found, Powers)
    assert found.power.max() < 0.5
    rng = np.random.default_rng(0)
    for x in (
        rng.normal(size=(400, 5)),
        rng.uniform(size=(400, 5)),
        rng.standard_t(4, (400, 5)),
        *(linear(seed).x[:1000] for seed in (1, 3, 5)),
    ):
        assert unskewed_if_better(standardized(x)) is None
    assert unskewed_if_better(standardized(amounts(20))) is None, "too few rows to tell"


def test_a_few_skewed_columns_among_many_are_enough() -> None:
    """They are judged, and all columns get a power."""
    x = standardized(np.random.default_rng(0).normal(size=(400, 80)))
    assert unskewed_if_better(x) is None
    found = unskewed_if_better(np.concatenate([x, standardized(amounts())], 1))
    assert isinstance(found, Powers)
    assert found.power[80:].max() < 0.5 < found.power[:80].min()


def test_what_no_logarithm_is_taken_of_is_told() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(300, 3)) + 5 * rng.integers(2, size=(300, 1)))
    found = MultiFacetClustering(random_state=0).fit(x)
    for least, told in ((0.0, True), (-3.0, True), (x.min() / 3, False)):
        with warnings.catch_warnings(record=True, action="always") as said:
            found.predict(np.where(np.arange(3) == 1, least, x[:4]))
        assert (
            any("no logarithms are taken of in the columns [1]" in str(w.message) for w in said)
            == told
        )


def test_factors_of_all_columns_add_up_in_logarithms() -> None:
    """Sizes that multiply every measure, and two groupings of their proportions, as of crabs."""
    rng = np.random.default_rng(0)
    kind, sex = rng.integers(2, size=(2, 300))
    shape = np.array([[0.0, 0.1, 0.0, 0.15, -0.1], [0.15, 0.0, -0.1, 0.0, 0.1]])
    log = 0.5 * rng.normal(size=(300, 1)) + np.stack([kind, sex], 1) @ shape
    x = np.exp(2 + log + 0.03 * rng.normal(size=(300, 5)))
    encoding = encoding_of(x, None)
    assert isinstance(encoding.unskewed, Logarithms)
    found = MultiFacetClustering(random_state=0).fit(x)
    assert min(agreement(found.labels_.T, (kind, sex))) > 0.9
    assert not isinstance(encoding_of(x - 20, None).unskewed, Logarithms), "of any sign"


@pytest.mark.parametrize(
    "bounded",
    [
        pytest.param(norm.cdf, id="probabilities"),
        pytest.param(lambda x: norm.cdf(x).round(2), id="rounded"),
        pytest.param(lambda x: rankdata(x, axis=0), id="ranks"),
    ],
)
def test_columns_within_bounds_are_read_as_normal_scores(bounded: Any) -> None:
    """Two groupings of three clusters, each in six columns: of the probabilities the code before
    found five clusters of one (0.86).
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=(2, 400))
    centers = 2 * rng.normal(size=(2, 3, 6))
    x = np.concatenate([own[label] for own, label in zip(centers, labels, strict=True)], 1)
    x = (x + rng.normal(size=x.shape)) / 2
    shown = bounded(x)
    found = MultiFacetClustering(random_state=0, network="linear").fit(shown)
    assert found.settings_["unskewed"] == "normal scores"
    assert found.n_clusters_ == [3, 3]
    assert min(agreement(found.labels_.T, labels)) > 0.93
    low, high = shown.min(), shown.max()
    made = found.sample(500)[0]
    assert low - 0.5 <= made.min()
    assert made.max() <= high + 0.5
    with pytest.warns(UserWarning, match=r"no normal scores are taken of in the columns \[2\]"):
        found.predict(np.where(np.arange(12) == 2, high + 1, shown[:4]))


def test_normal_scores_are_of_values_within_bounds_in_common() -> None:
    p = norm.cdf(np.random.default_rng(0).normal(size=(400, 5)))
    assert isinstance(encoding_of(p, None, as_columns=True).unskewed, NormalScores)
    for other in (p * 0.3, p * np.arange(1, 6), norm.ppf(p), np.sign(p - 0.5)):
        assert not isinstance(encoding_of(other, None, as_columns=True).unskewed, NormalScores)


@pytest.mark.parametrize("seed", range(3))
def test_values_near_two_bounds_are_no_clusters(seed: int) -> None:
    """Independent columns of U-shaped densities: the code before found seven or eight facets."""
    x = np.random.default_rng(seed).beta(0.5, 0.5, size=(500, 8))
    assert MultiFacetClustering(random_state=0, network="linear").fit(x).n_clusters_ == [1]


def test_constant_and_empty_columns_stay() -> None:
    x = np.concatenate([standardized(amounts()), np.zeros((400, 1)), np.full((400, 1), NAN)], 1)
    found = unskewed_if_better(x)
    assert isinstance(found, Powers)
    assert (found.power[6:] == 1).all()
    np.testing.assert_array_equal(found.apply(x)[:, 6:], x[:, 6:])


def test_densities_are_those_of_the_users_values() -> None:
    """The log of the Jacobian's determinant, by differences of the encoding."""
    X = amounts()
    encoding = encoding_of(X, None)
    assert encoding.unskewed is not None
    h = 1e-5 * X[:3]
    high, low = (encoding._standardized(X[:3] + sign * h) for sign in (1, -1))
    slope = (encoding.unskewed.apply(high) - encoding.unskewed.apply(low)) / (2 * h)
    np.testing.assert_allclose(encoding.log_volume(X[:3]), -np.log(slope).sum(1), rtol=1e-6)
    np.testing.assert_allclose(encoding.decode(encoding.encode(X)), X, rtol=1e-4)


@pytest.mark.thorough
def test_an_estimator_of_amounts_speaks_their_units() -> None:
    X = amounts(200)
    options = {"n_clusters": 2, "n_latents": 4, "random_state": 0}
    found = MultiFacetClustering(1, epochs=10, **options).fit(X)
    assert found.settings_["unskewed"]
    assert found.sample(500)[0].min() > X.min() - 3 * X.std()
    holes = X.copy()
    holes[::7, 0] = NAN
    found = MultiFacetClustering(1, epochs=30, **options).fit(holes)
    filled = found.impute(holes)[::7, 0]
    error = np.abs(np.log(filled.clip(1e-3)) - np.log(X[::7, 0])).mean()
    blind = np.abs(np.log(X[:, 0].mean()) - np.log(X[::7, 0])).mean()
    assert error < blind
