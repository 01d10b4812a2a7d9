"""Runs that are stopped and go on: bit for bit the run that never stopped, and nothing on the disk
is harmed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.optim import ClippedAdam

from guides import FacetGuide, VaDEGuide
from inference import Checkpoints, Constant, Guard, GuideEnum_ELBO, SVIRunner, WarmUp, fit_together
from inference.callbacks import Draw, Evaluate, JSONLines, ReduceOnPlateau, StopEarly
from inference.checkpoints.periodic import CheckpointWarning, CheckpointWriter
from inference.checkpoints.training_state import read, write
from inference.training import data_source
from inference.training.data_source import fingerprint
from ppl_models import Bernoulli
from tests.catalog import KINDS, given, of_two, two_facets, vade

pytestmark = pytest.mark.slow(30)


def start(
    build: Callable[[], FacetGuide], seed: int = 0, **options: Any
) -> tuple[SVIRunner, torch.Tensor, dict]:
    pyro.set_rng_seed(seed)
    guide = build()
    x = (255 * torch.rand(12, *guide.model.x_shape)).round() / 255
    return SVIRunner(guide.model, guide, seed=seed, lr=1e-2, **options), x, given(guide, 12)


def stopping(monkeypatch: pytest.MonkeyPatch, after_steps: int) -> None:
    """Let the next run end in the middle, after a checkpoint of that very step."""
    taken: list[Any] = []
    original = CheckpointWriter.after_steps

    def told(self: CheckpointWriter, number: int) -> None:
        original(self, number)
        taken.append(number)
        if len(taken) == after_steps:
            self.write()
            raise InterruptedError

    monkeypatch.setattr(CheckpointWriter, "after_steps", told)


def same(one: SVIRunner, other: SVIRunner) -> None:
    torch.testing.assert_close(one.loss.state_dict(), other.loss.state_dict(), rtol=0, atol=0)
    moments = [runner.optimizer.state_dict()["state"] for runner in (one, other)]
    torch.testing.assert_close(*moments, rtol=0, atol=0)
    without_time = [
        [{**record, "seconds": 0} for record in runner.history] for runner in (one, other)
    ]
    assert without_time[0] == without_time[1]
    assert (one.epoch, one.step) == (other.epoch, other.step)
    torch.testing.assert_close(one.random_state, other.random_state, rtol=0, atol=0)


SIZES: dict[str, Any] = {"epochs": 3, "batch_size": 5, "progress": False}  # three steps an epoch


@pytest.mark.parametrize("build", KINDS, ids=lambda f: f.__name__)
def test_a_run_that_was_stopped_within_an_epoch_ends_as_it_would_have(
    build: Callable[[], FacetGuide], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken, x, beside = start(build)
    unbroken.fit(x, **SIZES, **beside)
    with monkeypatch.context() as patch:
        stopping(patch, 5)
        runner, _, _ = start(build)
        with pytest.raises(InterruptedError):
            runner.fit(x, **SIZES, **beside, checkpoints=Checkpoints(tmp_path))
    resumed, _, _ = start(build)
    resumed.fit(x, **SIZES, **beside, checkpoints=Checkpoints(tmp_path, resume=True))
    same(unbroken, resumed)
    # And so does whatever follows.
    for each in (unbroken, resumed):
        each.fit(x, epochs=1, batch_size=5, progress=False, **beside)
    same(unbroken, resumed)


@pytest.mark.parametrize("steps", range(1, 10))
def test_wherever_it_was_stopped(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of nine steps; with a schedule, logging each other epoch."""

    def fit(**options: Any) -> SVIRunner:
        runner, x, _ = start(two_facets, schedule=WarmUp(7))
        return runner.fit(x, **SIZES, log_every=2, **options)

    unbroken = fit()
    with monkeypatch.context() as patch:
        stopping(patch, steps)
        with pytest.raises(InterruptedError):
            fit(checkpoints=Checkpoints(tmp_path))
    same(unbroken, fit(checkpoints=Checkpoints(tmp_path, resume=True)))
    same(
        unbroken, fit(checkpoints=Checkpoints(tmp_path, resume=True))
    )  # a finished one is not trained again


