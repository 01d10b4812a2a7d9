"""What is done while a run goes on: stopping early, drawing, writing where there is no room,
keeping others away.
"""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch

from inference import Checkpoints, SVIRunner, fit_together
from inference.callbacks import Draw, Evaluate, JSONLines, ReduceOnPlateau, StopEarly
from inference.checkpoints.periodic import CheckpointWarning
from inference.records import check_record
from tests.catalog import two_facets

X = torch.rand(12, 6, generator=torch.Generator().manual_seed(2))
SIZES: dict[str, Any] = {"batch_size": 6, "progress": False}


def runner(seed: int = 0) -> SVIRunner:
    pyro.set_rng_seed(seed)
    guide = two_facets()
    return SVIRunner(guide.model, guide, seed=seed)


def told(values: list[float], every: int = 1) -> Evaluate:
    """A measure that has these values, one after the other."""
    left = iter(values)
    return Evaluate(lambda runner: {"held_out": next(left)}, every)


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([1, 2, 1.5, 1.9, 2, 5], {"patience": 3}, 5),
        ([1, 2, 1.5, 1.9, 2.1, 2, 2, 2, 2], {"patience": 3}, 8),
        ([1, 2, 2.4, 2.9, 3, 3.4, 5], {"patience": 2, "threshold": 0.5}, 6),
        ([3, 2, 2.5, 2.5, 1], {"patience": 2, "larger_is_better": False}, 4),
        ([math.nan, 1, 2, 3, 2, math.nan, 4], {"patience": 2}, 6),
        ([math.nan, math.nan, math.nan, 1], {"patience": 2}, 3),
    ],
)
def test_a_run_ends_when_a_measure_no_longer_improves(
    values: list[float], options: dict, epochs: int
) -> None:
    early = runner().fit(
        X, epochs=9, callbacks=[told(values), StopEarly("held_out", **options)], **SIZES
    )
    assert early.epoch == len(early.history) == epochs
    whole = runner().fit(X, epochs=epochs, **SIZES)
    torch.testing.assert_close(early.loss.state_dict(), whole.loss.state_dict(), rtol=0, atol=0)
    assert early.fit(X, epochs=2, **SIZES).epoch == epochs + 2, "a further call trains on"


def test_a_measure_may_come_now_and_then_and_must_come() -> None:
    calls = [told([1.0, 0.5, 0.2, 0.1], every=2), StopEarly("held_out", patience=2)]
    assert runner().fit(X, epochs=9, callbacks=calls, **SIZES).epoch == 6
    with pytest.raises(ValueError, match=r"none of 3 records has 'held_in', but \['elbo', 'epoch'"):
        runner().fit(X, epochs=9, callbacks=[StopEarly("held_in", patience=2)], **SIZES)


