"""Selection, metrics and diagnostics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from facetvae.describing import FacetClusters, describe_clusters
from inference.evaluation import exact_objective, log_importance_weights
from inference.metrics import (
    cluster_accuracy,
    cluster_map,
    clustering_scores,
    held_out_correlation,
    mean_correlation,
    probe_accuracy,
)
from tests import catalog
from tests.bad_inputs.shared import (
    COUNT,
    LABEL,
    NAN,
    TENSOR,
    X,
    Z,
    facet,
    guide,
    holed,
    ivae,
    ladder,
)

HALVES = np.repeat([[1.0, 2], [3, 5]], 4, 0)


def describing(X: Any = None, metadata: Any = None, n: int = 6, **options: Any) -> Any:
    """A description of what is to be refused, of two clusters of ``n`` rows."""
    found = FacetClusters("kind", np.eye(2)[np.arange(n) % 2])
    given = np.arange(12.0).reshape(6, 2) if X is None else X
    return describe_clusters(found, given, metadata, **options)


DESCRIPTIONS = [
    ("shape: rows", lambda: describing(n=5), "column 'x0' of X has 6 rows, but the clusters .* 5"),
    ("shape: vector", lambda: describing(np.arange(6.0)), "X must have a row for each datum, got"),
    ("empty: no columns", lambda: describing({}), "X has no columns: give the rows with those"),
    ("range: exemplars", lambda: describing(exemplars=0), f"exemplars {COUNT}, got 0"),
    ("range: columns", lambda: describing(columns=-1), f"columns {COUNT}, got -1"),
    ("unknown: kind", lambda: describing(kinds={"x0": "real"}), "a kind must be one of"),
    ("type: found", lambda: describe_clusters(LABEL, X), "found must be FacetClusters"),
    (
        "empty: no rows",
        lambda: describe_clusters(FacetClusters("kind", np.zeros((0, 2))), X),
        r"probabilities must be \[N, K\], of at least one row, got shape \(0, 2\)",
    ),
    (
        "shape: typicality",
        lambda: describe_clusters(FacetClusters("kind", np.ones((6, 2)), np.ones(6)), X),
        r"typicality must have shape \(6, 2\), got \(6,\)",
    ),
    (
        "misfit: columns of one name",
        lambda: describing(metadata=pd.DataFrame(np.zeros((6, 2)), columns=["a", "a"])),
        "two columns are called 'a': rename one of them",
    ),
    ("type: metadata", lambda: describing(metadata=np.arange(6)), "metadata must be a data frame"),
    (
        "shape: metadata",
        lambda: describing(metadata={"town": ["a"] * 5}),
        "column 'town' of metadata has 5 rows, but the clusters are of 6",
    ),
    (
        "type: dates",
        lambda: describing(metadata={"day": np.arange(6).astype("M8[D]")}),
        r"column 'day' of metadata holds dates of the dtype datetime64\[D\]: give numbers",
    ),
    (
        "nan: infinity",
        lambda: describing(metadata={"age": [1.0, 2, 3, 4, 5, float("inf")]}),
        "column 'age' of metadata has infinite values",
    ),
    (
        "misfit: order of rows",
        lambda: describing(pd.DataFrame({"a": range(6)}), pd.DataFrame({"b": range(6)}).iloc[::-1]),
        r"metadata has other rows than X, or has them in another order: give metadata\.loc\[",
    ),
]
DESCRIBING = {"describe_clusters": DESCRIPTIONS}


METRICS = {
    "cluster_accuracy": [
        (
            "shape: lengths",
            lambda: cluster_accuracy([0, 1], [0, 1, 1]),
            r"got shapes \(2,\) and \(3,\)",
        ),
        ("empty: no data", lambda: cluster_accuracy([], []), "non-empty vectors"),
        (
            "unknown: method",
            lambda: cluster_accuracy([0], [0], "best"),
            "method must be one of .*majority",
        ),
        ("nan: labels", lambda: cluster_accuracy([0, NAN], [0, 1]), "labels hold NaN, infinity"),
        (
            "shape: map",
            lambda: cluster_accuracy([0], [0], map_from=([0], [0, 1])),
            r"\(1,\) and \(2,\)",
        ),
    ],
    "cluster_map": [
        ("shape: table", lambda: cluster_map([[0, 1]], [[0, 1]]), r"vectors of one length, got")
    ],
    "clustering_scores": [
        ("type: None", lambda: clustering_scores(None, [0]), r"got shapes \(\) and \(1,\)")
    ],
    "probe_accuracy": [
        (
            "shape: labels",
            lambda: probe_accuracy(Z, [0, 1], Z, [0, 1]),
            r"shapes \(8, 2\) and \(2,\)",
        ),
        (
            "shape: test",
            lambda: probe_accuracy(Z, [0, 1] * 4, Z[:, :1], [0, 1] * 4),
            r"\[N, 2\], as in",
        ),
        ("nan: z", lambda: probe_accuracy(holed(NAN), LABEL, X, LABEL), "latents hold NaN"),
    ],
    "mean_correlation": [
        (
            "shape: columns",
            lambda: mean_correlation(np.ones((4, 2)), np.ones((4, 3))),
            r"\(4, 2\) and \(4, 3\)",
        ),
        (
            "range: constant",
            lambda: mean_correlation(np.ones((4, 2)), Z[:4]),
            "has a constant column",
        ),
        (
            "unknown: method",
            lambda: mean_correlation(Z, Z, "kendall"),
            "method must be one of .*pearson",
        ),
        ("nan: z", lambda: mean_correlation(Z, Z * NAN), "sources or latents hold NaN"),
        ("type: text", lambda: mean_correlation(Z, "latents"), "latents must hold numbers, got"),
    ],
    "held_out_correlation": [
        ("shape: too few", lambda: held_out_correlation(Z[:3], Z[:3]), "each half of the 3 data"),
        (
            "range: variates",
            lambda: held_out_correlation(Z, Z, align=True, num_variates=3),
            "2 coordinates have only as many canonical variates, fewer than 3",
        ),
        ("empty: no data", lambda: held_out_correlation(Z[:0], Z[:0]), r"N >= 2, got \(0, 2\)"),
        (
            "shape: to align",
            lambda: held_out_correlation(*np.random.default_rng(0).random((2, 19, 5)), align=True),
            "19 data are too few to align 5 coordinates: give 20 or more",
        ),
        ("range: constant", lambda: held_out_correlation(HALVES, Z), "and no constant source"),
        ("nan: sources", lambda: held_out_correlation(Z * NAN, Z), "hold NaN or infinity"),
    ],
}


def exact(of: Any, model: Any = None, x: Any = TENSOR, **options: Any) -> Any:
    return lambda: exact_objective(model() if model else of().model, of(), x, **options)


def weights(of: Any, num_draws: int = 3) -> Any:
    return lambda: log_importance_weights(of(), X, num_draws)


DIAGNOSTICS = {
    "exact_objective": [
        ("misfit: guide", exact(ladder), "depend on one another"),
        ("misfit: labels", exact(ivae), "ConditionalGuide"),
        ("misfit: model", exact(guide, facet), "built for another model"),
        (
            "range: one node",
            exact(guide, num_nodes=1),
            "num_nodes must be an integer of at least 2, got 1",
        ),
        ("shape: x", exact(guide, x=TENSOR[0]), r"x has shape \[6\]"),
    ],
    "log_importance_weights": [
        ("misfit: guide", weights(ladder), "has no density of z"),
        ("misfit: flow", weights(catalog.flow), "FlowGuide has no dens"),
        ("range: draws", weights(guide, 0), f"num_draws {COUNT}, got"),
        ("type: guide", weights(facet), "guide must be a guide"),
    ],
}
