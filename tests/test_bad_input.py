"""Every wrong input gets one clear error, before any work, and leaves objects and files as they
were.

The inputs stand in ``bad_inputs/``.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from guides import VaDEGuide
from inference import ProgressiveFadeIn, SVIRunner, elbo
from ppl_models import MFCVAE, GaussianMixture
from tests.bad_inputs import ROWS
from tests.bad_inputs.files import saved
from tests.bad_inputs.shared import DATA, KINDS, SHARED, D, Row, guide, holed, runner
from tests.drawing import draws_apart
from tests.global_state import unchanged

AT_LEAST = 200
SECONDS = 1.0

# Where what users call is listed.
PUBLIC = (
    "ppl_models",
    "ppl_models.networks",
    "guides",
    "inference",
    "inference.callbacks",
    "facetvae.describing",
    "facetvae.estimators",
    "inference.evaluation",
    "facetvae.explorer",
    "inference.figures",
    "inference.metrics",
    "inference.runner",
    "inference.schedules",
    "inference.training.batching",
    "lab.protocols.datasets",
)

# Public names without a row, and why.
EXEMPT = {
    **{
        name: "takes no arguments"
        for name in ("Diagonal", "Exact", "Enumerate", "FullCovariance", "HeteroscedasticNormal")
    },
    **dict.fromkeys(("MixtureOfNormals", "ProductOfNormals"), "takes no arguments"),
    **{
        name: "a base: its kinds have rows"
        for name in ("Batching", "Evidence", "Family", "Ladder", "NetworkGuide", "Schedule")
    },
    **{
        name: "built by architectures, which have rows"
        for name in ("Decoder", "Encoder", "FlowDecoder")
    },
    **dict.fromkeys(("Callback", "WeightFunction"), "a function's type"),
    "DATASETS": "a table, which load looks into",
    "Batching.check": "of each kind, by way of SVIRunner.fit",
    "SVIRunner.plan": "SVIRunner.fit, which has rows, is this and then trains",
    "Schedule.bind": "of each kind, by way of SVIRunner.fit",
    "Schedule.bind_further": "of each kind, by way of SVIRunner.fit",
    "FacetModel.plate": "of each model, by way of its program in plain Pyro",
    "FacetModel.check_given": "of each model, by way of FacetGuide.embed",
    "FacetModel.draw_given": "of each model, by way of FacetModel.generate",
}

# Streams that a public name draws from, beside what `tests.drawing` lists: with random_state=None,
# scikit-learn's estimators take a seed from NumPy's.
DRAWS = dict.fromkeys(
    ("MultiFacetClustering", "SemiSupervisedClassifier", "ContentStyleTransformer"),
    "NumPy's random stream",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run, which no row may touch."""
    return saved(tmp_path_factory.mktemp("bad inputs") / "run")


@pytest.fixture(scope="module", autouse=True)
def drawing() -> Iterator[None]:
    with draws_apart():
        yield


@pytest.fixture(scope="module", autouse=True)
def collected() -> None:
    """What earlier tests left over is not collected while an error is timed."""
    gc.collect()


def contents(folder: Path) -> dict[str, bytes | None]:
    """Of every file, and ``None`` of every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def states() -> list[torch.Tensor]:
    return [tensor.clone() for build in SHARED for tensor in build().state_dict().values()]


def refused(row: Row, run: Path) -> float:
    """Make the call and look at its error; returns seconds of computing."""
    drawn = [what for about, what in DRAWS.items() if row.about.split(".")[0] == about]
    with unchanged(but=drawn):
        started = time.process_time()
        with pytest.raises(row.error, match=row.message) as caught:
            row.call(run)
        seconds = time.process_time() - started
    assert type(caught.value) is row.error, (
        "a kind of its own, such as that of JSON's or torch's own errors"
    )
    return seconds


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_is_wrong_is_refused(
    row: Row, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if row.damage is not None:
        run = shutil.copytree(run, tmp_path / "run")
        row.damage(run)
    files, tensors = contents(tmp_path) | contents(run), states()
    # The first time something may be imported or built that is shared later on; an error that is
    # slow is so twice.
    if refused(row, run) > SECONDS:
        assert refused(row, run) < SECONDS
    assert contents(tmp_path) | contents(run) == files
    assert all(torch.equal(now, before) for now, before in zip(states(), tensors, strict=True))
    assert runner().history == []


def test_the_list_is_long_and_says_nothing_twice() -> None:
    assert len(ROWS) >= AT_LEAST
    assert [name for name, count in Counter(map(str, ROWS)).items() if count > 1] == []
    assert {row.fault.split(":")[0] for row in ROWS} == set(KINDS)
    assert [str(row) for row in ROWS if len(row.message) < 8] == [], "words that say what is wrong"


def callables(module: str) -> Iterator[str]:
    """Public names of a module that are called, and methods of its classes whose docstrings promise
    an error.
    """
    names = importlib.import_module(module)
    for name in names.__all__:
        found = getattr(names, name)
        if isinstance(found, type) and (issubclass(found, Warning) or is_dataclass(found)):
            continue  # nothing that is called with what a user made up
        yield name
        for method, function in vars(found).items() if isinstance(found, type) else ():
            function = getattr(function, "__func__", function)
            if (
                inspect.isfunction(function)
                and method[0] != "_"
                and ":raises" in (function.__doc__ or "")
            ):
                yield f"{name}.{method}"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_row(module: str) -> None:
    about = {row.about for row in ROWS}
    about |= {name.split(".")[0] for name in about}
    assert [name for name in callables(module) if name not in about and name not in EXEMPT] == []


def test_exemptions_are_needed_and_exist() -> None:
    public = {name for module in PUBLIC for name in callables(module)}
    about = {row.about.split(".")[0] for row in ROWS} | {row.about for row in ROWS}
    assert EXEMPT.keys() <= public - about


@pytest.mark.parametrize(("fault", "x", "message"), DATA, ids=[row[0] for row in DATA])
def test_data(fault: str, x: Any, message: str) -> None:
    """As :meth:`SVIRunner.fit` says it, whose rows these are too."""
    g, before = guide(), states()
    for use in (g.predict, g.embed, partial(elbo, g.model, g)):
        with pytest.raises(ValueError, match=message):
            use(x)
    assert all(torch.equal(now, then) for now, then in zip(states(), before, strict=True))


def test_an_abrupt_fade_in_is_warned_of() -> None:
    g = VaDEGuide(MFCVAE((D,), {"a": GaussianMixture(3, 2), "b": GaussianMixture(4, 2)}))
    with pytest.warns(UserWarning, match="fade_steps=3 is abrupt"):
        SVIRunner(g.model, g, schedule=ProgressiveFadeIn((2, 2), 3)).fit(
            holed(0.1), 4, 3, progress=False
        )