def test_each_fit_waits_anew() -> None:
    calls = [
        told([9.0, 8.0, 7.0, 1.0, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
        StopEarly("held_out", patience=2),
    ]
    first, other = runner(), runner(1)
    assert first.fit(X, epochs=9, callbacks=calls, **SIZES).epoch == 3
    assert other.fit(X, epochs=9, callbacks=calls, **SIZES).epoch == 4, "another run's best"
    assert other.fit(X, epochs=9, callbacks=calls, **SIZES).epoch == 4 + 3, "an earlier one"


def test_the_rate_is_reduced_for_what_this_fit_brings() -> None:
    run, reduce = runner(), ReduceOnPlateau(patience=2)
    run.fit(X, epochs=1, callbacks=[reduce], **SIZES)
    reduce.scheduler.best = -1e9
    run.fit(X, epochs=4, callbacks=[reduce], **SIZES)
    assert run.history[-1]["lr"] == run.lr == 5e-4, "the objective fell"


def test_callbacks_of_one_run_serve_another() -> None:
    measure = Evaluate(lambda run: {"seen": 1.0}, every=2)
    for seed in (0, 1):
        trained = runner(seed).fit(X, epochs=3, callbacks=[measure], **SIZES)
        assert ["seen" in record for record in trained.history] == [False, True, False]
    trained.fit(X, epochs=2, callbacks=[measure], **SIZES)
    assert ["seen" in record for record in trained.history[3:]] == [True, False]


def test_a_run_that_ended_early_is_not_trained_on_when_it_is_resumed(tmp_path: Path) -> None:
    def fit(**options: Any) -> SVIRunner:
        calls = [told([3.0, 2.0, 1.0, 0.0]), StopEarly("held_out", patience=2)]
        return runner().fit(
            X, epochs=9, callbacks=calls, checkpoints=Checkpoints(tmp_path, **options), **SIZES
        )

    assert fit().epoch == 3
    assert fit(resume=True).epoch == 3


def test_runs_side_by_side_end_when_all_would() -> None:
    pair = [runner(0), runner(1)]
    falling = {0: [2.0, 1.0, 0.5, 0.2, 0.1, 0.1], 1: [1.0, 2.0, 3.0, 2.0, 1.0, 0.0]}
    fit_together(
        pair,
        X,
        epochs=9,
        callbacks=lambda one: [
            told([*falling[one.seed], *range(3)]),
            StopEarly("held_out", patience=2),
        ],
        **SIZES,
    )
    assert [one.epoch for one in pair] == [5, 5]


def test_a_wish_to_end_survives_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs one asks in its second epoch, the other in its fourth; a stop in between."""

    def wishes(one: SVIRunner) -> list[Any]:
        def wish(runner: SVIRunner, record: dict[str, Any]) -> None:
            if record["epoch"] == (2 if runner.seed == 0 else 4):
                runner.should_stop = True
            if record["epoch"] == 4 and stops:
                raise InterruptedError

        return [wish]

    def fit(**options: Any) -> list[int]:
        pair = [runner(0), runner(1)]
        fit_together(
            pair,
            X,
            epochs=6,
            callbacks=wishes,
            checkpoints=Checkpoints(tmp_path, **options),
            **SIZES,
        )
        return [one.epoch for one in pair]

    stops = [True]
    with pytest.raises(InterruptedError):
        fit()
    stops.clear()
    assert fit(resume=True) == [4, 4]


class Odd:
    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        """Nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"odd": {1, 2}}


def test_a_state_that_json_cannot_hold_costs_a_checkpoint_and_no_run(tmp_path: Path) -> None:
    with pytest.warns(CheckpointWarning, match=r"a set cannot be written as JSON"):
        assert (
            runner()
            .fit(X, epochs=1, callbacks=[Odd()], checkpoints=Checkpoints(tmp_path), **SIZES)
            .epoch
            == 1
        )


# What is put into a record, and what is written of it.
NUMBERS: dict[str, tuple[Any, Any]] = {
    "float32": (np.float32(0.5), 0.5),
    "float64": (np.float64(0.5), 0.5),
    "int": (np.int64(3), 3),
    "bool": (np.bool_(True), True),
    "torch": (torch.tensor(0.5), 0.5),
    "bfloat16": (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    "array": (np.array(2), 2),
    "nan": (np.float32("nan"), float("nan")),
    "inf": (float("inf"), float("inf")),
    "text": (np.str_("text"), "text"),
    "nested": (
        {"a": [np.float32(0.5), (torch.tensor(1),)], np.int64(3): None},
        {"a": [0.5, [1]], "3": None},
    ),
}


def test_numbers_of_numpy_and_torch_in_a_record_are_written_as_pythons(tmp_path: Path) -> None:
    def add(runner: SVIRunner, record: dict[str, Any]) -> None:
        record.update({name: given for name, (given, _) in NUMBERS.items()})

    lines = tmp_path / "metrics.jsonl"
    run = runner().fit(X, epochs=2, callbacks=[add, JSONLines(lines)], **SIZES)
    saved = SVIRunner.load(run.save(tmp_path / "run")).history
    written = [json.loads(line) for line in lines.read_text().splitlines()]
    for record in (*saved, *written):
        for name, (_, plain) in NUMBERS.items():
            assert repr(record[name]) == repr(plain)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.zeros(3), r"a ndarray of shape \[3\]"),
        (torch.zeros(2, 2), r"a Tensor of shape \[2, 2\]"),
        ({1, 2}, "a set"),
        (1j, "a complex"),
        (np.datetime64("2020-01-01"), "a date"),
        ({(1, 2): 3}, "a name of type tuple"),
        (10**5000, "Exceeds the limit"),
    ],
    ids=["vector", "matrix", "set", "complex", "date", "name", "digits"],
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any, kind: str, tmp_path: Path) -> None:
    def measure(runner: SVIRunner, record: dict[str, Any]) -> None:
        record["odd"] = value

    with pytest.raises(ValueError, match=f"measure put into the record's 'odd': {kind}.* such as"):
        check_record({"epoch": 1, "odd": value}, measure)
    run = runner()
    with pytest.raises(ValueError, match=f"record's 'odd': {kind}"):
        run.fit(X, epochs=1, callbacks=[measure, JSONLines(tmp_path / "lines.jsonl")], **SIZES)
    with pytest.raises(ValueError, match=f"record's 'odd': {kind}"):
        run.save(tmp_path / "run")
    assert not list(tmp_path.rglob("*.*"))


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="within each other, more than 50 deep"):
        check_record({"endless": endless})


