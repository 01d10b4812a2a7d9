"""Sweeps: runs over seeds and settings as jobs of this machine, gathered; and what is refused
before any is started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from math import isnan
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from lab.protocols import sweep
from tests import fresh

pytestmark = pytest.mark.slow(40)


def test_jobs_of_this_machine_are_gathered_and_a_second_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two seeds; then one of them again and a rate that training stops at; then nothing is left to
    be run.
    """
    monkeypatch.setenv("PYTHONPATH", str(fresh.ROOT))  # jobs find what the sweep finds
    # Jobs are forked where the libraries, and nothing of ours, are imported already.
    python = fresh.stand_in(tmp_path, "submitit.core._submit")
    monkeypatch.setattr(sys, "executable", str(python))
    out = tmp_path / "swept"
    flags = ["vade", "--smoke", "--at-once", "2", "--out", str(out)]
    heard = signal.getsignal(signal.SIGTERM)
    sweep.main([*flags, "--seeds", "0", "1", "--set", "lr=2e-3"])
    said = capsys.readouterr().out
    assert "2 runs of vade, 0 of them finished before" in said
    folders = [out / "lr=2e-3" / f"seed-{seed}" for seed in (0, 1)]
    accuracies = [
        json.loads((f / "scores.json").read_text())["digit"]["digit"]["accuracy"] for f in folders
    ]
    gathered = (out / "sweep.json").read_text()
    assert json.loads(gathered)["failed"] == []
    assert json.loads(gathered)["settings"]["lr=2e-3"]["digit digit accuracy"] == {
        "seeds": dict(zip("01", accuracies, strict=True)),
        "mean": mean(accuracies),
        "deviation": stdev(accuracies),
    }
    assert f"{mean(accuracies):.3f} ({stdev(accuracies):.3f})" in said
    called = json.loads((folders[1] / "run.json").read_text())
    assert (called["flags"]["seed"], called["settings"]["lr"], called["flags"]["smoke"]) == (
        1,
        2e-3,
        True,
    )

    # As if the second had been stopped after its training.
    (folders[1] / "scores.json").unlink()
    earlier = set(out.rglob("*_log.err"))
    with pytest.raises(SystemExit) as stop:
        sweep.main([*flags, "--seeds", "1", "--set", "lr=2e-3,1e30"])
    assert signal.getsignal(signal.SIGTERM) is heard
    assert stop.value.code == 1
    said = capsys.readouterr().out
    assert "2 runs of vade, 0 of them finished before" in said
    assert "1 of 2 runs failed" in said
    assert "lr=1e30, seed 1: FloatingPointError: the objective of the run with seed 1" in said, (
        "not the suggestions that follow"
    )
    (failed,) = json.loads((out / "sweep.json").read_text())["failed"]
    assert failed["log"] in said
    assert (
        "FloatingPointError: the objective of the run with seed 1"
        in Path(failed["log"]).read_text()
    )
    (resumed,) = set(out.rglob("*_log.err")) - earlier - {Path(failed["log"])}
    assert "objective=" not in resumed.read_text(), "nothing was left to train"

    written = {path: path.stat().st_mtime_ns for path in (out / "lr=2e-3").rglob("*")}
    last = fresh.run(
        *("-m", "lab.protocols.sweep", *flags, "--seeds", "0", "1", "--set", "lr=2e-3"),
        cwd=tmp_path,
    )
    assert last.returncode == 0, last.stdout + last.stderr
    assert "2 runs of vade, 2 of them finished before" in last.stdout
    assert {path: path.stat().st_mtime_ns for path in (out / "lr=2e-3").rglob("*")} == written
    assert (out / "sweep.json").read_text() == gathered


