"""Services, and programs without a console, have no standard error: what shows progress trains
there all the same.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from guides import VaDEGuide
from inference import SVIRunner, fit_together
from ppl_models import GaussianMixture, Normal, SharedMLP, VaDE

X = np.random.default_rng(0).normal(size=(30, 4))


def runner() -> SVIRunner:
    model = VaDE((4,), GaussianMixture(2, 2), Normal(0.3), SharedMLP((8,)))
    return SVIRunner(model, VaDEGuide(model))


SHOWN: dict[str, Callable[[], Any]] = {
    "a run": lambda: runner().fit(X, 1),
    "runs together": lambda: fit_together([runner(), runner()], X, 1),
    "facets": lambda: MultiFacetClustering(1, n_clusters=2, epochs=1, verbose=True).fit(X),
    "a mixed table": lambda: MultiFacetClustering(
        1, n_clusters=2, epochs=1, verbose=True, columns={}
    ).fit(pytest.importorskip("pandas").DataFrame(X, columns=list("abcd"))),
    "classes": lambda: SemiSupervisedClassifier(epochs=1, verbose=True).fit(X, X[:, 0] > 0),
    "groups": lambda: ContentStyleTransformer(epochs=1, verbose=True).fit(
        X, groups=np.arange(30) // 2
    ),
}


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("stream", [None, "closed"])
def test_progress_needs_no_standard_error(
    name: str, stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if stream else None)
    SHOWN[name]()
