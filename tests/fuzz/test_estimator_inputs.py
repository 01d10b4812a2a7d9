"""Any data, labels and settings that an estimator is given are answered or refused.

The number of cases is read from ``FACETVAE_FUZZ_INPUTS``; with it, they differ from run to run.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from scipy import sparse

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from ppl_models import MLP, Bernoulli, MLPLadder, Normal, SharedMLP
from tests.global_state import unchanged

GIVEN = os.environ.get("FACETVAE_FUZZ_INPUTS")
CASES = int(GIVEN or 60)
SECONDS = 2.0
COLUMNS = 3
COMMON = settings(
    derandomize=GIVEN is None, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
many, few = settings(COMMON, max_examples=CASES), settings(COMMON, max_examples=max(1, CASES // 5))

# Data.

NUMBERS = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
    *("f2", "f4", "f8", "g", ">f8", "c8", "M8[ns]", "m8[s]", "U3", "S2"),
]
EXTREMES = [0.0, -0.0, 1.0, np.nan, np.inf, 1e30, -1e154, 1.7e308, 1e-200, 5e-324, 1e15, 255.0]
shapes = st.one_of(
    st.tuples(st.integers(0, 30), st.just(COLUMNS)),
    of_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
)
fitting_shapes = st.tuples(st.integers(2, 40), st.sampled_from([COLUMNS, COLUMNS, 1, 4]))


def floats(width: int) -> st.SearchStrategy[float]:
    within = [v for v in EXTREMES if width == 64 or not np.isfinite(v) or abs(v) < 3e4]
    within = [v for v in within if float(np.dtype(f"f{width // 8}").type(v)) == v or v != v]
    return st.one_of(st.floats(-3, 3, width=width), st.sampled_from(within), st.floats(width=width))


@st.composite
def arrays(draw: st.DrawFn, shape: st.SearchStrategy[Any] = shapes) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(NUMBERS)))
    elements = floats(8 * dtype.itemsize) if dtype.kind == "f" and dtype.itemsize <= 8 else None
    if dtype.kind == "f" and dtype.itemsize > 8:
        return draw(arrays(shape)).astype(object) if draw(st.booleans()) else _long(draw, shape)
    return draw(of_numpy.arrays(dtype, shape, elements=elements))


def _long(draw: st.DrawFn, shape: st.SearchStrategy[Any]) -> np.ndarray:
    x = draw(of_numpy.arrays(np.float64, shape, elements=st.floats(-3, 3)))
    return np.ldexp(x.astype(np.longdouble), draw(st.integers(-16000, 16000)))


@st.composite
def usual(draw: st.DrawFn, shape: st.SearchStrategy[Any] = fitting_shapes) -> np.ndarray:
    """Random numbers of any magnitude, with a few others among them."""
    n, d = draw(shape)
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    with np.errstate(over="ignore", under="ignore"):
        x = np.ldexp(rng.normal(size=(n, d)), draw(st.sampled_from([0, 0, 500, -700, 1022, -1070])))
    x[rng.random((n, d)) < draw(st.sampled_from([0, 0, 0.1, 0.9]))] = draw(
        st.sampled_from(EXTREMES)
    )
    if draw(st.booleans()):
        x[:, 0] = draw(st.sampled_from(EXTREMES))
    kind = draw(st.sampled_from(["f8", "f4", "f2", "?", "abs", "01"]))
    with np.errstate(all="ignore"):
        if kind == "abs":
            return np.abs(x) / np.abs(x).max()
        return (x > 0).astype(float) if kind == "01" else x.astype(kind)


@st.composite
def masked(draw: st.DrawFn) -> np.ma.MaskedArray:
    x = draw(st.one_of(arrays(), usual()))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    return np.ma.array(x, mask=rng.random(x.shape) < draw(st.sampled_from([0, 0.2, 1])))


COLUMN_KINDS: list[Callable[[int], Any]] = [
    lambda n: np.linspace(-1, 1, n),
    lambda n: np.arange(n),
    lambda n: pd.array([1, pd.NA] * n, "Int64")[:n],
    lambda n: pd.array([1.5, pd.NA] * n, "Float64")[:n],
    lambda n: pd.array([True, pd.NA] * n, "boolean")[:n],
    lambda n: np.array([1, None, pd.NA, 2.5, "1.5"] * n, object)[:n],
    lambda n: np.array([10**400, 3] * n, object)[:n],
    lambda n: np.array([1, True] * n, object)[:n],
    lambda n: pd.date_range("2020", periods=n),
    lambda n: pd.to_timedelta(np.arange(n), "s"),
    lambda n: pd.Categorical(["a", "b"] * n)[:n],
    lambda n: pd.Categorical([1, 2] * n)[:n],
    lambda n: pd.array(["x", pd.NA] * n, "string")[:n],
    lambda n: pd.period_range("2020", periods=n),
    lambda n: pd.arrays.SparseArray(np.zeros(n)),
    lambda n: np.full(n, 1j),
]


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    n = draw(st.integers(0, 30))
    kinds = draw(st.lists(st.sampled_from(COLUMN_KINDS), min_size=0, max_size=4))
    numeric = draw(st.lists(st.sampled_from(COLUMN_KINDS[:5]), min_size=1, max_size=3))
    columns = [kind(n) for kind in draw(st.sampled_from([kinds, numeric, numeric]))]
    names = draw(st.sampled_from([list("abcd"), [0, 1, 2, 3], ["a", "a", "b", 1]]))
    frame = pd.DataFrame(dict(enumerate(columns)), index=range(5, 5 + n))
    return frame.set_axis(names[: len(columns)], axis=1)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    x = torch.as_tensor(np.random.default_rng(0).normal(size=draw(fitting_shapes)))
    kinds: list[Callable[[], torch.Tensor]] = [
        lambda: x,
        x.bfloat16,
        x.half,
        lambda: x.to(torch.float8_e4m3fn),
        lambda: x.clone().requires_grad_(),
        x.to_sparse,
        x.to_sparse_csr,
        lambda: x.to(torch.complex64),
        lambda: x.to(torch.complex64).conj(),
        lambda: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([x, x[:1]]),
        lambda: torch.empty_like(x, device="meta"),
        lambda: x > 0,
        lambda: x.T,
    ]
    with warnings.catch_warnings(action="ignore"):
        return draw(st.sampled_from(kinds))()


oddities = st.one_of(
    st.sampled_from(
        [None, 3, "abc", b"x", {}, {"a": [1]}, [], [[]], [[1, 2], [1]], [["1.5"] * 3] * 4, object()]
    ),
    st.sampled_from([[[10**400] * 3] * 3, [[1, None, pd.NA]] * 3, sparse.eye_array(3).tocsr()]),
    st.sampled_from(
        [
            [[True, 2.5, 3]] * 3,
            [np.ma.array([1.0, 2, 3], mask=[1, 0, 0])] * 3,
            range(3),
            pd.Series([1, 2]),
        ]
    ),
    st.lists(st.lists(st.floats() | st.integers() | st.text(max_size=2), min_size=3, max_size=3)),
)
data = st.one_of(arrays(), usual(), masked(), frames(), tensors(), oddities)


@st.composite
def labels(draw: st.DrawFn, n: int) -> Any:
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    y = rng.integers(-1, draw(st.integers(1, 4)), n)
    kinds: list[Callable[[], Any]] = [
        lambda: y,
        lambda: y.tolist(),
        lambda: y.astype(object),
        lambda: y.astype("u1"),
        lambda: y.astype(float),
        lambda: y + 0.5,
        lambda: y > 0,
        lambda: np.array(["a", "b", "c", "-1"])[y],
        lambda: np.array(["a", "b", "c", -1], object)[y],
        lambda: np.array(["a", 0, None, -1], object)[y],
        lambda: np.ma.array(y, mask=rng.random(n) < 0.3),
        lambda: np.ma.array(y.astype("u8"), mask=rng.random(n) < 0.3),
        lambda: pd.Series(y, dtype="Int64").mask(y < 0),
        lambda: pd.Series(np.array(["a", "b", "c", "d"])[y], dtype="string").mask(y < 0),
        lambda: pd.Series(np.array(["a", "b", "c", "d"])[y], dtype="category"),
        lambda: pd.Series(y),
        lambda: pd.DataFrame({"y": y}),
        lambda: torch.as_tensor(y),
        lambda: torch.as_tensor(y).to_sparse(),
        lambda: torch.as_tensor(y).to(torch.complex64),
        lambda: y.astype(complex),
        lambda: y.astype("M8[s]"),
        lambda: np.where(y < 0, np.nan, y),
        lambda: np.where(y < 0, np.inf, y),
        lambda: np.where(y < 0, 10**18, y),
        lambda: [10**400, *y[1:].tolist()],
        lambda: np.c_[y, y],
        lambda: y[1:],
        lambda: None,
        lambda: 3,
        lambda: "ab",
        lambda: {"facet_0": y},
        lambda: {"facet_9": y},
        lambda: sparse.csr_array(y[None]),
    ]
    return draw(st.sampled_from(kinds))()


# Settings.

WILD: list[Any] = [None, 0, -1, 1, 2, 3, 1.5, np.nan, np.inf, "2", True, [2, 3], [1], 10**12, ()]
WILD_OPTIONS: dict[str, list[Any]] = {
    "batch_size": WILD,
    "learning_rate": [*WILD, 1e-300, 1e3, 1e10, 1e38, 1e300, np.float32(1e-3)],
    # Without None, which draws from NumPy's stream, as in scikit-learn.
    "random_state": [*WILD[1:], np.random.RandomState(0)],
    "device": ["cpu", "gpu", "cuda:99", "meta", None, 3],
    "likelihood": [None, Normal(0.3), Normal, Bernoulli(), "normal", Normal(1e-30), Normal(1e30)],
    "network": [None, MLP((4,)), MLPLadder((4, 4)), SharedMLP((4,)), MLP, (4, 4), 3],
}
OWN: dict[type, dict[str, list[Any]]] = {
    MultiFacetClustering: {
        "facets": [*WILD, 5, 50, ("a", "b"), "ab", [1, 2], 10**6],
        "n_clusters": [*WILD, 2, [2, None], 1000],
        "n_latents": [*WILD, 40],
    },
    SemiSupervisedClassifier: {
        "class_dim": WILD,
        "shared_dim": WILD,
        "label_weight": [*WILD, 1e30, 0],
    },
    ContentStyleTransformer: {"content_dim": WILD, "style_dim": WILD},
}


@st.composite
def estimators(draw: st.DrawFn) -> Any:
    """Not fitted; one or two settings are wild."""
    kind = draw(st.sampled_from(list(OWN)))
    options: dict[str, Any] = {"epochs": 1, "random_state": 0}
    wild = WILD_OPTIONS | OWN[kind]
    for name in draw(st.lists(st.sampled_from(sorted(wild)), max_size=2)):
        options[name] = draw(st.sampled_from(wild[name]))
    if kind is MultiFacetClustering:
        options.setdefault("n_clusters", 2)
    return kind(**options)


FITTED = [
    *("facets", "facet", "classifier", "transformer", "frame", "missing", "transformer of missing"),
    *("binary", "8-bit", "unit interval", "as given", "huge", "tiny", "images"),
]


@cache
def fitted() -> dict[str, Any]:
    """An estimator of each kind, and one for each kind of values."""
    x = np.random.default_rng(0).normal(size=(40, COLUMNS))
    frame = pd.DataFrame(x, columns=list("abc"))
    holed = np.where(x > 1, np.nan, x)
    y = np.arange(40) % 2
    short: dict[str, Any] = {"epochs": 1, "random_state": 0}
    facets = MultiFacetClustering(2, n_clusters=2, **short)

    def of(x: Any, **options: Any) -> MultiFacetClustering:
        return MultiFacetClustering(1, n_clusters=2, **short, **options).fit(x)

    with warnings.catch_warnings(action="ignore"):
        return {
            "facets": facets.fit(x),
            "classifier": SemiSupervisedClassifier(**short).fit(x, y),
            "transformer": ContentStyleTransformer(**short).fit(x),
            "frame": of(frame),
            "missing": of(holed),
            "transformer of missing": ContentStyleTransformer(**short).fit(holed),
            "binary": of((x > 0).astype(int)),
            "8-bit": of((x * 50 + 120).clip(0, 255).astype(np.uint8)),
            "unit interval": of(np.abs(x) / np.abs(x).max()),
            "as given": of(x, likelihood=Normal(0.3)),
            "huge": of(np.ldexp(x, 1000)),
            "tiny": of(np.ldexp(x, -1060)),
            "images": of(np.random.default_rng(0).normal(size=(20, 2, 3))),
        }


def rows(x: Any) -> int:
    """How many labels fit to data; 3 if they have no rows."""
    shape = None if getattr(x, "is_nested", False) else getattr(x, "shape", None)
    return shape[0] if shape else len(x) if isinstance(x, list) else 3


# What is asserted.

PYRO = "Expected parameter"


def answered(call: Callable[[], Any]) -> Any:
    """What a call returns; None if it refuses clearly."""
    with warnings.catch_warnings(action="ignore"):
        for fault in (RuntimeWarning, np.exceptions.ComplexWarning, DeprecationWarning):
            warnings.simplefilter("error", fault)
        result, said = None, ""
        started = time.perf_counter()
        with unchanged():
            try:
                result = call()
            except (ValueError, TypeError, FloatingPointError) as error:
                said = str(error)
        assert PYRO not in said, "an internal error"
        assert time.perf_counter() - started < SECONDS
    return result


def check_answers(estimator: Any, x: Any, y: Any) -> None:
    """Each method answers with the right length and finite numbers, or refuses."""
    score = answered(lambda: estimator.score(x, y))
    assert score is None or np.isfinite(score)
    for name in ("predict", "predict_proba", "transform", "impute"):
        if not hasattr(estimator, name):
            continue
        found = answered(lambda name=name: getattr(estimator, name)(x))
        if found is None:
            continue
        assert len(found) == len(x)
        if name != "predict":
            assert np.isfinite(np.asarray(found, float)).all()
        elif not isinstance(estimator, SemiSupervisedClassifier):
            assert found.dtype.kind == "i"


@pytest.mark.thorough
@many
@given(st.sampled_from(FITTED), data, st.data())
def test_new_data_are_answered_or_refused(name: str, x: Any, source: st.DataObject) -> None:
    y = source.draw(labels(rows(x)))
    check_answers(fitted()[name], x, y)


@pytest.mark.thorough
@few
@given(estimators(), st.one_of(usual(), usual(), data), st.data())
def test_fits_are_answered_or_refused(estimator: Any, x: Any, source: st.DataObject) -> None:
    fitted()  # what the first fit imports is not timed
    y = source.draw(labels(rows(x)))
    beside: dict[str, Any] = {"y": y} if isinstance(estimator, SemiSupervisedClassifier) else {}
    if isinstance(estimator, MultiFacetClustering) and source.draw(st.booleans()):
        beside = {"labels": y}
    if isinstance(estimator, ContentStyleTransformer) and source.draw(st.booleans()):
        beside = {"groups": y}
    if answered(lambda: estimator.fit(x, **beside)) is not None:
        check_answers(estimator, x, y)