def test_callbacks_go_on_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(folder: Path, **options: Any) -> SVIRunner:
        folder.mkdir(exist_ok=True)
        runner, x, _ = start(vade)
        callbacks = [
            ReduceOnPlateau(patience=1, threshold=1e9),
            Evaluate(
                lambda runner: {"mean": float(runner.guide.embed(x)["cluster"].mean())}, every=2
            ),
            JSONLines(folder / "metrics.jsonl"),
        ]
        return runner.fit(x, epochs=6, batch_size=5, progress=False, callbacks=callbacks, **options)

    unbroken = fit(tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        stopping(patch, 10)
        with pytest.raises(InterruptedError):
            fit(tmp_path / "broken", checkpoints=Checkpoints(tmp_path / "checkpoints"))
    resumed = fit(
        tmp_path / "broken", checkpoints=Checkpoints(tmp_path / "checkpoints", resume=True)
    )
    same(unbroken, resumed)
    assert unbroken.history[-1]["lr"] < 1e-2
    written = [
        json.loads(line)
        for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()
    ]
    assert written == resumed.history


def test_runs_side_by_side_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(**options: Any) -> list[SVIRunner]:
        runners = [start(two_facets, seed)[0] for seed in (0, 1, 2)]
        fit_together(runners, start(two_facets)[1], **SIZES, **options)
        return runners

    unbroken = fit()
    with monkeypatch.context() as patch:
        stopping(patch, 5)
        with pytest.raises(InterruptedError):
            fit(checkpoints=Checkpoints(tmp_path))
    for one, other in zip(
        unbroken, fit(checkpoints=Checkpoints(tmp_path, resume=True)), strict=True
    ):
        same(one, other)


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    runner, x, _ = start(two_facets)
    runner.fit(
        x,
        epochs=7,
        batch_size=5,
        progress=False,
        checkpoints=Checkpoints(tmp_path, epochs=2, keep=2),
    )
    assert [path.name for path in Checkpoints(tmp_path, resume=True).written()] == [
        "step-0000000018",
        "step-0000000021",
    ]
    assert {path.name for path in (tmp_path / "step-0000000021").iterdir()} == {
        "digests.json",
        "state.json",
        "tensors.safetensors",
    }


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    def fit(**options: Any) -> SVIRunner:
        runner, x, _ = start(two_facets)
        return runner.fit(x, **SIZES, **options)

    unbroken = fit(checkpoints=Checkpoints(tmp_path))
    flip(tmp_path / "step-0000000009" / "tensors.safetensors")
    with pytest.warns(CheckpointWarning, match="step-0000000009 is skipped"):
        resumed = fit(checkpoints=Checkpoints(tmp_path, resume=True))
    same(unbroken, resumed)


def test_a_half_written_folder_is_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    """It holds temporary files alone, and goes with the next call."""
    runner, x, _ = start(two_facets)
    runner.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path))
    half = tmp_path / "step-0000000099"
    half.mkdir()
    (half / f".digests.json.{platform.node()}-999999999.tmp").write_text("{")
    again = Checkpoints(tmp_path, resume=True)
    assert len(again.written()) == 2
    start(two_facets)[0].fit(x, **SIZES, checkpoints=again)
    assert not half.exists()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Folders of other names are neither counted nor removed."""
    theirs = [tmp_path / name / "thesis.txt" for name in ("step-0", "step-backup", "other")]
    for path in theirs:
        path.parent.mkdir()
        path.write_text("mine")
    runner, x, _ = start(two_facets)
    runner.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path, keep=1))
    assert [path.name for path in Checkpoints(tmp_path, resume=True).written()] == [
        "step-0000000009"
    ]
    assert all(path.read_text() == "mine" for path in theirs)


def test_a_checkpoint_of_the_same_step_is_replaced_only_by_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "step-0000000001", {"which": "old"})

    def fails(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / "step-0000000001", {"which": "new"})
    assert read(tmp_path / "step-0000000001")["which"] == "old"
    write(tmp_path / "step-0000000001", {"which": "new"})
    assert read(tmp_path / "step-0000000001")["which"] == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001"]


def test_a_damaged_one_does_not_crowd_out_a_whole_one(tmp_path: Path) -> None:
    """Kept is what is known to be whole, with keep=1 the one that was gone on from."""

    def fit(epochs: int, **options: Any) -> None:
        runner, x, _ = start(two_facets)
        runner.fit(x, epochs=epochs, batch_size=5, progress=False, **options)

    fit(3, checkpoints=Checkpoints(tmp_path, keep=2))
    shutil.rmtree(tmp_path / "step-0000000006")
    (tmp_path / "step-0000009999").mkdir()
    with pytest.warns(CheckpointWarning, match="step-0000009999 is skipped"):
        fit(3, checkpoints=Checkpoints(tmp_path, keep=1, resume=True))
    read(tmp_path / "step-0000000009")


def test_a_full_disk_loses_nothing_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken, x, _ = start(two_facets)
    unbroken.fit(x, **SIZES)
    runner, _, _ = start(two_facets)
    original, written = os.fsync, []

    def full_from_the_second_on(handle: int) -> None:
        written.append(handle)
        if len(written) > 6:
            raise OSError(28, "No space left on device")
        original(handle)

    monkeypatch.setattr(os, "fsync", full_from_the_second_on)
    with pytest.warns(CheckpointWarning, match="No space left on device"):
        runner.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path, keep=1))
    same(unbroken, runner)
    assert [path.name for path in tmp_path.glob("*step-*")] == ["step-0000000003"]
    read(tmp_path / "step-0000000003")


REFUSED: list[tuple[str, Callable[[Path], Any]]] = [
    ("differs in sizes", lambda folder: refit(folder, epochs=4)),
    ("differs in data", lambda folder: refit(folder, shift=0.01)),
    ("differs in schedule", lambda folder: refit(folder, schedule=Constant(2.0))),
    (
        "differs in objective",
        lambda folder: refit(folder, objective=GuideEnum_ELBO(max_plate_nesting=2)),
    ),
    ("differs in guide and model", lambda folder: refit(folder, build=other_prior)),
    ("differs in guard", lambda folder: refit(folder, guard=Guard("skip"))),
    ("differs in callbacks", lambda folder: refit(folder, callbacks=[Evaluate(lambda runner: {})])),
    ("differs in runners", lambda folder: refit(folder, seed=1)),
    (
        "differs in guide and model and parameters that learn and weights",
        lambda folder: refit(folder, build=vade),
    ),
]


def other_prior() -> FacetGuide:
    """As two_facets, the likelihood's threshold apart."""
    return VaDEGuide(of_two(Bernoulli(threshold=0.5)))


