"""Steps whose objective or gradient is not finite, and gradients that are too long."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

from guides import AmortizedGuide, FacetGuide, ScoreFunction, VaDEGuide
from inference import Checkpoints, Guard, SVIRunner, fit_together
from inference.checkpoints.training_state import read
from inference.training.batching import Rows
from ppl_models import MLP, VAE, ConvNet, GaussianMixture, Normal, SharedMLP, VaDE

X = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {"batch_size": 8, "progress": False}  # five steps an epoch


def start(seed: int = 0, lr: float = 1e-2, **options: Any) -> SVIRunner:
    pyro.set_rng_seed(seed)
    guide = VaDEGuide(VAE((6,), 2, Normal(0.3), MLP((8,), dropout=0)))
    return SVIRunner(guide.model, guide, lr=lr, seed=seed, **options)


def failing(
    runner: SVIRunner, calls: set[int], how: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Let the objective of these training steps go wrong."""
    original, count = runner.loss._per_datum, [0]

    def per_datum(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = original(*args, **kwargs)
        if runner.loss.training and torch.is_grad_enabled():
            count[0] += 1
            return how(loss) if count[0] in calls else loss
        return loss

    runner.loss._per_datum = per_datum  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the objective is nan": lambda loss: loss * torch.nan,
    "the objective is infinite": lambda loss: loss + torch.inf,
    "the gradient alone is nan": lambda loss: loss + 0 * (loss - loss.detach()).sqrt(),
}


@pytest.mark.parametrize("how", FAULTS)
def test_stop_leaves_parameters_as_they_were_before_the_step(how: str, tmp_path: Path) -> None:
    """A fault in the 8th step, which the message names; no checkpoint is written."""
    whole = start()
    with pytest.raises(InterruptedError):
        whole.fit(X, epochs=2, callbacks=[], checkpoints=None, **SIZES, batches=Until(7))
    broken = start()
    failing(broken, {8}, FAULTS[how])
    with pytest.raises(
        FloatingPointError, match=r"seed 0, or its gradient, was not finite at step 8 "
    ) as caught:
        broken.fit(X, epochs=4, checkpoints=Checkpoints(tmp_path), **SIZES)
    named = "Gradients that were not finite: guide." in str(caught.value)
    assert named == (
        how != "the objective is infinite"
    )  # to which a constant was added, so that its gradient is finite
    torch.testing.assert_close(broken.loss.state_dict(), whole.loss.state_dict(), rtol=0, atol=0)
    assert len(broken.history) == 1
    last = Checkpoints(tmp_path, resume=True).written()[-1]
    assert last.name == "step-0000000005"
    read(last)


