"""Steps captured as a CUDA graph, as far as that goes without a graphics card: a stand-in plays the
graph by calling the step again.

What a stand-in cannot show, that CUDA captures the step at all, is tested where there is a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor

from inference import Guard, SVIRunner, WarmUp
from inference.training.data_source import data_source_for
from inference.training.loop import train
from inference.training.plan import FitPlan
from inference.training.program import Program
from inference.training.recorder import Recorder, Recording, RecordingWarning, Turn, tensors_of
from ppl_models.given.observed import Observed
from tests.catalog import KINDS, given, two_facets

pytestmark = pytest.mark.slow(10)

N = 22
CAPTURED: list[int] = []


def captured(recorder: Recorder, batch: Observed, program: Program, names: tuple[str, ...]) -> Turn:
    state = recorder.updates[0].state(names).values()
    own = [each.clone() for each in tensors_of(batch)]
    CAPTURED.append(0)

    def replay(batches: Sequence[Sequence[Tensor]]) -> None:
        for batch in batches:
            CAPTURED[-1] += 1
            for ours, theirs in zip(own, batch, strict=True):
                ours.copy_(theirs)
            program.run(*state, *own)

    return replay


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    CAPTURED.clear()
    monkeypatch.setattr(Recorder, "_captured", captured)


def fit(
    executor: str, build: Any = two_facets, calls: Any = (), epochs: int = 4, **options: Any
) -> SVIRunner:
    pyro.set_rng_seed(0)
    guide = build()
    x = (255 * torch.rand(N, *guide.model.x_shape)).round() / 255
    runner = SVIRunner(guide.model, guide, lr=1e-2, compile="replay", **options)
    feed = data_source_for(guide, runner.device, x, given(guide, N), 8, None)
    plan = FitPlan([runner], feed, epochs, 1, [calls], progress=False)
    object.__setattr__(plan, "recording", Recording(executor, asked_for=True))
    train(plan)
    return runner


def alike(build: Any = two_facets, **options: Any) -> None:
    alone, graph = (fit(executor, build, **options) for executor in ("replay", "cuda graph"))
    torch.testing.assert_close(alone.loss.state_dict(), graph.loss.state_dict(), rtol=0, atol=0)
    assert [r["objective"] for r in alone.history] == [r["objective"] for r in graph.history]


@pytest.mark.usefixtures("stand_in")
def test_smaller_batches_are_replayed() -> None:
    """Passes of 8, 8 and 6 rows; addresses may have changed after callbacks."""
    alike(schedule=WarmUp(10))
    assert CAPTURED == [2] * 4


@pytest.mark.thorough
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    "build", [b for b in KINDS if "mlvae" not in b.__name__], ids=lambda f: f.__name__
)
def test_every_model_is_as_without(build: Any) -> None:
    alike(build)


@pytest.mark.usefixtures("stand_in")
def test_what_callbacks_change_counts() -> None:
    def slower(runner: SVIRunner, record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            runner.optimizer.param_groups[0]["lr"] /= 2
        if record["epoch"] == 3:
            prior = runner.model.mixtures["digit"]
            prior.loc.data = prior.loc.data.clone()
        if record["epoch"] == 4:
            runner.guard = Guard("skip", max_norm=1e-3)

    alike(calls=[slower], epochs=6, guard=Guard("skip"))


@pytest.mark.usefixtures("stand_in")
def test_a_step_that_cannot_be_captured_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*given: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Recorder, "_captured", refuses)
    with pytest.warns(RecordingWarning, match=r"operation not permitted.*replayed"):
        fit("cuda graph")


def test_other_devices_are_refused() -> None:
    guide = two_facets()
    with pytest.raises(
        ValueError, match="is for one process on a CUDA device, but here the device is cpu"
    ):
        SVIRunner(guide.model, guide, compile="cuda graph").fit(torch.rand(N, 6), epochs=1)


@pytest.mark.parametrize(("epochs", "executor"), [(1, None), (300, "cuda graph")])
def test_long_fits_are_captured_by_default(
    epochs: int, executor: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, x = SVIRunner((guide := two_facets()).model, guide), torch.rand(N, 6)
    feed = data_source_for(guide, runner.device, x, {}, 8, None)
    monkeypatch.setattr(runner, "device", torch.device("cuda"))
    assert FitPlan([runner], feed, epochs, 1, [()], False).recording.executor == executor
