"""The queue of runs: what it starts, skips, resumes and refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.run_queue import read_jobs
from tests.pages import ROOT

# Stands for an example: it notes how it was called, and has scores unless it is to fail or to wait.
RUN = """
import os, sys, time
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
with (out / "calls.txt").open("a") as calls:
    print(os.environ["OMP_NUM_THREADS"], "--resume" in sys.argv, time.time(), file=calls)
print("some words")
if "--wait" in sys.argv and len((out / "calls.txt").read_text().splitlines()) == 1:
    time.sleep(60)
if "--fail" in sys.argv:
    sys.exit(3)
(out / ("results.json" if "--several" in sys.argv else "scores.json")).write_text("{}")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(RUN)
    return path


def queue(tmp_path: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "lab.run_queue", str(tmp_path / "list.txt"), *flags]


WHERE = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}


def work(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(queue(tmp_path, *flags), capture_output=True, text=True, **WHERE)  # type: ignore[call-overload]


def test_each_seed_is_run_once_and_a_failure_does_not_stop_the_rest(
    tmp_path: Path, program: Path
) -> None:
    lines = [
        "# a comment",
        f"python {program} --fail --out {tmp_path}/bad",
        "",
        f"python {program} --seed {{seed}} --out {tmp_path}/run-{{seed}}",
        f"python {program} --several --out {tmp_path}/several",
    ]
    (tmp_path / "list.txt").write_text(f"no_such_program --out {tmp_path}/run-0")
    assert "No such file or directory: 'no_such_program'" in work(tmp_path).stdout
    (tmp_path / "list.txt").write_text("\n".join(lines))
    for _ in range(2):  # the second time only what failed is run
        done = work(tmp_path, "--workers", "2", "--seeds", "0", "3")
        assert done.returncode == 1
        assert "1 of 4 runs failed" in done.stderr
        assert f"{tmp_path}/bad: FAILED (see {tmp_path}/bad/log.txt)" in done.stdout
    assert "4 runs, 3 of them finished before" in done.stdout
    for name, times in (("run-0", 1), ("run-3", 1), ("several", 1), ("bad", 2)):
        calls = (tmp_path / name / "calls.txt").read_text().splitlines()
        assert [call.split()[:2] for call in calls] == [["1", "True"]] * times
        assert (tmp_path / name / "log.txt").read_text() == "some words\n" * times
    command = (tmp_path / "run-3" / "command.txt").read_text()
    assert command == f"python {program} --seed 3 --out {tmp_path}/run-3\n"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_reaches_all_runs_and_the_next_call_goes_on(
    stop: signal.Signals, tmp_path: Path, program: Path
) -> None:
    """Both have begun before either ends: they wait for a minute, or until they are stopped."""
    lines = [f"python {program} --wait --out {tmp_path}/{name}" for name in "ab"]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    started = {"stderr": subprocess.PIPE, "text": True, **WHERE}
    with subprocess.Popen(queue(tmp_path, "--workers", "2"), **started) as process:  # type: ignore[call-overload]
        until = time.monotonic() + 30
        while not all((tmp_path / name / "calls.txt").is_file() for name in "ab"):
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(stop)
        _, said = process.communicate(timeout=20)
    assert "the same call goes on" in said
    assert not list(tmp_path.glob("*/scores.json"))
    assert work(tmp_path).returncode == 0
    assert len(list(tmp_path.glob("*/scores.json"))) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python run.py", "an example with --out FOLDER is needed, got: python run.py"),
        ("python 'run.py --out a", "is needed, got"),
        ("python a --out x\npython b --out x", "two commands have --out x"),
    ],
)
def test_commands_that_cannot_be_queued_are_refused(text: str, words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        read_jobs(text, {"seed": ["0"]})


def test_the_folder_of_another_run_is_refused(tmp_path: Path, program: Path) -> None:
    (tmp_path / "list.txt").write_text(f"python {program} --out {tmp_path}/run")
    assert work(tmp_path).returncode == 0
    (tmp_path / "list.txt").write_text(f"python {program} --more --out {tmp_path}/run")
    done = work(tmp_path)
    assert done.returncode == 1
    assert "has the run of another command" in done.stderr
    (tmp_path / "run" / "command.txt").unlink()
    assert "has a finished run that no queue has made" in work(tmp_path).stderr
    assert work(tmp_path, "--workers", "0").returncode == 2


def test_blanks_stand_for_every_combination_of_their_values() -> None:
    jobs = read_jobs("p --seed {seed} --lr {lr} --out r/{seed}-{lr}", {"seed": "01", "lr": ["5"]})
    assert [job.command for job in jobs] == [
        "p --seed 0 --lr 5 --out r/0-5",
        "p --seed 1 --lr 5 --out r/1-5",
    ]
