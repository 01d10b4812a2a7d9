"""Data that are masked, nullable, sparse, huge or tiny: understood, or refused in one sentence."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_blobs

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from facetvae.estimators.defaults import default_network, default_plain_network
from facetvae.estimators.encoding import encoding_of
from ppl_models import MFCVAE, ConvLadder, GaussianMixture, Incomplete, MLPLadder, Normal
from ppl_models.given.arrays import as_numbers
from ppl_models.given.labels import as_groups, as_labels
from ppl_models.given.observed import as_data
from tests.bad_inputs.shared import NAN

INTEGERS = np.arange(6).reshape(2, 3)
MASK = np.array([[0, 1, 0], [0, 0, 0]], bool)


@cache
def columns() -> np.ndarray:
    x, _ = make_blobs(
        40, 3, centers=np.array([[-2.0] * 3, [2.0] * 3]), cluster_std=0.5, random_state=0
    )
    return x


def short(facets: Any = 1, **options: Any) -> MultiFacetClustering:
    return MultiFacetClustering(
        facets, **{"n_clusters": 2, "epochs": 2, "random_state": 0, **options}
    )


def classifier(**options: Any) -> SemiSupervisedClassifier:
    return SemiSupervisedClassifier(**{"epochs": 1, "random_state": 0, **options})


@cache
def fitted() -> MultiFacetClustering:
    return short().fit(columns())


def model(**options: Any) -> MFCVAE:
    return MFCVAE((3,), {"z": GaussianMixture(2, 1)}, **{"likelihood": Normal(0.5), **options})


# Masks and NA.


@pytest.mark.parametrize(
    "x",
    [
        np.ma.array(INTEGERS, mask=MASK),
        np.ma.array(INTEGERS.astype(np.uint8), mask=MASK),
        np.ma.array(INTEGERS.astype(np.float32), mask=MASK),
        [np.ma.array(row, mask=mask) for row, mask in zip(INTEGERS, MASK, strict=True)],
        pd.DataFrame(INTEGERS).astype("Int64").mask(MASK),
        pd.DataFrame(INTEGERS).astype("Float64").mask(MASK),
        np.where(MASK, pd.NA, INTEGERS.astype(object)),
        np.where(MASK, pd.NA, INTEGERS.astype(object)).tolist(),
    ],
)
def test_masked_and_na_entries_are_missing(x: Any) -> None:
    expected = np.where(MASK, NAN, INTEGERS)
    np.testing.assert_array_equal(as_numbers(x), expected)
    complete = model(likelihood=Incomplete(Normal(0.5)))
    np.testing.assert_array_equal(as_data(x, complete), expected.astype(np.float32))
    with pytest.raises(ValueError, match=r"1 values that are NaN or infinite"):
        as_data(x, model())
    assert fitted_scale(x) == fitted_scale(expected)


def fitted_scale(x: Any) -> list[float]:
    return short(1).fit(x).encoding_.scale.tolist()


def test_what_is_under_a_mask_is_not_seen() -> None:
    x = np.ma.array(columns().copy(), mask=np.zeros((40, 3), bool))
    x.data[3, 0], x.mask[3, 0] = 1e6, True
    found = short().fit(x)
    assert abs(found.encoding_.loc[0]) < 1
    assert found.settings_["missing"] == pytest.approx(1 / 120)
    assert abs(found.impute(x)[3, 0]) < 10
    with pytest.raises(ValueError, match="X has missing entries"):
        fitted().predict(x)


def test_a_mask_of_nothing_is_no_mask() -> None:
    assert as_numbers(np.ma.array(INTEGERS, mask=False)).dtype == torch.int64
    x = np.ma.array(columns(), mask=False)
    np.testing.assert_array_equal(short().fit(x).labels_, fitted().labels_)


@pytest.mark.parametrize(
    "known",
    [
        np.ma.array([0, 7, 1], mask=[0, 1, 0]),
        np.ma.array(np.array([0, 7, 1], np.uint8), mask=[0, 1, 0]),
        pd.Series([0, pd.NA, 1], dtype="Int64"),
        [0, pd.NA, 1],
        pd.Series([0, np.nan, 1]),
        np.array([0, np.nan, 1], np.float32),
        [0, np.nan, 1],
        [0, None, 1],
        np.array([0, np.nan, 1], object),
        torch.tensor([0, np.nan, 1]),
    ],
)
def test_masked_labels_are_unknown(known: Any) -> None:
    assert as_labels("label", known, 3, 2, unknown=True).tolist() == [0, -1, 1]
    with pytest.raises(
        ValueError, match=r"label (has masked entries|must hold (integers|numbers))"
    ):
        as_labels("label", known, 3, 2)


def test_a_classifier_is_fitted_and_scored_without_masked_labels() -> None:
    repeated = np.repeat([0, -1, 1], 10)
    x, y = columns()[:30], np.ma.array(np.repeat([0, 7, 1], 10), mask=repeated < 0)
    series = pd.Series(y.data, dtype="Int64").mask(y.mask)
    expected = classifier().fit(x, repeated)
    for labels in (y, series, series.astype(object), series.astype(float)):
        found = classifier().fit(x, labels)
        assert list(found.classes_) == [0, 1]
        np.testing.assert_array_equal(found.predict_proba(x), expected.predict_proba(x))
        seen = repeated >= 0
        weight = np.arange(30.0)
        assert found.score(x, labels) == found.score(x[seen], repeated[seen])
        assert found.score(x, labels, weight) == found.score(x[seen], repeated[seen], weight[seen])
    with_gaps = np.where(repeated < 0, np.nan, repeated)
    for labels in (list(with_gaps), torch.tensor(with_gaps), with_gaps.astype(object)):
        again = classifier().fit(x, labels)
        np.testing.assert_array_equal(again.predict_proba(x), expected.predict_proba(x))
        assert again.score(x, labels) == found.score(x, repeated)


def test_masked_strings_are_unknown_labels() -> None:
    words = np.array(["a", "b", "a", "b"] * 10)
    masked = np.ma.array(words, mask=np.arange(40) > 10)
    series = pd.Series(words, dtype="string").mask(np.arange(40) > 10)
    for labels in (masked, series):
        found = classifier().fit(columns(), labels)
        assert list(found.classes_) == ["a", "b"]
        assert found.score(columns(), labels) == found.score(columns()[:11], words[:11])


@pytest.mark.parametrize("gap", [np.nan, None])
@pytest.mark.parametrize("container", [list, lambda y: np.array(y, object), pd.Series])
def test_a_gap_among_strings_is_no_class(container: Callable[[Any], Any], gap: Any) -> None:
    words = ["a", "b"] * 20
    labels = container([word if i < 11 else gap for i, word in enumerate(words)])
    found = classifier().fit(columns(), labels)
    assert list(found.classes_) == ["a", "b"]
    assert found.score(columns(), labels) == found.score(columns()[:11], words[:11])


def test_masked_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="group has masked entries: give one group"):
        as_groups("group", np.ma.array([0, 1], mask=[0, 1]), 2)
    with pytest.raises(ValueError, match="groups has no value in row 3"):
        ContentStyleTransformer(epochs=1).fit(
            columns(), groups=np.ma.array(np.arange(40), mask=np.arange(40) == 3)
        )


def test_labels_in_arrays_of_objects() -> None:
    y = np.arange(40) % 3 - 1
    assert list(classifier().fit(columns(), y.astype(object)).classes_) == [0, 1]
    with pytest.raises(ValueError, match=r"numbers or strings, besides -1 .*'int', 'str'"):
        classifier().fit(columns(), np.where(y > 0, "a", y.astype(object)))
    with pytest.raises(ValueError, match="beyond"):
        as_labels("label", np.array([2**64 - 1, 0], np.uint64), 2, 2, unknown=True)


# Sparse, complex, quantized.

TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of layout torch.sparse_coo": lambda x: x.to_sparse(),
    "of layout torch.sparse_csr": lambda x: x.to_sparse_csr(),
    "complex": lambda x: x.to(torch.complex64),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
    "on the device 'meta'": lambda x: x.to("meta"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_are_not_dense_numbers_are_refused(kind: str) -> None:
    x = TENSORS[kind](torch.as_tensor(columns(), dtype=torch.float32))
    for call in (lambda: as_data(x, model()), lambda: fitted().predict(x), lambda: short().fit(x)):
        counts = "|X is sparse, and so read as counts: " if "sparse" in kind else ""
        with pytest.raises(ValueError, match=f"(?i)x must be a dense tensor .* is {kind}{counts}"):
            call()
    with pytest.raises(ValueError, match="y must be a dense tensor"):
        classifier().fit(columns(), x)


def test_sparse_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x is sparse \(csr_array\): give x.toarray\(\)"):
        as_data(sparse.csr_array(columns()), model())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Sparse data was passed for X"):
        fitted().predict(sparse.csr_array(columns()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_half_precision_is_converted(dtype: torch.dtype) -> None:
    x = torch.as_tensor(columns()).to(dtype)
    assert as_data(x, model()).dtype == torch.float32
    np.testing.assert_array_equal(fitted().predict(x), fitted().predict(x.float()))
    assert as_data(columns().astype(np.float16), model()).dtype == torch.float32


def test_long_floats_become_doubles_where_these_hold_them() -> None:
    x = columns().astype(np.longdouble)
    assert as_data(x, model()).dtype == torch.float32
    np.testing.assert_array_equal(fitted().predict(x), fitted().predict(columns()))
    for exponent in (12_000, -12_000):
        with pytest.raises(ValueError, match="float64 cannot represent"):
            short().fit(np.ldexp(x, exponent))
        with pytest.raises(ValueError, match="float64 cannot represent"):
            as_data(np.ldexp(x, exponent), model())


# Magnitudes.


@pytest.mark.parametrize("exponent", [-700, 1020])
def test_powers_of_2_change_neither_clusters_nor_densities(exponent: int) -> None:
    x = np.ldexp(columns(), exponent)
    found = short().fit(x)
    np.testing.assert_array_equal(found.labels_, fitted().labels_)
    np.testing.assert_array_equal(found.predict_proba(x), fitted().predict_proba(columns()))
    volume = 3 * exponent * np.log(2)
    assert found.score(x) == pytest.approx(fitted().score(columns()) - volume, abs=1e-6)
    np.testing.assert_array_equal(found.sample(9)[0], np.ldexp(fitted().sample(9)[0], exponent))


@pytest.mark.parametrize("exponent", [1020, -1050])
def test_missing_entries_of_any_magnitude_are_filled(exponent: int) -> None:
    x = np.ldexp(columns(), exponent)
    x[0, 0] = NAN
    filled = short().fit(x).impute(x)[0, 0]
    assert 0 < abs(np.ldexp(filled, -exponent)) < 10


@pytest.mark.parametrize(
    "x",
    [
        np.full((4, 2), 1.7e308) * [1, -1],
        np.array([[5e-324, 0], [0, 5e-324], [1e-323, 5e-324]]),
        np.array([[2**63 - 1, -(2**63)], [0, 5]]),
        np.array([[2**64 - 1, 0], [0, 5]], np.uint64),
        np.array([[6e4, -6e4], [1, 2]], np.float16),
        np.array([[3e38, 1e-45], [-3e38, 0]], np.float32),
        np.array([[1e308, 1e-308], [-1e308, 2e-308], [0, 1e-308]]),
        np.c_[np.arange(4.0) - 1, np.full(4, 1e200)],
        np.c_[np.arange(4.0) - 1, np.full(4, -1e-200)],
        np.c_[np.arange(4.0) - 1, [NAN] * 4],
    ],
)
def test_encodings_are_standardized_and_reversed(x: np.ndarray) -> None:
    encoding = encoding_of(x, None)
    z = encoding.encode(x)
    observed = ~np.isnan(x.astype(float))
    assert np.isfinite(z[observed]).all()
    assert np.abs(z[observed]).max() < 10
    assert np.isfinite(encoding.log_volume(x)).all()
    back = encoding.decode(z)
    assert np.isfinite(back[observed]).all()
    size = np.abs(np.where(observed, x, 0).astype(float)).max(0)
    np.testing.assert_array_less(
        np.abs(back / 4 - x.astype(float) / 4)[observed],
        np.broadcast_to(1e-6 * size + 5e-324, x.shape)[observed],
    )


def test_tiny_values_within_the_unit_interval_are_real_numbers() -> None:
    for size, values in ((1.0, "unit interval"), (1e-3, "unit interval"), (1e-200, "real")):
        assert encoding_of(size * np.random.default_rng(0).random((9, 2)), None).values == values


@pytest.mark.parametrize("value", [1e30, 1e300, -1.7e308])
def test_values_far_from_the_training_data_are_refused(value: float) -> None:
    x = columns().copy()
    x[2, 1] = value
    for call in (fitted().predict, fitted().score, short(likelihood=Normal(0.3)).fit):
        with pytest.raises(ValueError, match="X has values beyond 1e\\+15 in the model's units"):
            call(x)
    assert short().fit(x).predict(x).shape == (40, 1)  # seen in training, it sets the scale


# Settings and networks.


def size_of(facets: int, x_shape: tuple[int, ...]) -> int:
    network = default_network(x_shape, facets)
    encoder = network.encoder(x_shape, [5] * facets)
    return sum(p.numel() for p in encoder.parameters())


@pytest.mark.parametrize("x_shape", [(64,), (1, 512, 512)])
def test_default_networks_grow_linearly(x_shape: tuple[int, ...]) -> None:
    sizes = [size_of(facets, x_shape) for facets in range(3, 9)]
    steps = np.diff(sizes)
    assert (steps <= steps[0]).all()
    assert size_of(8, (64,)) < 2e7


def test_default_networks_of_few_facets_are_unchanged() -> None:
    for facets, widths, rungs in (
        (1, (256, 512), (1,)),
        (2, (256, 512), (0, 1)),
        (3, (256, 512, 1024), (0, 1, 2)),
    ):
        assert repr(default_network((8, 8), facets)) == repr(MLPLadder(widths, rungs=rungs))
    assert repr(default_network((1, 16, 16), 3)) == repr(ConvLadder((32, 64, 128), rungs=(0, 1, 2)))
    assert default_plain_network((5,)).widths == (64, 128)


def test_more_facets_than_entries_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"facets=50 is too many: a sample of X has 3 feature\(s\)"
    ):
        short(50).fit(columns())
    assert short(3).fit(columns()).labels_.shape == (40, 3)


@pytest.mark.parametrize("learning_rate", [1e10, 1e38])
def test_divergence_is_said(learning_rate: float) -> None:
    options = {"learning_rate": learning_rate, "epochs": 4}
    for estimator in (short(1, **options), classifier(**options)):
        with pytest.raises(FloatingPointError, match=r"training diverged|a lower rate"):
            estimator.fit(columns(), np.arange(40) % 2)
        assert not hasattr(estimator, "runner_")


# Columns of other kinds.


def test_columns_that_are_not_numbers_are_named() -> None:
    frame = pd.DataFrame(columns(), columns=list("abc"))
    wrong = frame.assign(
        day=pd.date_range("2020", periods=40),
        took=pd.to_timedelta(np.arange(40), "s"),
        kind=pd.Categorical([1, 2] * 20),
    )
    with pytest.raises(ValueError, match=r"the columns \['day', 'took'\] have"):
        short().fit(wrong)
    numbers = frame.assign(word="1.5", whole=np.array([1, pd.NA] * 20, object))
    found = short().fit(numbers)
    assert found.settings_["missing"] == pytest.approx(0.1)
    assert list(found.feature_names_in_) == ["a", "b", "c", "word", "whole"]


# Pickles and processes.


def test_a_pickle_writes_nowhere_but_its_checkpoint(tmp_path: Path) -> None:
    state = fitted().__getstate__()
    names = {"config.json", "weights.safetensors", "history.jsonl"}
    assert state["runner_"].keys() == names
    outside = tmp_path / "outside"
    for files in (
        state["runner_"] | {str(outside): b"x"},
        state["runner_"] | {"../outside": b"x"},
        {name: state["runner_"][name] for name in list(names)[:2]},
        state["runner_"] | {"config.json": "{}"},
        [1],
    ):
        with pytest.raises(ValueError, match="pickled runner_"):
            MultiFacetClustering().__setstate__(state | {"runner_": files})
    assert not outside.exists()


def test_a_full_temporary_folder_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    written = pickle.dumps(fitted())

    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    for call, verb in (
        (lambda: pickle.dumps(fitted()), "pickle"),
        (lambda: pickle.loads(written), "unpickle"),
    ):
        with pytest.raises(
            OSError, match=f"cannot {verb} a fitted estimator.*No space left.*TMPDIR"
        ):
            call()


@pytest.mark.parametrize("label", [np.inf, -1e300])
def test_a_label_that_no_class_has_is_refused_by_a_score(label: float) -> None:
    found = classifier().fit(columns(), np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"infinite or beyond"):
        found.score(columns()[:2], np.array([0.0, label]))
    assert 0 <= found.score(columns()[:2], np.array([0.0, 1.0])) <= 1
