"""Every example in a docstring runs, and everything that users call has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import pkgutil
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib
import numpy as np
import pyro
import pytest
import torch

from tests.drawing import draws_apart, failing_layers
from tests.global_state import unchanged

pytestmark = pytest.mark.slow(30)

PACKAGES = ("ppl_models", "guides", "inference", "facetvae")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Models, priors, likelihoods, networks, guides, and the kinds of things in `inference` that users
# call.
PUBLIC = (
    "ppl_models",
    "ppl_models.networks",
    "guides",
    "inference",
    "inference.callbacks",
    "facetvae.estimators",
    "inference.evaluation",
    "inference.figures",
    "inference.metrics",
    "inference.objectives.loss",
    "inference.schedules",
)

# Public names that need no example, and why.
BASES = ("Architecture", "Evidence", "FacetGuide", "FacetModel", "Family", "Ladder", "Likelihood")
BASES += ("Mixture", "NetworkGuide", "Prior", "Schedule", "SupervisedGuide")
BUILT = ("Decoder", "Encoder", "FlowDecoder")
RESULTS = ("HeldOutCorrelation",)
EXEMPT = {
    **dict.fromkeys(BASES, "a base class: its subclasses have examples"),
    **dict.fromkeys(BUILT, "built by architectures, which have examples"),
    **dict.fromkeys(RESULTS, "a result: the function that returns it has an example"),
}

# Examples that draw from the caller's random stream, and why. (What `tests.drawing` lists may draw
# anywhere.)
ESTIMATES = ("GuideEnum_ELBO", "ImportanceWeighted_ELBO", "Loss", "MeanFieldEnum_ELBO")
ESTIMATES += ("MeanField_ELBO", "ScoreFunction_ELBO", "elbo", "elbo_per_datum")
ESTIMATES += ("log_importance_weights",)
OWN = ("AutoregressiveFlow", "GroupedGuide", "MLVAE", "MixtureOfNormals", "SimilarContentGuide")
OWN += ("TableGuide",)
DRAWS = {
    **dict.fromkeys(ESTIMATES, "draws of the caller's stream, as Pyro's own objectives make them"),
    **dict.fromkeys(OWN, "the example draws its data"),
    "IVAE": "the example calls the Pyro program, which draws",
    "plain_programs": "calls the programs, which draw",
    "Rows": "shuffles",
}


def modules() -> dict[str, ModuleType]:
    """Every module of the packages, by name."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        found[package.__name__] = package
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            found[info.name] = importlib.import_module(info.name)
    return found


def examples(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(module) if test.examples]


TESTED = {name: module for name, module in modules().items() if examples(module)}


@pytest.fixture(scope="module", autouse=True)
def drawing() -> Iterator[None]:
    with draws_apart():
        yield


@pytest.fixture
def global_state() -> Iterator[None]:
    """Random states, the default dtype, the number of threads and the style of figures, restored
    afterwards.
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_num_threads(1)
    with matplotlib.rc_context():
        yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


def run(test: doctest.DocTest, report: io.StringIO) -> int:
    """Run an example, which must not change the process's state; returns the number of failures."""
    pyro.set_rng_seed(0)
    drawn = test.name.rpartition(".")[2] in DRAWS
    with unchanged(but=["torch's random stream"] if drawn else []):
        return doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write).failed


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("name", TESTED)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    report = io.StringIO()
    failed = sum(run(test, report) for test in examples(TESTED[name]))
    assert not failed, report.getvalue()


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("nth", [1, 5])
@pytest.mark.parametrize("name", TESTED)
def test_examples_that_fail_in_a_network_leave_the_state(
    name: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for test in examples(TESTED[name]):
        with failing_layers(nth):
            run(test, io.StringIO())


def called_by_users() -> dict[str, object]:
    """The public classes and functions by name; types and warnings are not called."""
    found = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in module.__all__:
            value = getattr(module, name)
            warning = inspect.isclass(value) and issubclass(value, Warning)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not warning:
                found[name] = value
    return found


def test_everything_that_users_call_has_an_example() -> None:
    """And no exception is listed that has one, or that there is not."""
    called = called_by_users().items()
    lacking = {name for name, value in called if ">>>" not in (value.__doc__ or "")}
    assert sorted(lacking ^ EXEMPT.keys()) == []
    assert DRAWS.keys() <= {
        test.name.rpartition(".")[2] for module in TESTED.values() for test in examples(module)
    }
