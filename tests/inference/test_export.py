"""Exported programs compute what guides and estimators do, without Pyro and this library."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from facetvae.estimators import MultiFacetClustering, SemiSupervisedClassifier
from facetvae.estimators.encoding import EncodingModule, encoding_of
from guides import FacetGuide, InverseAutoregressive, MarginalGuide, VaDEGuide
from inference import export_predictions
from ppl_models import (
    MFCVAE,
    Bernoulli,
    DirichletWeights,
    GaussianMixture,
    NeighborMixture,
    SharedMLP,
    StandardNormal,
    VaDE,
)
from tests import catalog, fresh
from tests.catalog import given
from tests.test_contract import data

pytestmark = pytest.mark.slow(20)


def weights_and_neighbors() -> FacetGuide:
    mixture = GaussianMixture(3, 2, weights=DirichletWeights(100))
    facets = {"plain": StandardNormal(2), "clustered": NeighborMixture(mixture, 1.0)}
    return VaDEGuide(MFCVAE((6,), facets, Bernoulli(threshold=0.5), SharedMLP((8,))))


def flow_posterior() -> FacetGuide:
    model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
    return MarginalGuide(model, family=InverseAutoregressive(1, (4,), 2))


# Of every network, prior, family of posteriors and guide at least one.
CHOSEN: list[Callable[[], FacetGuide]] = [
    weights_and_neighbors,
    flow_posterior,
    catalog.vamp,
    catalog.columns,
    catalog.network_conditional_two_draws,
    catalog.convolutional,
    catalog.vlac_enumerated,
    catalog.ivae_continuous_label,
    catalog.ivae_resnet,
    catalog.vade_convnet,
    catalog.flow,
    catalog.vqvae_two_draws,
    catalog.nvae_partly_labeled_two_draws,
]


TRIED = CHOSEN[:: 1 if os.environ.get("FACETVAE_THOROUGH") else 2]


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


@pytest.mark.parametrize("build", TRIED, ids=lambda f: f.__name__)
def test_a_program_is_the_guide(build: Callable[[], FacetGuide], tmp_path: Path) -> None:
    guide, path = build(), tmp_path / "guide.pt2"
    export_predictions(guide, path, data(guide, 3), **read(guide, 3))
    program = torch.export.load(path).module()
    for n in (1, 7, 50):
        compare(guide, program, torch.float32, n, 1e-5)


def test_a_program_in_float64(tmp_path: Path) -> None:
    guide, path = catalog.full_posterior(), tmp_path / "guide.pt2"
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
for name, each in found.items():
    for what, values in each.items():
        np.save(f"{name}.{what}.npy", values.numpy())
print(json.dumps(json.loads(files["about.json"])))
"""


def here(
    estimator: Any, x: np.ndarray, folder: Path, dtype: torch.dtype = torch.float64
) -> dict[str, np.ndarray]:
    """What an estimator's program says."""
    estimator.export(folder / "found.pt2", dtype=dtype)
    found = torch.export.load(folder / "found.pt2").module()(torch.as_tensor(x))
    return {f"{n}.{what}": v.numpy() for n, each in found.items() for what, v in each.items()}


def elsewhere(estimator: Any, x: np.ndarray, folder: Path) -> tuple[dict[str, np.ndarray], Any]:
    """What an estimator's program says in a process of its own, and what stands in the file."""
    estimator.export(folder / "found.pt2", dtype=torch.float64)
    np.save(folder / "x.npy", x)
    (folder / "read.py").write_text(ELSEWHERE)
    done = fresh.run("read.py", cwd=folder, env={"PYTHONPATH": None})
    assert done.returncode == 0, done.stderr
    found = {path.name.removesuffix(".npy"): np.load(path) for path in folder.glob("*.*.npy")}
    return found, json.loads(done.stdout)


def check_facets(estimator: Any, found: dict[str, np.ndarray], X: Any, tolerance: float) -> None:
    """Against the encoder's posterior, which is all that a program has."""
    names, estimator = estimator.facet_names_, copy.copy(estimator)
    estimator.settings_ = estimator.settings_ | {"refined": False}
    means = np.hstack([found[f"{name}.mean"] for name in names])
    np.testing.assert_allclose(means, estimator.transform(X), tolerance, tolerance)
    wanted = estimator.predict_proba(X)
    for j, (name, number) in enumerate(zip(names, estimator.n_clusters_, strict=True)):
        probabilities = found[f"{name}.probabilities"]
        np.testing.assert_allclose(probabilities, wanted[:, j, :number], 0, tolerance)


