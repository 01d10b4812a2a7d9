"""Steps whose objective and gradient are recorded and replayed, against steps through Pyro."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from torch.fx import GraphModule

from guides import FacetGuide, VaDEGuide
from inference import Checkpoints, Guard, ProgressiveFadeIn, SVIRunner, WarmUp, fit_together
from inference.training import recording
from inference.training.compiled import Recorder, Recording
from inference.training.recording import record, replay
from inference.training.steps import SingleRunStep
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, Normal
from tests.catalogue import BUILDERS, OBJECTIVES, PAIRS, given, two_facets
from tests.test_contract import data

# Pairs whose objective reads values back to the host, which cannot be recorded.
READING = {name for name in OBJECTIVES if name.startswith("Pyro's")}
RECORDABLE = [(build, name) for build, _, names in PAIRS for name in sorted(names - READING)]


def start(build: Callable[[], FacetGuide], objective: str | None, **options: Any) -> SVIRunner:
    pyro.set_rng_seed(0)
    guide = build()
    chosen = None if objective is None else OBJECTIVES[objective](guide)
    return SVIRunner(guide.model, guide, chosen, lr=1e-2, **options)


def trained(build: Callable[[], FacetGuide], objective: str | None, mode: str | None) -> SVIRunner:
    runner = start(build, objective, compile=mode)
    beside = given(runner.guide, 12)
    size = {} if "group" in beside else {"batch_size": 6}
    torch.manual_seed(1)
    return runner.fit(data(runner.guide, 12), epochs=2, progress=False, **size, **beside)


def numbers(runner: SVIRunner) -> dict[str, torch.Tensor]:
    return {name: t.double() for name, t in runner.loss.state_dict().items()}


def assert_same(one: SVIRunner, other: SVIRunner, tolerance: float = 1e-4) -> None:
    """Parameters, buffers and records, up to rounding that Adam may enlarge."""
    for (name, a), b in zip(numbers(one).items(), numbers(other).values(), strict=True):
        assert (a - b).norm() <= tolerance * (1 + a.norm()), name
    for a, b in zip(one.history, other.history, strict=True):
        for name in a.keys() - {"seconds"}:
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-4), name


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    made = []
    original = Recorder.__init__

    def noted(self: Recorder, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Recorder, "__init__", noted)
    return made


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_replayed_run_ends_as_one_through_pyro(
    build: Callable[[], FacetGuide], recorders: list[Recorder]
) -> None:
    """The same draws, up to rounding; batches of groups, of many sizes, are not recorded."""
    assert_same(trained(build, None, None), trained(build, None, "replay"))
    (recorder,) = recorders
    assert recorder.refused is None
    grouped = "group" in given(start(build, None).guide, 12)
    assert len(recorder.programs) == (0 if grouped else 1)