def refit(
    folder: Path,
    build: Callable[[], FacetGuide] = two_facets,
    seed: int = 0,
    shift: float = 0.0,
    epochs: int = 3,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> None:
    _, x, _ = start(two_facets)
    runner, _, _ = start(build, seed, **options)
    kept = Checkpoints(folder, resume=True)
    sizes = {**SIZES, "epochs": epochs, "callbacks": callbacks}
    runner.fit((x + shift).clamp(0, 1), **sizes, checkpoints=kept)


@pytest.mark.parametrize(
    ("words", "call"), REFUSED, ids=[f"{i}-{words}" for i, (words, _) in enumerate(REFUSED)]
)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(
    words: str, call: Callable[[Path], Any], tmp_path: Path
) -> None:
    runner, x, _ = start(two_facets)
    runner.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=words):
        call(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def as_it_was(state: dict[str, Any]) -> dict[str, Any]:
    """A state in the form that checkpoints had before a run held all of it."""
    executor, together = state["call"].pop("steps by")
    del state["call"]["optimizer's settings"]
    kind = "VmappedStep" if together else "SingleRunStep"
    state["call"]["kind"] = " ".join(filter(None, (kind, executor)))
    totals = []
    for of in state["runs"]:
        progress, counters = of["run"].pop("progress"), of["run"].pop("counters")
        names = {"count": "faults", "first": "first_fault", "norms": "fault_norms"}
        in_a_row = {"in_a_row": progress.pop("faults_in_a_row")}
        of["non_finite"] = in_a_row | {name: counters[now] for name, now in names.items()}
        totals.append(counters["total"])
        seconds = {"seconds": progress.pop("before"), "total_loss": torch.stack(totals)}
        state["progress"] = progress | seconds
    return state | {"format": 1}


def test_a_checkpoint_of_the_former_form_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(**options: Any) -> SVIRunner:
        runner, x, _ = start(two_facets)
        return runner.fit(x, **SIZES, log_every=2, **options)

    with monkeypatch.context() as patch:
        stopping(patch, 5)
        with pytest.raises(InterruptedError):
            fit(checkpoints=Checkpoints(tmp_path))
    (path,) = tmp_path.glob("step-*5")
    write(path, as_it_was(read(path)))
    same(fit(), fit(checkpoints=Checkpoints(tmp_path, resume=True)))


def changed(*way: Any, to: Any) -> Callable[[dict], None]:
    """Put something else in one place of a state; ``...`` removes it."""

    def change(state: dict) -> None:
        *before, last = way
        part: Any = state
        for key in before:
            part = part[key]
        if to is ...:
            del part[last]
        else:
            part[last] = to(part[last]) if callable(to) else to

    return change


RUN: tuple[Any, ...] = ("runs", 0, "run")
GROUP: tuple[Any, ...] = (*RUN, "optimizer", "param_groups", 0)
ALTERED: list[tuple[str, Callable[[dict], None]]] = [
    ("it must hold call and runs and random", changed("call", to=...)),
    ("progress must hold logged and epoch", changed(*RUN, "progress", "epoch", to=...)),
    ("runs must have 1 entries", changed("runs", to=[])),
    ("run must hold epoch and step", changed(*RUN, "history", to=...)),
    ("record 1 must hold epoch and step", changed(*RUN, "history", 0, to=[1])),
    ("its optimizer has other parameters", changed(*GROUP, "params", to=[0])),
    ("streams must have 1 entries", changed("random", to=[])),
    ("streams 0 must be torch.uint8 of", changed("random", 0, 0, to=lambda t: t[:-1])),
    ("batches must be int, got str", changed(*RUN, "progress", "batches", to="3")),
    (r"total must be .* \[\]", changed(*RUN, "counters", "total", to=torch.zeros(2))),
    (
        r"model.gates must be torch.float32 of shape \[2\]",
        changed(*RUN, "weights", "guide.model.gates", to=torch.ones(3)),
    ),
    ("weights must hold", changed(*RUN, "weights", "guide.model.gates", to=...)),
    ("the state of Evaluate does not fit it", changed("runs", 0, "callbacks", 0, "done", to=...)),
    ("the state of Evaluate is missing", changed("runs", 0, "callbacks", 0, to=None)),
    ("0 states of callbacks, but 2 are needed", changed("runs", 0, "callbacks", to=[])),
]


@pytest.mark.parametrize(
    ("words", "change"), ALTERED, ids=[f"{i}-{words[:30]}" for i, (words, _) in enumerate(ALTERED)]
)
def test_an_altered_state_is_passed_over_and_nothing_is_changed(
    words: str, change: Callable[[dict], None], tmp_path: Path
) -> None:
    """Its digests agree, as those of a program of somebody's own would."""

    def fit(runner: SVIRunner, callbacks: list[Any], **options: Any) -> SVIRunner:
        return runner.fit(start(two_facets)[1], **SIZES, callbacks=callbacks, **options)

    def calls() -> list[Any]:
        return [Evaluate(lambda runner: {"one": 1.0}), StopEarly("elbo", 5)]

    fit(start(two_facets)[0], calls(), checkpoints=Checkpoints(tmp_path, keep=1))
    path = tmp_path / "step-0000000009"
    state = read(path)
    change(state)
    write(path, state)
    (again, *_), callbacks = start(two_facets), calls()
    weights = copy.deepcopy(again.loss.state_dict())
    with (
        pytest.warns(CheckpointWarning, match=words),
        pytest.raises(ValueError, match="is complete: give another folder"),
    ):
        fit(again, callbacks, checkpoints=Checkpoints(tmp_path, resume=True))
    assert (again.epoch, again.history, again.optimizer.state_dict()["state"]) == (0, [], {})
    assert (callbacks[0].done, callbacks[1].best) == (0, None)
    torch.testing.assert_close(again.loss.state_dict(), weights, rtol=0, atol=0)


class Named(torch.optim.SGD):
    """With a setting that is neither a number nor a flag."""

    def __init__(self, params: Any, lr: float, how: str = "plain") -> None:
        super().__init__([{"params": list(params), "how": how}], lr=lr)


OPTIMIZERS = (
    *(torch.optim.Adadelta, torch.optim.Adafactor, torch.optim.Adagrad, torch.optim.Adam),
    *(torch.optim.Adamax, torch.optim.AdamW, torch.optim.ASGD, torch.optim.NAdam),
    *(torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD),
    Named,
)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_a_run_of_each_optimizer_goes_on(kind: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    ended, x, _ = start(two_facets, optimizer=kind)
    ended.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path))
    again, _, _ = start(two_facets, optimizer=kind)
    same(ended, again.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path, resume=True)))
    for each in (ended, again):  # a further call, in which the other goes on
        each.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path / "further", resume=True))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (partial(torch.optim.Adam, betas=(0.9, 0.9)), torch.optim.Adam),
        (partial(torch.optim.AdamW, weight_decay=torch.tensor(0.1)), torch.optim.AdamW),
        (ClippedAdam({"lr": 0.1, "weight_decay": 0.1}), ClippedAdam({"lr": 0.1})),
    ],
)
def test_a_checkpoint_of_the_settings_that_an_optimizer_had(
    one: Any, other: Any, tmp_path: Path
) -> None:
    for optimizer in (one, one, other):
        runner, x, _ = start(two_facets, optimizer=optimizer)
        refused = pytest.raises(ValueError, match="run, which differs in optimizer's settings:")
        with refused if optimizer is other else nullcontext():
            runner.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path, resume=True))


