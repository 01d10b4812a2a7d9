"""Skewed columns: the transformation, its density, and when it is chosen."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import yeojohnson
from sklearn.metrics import normalized_mutual_info_score

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.encoding import UnskewedModule, encoding_of
from facetvae.table_rules.skewness import Unskewed, unskewed_if_better
from lab.benchmarks.numbers_found import linear, standardized

NAN = float("nan")


def amounts(n: int = 400, columns: int = 6) -> np.ndarray:
    """Logarithms are normal and depend on each other."""
    rng = np.random.default_rng(0)
    return np.exp(rng.normal(size=(n, columns)) @ rng.normal(size=(columns, columns)) / 2)


def example() -> Unskewed:
    """With the powers 0 and 2, at which the transformation has another form."""
    return Unskewed(np.array([0.0, 0.5, 1.0, 2.0]), np.full(4, 0.3), np.full(4, 1.7))


def test_powers_are_those_of_yeo_and_johnson() -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    columns = zip(x.T, example().power, strict=True)
    expected = np.stack([yeojohnson(column, power) for column, power in columns], 1)
    np.testing.assert_allclose(example().apply(x), (expected - 0.3) / 1.7, atol=1e-12)
    np.testing.assert_allclose(example().undo(example().apply(x)), x, atol=1e-12)


def logs() -> Unskewed:
    return replace(example(), origin=np.full(4, -5.0))


@pytest.mark.parametrize("how", [example(), logs()])
def test_slopes_by_differences(how: Unskewed) -> None:
    x, h = np.random.default_rng(1).normal(size=(50, 4)), 1e-6
    slope = (how.apply(x + h) - how.apply(x - h)) / (2 * h)
    np.testing.assert_allclose(how.log_slope(x), np.log(slope), atol=1e-6)
    np.testing.assert_allclose(how.undo(how.apply(x)), x, atol=1e-9)
    module = UnskewedModule(how)(torch.as_tensor(x))
    np.testing.assert_allclose(module, how.apply(x), atol=1e-9)


def test_missing_entries_stay_missing_and_any_output_has_a_counterpart() -> None:
    x = np.array([[NAN, 1.0, NAN, -2.0]])
    assert (np.isnan(example().apply(x)) == np.isnan(x)).all()
    far = np.array([[-1e3], [1e3]]) * np.ones(4)
    assert not np.isnan(example().undo(far)).any()


def test_amounts_are_transformed_and_what_is_linear_is_not() -> None:
    found = unskewed_if_better(standardized(amounts()))
    assert found is not None
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
    assert found is not None
    assert found.power[80:].max() < 0.5 < found.power[:80].min()


def test_what_no_logarithm_is_taken_of_is_told() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(300, 3)) + 5 * rng.integers(2, size=(300, 1)))
    found = MultiFacetClustering(random_state=0).fit(x)
    for least, told in ((0.0, True), (-3.0, True), (x.min() / 3, False)):
        with warnings.catch_warnings(record=True, action="always") as said:
            found.predict(np.where(np.arange(3) == 1, least, x[:4]))
        assert any("at or below 0 in the columns [1]" in str(w.message) for w in said) == told


def test_factors_of_all_columns_add_up_in_logarithms() -> None:
    """Sizes that multiply every measure, and two groupings of their proportions, as of crabs."""
    rng = np.random.default_rng(0)
    kind, sex = rng.integers(2, size=(2, 300))
    shape = np.array([[0.0, 0.1, 0.0, 0.15, -0.1], [0.15, 0.0, -0.1, 0.0, 0.1]])
    log = 0.5 * rng.normal(size=(300, 1)) + np.stack([kind, sex], 1) @ shape
    x = np.exp(2 + log + 0.03 * rng.normal(size=(300, 5)))
    encoding = encoding_of(x, None)
    assert encoding.unskewed is not None
    assert encoding.unskewed.origin is not None
    found = MultiFacetClustering(random_state=0).fit(x)
    for truth in (kind, sex):
        assert max(normalized_mutual_info_score(truth, own) for own in found.labels_.T) > 0.9
    other = encoding_of(x - 20, None).unskewed
    assert other is None or other.origin is None, "of any sign"


def test_constant_and_empty_columns_stay() -> None:
    x = np.concatenate([standardized(amounts()), np.zeros((400, 1)), np.full((400, 1), NAN)], 1)
    found = unskewed_if_better(x)
    assert found is not None
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
