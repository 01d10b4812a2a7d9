"""Whatever an estimator draws comes from its own streams: the process's streams change nothing that
it finds, and stay where they are.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array

from facetvae import estimators
from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from tests.global_state import unchanged

pytestmark = [
    pytest.mark.filterwarnings("ignore::inference.runner.DeadFacetWarning"),
    pytest.mark.filterwarnings("ignore::facetvae.estimators.UnstableFacetWarning"),
]

# Without rows that are held out, with some, and with more than subspaces are looked for in.
SIZES = (30, 220, 2100)


def table(n: int) -> np.ndarray:
    """Two labelings, of two and three clusters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    x[:, 0] += 6 * rng.integers(2, size=n)
    x[:, 2] += 6 * rng.integers(3, size=n)
    return x


def with_gaps(n: int) -> np.ndarray:
    x = table(n)
    x[::7, 1] = np.nan
    return x


def mixed(n: int) -> pd.DataFrame:
    x = table(n)
    return pd.DataFrame({"p": x[:, 0], "q": x[:, 1], "kind": np.where(x[:, 2] > 3, "a", "b")})


def counts(n: int) -> csr_array:
    rng = np.random.default_rng(0)
    rates = np.where(rng.random((2, 40)) < 0.3, 3.0, 0.5)
    return csr_array(rng.poisson(rates[rng.integers(2, size=n)]))


def embedded(n: int) -> np.ndarray:
    x = table(n) @ np.random.default_rng(1).normal(size=(4, 40))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def images(n: int) -> np.ndarray:
    return np.clip(np.repeat(table(n), 9, 1).reshape(n, 6, 6) * 0.1 + 0.2, 0, 1)


def clustering(*given: Any, **options: Any) -> MultiFacetClustering:
    return MultiFacetClustering(*given, epochs=1, random_state=0, **options)


def of_rows(each: Any, X: Any) -> list[Any]:
    """What every method of a clustering gives."""
    before = [each.labels_, each.stability_, each.encode(X), each.score(X)]
    read = [each.predict(X), each.predict_proba(X), each.transform(X)]
    drawn = [*each.sample(5), *each.sample(3, noise=False), *each.sample(5, facet=0, cluster=0)]
    told = [each.describe(0, X).as_dict()]
    filled = [each.impute(X)] if not isinstance(X, csr_array) else []
    return [*before, *read, *drawn, *told, *filled, each.partial_fit(X).labels_, each.score(X)]


def of_classifier(n: int) -> list[Any]:
    X, y = with_gaps(n), np.arange(n) % 2
    each = SemiSupervisedClassifier(epochs=2, random_state=0).fit(X, y)
    read = [each.predict(X), each.predict_proba(X), each.encode(X)]
    return [*read, each.score(X, y), each.impute(X)]


def of_groups(n: int) -> list[Any]:
    X, groups = with_gaps(n), np.arange(n) // 3
    each = ContentStyleTransformer(epochs=2, random_state=0)
    found = [each.fit_transform(X, groups=groups), each.encode(X), each.transform(X)]
    return [*found, each.score(X, groups=groups), each.impute(X, groups=groups)]


def fitting(draw: Callable[[int], Any], *given: Any, **options: Any) -> Callable[[int], list[Any]]:
    return lambda n: of_rows(clustering(*given, **options).fit(X := draw(n)), X)


# What is asked of a number of rows, by name: each estimator by all of its methods.
ASKED: dict[str, Callable[[int], list[Any]]] = {
    "SemiSupervisedClassifier": of_classifier,
    "ContentStyleTransformer": of_groups,
    "MultiFacetClustering": fitting(table),
    "several starts": fitting(table, 2, n_clusters=3, n_init=2),
    "latents of a length": fitting(with_gaps, 1, n_clusters=2, n_latents=2),
    "a mixed table": fitting(mixed, 1, n_clusters=2),
    "counts": fitting(counts, 1, n_clusters=2),
    "embeddings": fitting(embedded, 1, n_clusters=2),
    "images": fitting(images, 1, n_clusters=2),
}
# Everything at one size; the clustering, which alone depends on it, at all.
CASES = [(name, n) for n in SIZES for name in ASKED if n == 220 or name == "MultiFacetClustering"]


def shift(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def flat(value: Any) -> str:
    """All numbers of a result, to the last digit."""
    if isinstance(value, dict):
        return str({name: flat(each) for name, each in value.items()})
    if hasattr(value, "dense"):
        value = value.dense()
    if hasattr(value, "toarray"):
        value = value.toarray()
    array = np.asarray(value)
    return str(array.tolist()) if array.dtype == object else array.tobytes().hex()


def test_all_estimators_are_asked() -> None:
    public = {name for name in estimators.__all__ if not name.endswith("Warning")}
    assert public <= set(ASKED)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "n"), CASES)
def test_the_process_streams_change_nothing_and_stay(name: str, n: int) -> None:
    found = []
    for seed in (1, 2):
        shift(seed)
        with unchanged():
            found.append([flat(each) for each in ASKED[name](n)])
    same = [first == second for first, second in zip(*found, strict=True)]
    assert all(same), same


def fitted_here() -> str:
    found = clustering().fit(table(60))
    return f"{found.labels_.tobytes().hex()} {found.score(table(60))}"


def test_another_process_finds_the_same() -> None:
    program = "from tests.facetvae.test_random_streams import *; print(fitted_here())"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    said = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert said.strip() == fitted_here()
