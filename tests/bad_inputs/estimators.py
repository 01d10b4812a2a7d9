"""scikit-learn's interface."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_array
from sklearn.exceptions import NotFittedError

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from inference.runner import DeadFacetWarning
from ppl_models import Bernoulli, ConvLadder, MLPLadder, Normal
from tests.bad_inputs.shared import COUNT, HUGE, INF, MANY, NAN

KINDS = (MultiFacetClustering, SemiSupervisedClassifier, ContentStyleTransformer)

# Estimators: as scikit-learn has it, options are looked at by fit. Data for them are random numbers
# of five columns.


def estimated(
    of: Callable[..., Any] = MultiFacetClustering, given: Any = None, **options: Any
) -> Any:
    """What is to be refused; some options are for ``fit``."""
    beside = {name: options.pop(name) for name in ("labels", "groups", "y") if name in options}
    x = table() if given is None else given
    if of is SemiSupervisedClassifier:
        beside.setdefault("y", np.arange(len(x)) % 2)
    return of(**{"epochs": 1, **options}).fit(x, **beside)


def table(value: float = 0.0, rows: int = 30) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(rows, 5))
    x[3, 2] += value
    return x


@cache
def estimators() -> dict[type, Any]:
    """Fitted, of each kind."""
    with warnings.catch_warnings(action="ignore", category=DeadFacetWarning):
        return {kind: estimated(kind, random_state=0) for kind in KINDS}


FRAME = pd.DataFrame({"a": ["u", "v"] * 15, "b": np.arange(30.0)})


def facets(**options: Any) -> Callable[[], Any]:
    return lambda: estimated(MultiFacetClustering, **{"facets": 2, **options})


def classifier(**options: Any) -> Callable[[], Any]:
    return lambda: estimated(SemiSupervisedClassifier, **options)


def grouped(**options: Any) -> Callable[[], Any]:
    return lambda: estimated(ContentStyleTransformer, **options)


def ours() -> MultiFacetClustering:
    return estimators()[MultiFacetClustering]


def sampled(*args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: ours().sample(*args, **options)


def exported(kind: type, path: str, **options: Any) -> Callable[[], Any]:
    return lambda: estimators()[kind].export(path, **options)


# What all estimators say of their common options, of data to fit to, and of data beside those.
COMMON: list[tuple[Any, ...]] = [
    ("range: epochs", {"epochs": 0}, f"epochs {COUNT}, got 0"),
    ("type: batch_size", {"batch_size": "16"}, f"batch_size {COUNT}, got '16'"),
    ("nan: learning_rate", {"learning_rate": NAN}, "rate must be a positive number, got nan"),
    ("type: likelihood", {"likelihood": "normal"}, "must be a likelihood, such as .* got str"),
    ("type: likelihood class", {"likelihood": Normal}, "got the class Normal itself"),
    ("misfit: likelihood", {"likelihood": Bernoulli()}, "but the Bernoulli likelihood needs"),
    ("type: network", {"network": (64, 64)}, "must be an architecture, such as .* got tuple"),
    ("misfit: network", {"network": ConvLadder((8, 16))}, "needs images .channels, height"),
    ("unknown: device", {"device": "gpu"}, "must be a name such as 'cpu' or 'cuda', got 'gpu'"),
    ("type: random_state", {"random_state": "0"}, "'0' cannot be used to seed"),
    ("range: random_state", {"random_state": -1}, "Seed must be between 0 and"),
    (
        "type: a generator",
        {"random_state": np.random.default_rng(0)},
        "random_state is a Generator: give an integer or a RandomState",
    ),
    ("empty: no rows", {"given": np.zeros((0, 5))}, r"0 sample.s. .* minimum of 2 is required"),
    ("nan: infinity", {"given": table(INF)}, "Input X contains infinity"),
]
SEEN: list[tuple[str, Any, str]] = [
    ("nan: where fitted to none", table(NAN), "missing entries .NaN., but the training data had"),
    ("shape: more columns", np.zeros((3, 6)), "X has 6 features, but .* is expecting 5 features"),
    ("shape: images", np.zeros((3, 5, 2)), r"of shape \(5, 2\), but the training data had \(5,\)"),
]


def on_seen_data(kind: type, x: Any) -> Any:
    return estimators()[kind].score(x, np.zeros(len(x), int))


def common(kind: type) -> list[tuple[Any, ...]]:
    """What one kind of estimator says."""
    options = [
        (fault, partial(estimated, kind, **given), message) for fault, given, message in COMMON
    ]
    seen = [(fault, partial(on_seen_data, kind, x), message) for fault, x, message in SEEN]
    return [*options, *((f"{fault}, to score", *rest) for fault, *rest in seen)]


WITHOUT_A_FIT: dict[str, Callable[[], Any]] = {
    "MultiFacetClustering.encode": lambda: MultiFacetClustering().encode(table()),
    "MultiFacetClustering.export": lambda: MultiFacetClustering().export("a.pt2"),
    "MultiFacetClustering.describe": lambda: MultiFacetClustering().describe(0, table()),
    "SemiSupervisedClassifier.export": lambda: SemiSupervisedClassifier().export("a.pt2"),
}
UNFITTED = {
    about: [("missing: fit", call, "is not fitted yet", NotFittedError)]
    for about, call in WITHOUT_A_FIT.items()
}

ESTIMATORS = {
    **{kind.__name__: common(kind) for kind in KINDS},
    "MultiFacetClustering.fit": [
        ("range: facets 0", facets(facets=0), f"facets {COUNT}, got 0"),
        (
            "misfit: outliers among images",
            facets(given=table().reshape(-1, 5, 1), mark_outliers=True),
            "mark_outliers=True is for tables of real numbers .* read as images: leave it out",
        ),
        (
            "misfit: outliers under a likelihood",
            facets(likelihood=Normal(1.0), mark_outliers=True),
            "mark_outliers=True .* read as 'as given'",
        ),
        ("empty: facets", facets(facets=[]), "facets must be a number, or names that differ"),
        ("type: mark_outliers", facets(mark_outliers=1), "mark_outliers must be True or False"),
        ("type: facets text", facets(facets="hue"), "a number, or names that differ .*'hue'"),
        ("type: a name", facets(facets=["a", "what else"]), "valid in Python"),
        ("misfit: equal rows", facets(given=np.ones((30, 4))), "the rows of X do not differ"),
        (
            "misfit: no counts",
            facets(given=csr_array((30, 4), dtype=int)),
            "rows of X do not differ",
        ),
        (
            "misfit: equal rows with a gap",
            facets(given=np.where(np.eye(30, 4), NAN, 1.0)),
            "the rows of X do not differ",
        ),
        ("misfit: names twice", facets(facets=["a", "a"]), r"differ .* got \['a', 'a'\]"),
        ("unknown: rest", facets(facets=["rest", "a"]), "a facet cannot be called 'rest', as what"),
        ("huge: facets", facets(facets=1001), "facets must be at most 1000, got 1001"),
        ("range: n_init", facets(n_init=0), f"n_init {COUNT}, got 0"),
        ("range: n_clusters", facets(n_clusters=0), f"n_clusters of 'facet_0' {COUNT}, got 0"),
        ("misfit: n_clusters", facets(n_clusters=[2, 2, 2]), "one for each of the 2 facets, got"),
        ("huge: n_clusters", facets(n_clusters=31), "cannot have 31 clusters: only 30 of 30 data"),
        ("range: n_latents", facets(n_latents=[3, -1]), f"n_latents of 'facet_1' {COUNT}, got -1"),
        ("huge: n_latents", facets(n_latents=HUGE), f"n_latents of 'facet_0' {MANY}"),
        ("misfit: rungs", facets(facets=3, network=MLPLadder((8, 9))), "3 facets"),
        ("unknown: a network's name", facets(network="wide"), "linear.*deep"),
        (
            "misfit: linear images",
            lambda: MultiFacetClustering(network="linear").fit(np.eye(64).reshape(64, 1, 8, 8)),
            'network="linear" is for tables',
        ),
        ("shape: labels", facets(facets=1, labels=[0, 1]), "labels of 'facet_0' has shape"),
        ("type: labels", facets(facets=1, labels=[0.5] * 30), "'facet_0' must hold integers"),
        ("range: labels", facets(facets=1, labels=[-2] * 30), "has classes from -2 to -2"),
        (
            "huge: labels",
            facets(facets=1, labels=[10**8] * 30),
            "'facet_0' has labels up to 100000",
        ),
        (
            "misfit: labels from 1",
            facets(facets=1, labels=[1, 2] * 15),
            "not of all below: clusters",
        ),
        ("misfit: one label", facets(facets=1, labels=[0] * 30), "'facet_0' has labels of 0 alone"),
        ("missing: facet of labels", facets(labels=[0] * 30), "there are 2 facets: give labels by"),
        ("unknown: facet of labels", facets(labels={"a": [0] * 30}), "'a', but the facets are"),
        (
            "misfit: labels",
            facets(n_clusters=2, labels={"facet_1": [0, 1, 2] * 10}),
            "'facet_1' has labels up to 2, but n_clusters=2: give 3",
        ),
        ("misfit: frame", facets(given=FRAME, likelihood=Normal(0.3)), "give columns= by name al"),
        ("nan: all", facets(given=np.full((9, 3), NAN)), "X has no observed entry"),
        ("type: dates", facets(given=np.zeros((9, 3), "M8[s]")), "numbers, got dtype datetime64"),
        ("type: times", facets(given=np.zeros((9, 3), "m8[s]")), "numbers, got dtype timedelta64"),
        ("huge: an integer", facets(given=[[10**400] * 3] * 9), "that is too large for a float"),
        ("shape: ragged", facets(given=[[1, 2], [1]]), "X must be an array, with rows of equal"),
        ("empty: columns", facets(given=pd.DataFrame(index=range(9))), "X is a data frame without"),
        ("type: text", facets(given=[["1.5", "x", "2"]] * 9), "with arrays of bytes/strings"),
        ("shape: a number", facets(given=3), "Expected 2D array, got scalar array"),
        (
            "misfit: columns",
            facets(columns={"a": Normal()}),
            "columns= is for a data frame.*ndarray",
        ),
    ],
    "MultiFacetClustering.partial_fit": [
        ("range: epochs", lambda: ours().partial_fit(table(), epochs=0), f"epochs {COUNT}, got 0"),
        (
            "shape: columns",
            lambda: ours().partial_fit(np.zeros((30, 6))),
            "X has 6 features, but MultiFacetClustering is expecting 5",
        ),
    ],
    **{
        f"{kind.__name__}.export": [
            ("file: ending", exported(kind, "found.onnx"), "path must end in .pt2, .* found.onnx"),
            ("file: no folder", exported(kind, "there/found.pt2"), "there is no folder there"),
            (
                "unknown: dtype",
                exported(kind, "found.pt2", dtype=torch.float16),
                r"dtype must be one of .*float32.*float64.* got torch.float16",
            ),
        ]
        for kind in KINDS[:2]
    },
    "MultiFacetClustering.sample": [
        ("huge: n_samples", sampled(HUGE), f"n_samples {MANY}"),
        ("missing: cluster", sampled(2, facet=0), "give facet and cluster together, or neither"),
        ("missing: facet", sampled(2, cluster=0), "give facet and cluster together, or neither"),
        ("unknown: facet", sampled(2, facet="digit", cluster=0), "unknown facet 'digit'"),
        ("range: cluster", sampled(2, facet=0, cluster=-1), "has the clusters 0 to .* got -1"),
        ("type: cluster", sampled(2, facet=0, cluster=0.0), "has the clusters 0 to .* got 0.0"),
    ],
    "MultiFacetClustering.describe": [
        ("unknown: facet", lambda: ours().describe("digit", table()), "unknown facet 'digit'"),
        (
            "shape: columns",
            lambda: ours().describe(0, np.zeros((3, 6))),
            "X has 6 features, but MultiFacetClustering is expecting 5",
        ),
        (
            "shape: metadata",
            lambda: ours().describe(0, table(), {"a": [1, 2]}),
            "column 'a' of metadata has 2 rows, but the clusters are of 30",
        ),
    ],
    "SemiSupervisedClassifier.fit": [
        ("misfit: one class", classifier(y=np.zeros(30, int)), "1 class, but at least two are"),
        ("misfit: no class", classifier(y=np.full(30, -1)), "0 classes, but at least two are"),
        ("type: y", classifier(y=np.linspace(0, 1, 30)), "Unknown label type: continuous"),
        ("type: '-1'", classifier(y=["a", "b", -1] * 10), "'-1': give strings and the number -1"),
        ("nan: y", classifier(y=[0, 1.5, NAN] * 10), "Input y contains NaN"),
        ("range: class_dim", classifier(class_dim=0), f"class_dim {COUNT}, got 0"),
        ("huge: shared_dim", classifier(shared_dim=HUGE), f"shared_dim {MANY}"),
        ("range: label_weight", classifier(label_weight=-1), "must be a number of at least 0, got"),
    ],
    "SemiSupervisedClassifier.score": [
        (
            "nan: masked y",
            lambda: estimators()[SemiSupervisedClassifier].score(
                table(), np.ma.array(np.arange(30) % 2, mask=True)
            ),
            "y has no known label",
        )
    ],
    "ContentStyleTransformer.fit": [
        ("shape: groups", grouped(groups=[0, 1]), "groups has shape"),
        (
            "type: groups",
            grouped(groups=["a", 1] * 15),
            "groups must be integers or strings, all of one kind and one a row; row 1 has 1",
        ),
        (
            "missing: a group's name",
            grouped(groups=["a", None] * 15),
            "groups must be integers or strings, .* row 1 has None: convert it, or leave the row",
        ),
        ("nan: groups", grouped(groups=[0, NAN] * 15), "groups has no value in row 1: give each"),
        ("range: content_dim", grouped(content_dim=0), f"content_dim {COUNT}, got 0"),
        ("huge: style_dim", grouped(style_dim=HUGE), f"style_dim {MANY}"),
        (
            "shape: groups to transform",
            lambda: estimators()[ContentStyleTransformer].transform(table(), groups=[0]),
            "groups has shape",
        ),
    ],
}
