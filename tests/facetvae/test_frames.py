"""Data frames of several libraries: read alike, refused alike, and returned as what they were."""

from __future__ import annotations

import datetime
import pickle
from contextlib import nullcontext
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from facetvae.describing.columns import columns_of
from facetvae.estimators import ContentStyleTransformer, MultiFacetClustering
from facetvae.estimators.arrays import plain_labels
from facetvae.estimators.frames import frame_reader, is_mixed
from facetvae.estimators.reading import reader_for
from facetvae.estimators.words import MOST_LEVELS
from ppl_models import Categorical, Normal, StudentT
from ppl_models.given.frames import Form, given, native_columns

pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

N = 120
RNG = np.random.default_rng(0)
GROUP = RNG.integers(2, size=N)
X = RNG.normal(size=N) + 6 * GROUP
WORDS = np.where(GROUP, "Rome", "Oslo")
VALUES = RNG.integers(46, 139, N)


def short(**options: Any) -> MultiFacetClustering:
    return MultiFacetClustering(
        **{"facets": 1, "n_clusters": 2, "n_latents": 2, "epochs": 2, "random_state": 0} | options
    )


def by(column: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": X, "town": WORDS, "c": column})


@cache
def tables() -> dict[str, Any]:
    """One mixed table with gaps, as five libraries and dtypes have it."""
    numpy = pd.DataFrame(
        {
            "x": X,
            "town": WORDS,
            "member": GROUP == 1,
            "size": pd.Categorical(np.where(GROUP, "S", "L"), ["S", "M", "L"], ordered=True),
            "plan": pd.Categorical(RNG.choice(["b", "a"], N), ["b", "a", "unused"]),
            "visits": RNG.poisson(20, N) * RNG.integers(1, 4, N),
            "calls": pd.array(RNG.integers(0, 400, N), "Int64"),
        }
    )
    numpy = numpy.head(50)
    for i, name in enumerate(["x", "town", "size", "plan", "calls"]):
        numpy.loc[i, name] = None
    polars = pl.from_pandas(numpy.astype({"size": object})).with_columns(
        pl.col("size").cast(pl.Enum(["S", "M", "L"])), pl.col("plan").cast(pl.Categorical)
    )
    return {
        "NumPy": numpy,
        "nullable": numpy.convert_dtypes(),
        "Arrow": numpy.convert_dtypes(dtype_backend="pyarrow"),
        "Arrow dictionaries": polars.to_pandas(use_pyarrow_extension_array=True),
        "polars": polars,
        "PyArrow": polars.to_arrow(),
    }


@cache
def fitted(kind: str) -> MultiFacetClustering:
    return short().set_output(transform="polars").fit(tables()[kind])


def dtypes(frame: Any) -> dict[str, str]:
    return {name: str(given(name, each).dtype) for name, each in native_columns(frame)}


@pytest.mark.parametrize(
    "kind", ["NumPy", "nullable", "Arrow", "Arrow dictionaries", "polars", "PyArrow"]
)
def test_a_table_is_read_the_same_in_every_library(kind: str) -> None:
    frame, usual = tables()[kind], tables()["NumPy"]
    table, other = frame_reader(frame, {}), frame_reader(usual, {})
    assert is_mixed(frame)
    assert table.settings()["columns"] == other.settings()["columns"]
    codes = np.asarray(table.numbers(frame))
    np.testing.assert_array_equal(codes, other.numbers(usual))
    assert dtypes(table.returned(np.nan_to_num(codes))) == dtypes(frame)


@pytest.mark.thorough
@pytest.mark.slow(10)
@pytest.mark.parametrize("kind", ["Arrow", "polars"])
def test_a_table_is_the_same_to_a_fit_in_every_library(kind: str) -> None:
    """Labels, scores and columns are, and frames come back as what they were."""
    found, table, usual = fitted(kind), tables()[kind], fitted("NumPy")
    np.testing.assert_array_equal(found.labels_, usual.labels_)
    assert found.settings_["columns"] == usual.settings_["columns"]
    assert found.score(table) == pytest.approx(usual.score(tables()["NumPy"]))
    told = found.describe(0, table, table)
    assert {each["column"] for each in told.metadata} == set(dtypes(table))
    for frame in (found.impute(table), found.sample(3)[0]):
        assert type(frame) is type(table)
        assert dtypes(frame) == dtypes(table)
        assert not any(given(name, each).gaps.any() for name, each in native_columns(frame))
    for (name, old), (_, new) in zip(
        native_columns(table), native_columns(found.impute(table)), strict=True
    ):
        before, after = given(name, old), given(name, new)
        assert after.values[~before.gaps].tolist() == before.there.tolist()
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(table), found.predict(table))
    assert dtypes(again.sample(2)[0]) == dtypes(table)
    assert isinstance(found.transform(table), pl.DataFrame)
    asked = frame_reader(table, {"calls": Normal(), "plan": Categorical()})
    assert asked.settings()["columns"]["calls"].startswith("Normal")