class Until(Rows):
    """Rows, up to a step."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def batches(self, data: Any, batch_size: int, generator: Any = None) -> Any:
        for batch in super().batches(data, batch_size, generator):
            if not self.steps_left:
                raise InterruptedError
            self.steps_left -= 1
            yield batch


@pytest.mark.parametrize("action", ["skip", "halve"])
@pytest.mark.parametrize("how", FAULTS)
def test_a_step_can_be_skipped(how: str, action: str) -> None:
    """Three faults in the second epoch: noted, and in neither the objective nor the moments."""
    runner = start(guard=Guard(action))
    failing(runner, {6, 8, 9}, FAULTS[how])
    runner.fit(X, epochs=3, **SIZES)
    assert [record.get("skipped") for record in runner.history] == [None, 3, None]
    assert all(torch.tensor(record["objective"]).isfinite() for record in runner.history)
    assert all(p.isfinite().all() for p in runner.loss.parameters())
    assert {int(state["step"]) for state in runner.optimizer.state.values()} == {12}
    assert runner.optimizer.param_groups[0]["lr"] == (0.005 if action == "halve" else 0.01)
    assert not hasattr(runner.optimizer, "found_inf"), "the optimizer is the user's again"


def normalizing() -> FacetGuide:
    return VaDEGuide(VAE((1, 8, 8), 2, Normal(0.3), ConvNet((4, 5), hidden=6)))


def averaging() -> FacetGuide:
    model = VaDE((1, 8, 8), GaussianMixture(3, 2), Normal(0.3), SharedMLP((8,)))
    return AmortizedGuide(model, discrete=ScoreFunction("average"))


@pytest.mark.parametrize("build", [normalizing, averaging])
@pytest.mark.parametrize("action", ["skip", "stop"])
def test_running_statistics_are_not_spoiled(build: Callable[[], FacetGuide], action: str) -> None:
    """An infinite image that the check of the data does not see: its step leaves no trace."""
    pyro.set_rng_seed(0)
    guide = build()
    runner = SVIRunner(guide.model, guide, guard=Guard(action))
    x, prepare, calls = torch.rand(40, 1, 8, 8), guide.model.prepare, [0]

    def spoiled(batch: torch.Tensor) -> torch.Tensor:
        calls[0] += runner.loss.training
        return prepare(batch) * (
            torch.inf if runner.loss.training and calls[0] in (5, 6, 7, 8) else 1.0
        )

    guide.model.prepare = spoiled  # type: ignore[method-assign]
    if action == "stop":
        with pytest.raises(FloatingPointError):
            runner.fit(x, epochs=2, **SIZES)
    else:
        runner.fit(x, epochs=2, **SIZES)
        assert sum(record.get("skipped", 0) for record in runner.history) >= 1
    assert all(tensor.isfinite().all() for tensor in guide.state_dict().values())
    guide.model.prepare = prepare  # type: ignore[method-assign]
    assert all(torch.as_tensor(z).isfinite().all() for z in guide.embed(x).values())


def test_an_optimizer_of_the_users_own_is_held_as_well() -> None:
    runner = start(guard=Guard("skip"))
    runner.optimizer = torch.optim.SGD(runner.loss.parameters(), lr=1e-3)
    failing(runner, {2}, FAULTS["the objective is nan"])
    runner.fit(X, epochs=1, **SIZES)
    assert runner.history[-1]["skipped"] == 1
    assert all(p.isfinite().all() for p in runner.loss.parameters())


def test_a_single_fault_does_not_end_a_run_of_whole_batches() -> None:
    """One step an epoch, the third faulty: its record has no objective, and the run goes on."""
    runner = start(guard=Guard("halve"))
    failing(runner, {3}, FAULTS["the objective is nan"])
    runner.fit(X, epochs=5, batch_size=40, progress=False)
    assert [record.get("skipped") for record in runner.history] == [None, None, 1, None, None]
    assert runner.optimizer.param_groups[0]["lr"] == 0.005


def test_a_guard_is_saved_with_its_run(tmp_path: Path) -> None:
    loaded = SVIRunner.load(start(guard=Guard("halve", 3.0)).save(tmp_path))
    assert repr(loaded.guard) == "Guard(action='halve', max_norm=3.0)"


def test_a_run_in_which_every_step_fails_ends() -> None:
    runner = start(guard=Guard("skip"))
    failing(runner, set(range(100)), FAULTS["the objective is nan"])
    with pytest.raises(FloatingPointError, match="not finite at step 1 ") as caught:
        runner.fit(X, epochs=3, **SIZES)
    assert "steps in a row were skipped already" in str(caught.value)
    assert "to skip such steps" not in str(caught.value)


def spoil(runner: SVIRunner, record: dict[str, Any]) -> None:
    with torch.no_grad():
        list(runner.model.decoder.parameters())[-1].fill_(torch.inf)


def test_the_term_and_the_parameter_are_named() -> None:
    """The decoder's last bias is infinite from the sixth step on: so is the reconstruction."""
    runner = start()
    with pytest.raises(FloatingPointError, match="not finite at step 6 ") as caught:
        runner.fit(X, epochs=2, callbacks=[spoil], **SIZES)
    assert "Terms that are not, on the data, with these parameters: reconstruction\n" in str(
        caught.value
    )
    assert "model.decoder" in str(caught.value)


def test_gradients_are_cut_to_their_longest() -> None:
    """Adam's first moment after one step is a tenth of the gradient."""
    lengths = {}
    for bound in (None, 0.5, 1e6):
        runner = start(guard=Guard(max_norm=bound))
        runner.fit(X, epochs=1, batch_size=40, progress=False)
        moments = [state["exp_avg"] for state in runner.optimizer.state.values()]
        lengths[bound] = 10 * float(torch.stack(torch._foreach_norm(moments)).norm())
    assert lengths[0.5] == pytest.approx(0.5, rel=1e-4)
    assert lengths[None] == lengths[1e6] > 1


class TwoOffsets(VaDEGuide):
    """Its two offsets have one and the same gradient."""

    def __init__(self, model: VAE) -> None:
        super().__init__(model)
        self.one = torch.nn.Parameter(torch.zeros(6))
        self.other = torch.nn.Parameter(torch.zeros(6))

    def encode(self, x: torch.Tensor, **given: Any) -> dict[str, Any]:
        return super().encode(x + (self.one + self.other), **given)