def test_a_checkpoint_of_the_settings_that_callbacks_had(tmp_path: Path) -> None:
    class Mine:
        """A callback of a user's own, with an array among its settings."""

        def __init__(self, weights: torch.Tensor) -> None:
            self.weights = weights

        def __call__(self, runner: SVIRunner, record: dict) -> None:
            """Nothing."""

        def settings(self) -> dict[str, Any]:
            return {"weights": self.weights.numpy(), "size": len(self.weights)}

    x = start(two_facets)[1]

    def fit(callback: Any) -> None:
        folder = tmp_path / type(callback).__name__
        runner = start(two_facets)[0]
        runner.fit(x, **SIZES, callbacks=[callback], checkpoints=Checkpoints(folder, resume=True))

    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: StopEarly("elbo", 5), lambda: StopEarly("elbo", 6)),
        (lambda: ReduceOnPlateau(0.5), lambda: ReduceOnPlateau(0.25)),
        (lambda: Mine(torch.ones(3)), lambda: Mine(torch.zeros(3))),
    ]
    for one, other in pairs:
        fit(one())
        fit(one())
        with pytest.raises(ValueError, match="another run, which differs in callbacks"):
            fit(other())


def test_a_setting_that_json_cannot_hold_is_refused() -> None:
    class Odd:
        def __call__(self, runner: SVIRunner, record: dict) -> None:
            """Nothing."""

        def settings(self) -> dict[str, Any]:
            return {"odd": {1, 2}}

    runner, x, _ = start(two_facets)
    with pytest.raises(ValueError, match=r"what Odd.settings returns must be .* but a set cannot"):
        runner.plan(x, 1, callbacks=[Odd()], progress=False).description()