def test_a_fit_takes_frames_of_another_library() -> None:
    """And fills their gaps in the training data's."""
    found, other = fitted("NumPy"), tables()["polars"]
    np.testing.assert_array_equal(found.predict(other), found.labels_)
    assert dtypes(found.impute(other)) == dtypes(tables()["NumPy"])


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"a": [None, *X[1:]], "b": VALUES, "c": X.astype("float32")}),
        pl.DataFrame({"a": [float("nan"), *X[1:]], "p": [Decimal(f"{x:.2f}") for x in X]}),
        pl.DataFrame({"p": GROUP == 1, "q": [None, *(RNG.random(N - 1) < 0.5)]}),
        pd.DataFrame({"a": X, "b": pd.array([None, *VALUES[1:]], "Int64"), "c": VALUES}),
        pa.table({"a": X, "b": pa.array([None, *VALUES[1:]], pa.int16())}),
    ],
)
def test_frames_of_numbers_are_returned_as_such(frame: Any) -> None:
    found = short().fit(frame)
    assert "columns" not in found.settings_
    assert len(found.describe(0, frame).columns) == frame.shape[1]
    for made in (found.impute(frame), found.sample(3)[0]):
        assert type(made) is type(frame)
        assert dtypes(made) == dtypes(frame)


def test_contents_and_styles_are_imputed_in_a_frame() -> None:
    frame = pl.DataFrame({"a": [None, *X[1:]], "b": X})
    found = ContentStyleTransformer(epochs=1, random_state=0)
    groups = pl.DataFrame({"who": np.arange(N) // 2})
    filled = found.fit(frame, groups=groups).impute(frame, groups=groups)
    assert isinstance(filled, pl.DataFrame)
    assert filled["a"].null_count() == 0


@pytest.mark.parametrize(
    "labels", [[0, 1, None], ["u", None, "v"], [None, 0.0, 1.0], [1, 0, 1]], ids=str
)
def test_labels_of_another_library_may_have_gaps(labels: list[Any]) -> None:
    for make in (pl.Series, lambda y: pa.chunked_array([y])):
        assert np.array_equal(plain_labels(make(labels)), plain_labels(labels))


ARROW = pd.ArrowDtype


@pytest.mark.parametrize(
    ("values", "dtype", "kind"),
    [
        (GROUP == 1, pa.bool_(), "Bernoulli"),
        (WORDS, pa.large_string(), "Categorical"),
        (WORDS, pa.dictionary(pa.int32(), pa.string()), "Categorical"),
        (WORDS, pa.dictionary(pa.int8(), pa.string(), ordered=True), "Ordinal"),
        ([Decimal(f"{x:.2f}") for x in X], pa.decimal128(7, 2), "Normal"),
        ([None, *VALUES[1:]], pa.int64(), "Normal"),
    ],
    ids=str,
)
def test_columns_of_arrow_are_read_and_returned(values: Any, dtype: Any, kind: str) -> None:
    column = pd.Series(list(values)).astype(ARROW(dtype))
    frame = pd.DataFrame({"c": column, "k": pd.Series(WORDS)})
    table = frame_reader(frame, {})
    assert is_mixed(frame)
    assert table.settings()["columns"]["c"].startswith(kind)
    codes = table.numbers(frame).to_numpy()
    pd.testing.assert_frame_equal(table.returned(codes), frame)


DAY = datetime.date(2020, 1, 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.date_range("2020", periods=N), "encode dates as numbers, such as days"),
        (pd.Series([DAY] * N, dtype=ARROW(pa.date32())), "encode dates"),
        ([DAY] * N, "encode dates"),
        (pd.to_timedelta(VALUES, "s"), "encode durations in seconds, or drop"),
        ([datetime.time(1)] * N, "encode times in minutes"),
        ([[1]] * N, "encode objects as numbers"),
        (pd.Series([None] * N, dtype=ARROW(pa.null())), "'c' has no values, all are missing"),
    ],
)
@pytest.mark.parametrize("mixed", [True, False])
def test_what_is_no_column_of_data_is_refused_with_its_own_advice(
    column: Any, message: str, mixed: bool
) -> None:
    with pytest.raises(ValueError, match=message):
        short().fit(by(column) if mixed else by(column)[["x", "c"]])