@pytest.mark.parametrize("mode", [None, "replay"])
def test_a_gradient_that_parameters_share_is_cut_once(mode: str | None) -> None:
    """In a step by the optimizer, and in one whose update is recorded."""
    pyro.set_rng_seed(0)
    guide = TwoOffsets(VAE((6,), 2, Normal(0.3), MLP((8,), dropout=0)))
    runner = SVIRunner(guide.model, guide, guard=Guard(max_norm=0.5), compile=mode)
    before = torch.zeros(())
    for _ in range(2):
        runner.fit(X, epochs=1, batch_size=40, progress=False)
        moments = [state["exp_avg"].flatten() for state in runner.optimizer.state.values()]
        now = torch.cat(moments)
        # Adam's first moment is 0.9 of the one before and 0.1 of the gradient.
        assert float((10 * now - 9 * before).norm()) == pytest.approx(0.5, rel=1e-4)
        before = now


def test_of_several_runs_the_one_that_fails_is_named_and_left_as_it_was() -> None:
    both = [start(seed) for seed in (0, 1)]

    def callbacks(runner: SVIRunner) -> list:
        return [spoil] if runner.seed == 1 else []

    with pytest.raises(
        FloatingPointError, match="seed 1, or its gradient, was not finite at step 6 "
    ):
        fit_together(both, X, epochs=2, callbacks=callbacks, **SIZES)
    for p in (p for runner in both for p in runner.loss.parameters()):
        assert p.untyped_storage().nbytes() == p.nbytes
    assert all(p.isfinite().all() for p in both[0].loss.parameters())
    assert {int(state["step"]) for state in both[1].optimizer.state.values()} == {5}


def test_what_was_not_finite_is_known_after_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the 6th step on; stopped at the 12th, it ends as the unbroken run does."""
    from tests.inference.test_resuming import stopping

    steady = FAULTS["the gradient alone is nan"]
    unbroken = start(guard=Guard("skip"))
    failing(unbroken, set(range(6, 99)), steady)
    with pytest.raises(FloatingPointError, match="at step 6 ") as wanted:
        unbroken.fit(X, epochs=9, **SIZES)
    with monkeypatch.context() as patch:
        stopping(patch, 12)
        stopped = start(guard=Guard("skip"))
        failing(stopped, set(range(6, 99)), steady)
        with pytest.raises(InterruptedError):
            stopped.fit(X, epochs=9, checkpoints=Checkpoints(tmp_path), **SIZES)
    resumed = start(guard=Guard("skip"))
    failing(resumed, set(range(99)), steady)
    with pytest.raises(FloatingPointError) as said:
        resumed.fit(X, epochs=9, checkpoints=Checkpoints(tmp_path, resume=True), **SIZES)
    assert str(said.value) == str(wanted.value)
    assert resumed.step == unbroken.step == 15


@pytest.mark.parametrize("action", ["skip", "halve"])
@pytest.mark.parametrize("batch_size", [8, 40])
def test_a_huge_finite_datum_is_counted_and_its_terms_are_recorded_as_they_are(
    action: str, batch_size: int
) -> None:
    """In the first batch or a later one: 1e19 has no square in single precision."""
    x = X.clone()
    x[3, 0] = 1e19
    runner = clustered(Guard(action)).fit(x, epochs=2, batch_size=batch_size, progress=False)
    assert [record["skipped"] for record in runner.history] == [1, 1]
    assert not any(math.isfinite(record["elbo"]) for record in runner.history)
    assert all(p.isfinite().all() for p in runner.loss.parameters())


def test_a_huge_finite_datum_ends_a_run_that_stops_with_its_diagnosis() -> None:
    x = X.clone()
    x[3, 0] = 1e19
    with pytest.raises(FloatingPointError, match=r"data of another scale"):
        clustered().fit(x, epochs=2, **SIZES)
    with pytest.raises(ValueError, match=r"the first batch is between .* and 1e\+19"):
        clustered().fit(x, epochs=2, batch_size=40, progress=False)


@pytest.mark.parametrize("guard", [None, Guard("skip")])
def test_an_enormous_rate_ends_with_the_diagnosis(guard: Guard | None) -> None:
    with pytest.raises(FloatingPointError, match=r"at lr=10000000000\.0"):
        clustered(guard, lr=1e10).fit(X, epochs=8, **SIZES)


def clustered(guard: Guard | None = None, lr: float = 1e-3) -> SVIRunner:
    pyro.set_rng_seed(0)
    model = VaDE((6,), GaussianMixture(3, 2), Normal(0.3), SharedMLP((8,)))
    return SVIRunner(model, VaDEGuide(model), lr=lr, guard=guard)