def test_a_relative_folder_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a callback changes the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    runner, x, _ = start(two_facets)
    callbacks = [
        lambda runner, record: os.chdir(tmp_path / "elsewhere"),
        JSONLines("metrics.jsonl"),
        Draw("figures", lambda runner, folder: (folder / "one.txt").write_text("1"), every=1),
    ]
    runner.fit(x, **SIZES, callbacks=callbacks, checkpoints=Checkpoints("checkpoints"))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert len(list((tmp_path / "figures").iterdir())) == 3
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    runner, x, _ = start(two_facets)
    checkpoints = Checkpoints(folder / "checkpoints", resume=True)
    runner.fit(x, **SIZES, checkpoints=checkpoints).save(folder / "run")
    same_end = start(two_facets)[0].fit(x, **SIZES, checkpoints=checkpoints)
    same(runner, same_end)
    loaded = SVIRunner.load(folder / "run").guide.state_dict()
    torch.testing.assert_close(loaded, runner.guide.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 50 + "]" * 50, '{"digests": 1}'])
def test_what_is_no_state_is_passed_over_for_an_older_one(text: str, tmp_path: Path) -> None:
    runner, x, _ = start(two_facets)
    runner.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path))
    path = tmp_path / "step-0000000009"
    (path / "state.json").write_text(text)
    digests = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.iterdir()
        if file.name != "digests.json"
    }
    (path / "digests.json").write_text(json.dumps(digests))
    again = start(two_facets)[0]
    with pytest.warns(CheckpointWarning, match="is skipped: it is incomplete"):
        again.fit(x, **SIZES, checkpoints=Checkpoints(tmp_path, resume=True))
    same(runner, again)