def test_frames_without_rows_yet_are_to_be_collected() -> None:
    with pytest.raises(ValueError, match=r"X is a LazyFrame, .* give X.collect\(\)"):
        short().fit(tables()["polars"].lazy())


# Text.

DATES = [str(DAY + datetime.timedelta(int(x))) for x in VALUES]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*map(str, VALUES[1:]), "?"], r"read as numbers, but for '\?': mark"),
        ([*VALUES[:50].astype(str), *["unknown"] * 70], "but for 'unknown': mark"),
        ([f"{x},5" for x in VALUES], "numbers with a comma, a currency or a unit, such as '1"),
        ([f"{x}%" for x in VALUES], "numbers with a comma"),
        ([f"{x} kg" for x in X.round(3)], "numbers with a comma"),
        ([f"${x}" for x in VALUES], "numbers with a comma"),
        (DATES, "dates or times as text, such as '2020-0"),
        ([f"{x[8:]}.{x[5:7]}.{x[:4]} 12:30" for x in DATES], "dates or times"),
        ([f"{x % 24:02d}:{x % 60:02d}" for x in VALUES], "dates or times"),
        ([f"Jan {x % 30 + 1}, 2020" for x in VALUES], "dates or times"),
        ([f"Ann {x}" for x in range(N)], f"as {N} different strings in {N} rows, .* names or ids"),
    ],
)
def test_text_that_is_no_categories_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"column 'c' h.*{message}") as caught:
        frame_reader(by(words), {})
    assert 'columns={"c": Categorical()} if they are categories' in str(caught.value)
    asked = frame_reader(by(words), {"c": Categorical()})
    assert asked.settings()["columns"]["c"].startswith("Categorical")


@pytest.mark.parametrize(
    "form",
    [
        lambda i: f"A{i % 40}",
        lambda i: f"{i % 20}0-{i % 20 + 1}0",
        lambda i: f"{i % 20 + 4}th",
        lambda i: ["<5", "5-10", ">10"][i % 3],
        lambda i: f"{i % 5} stars",
        lambda i: f"{i % 20}.2.1",
        lambda i: f"2020-0{i % 9 + 1}-01",
    ],
)
def test_categories_with_digits_are_categories(form: Any) -> None:
    """Also dates or numbers with units, if there are ten or fewer."""
    table = frame_reader(by([form(i) for i in range(N)]), {})
    assert table.settings()["columns"]["c"].startswith("Categorical")


def test_names_are_told_by_their_number() -> None:
    """Not by their share of the rows alone, unless the user says that they are categories."""
    x = np.random.default_rng(0).normal(size=6000)

    def chosen(levels: int, dtype: str) -> str:
        words = pd.Series([f"n{i % levels}" for i in range(6000)], dtype=dtype)
        return frame_reader(pd.DataFrame({"x": x, "c": words}), {}).settings()["columns"]["c"]

    with pytest.raises(ValueError, match="column 'c' has 700 different strings in 6000 rows"):
        chosen(700, "object")
    assert chosen(700, "category") == "Categorical(700)"
    assert chosen(MOST_LEVELS, "object") == f"Categorical({MOST_LEVELS})"


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize(
    ("ids", "warned"),
    [
        (1000 + np.random.default_rng(0).permutation(N), True),
        (pd.array([None, *range(1, N)], "Int64"), True),
        (VALUES, False),
        (np.random.default_rng(0).choice(10**6, N, replace=False), False),
        (np.arange(N) / 2, False),
    ],
)
def test_whole_numbers_that_never_repeat_are_ids(ids: Any, warned: bool, numbers: bool) -> None:
    """Where chance would make some repeat."""
    frame = by(ids)[["x", "c"]] if numbers else by(ids)
    message = "'c' holds a different whole .* as ids do"
    with pytest.warns(match=message) if warned else nullcontext():
        reader_for(frame, None, None)
    reader_for(frame, {"c": Normal()}, None)  # the user says that it is data