def test_figures_are_drawn_now_and_then(tmp_path: Path) -> None:
    drawn = Draw(
        tmp_path,
        lambda runner, folder: (folder / "figure.txt").write_text(str(runner.epoch)),
        every=2,
    )
    runner().fit(X, epochs=5, callbacks=[drawn], **SIZES)
    assert {path.parent.name: path.read_text() for path in tmp_path.rglob("figure.txt")} == {
        "epoch-00002": "2",
        "epoch-00004": "4",
    }


def test_records_without_room_are_written_when_there_is_some(tmp_path: Path) -> None:
    """The file cannot be opened for two records; afterwards it has all of them."""
    path = tmp_path / "metrics.jsonl"

    def room(runner: SVIRunner, record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            path.rename(tmp_path / "kept")
            path.mkdir()
        if record["epoch"] == 4:
            path.rmdir()

    with pytest.warns(
        UserWarning, match="a record could not be written to .*metrics.jsonl .*; training continues"
    ):
        fitted = runner().fit(X, epochs=5, callbacks=[room, JSONLines(path)], **SIZES)
    assert [json.loads(line) for line in path.read_text().splitlines()] == fitted.history


def hold(folder: Path, held: Any, end: Any) -> None:
    def wait(runner: SVIRunner, record: dict[str, Any]) -> None:
        held.set()
        end.wait(60)

    runner().fit(X, epochs=2, callbacks=[wait], checkpoints=Checkpoints(folder), **SIZES)


def test_two_processes_do_not_write_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused and harms nothing; where the first was killed, the folder is free."""
    monkeypatch.setattr("inference.checkpoints.atomic_files.WAIT", 0.1)
    fork = multiprocessing.get_context("fork")
    held, end = fork.Event(), fork.Event()
    first = fork.Process(target=hold, args=(tmp_path, held, end))
    first.start()
    assert held.wait(60)
    with pytest.raises(ValueError, match="is being written by another process: wait until it ends"):
        runner().fit(X, epochs=2, checkpoints=Checkpoints(tmp_path, resume=True), **SIZES)
    first.kill()
    first.join()
    runner().fit(X, epochs=2, checkpoints=Checkpoints(tmp_path, resume=True), **SIZES)
    assert len(Checkpoints(tmp_path, resume=True).written()) == 2
