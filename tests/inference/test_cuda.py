"""The recorded step, as far as it goes without a graphics card: a stand-in plays the graph by
calling the step again.

What a stand-in cannot show, that CUDA records the step at all, is tested where there is a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor

from inference import Guard, SVIRunner, WarmUp
from inference.training import cuda_graph
from inference.training.cuda_graph import CUDAGraphStep
from inference.training.data_source import data_source_for
from inference.training.loop import train
from inference.training.plan import FitPlan
from tests.catalog import KINDS, given, mlvae, two_facets

pytestmark = pytest.mark.slow(10)

N = 22
RECORDED: list[int] = []


def recorded(take: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    kept = torch.zeros(())
    RECORDED.append(0)

    def replay() -> None:
        RECORDED[-1] += 1
        kept.copy_(take())

    return replay, kept


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    RECORDED.clear()
    monkeypatch.setattr(cuda_graph, "recorded", recorded)
    monkeypatch.setattr(cuda_graph, "aside", lambda take, device: take())


def fit(
    kind: Any,
    build: Any = two_facets,
    calls: Any = (),
    epochs: int = 4,
    batch_size: int = 8,
    **options: Any,
) -> SVIRunner:
    pyro.set_rng_seed(0)
    guide = build()
    x = (255 * torch.rand(N, *guide.model.x_shape)).round() / 255
    runner = SVIRunner(guide.model, guide, lr=1e-2, **options)
    feed = data_source_for(guide, runner.device, x, given(guide, N), batch_size, None)
    train(FitPlan([runner], kind, feed, epochs, 1, [calls], progress=False))
    return runner


def alike(build: Any = two_facets, **options: Any) -> None:
    alone, captured = (
        fit(kind, build, **options) for kind in (cuda_graph.SingleRunStep, CUDAGraphStep)
    )
    for one, other in zip(
        alone.loss.state_dict().values(), captured.loss.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    assert [r["objective"] for r in alone.history] == [r["objective"] for r in captured.history]


@pytest.mark.usefixtures("stand_in")
def test_three_steps_are_plain_and_so_are_smaller_batches() -> None:
    """Passes of 8, 8 and 6 rows: moments come with the first, so the second's are recorded."""
    alike(schedule=WarmUp(10))
    assert RECORDED == [3]


@pytest.mark.thorough
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    "build", [b for b in KINDS if "mlvae" not in b.__name__], ids=lambda f: f.__name__
)
def test_every_model_is_as_without(build: Any) -> None:
    alike(build)


@pytest.mark.usefixtures("stand_in")
def test_what_a_graph_cannot_know_makes_it_be_recorded_anew() -> None:
    def slower(runner: SVIRunner, record: dict[str, Any]) -> None:
        if record["epoch"] == 4:
            runner.optimizer.param_groups[0]["lr"] /= 2
        if record["epoch"] == 7:
            prior = runner.model.mixtures["digit"]
            prior.loc.data = prior.loc.data.clone()
        if record["epoch"] == 10:
            runner.guard = Guard("skip", max_norm=1e-3)

    alike(calls=[slower], epochs=13, guard=Guard("skip"))
    assert RECORDED == [3, 3, 3, 3]


@pytest.mark.usefixtures("stand_in")
def test_a_step_that_cannot_be_recorded_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(take: Callable[[], Tensor], device: torch.device) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graph, "recorded", refuses)
    with pytest.raises(RuntimeError, match=r"leave compile= out \(operation not permitted"):
        fit(CUDAGraphStep)


@pytest.mark.parametrize("build", [mlvae, two_facets])
def test_batches_of_no_one_size_are_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="needs batches of one size"):
        fit(CUDAGraphStep, build, batch_size=8 if build is mlvae else N + 1)


def test_other_devices_are_refused() -> None:
    guide = two_facets()
    with pytest.raises(
        ValueError, match="is for one process on a CUDA device, but here the device is cpu"
    ):
        SVIRunner(guide.model, guide, compile="cuda graph").fit(torch.rand(N, 6), epochs=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_graph_trains_as_the_plain_step_does() -> None:
    """The objective at the end is the same within its noise."""
    ends = []
    for mode in (None, "cuda graph"):
        pyro.set_rng_seed(0)
        guide = two_facets()
        runner = SVIRunner(guide.model, guide, lr=1e-2, device="cuda", compile=mode)
        runner.fit(torch.rand(512, 6), epochs=200, batch_size=64, progress=False)
        ends.append(torch.tensor([record["objective"] for record in runner.history[-50:]]))
    error = sum(float(end.var()) / len(end) for end in ends) ** 0.5
    assert abs(float(ends[0].mean() - ends[1].mean())) < 5 * error