@pytest.mark.parametrize("row", [1, 1999, 2999])
def test_data_are_told_apart_by_every_row(row: int) -> None:
    x = torch.rand(3000, 4)
    for there in (x, x.to(torch.bfloat16), (255 * x).byte(), x[:, ::2], x.T[:, :].T, x[:, 0]):
        other = there.clone()
        other[row] = 1 - other[row]
        assert fingerprint(there) != fingerprint(other)
        assert fingerprint(there) == fingerprint(there.clone().contiguous())
    for other in (x[:-1], x.flip(0), x.double()):
        assert fingerprint(x) != fingerprint(other)


def test_of_a_large_mapped_file_evenly_spread_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_source, "LARGEST_DIGESTED", 1500 * 16)
    monkeypatch.setattr(data_source, "DIGESTED_AT_ONCE", 999)
    x = torch.rand(3000, 4)
    other = x.clone()
    other[1] += 1
    assert fingerprint(x) != fingerprint(other)
    assert fingerprint(x, mapped=True) == fingerprint(other, mapped=True)
    assert fingerprint(x, mapped=True) != fingerprint(x + 1, mapped=True)


def program(folder: Path, epochs: int) -> None:
    """What the process does that gets a signal; it says so in a file."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which tests side by side, or in the background, ignore
    sys.stderr = (folder.parent / "errors.txt").open("a", buffering=1)
    runner, x, _ = start(two_facets)
    checkpoints = Checkpoints(folder, seconds=0.05, resume=True)
    slowly = [
        lambda runner, record: time.sleep(0.05)
    ]  # so that there is something left to be stopped
    runner.fit(
        x, epochs=epochs, batch_size=5, progress=False, checkpoints=checkpoints, callbacks=slowly
    )
    torch.save(runner.guide.state_dict(), folder / "end.pt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM and SIGINT write a checkpoint and say so; after SIGKILL the last one is whole; all
    end as if unbroken.
    """
    folder, epochs, fork = tmp_path / "broken", 30, multiprocessing.get_context("fork")
    process = fork.Process(target=program, args=(folder, epochs))
    process.start()
    assert process.pid is not None
    while not list(folder.glob("step-*/digests.json")):  # which is written last
        time.sleep(0.005)
    os.kill(process.pid, number)
    process.join(timeout=120)
    if number == signal.SIGKILL:
        assert process.exitcode == -number
    else:
        assert process.exitcode == 128 + number
        assert f"{number.name}: stopped at epoch" in (tmp_path / "errors.txt").read_text()
    assert not (folder / "end.pt").exists()
    again = fork.Process(target=program, args=(folder, epochs))
    again.start()
    again.join(timeout=300)
    assert again.exitcode == 0, (tmp_path / "errors.txt").read_text()
    unbroken, x, _ = start(two_facets)
    unbroken.fit(x, epochs=epochs, batch_size=5, progress=False)
    end = torch.load(folder / "end.pt", weights_only=True)
    torch.testing.assert_close(end, unbroken.guide.state_dict(), rtol=0, atol=0)