REFUSED: list[tuple[list[str], str]] = [
    (["no_such"], "invalid choice: 'no_such'"),
    (["compare_guides"], "invalid choice: 'compare_guides'"),
    (["vade", "--sets", "lr=1"], "unrecognized arguments: --sets lr=1"),
    (
        ["vade", "--set", "depth=3"],
        "vade does not take depth=3: unrecognized arguments: --depth=3",
    ),
    (
        ["vade", "--set", "lr=1e-3,fast"],
        "does not take lr=fast: argument --lr: invalid float value: 'fast'",
    ),
    (
        ["vade", "--set", "lr=1e-3,-1"],
        "does not take lr=-1: argument --lr: lr must be a positive number, got",
    ),
    (
        ["mfcvae", "--set", "widths=64"],
        "mfcvae does not take widths=64: argument --widths: expected 2 arguments",
    ),
    (["nvae", "--set", "model=cvae", "labels=600"], "--labels is for --model nvae"),
    (["vade", "--set", "lr"], "--set lr: NAME=VALUE is needed"),
    (["vade", "--set", "lr="], "--set lr=: NAME=VALUE is needed"),
    (["vade", "--set", "lr=1e-3,"], "--set lr=1e-3,: a value is missing"),
    (["vade", "--set", "lr=1", "lr=2"], "--set lr is given twice"),
    (["vade", "--set", "lr=1e-3,0.001"], "lr=1e-3 and lr=0.001 are the same run"),
    (["vade", "--set", "seed=1"], "--set seed: this is a flag of the sweep"),
    (["vade", "--seeds"], "expected at least one argument"),
    (["vade", "--seeds", "1", "1"], "--seeds: one is given twice"),
    (["vade", "--at-once", "0"], "--at-once must be at least 1, got 0"),
    (["vade", "--slurm", "mem_gb=4"], "--slurm is for --cluster slurm"),
    (
        ["vade", "--cluster", "slurm", "--slurm", "mem_gb"],
        "--slurm mem_gb: NAME=VALUE is needed",
    ),
    (["vade", "--cluster", "slurm"], 'Could not detect "srun"'),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=[" ".join(flags) for flags, _ in REFUSED])
def test_what_cannot_be_is_said_before_anything_is_written(
    flags: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "")  # no Slurm, wherever the tests run
    with pytest.raises(SystemExit) as stop:
        sweep.main([*flags, "--out", str(tmp_path / "swept")])
    said = f"{capsys.readouterr().err}{stop.value.code}"
    assert words in said
    assert said.count("error:") <= 1
    assert not (tmp_path / "swept").exists()


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit, match="swept cannot be written"):
        sweep.main(["vade", "--out", str(tmp_path / "file" / "swept")])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_another_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["vade", "--set", "lr=1e-3", "--out", str(tmp_path)]
    (one,) = sweep.parse(flags)[1]
    one.folder.mkdir(parents=True)
    (one.folder / "run.json").write_text(json.dumps({"data": "digits", **one.described()}))
    sweep.parse(flags)
    with pytest.raises(SystemExit):
        sweep.main([*flags, "--smoke"])
    said = capsys.readouterr().err
    assert "has a run that was called with another " in said
    assert " and epochs and " in said
    assert [path.name for path in one.folder.iterdir()] == ["run.json"]


