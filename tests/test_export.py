"""Exported programs compute what guides and estimators do, without Pyro and this library."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from guides import FacetGuide
from inference import export_predictions
from inference.estimators import MultiFacetClustering, SemiSupervisedClassifier
from inference.estimators.data import encoding_of
from inference.estimators.exporting import EncodingModule, UnskewedModule
from inference.estimators.skewness import Unskewed
from tests import catalogue, fresh
from tests.catalogue import given
from tests.test_contract import data

# Of every network, prior, family of posteriors and guide at least one.
CHOSEN: list[Callable[[], FacetGuide]] = [
    catalogue.full_posterior,
    catalogue.flow_posterior_two_draws,
    catalogue.three_facets_full_covariance_two_draws,
    catalogue.mixed_priors,
    catalogue.neighbors,
    catalogue.vamp,
    catalogue.dirichlet_weights,
    catalogue.incomplete,
    catalogue.columns,
    catalogue.marginal_two_draws,
    catalogue.network_conditional_two_draws,
    catalogue.convolutional_two_draws_skipping_a_level,
    catalogue.vlac_enumerated,
    catalogue.ivae_continuous_label,
    catalogue.ivae_resnet,
    catalogue.vade_convnet,
    catalogue.flow,
    catalogue.vqvae_two_draws,
    catalogue.autoencoder,
    catalogue.nvae_partly_labelled_two_draws,
]
EXACTLY = [catalogue.full_posterior, catalogue.vade_convnet, catalogue.flow]


def read(guide: FacetGuide, n: int) -> dict[str, torch.Tensor]:
    return {name: each for name, each in given(guide, n).items() if name in guide.reads}


def compare(
    guide: FacetGuide, program: Callable[..., Any], dtype: torch.dtype, n: int, tolerance: float
) -> None:
    x, beside = data(guide, n).to(dtype), read(guide, n)
    found = program(x, *beside.values())
    means, probabilities = guide.embed(x, **beside), guide.predict_proba(x, **beside)
    assert list(found) == list(means)
    for name, mean in means.items():
        close(found[name]["mean"], mean, tolerance)
        assert ("probabilities" in found[name]) == (name in probabilities)
        if name in probabilities:
            close(found[name]["probabilities"], probabilities[name], tolerance)


def close(found: torch.Tensor, wanted: np.ndarray, tolerance: float) -> None:
    assert (found.dtype, tuple(found.shape)) == (torch.as_tensor(wanted).dtype, wanted.shape)
    np.testing.assert_allclose(found, wanted, tolerance, tolerance)


@pytest.mark.parametrize("build", CHOSEN, ids=lambda f: f.__name__)
def test_a_program_is_the_guide(build: Callable[[], FacetGuide], tmp_path: Path) -> None:
    guide, path = build(), tmp_path / "guide.pt2"
    export_predictions(guide, path, data(guide, 3), **read(guide, 3))
    program = torch.export.load(path).module()
    for n in (1, 7, 50):
        compare(guide, program, torch.float32, n, 1e-5)


@pytest.mark.parametrize("build", EXACTLY, ids=lambda f: f.__name__)
def test_a_program_in_float64(build: Callable[[], FacetGuide], tmp_path: Path) -> None:
    guide, path = build(), tmp_path / "guide.pt2"
    export_predictions(guide, path, data(guide, 3), dtype=torch.float64)
    compare(
        copy.deepcopy(guide).double(), torch.export.load(path).module(), torch.float64, 7, 1e-10
    )


def table(rows: int = 120) -> np.ndarray:
    """Two clusters, in columns that are skewed, far from 0, tiny and constant."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)) + 4 * rng.integers(2, size=(rows, 1))
    return np.c_[
        np.exp(x[:, 0]), 1e6 + x[:, 1], 1e-9 * x[:, 2], -np.exp(x[:, 3]), np.full(rows, 7.0)
    ]


def holed(x: np.ndarray) -> np.ndarray:
    return np.where(np.random.default_rng(1).random(x.shape) < 0.1, np.nan, x)


IMAGES = np.random.default_rng(0).integers(256, size=(40, 6, 6)).astype(np.uint8)
ENCODED = {
    "skewed, with gaps": holed(table()),
    "huge": table() * 1e250,
    "binary": (table() > 2).astype(float),
    "shares": np.random.default_rng(0).random((30, 3)),
    "real images": np.random.default_rng(0).normal(size=(20, 1, 6, 6)),
    "8-bit": IMAGES,
    "of single precision": table().astype(np.float32),
}


@pytest.mark.parametrize("x", ENCODED.values(), ids=list(ENCODED))
def test_the_encoding_of_a_program(x: np.ndarray) -> None:
    encoding = encoding_of(x, None)
    found = EncodingModule(encoding)(torch.as_tensor(x))
    np.testing.assert_allclose(found, encoding.encode(x), 2e-7, 2e-7)


def test_the_powers_of_a_program() -> None:
    """Against scikit-learn's, also where the power is 0 or 2 and values are of both signs."""
    x = np.random.default_rng(0).normal(size=(50, 4))
    unskewed = Unskewed(np.array([0.0, 2.0, 0.3, 1.0]), np.arange(4.0), np.full(4, 2.0))
    found = UnskewedModule(unskewed)(torch.as_tensor(x))
    np.testing.assert_allclose(found, unskewed.apply(x), 1e-12, 1e-12)


# Reads a program and a batch, where neither Pyro nor this library can be imported.
ELSEWHERE = """
import json, sys
for name in ("pyro", "ppl_models", "guides", "inference", "facetvae", "sklearn"):
    sys.modules[name] = None
import numpy as np
import torch
files = {"about.json": ""}
program = torch.export.load("found.pt2", extra_files=files).module()
found = program(torch.as_tensor(np.load("x.npy")))
np.savez("found.npz", **{f"{f}.{k}": v.numpy() for f, each in found.items() for k, v in each.items()})
print(json.dumps(json.loads(files["about.json"])))
"""


def elsewhere(estimator: Any, x: np.ndarray, folder: Path, dtype: torch.dtype) -> tuple[Any, str]:
    """What an estimator's program says in a process of its own, and what stands in the file."""
    estimator.export(folder / "found.pt2", dtype=dtype)
    np.save(folder / "x.npy", x)
    (folder / "read.py").write_text(ELSEWHERE)
    done = fresh.run("read.py", cwd=folder, env={"PYTHONPATH": None})
    assert done.returncode == 0, done.stderr
    return np.load(folder / "found.npz"), json.loads(done.stdout)


def check_facets(estimator: Any, found: Any, X: Any, tolerance: float) -> None:
    means = [found[f"{name}.mean"] for name in estimator.facet_names_]
    np.testing.assert_allclose(np.hstack(means), estimator.transform(X), tolerance, tolerance)
    wanted = estimator.predict_proba(X)
    for j, name in enumerate(estimator.facet_names_):
        K = len(estimator.clusters_[j])
        probabilities = found[f"{name}.probabilities"]
        np.testing.assert_allclose(probabilities, wanted[:, j, :K], 0, tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_table_elsewhere(dtype: torch.dtype, tmp_path: Path) -> None:
    x = holed(table())
    estimator = MultiFacetClustering(2, n_clusters=3, epochs=2, random_state=0).fit(x)
    assert estimator.encoding_.unskewed is not None
    given = x[:7].astype(str(dtype).removeprefix("torch."))
    found, about = elsewhere(estimator, given, tmp_path, dtype)
    check_facets(estimator, found, given, 1e-6 if dtype == torch.float64 else 1e-3)
    assert about == {"columns": []}