@cache
def of_a_table() -> MultiFacetClustering:
    x = holed(table())
    return MultiFacetClustering(2, n_clusters=3, epochs=2, random_state=0).fit(x)


def test_a_table_elsewhere(tmp_path: Path) -> None:
    estimator, new = of_a_table(), holed(table())[:7]
    assert estimator.encoding_.unskewed is not None
    found, about = elsewhere(estimator, new, tmp_path)
    check_facets(estimator, found, new, 1e-10)
    assert about == {"columns": []}


def test_a_table_in_single_precision(tmp_path: Path) -> None:
    new = holed(table()).astype(np.float32)
    check_facets(of_a_table(), here(of_a_table(), new, tmp_path, torch.float32), new, 1e-4)


def test_empty_clusters_are_left_out(tmp_path: Path) -> None:
    estimator, x = copy.copy(of_a_table()), table()
    estimator.n_clusters_ = [2, 1]
    found = here(estimator, x, tmp_path)
    check_facets(estimator, found, x, 1e-10)
    assert found["facet_0.probabilities"].shape == (len(x), 2)


def test_images(tmp_path: Path) -> None:
    """The features of whole numbers have single precision."""
    estimator = MultiFacetClustering(1, n_clusters=2, epochs=1, random_state=0).fit(IMAGES)
    check_facets(estimator, here(estimator, IMAGES[:7], tmp_path), IMAGES[:7], 1e-7)


def test_mixed_columns_elsewhere(tmp_path: Path) -> None:
    """Whoever reads the program codes the columns as the file says."""
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {"age": rng.normal(40, 9, 60), "city": rng.choice(["Oslo", "Bath"], 60), "sick": True}
    )
    people.loc[5:9, "sick"], people.loc[3, "city"] = False, None
    estimator = MultiFacetClustering(1, n_clusters=2, epochs=1, random_state=0).fit(people)
    codes = {"Bath": 0.0, "Oslo": 1.0, None: np.nan}
    city = [codes[each if isinstance(each, str) else None] for each in people["city"]]
    rows = np.stack([people["age"], city, people["sick"].astype(float)], 1)
    found, about = elsewhere(estimator, rows, tmp_path)
    check_facets(estimator, found, people, 1e-10)
    assert about["columns"][:2] == [
        {"name": "age", "categories": []},
        {"name": "city", "categories": ["Bath", "Oslo"]},
    ]


def test_classes(tmp_path: Path) -> None:
    x, y = table(), np.where(np.arange(120) % 2 == 0, "no", "yes")
    estimator = SemiSupervisedClassifier(epochs=1, random_state=0).fit(x, y)
    found, wanted = here(estimator, x[:7], tmp_path), estimator.predict_proba(x[:7])
    np.testing.assert_allclose(found["class.probabilities"], wanted, 0, 1e-10)
    files = {"about.json": ""}
    torch.export.load(tmp_path / "found.pt2", extra_files=files)
    assert json.loads(files["about.json"]) == {"classes": ["no", "yes"]}


def test_the_decoder_is_not_written(tmp_path: Path) -> None:
    guide, path = catalog.vade(), tmp_path / "guide.pt2"
    export_predictions(guide, path, data(guide, 3))
    sizes = sum(each.numel() for each in torch.export.load(path).state_dict.values())
    needed = [*guide.encoder.parameters(), *guide.model.priors["cluster"].parameters()]
    assert sizes == sum(each.numel() for each in needed)


class _Reading(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


def test_a_part_that_reads_values_is_refused(tmp_path: Path) -> None:
    guide = catalog.vade()
    guide.encoder.trunk.insert(0, _Reading())
    with pytest.raises(ValueError, match=r"cannot be exported: .* such as an `if` on a tensor"):
        export_predictions(guide, tmp_path / "guide.pt2", data(guide, 3))
    assert list(tmp_path.iterdir()) == []