def test_a_parameter_that_slurm_does_not_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for parameter, words in (
        ("slurm_colour=red", "Unknown argument 'colour'"),
        ("timeout_min=long", "expected type"),
    ):
        with pytest.raises(SystemExit, match=words):
            sweep.main(
                [
                    "vade",
                    "--cluster",
                    "slurm",
                    "--slurm",
                    parameter,
                    "--out",
                    str(tmp_path / "swept"),
                ]
            )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of an example of the test's own; a refusal, or a signal's end, where its first flag
    asks for them.
    """
    made: list[Any] = []

    def main(argv: list[str]) -> None:
        made.append((argv, os.environ.get("CUDA_VISIBLE_DEVICES")))
        if argv[0].startswith("stop="):
            raise SystemExit({"stop=refused": "no data there", "stop=143": 143}[argv[0]])

    monkeypatch.setitem(sys.modules, "lab.protocols.of_the_test", SimpleNamespace(main=main))
    return made


def job(tmp_path: Path, *flags: str, **options: Any) -> sweep.Run:
    setting = (("lr", "-1"), ("widths", "20 40"))
    return sweep.Run("of_the_test", setting, 3, tmp_path / "folder", flags, **options)


def test_a_job_calls_the_example_and_sees_the_cards_that_the_sweep_saw(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for outside, options, inside in (
        ("", {"cards": "2,3"}, "2,3"),  # hidden by submitit, shown again
        ("", {}, None),
        ("1", {"here": False}, "1"),  # as the cluster chose
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outside)
        job(tmp_path, "--device=cuda", **options)()
        argv, cards = calls.pop()
        assert cards == inside
        assert argv == [
            "--device=cuda",
            "--seed=3",
            f"--out={tmp_path / 'folder'}",
            "--resume",
            "--lr=-1",
            "--widths",
            "20",
            "40",
        ]


def test_what_a_job_is_refused_is_its_result_and_a_signal_is_none(
    tmp_path: Path, calls: list[Any]
) -> None:
    with pytest.raises(RuntimeError, match="no data there"):
        job(tmp_path, "stop=refused", here=False)()
    with pytest.raises(SystemExit):  # which leaves no result, so that the job can be queued again
        job(tmp_path, "stop=143", here=False)()
    assert len(calls) == 2


def test_of_a_log_the_error_is_told_and_not_what_to_try(tmp_path: Path) -> None:
    log = tmp_path / "log.err"
    paths = SimpleNamespace(stderr=log, stdout=tmp_path / "none", folder=tmp_path)
    failed = SimpleNamespace(paths=paths, state="FAILED", exception=lambda: RuntimeError())
    for text, error in (
        (
            "KeyError: 'x'\n\nValueError: too few: rows\n  Try one of:\n  - more\n",
            "ValueError: too few: rows",
        ),
        ("torch.OutOfMemoryError: no memory\n 50%|####\n", "torch.OutOfMemoryError: no memory"),
        ("killed\n", "killed"),
    ):
        log.write_text(text)
        assert sweep.failure(failed) == {"error": error, "log": str(log)}


def test_a_preempted_job_is_queued_again_as_it_was(tmp_path: Path) -> None:
    again = job(tmp_path).checkpoint()
    assert (again.function, again.args, again.kwargs) == (job(tmp_path), (), {})


def test_scores_of_any_nesting_are_gathered(tmp_path: Path) -> None:
    runs = [job(tmp_path / str(seed)) for seed in range(2)]
    table = sweep.gather(runs)
    assert table == {"lr=-1 widths=20_40": {}}
    assert sweep.format_table(table).splitlines() == [
        "               lr=-1 widths=20_40",
        "finished runs  0",
    ]
    for run, value in zip(runs, (1.0, 2.0), strict=True):
        run.folder.mkdir(parents=True)
        (run.folder / "scores.json").write_text(
            json.dumps({"kl": {"right": [value, 0]}, "error": value, "by": "name"})
        )
    object.__setattr__(runs[1], "seed", 4)
    table = sweep.gather(runs)["lr=-1 widths=20_40"]
    assert list(table) == ["kl right 0", "kl right 1", "error"]
    assert table["error"] == {
        "seeds": {3: 1.0, 4: 2.0},
        "mean": 1.5,
        "deviation": pytest.approx(0.5**0.5),
    }
    (runs[1].folder / "scores.json").write_text('{"error": NaN}')
    assert isnan(sweep.gather(runs)["lr=-1 widths=20_40"]["error"]["deviation"])
    (runs[1].folder / "scores.json").write_text('{"error": 1')
    assert sweep.gather(runs)["lr=-1 widths=20_40"]["error"]["deviation"] is None