# Names, integers and levels.


@pytest.mark.parametrize(
    "names",
    [
        pd.MultiIndex.from_tuples([("sales", 2020), ("sales", 2021), ("kind", 2021)]),
        pd.MultiIndex.from_tuples([("s", "a", ""), ("s", "b", ""), ("k", "", "")]),
        pd.Index([DAY, "a", 1], dtype=object),
    ],
)
def test_a_column_has_one_name(names: Any) -> None:
    frame = by(VALUES)[["x", "c", "town"]].set_axis(names, axis=1)
    table = frame_reader(frame, {names[0]: StudentT()})
    codes = table.numbers(frame).to_numpy()
    assert table.names == [each.name for each in columns_of("X", frame, {names[1]: "numbers"})]
    assert table.settings()["columns"][table.names[0]].startswith("StudentT")
    for made in (table.returned(codes), table.returned(codes, frame)):
        pd.testing.assert_index_equal(made.columns, frame.columns)
    if names.nlevels == 2:
        found = short().fit(frame)
        told = {each["column"] for each in found.describe(0, frame).columns}
        assert told == set(found.settings_["columns"])


BIG = 2**60 + np.arange(N) % 97


@pytest.mark.parametrize(
    "data",
    [
        np.stack([BIG, VALUES], 1).astype(np.uint64),
        pd.DataFrame({"c": pd.array([None, *BIG[1:]], "Int64"), "town": WORDS}),
        pd.DataFrame({"c": BIG.astype(object), "x": X}),
        pl.DataFrame({"c": BIG, "x": X}),
    ],
)
def test_integers_that_floats_do_not_tell_apart_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"different integers beyond 2\*\*53, .* subtract the"):
        short().fit(data)
    rng = np.random.default_rng(0)
    assert given("c", rng.integers(2**62, size=99)).kind == "numbers", "floats tell them apart"


def test_levels_that_no_row_has_are_not_drawn() -> None:
    frame = pd.DataFrame(
        {
            "x": X,
            "k": pd.Categorical(WORDS, ["Bath", "Rome", "Oslo"]),
            "o": pd.Categorical(np.where(GROUP, "S", "L"), ["S", "M", "L"], ordered=True),
        }
    )
    table = frame_reader(frame, {})
    codes = RNG.integers(2, size=(500, 3)).astype(float)
    drawn = table.returned(codes)
    assert table.settings()["columns"]["k"] == "Categorical(2)"
    assert set(drawn["k"]) <= {"Rome", "Oslo"}
    assert set(drawn["o"]) <= {"S", "L"}
    pd.testing.assert_series_equal(drawn.dtypes, frame.dtypes)
    assert columns_of("X", frame)[2].levels == ("S", "L")


def test_what_is_drawn_keeps_within_a_dtype() -> None:
    """Whole, within limits and decimal places."""
    empty = pl.DataFrame(
        schema={"a": pl.Int8, "d": pl.Decimal(4, 1), "b": pl.Boolean, "t": pl.String}
    )
    values = [np.array([300.4, -0.6]), np.array([5000.0, 2.26]), np.array([0.7, 0.2]), X[:2]]
    for form in (Form(empty), Form(empty.to_arrow()), Form(empty.to_pandas().astype("object"))):
        made = form.frame(values)
        assert dtypes(made) == dtypes(form.empty)
    assert Form(empty).frame(values).rows() == [
        (127, Decimal("999.0"), True, str(X[0])),
        (-1, Decimal("2.3"), False, str(X[1])),
    ]
