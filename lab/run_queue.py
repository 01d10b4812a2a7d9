"""Work off a list of commands, several at a time, and go on where it was stopped.

    python -m lab.run_queue FILE --workers 2 --seeds 0 1 2

A line of FILE is a command of an example with its own --out, such as

    python -m lab.protocols.mfcvae --dataset mnist --seed {seed} --out runs/mnist-{seed}

Empty lines and those that begin with # are left out; a line with {seed} stands for one command for
each of --seeds, and one with {lr} for each value of --set lr=5e-4,1e-3. Each command has one
thread, --resume, and a log, log.txt in its run folder; the command itself is noted beside it, in
command.txt. A run that has its scores.json, or where an example trains several its results.json, is
finished and is not started again. Where the queue is stopped, by Ctrl-C or SIGTERM, its runs write
checkpoints and stop, and the same call goes on with them. It ends with 1 if a command failed, after
all others.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.reproduce import split

__all__ = ["Job", "read_jobs", "work_off"]

FINISHED = ("scores.json", "results.json")  # what a run has once all is scored
POLL = 0.5  # seconds between looks at what goes on


@dataclass(frozen=True)
class Job:
    """A command, and the run folder that it names."""

    command: str
    folder: Path

    @property
    def finished(self) -> bool:
        return any((self.folder / name).is_file() for name in FINISHED)

    def check(self) -> None:
        """:raises SystemExit: if the folder has the run of another command, or of no queue."""
        note = self.folder / "command.txt"
        if self.finished and not note.is_file():
            raise SystemExit(
                f"{self.folder} has a finished run that no queue has made: give another --out, or "
                "remove it"
            )
        if note.is_file() and (before := note.read_text().strip()) != self.command:
            raise SystemExit(
                f"{self.folder} has the run of another command: give another --out, or remove it\n"
                f"  then: {before}\n  now:  {self.command}"
            )

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, so that Ctrl-C reaches it through the queue alone."""
        settings, words = split(self.command)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [*words, *([] if "--resume" in words else ["--resume"])],
                env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (self.folder / "command.txt").write_text(self.command + "\n")
        return process


def read_jobs(text: str, values: Mapping[str, Sequence[str]]) -> list[Job]:
    """The commands of a list, each blank such as {seed} filled with all of its values.

    :raises SystemExit: if a line is no command with --out, or two have one run folder.
    """
    lines = [line.strip() for line in text.splitlines()]
    commands = [line for line in lines if line and not line.startswith("#")]
    jobs: dict[Path, Job] = {}
    for command in commands:
        for filled in _filled(command, values):
            job = _job(filled)
            if jobs.setdefault(job.folder, job) is not job:
                raise SystemExit(f"two commands have --out {job.folder}: give each its own")
    return [*jobs.values()]


def _filled(command: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """The command for every combination of the values of its blanks."""
    filled = [command]
    for name, choices in values.items():
        blank = f"{{{name}}}"
        if blank in command:
            filled = [each.replace(blank, choice) for each in filled for choice in choices]
    return filled


def _job(command: str) -> Job:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out", type=Path)
    try:
        out = parser.parse_known_args(shlex.split(command))[0].out
    except (SystemExit, ValueError):
        out = None
    if out is None:
        raise SystemExit(f"a command of an example with --out FOLDER is needed, got: {command}")
    return Job(command, out)


def work_off(jobs: Sequence[Job], workers: int) -> list[Job]:
    """Run what is not finished, ``workers`` at a time; returns what failed."""
    waiting = [job for job in jobs if not job.finished]
    going: list[tuple[Job, subprocess.Popen[bytes]]] = []
    failed: list[Job] = []
    try:
        while waiting or going:
            while waiting and len(going) < workers:
                job = waiting.pop(0)
                try:
                    going.append((job, job.start()))
                    _tell("started", job)
                except OSError as error:  # no such program
                    failed.append(job)
                    _tell(f"FAILED ({error})", job)
            time.sleep(POLL)
            for job, process in [each for each in going if each[1].poll() is not None]:
                going.remove((job, process))
                ended = process.returncode == 0 and job.finished
                failed += [] if ended else [job]
                _tell("finished" if ended else f"FAILED (see {job.folder / 'log.txt'})", job)
    finally:
        _stop([process for _, process in going])
    return failed


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask them to write a checkpoint and go, again where one was not training yet, and wait."""
    while going := [process for process in processes if process.poll() is None]:
        for process in going:
            process.terminate()
        until = time.monotonic() + 5
        while time.monotonic() < until and any(process.poll() is None for process in going):
            time.sleep(POLL)


def _tell(what: str, job: Job) -> None:
    print(f"{time.strftime('%H:%M:%S')} {job.folder}: {what}", flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="the list of commands")
    parser.add_argument("--workers", type=int, default=1, help="commands at a time (default: 1)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="that {seed} stands for (default: 0)"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUES", help="that {NAME} stands for"
    )
    args = parser.parse_args(argv)
    values = {name: listed.split(",") for name, _, listed in (e.partition("=") for e in args.set)}
    if args.workers < 1:
        parser.error(f"--workers must be at least 1, got {args.workers}")
    if not args.file.is_file():
        parser.error(f"there is no file {args.file}")
    jobs = read_jobs(args.file.read_text(), {"seed": [*map(str, args.seeds)], **values})
    for job in jobs:
        job.check()
    print(f"{len(jobs)} runs, {sum(job.finished for job in jobs)} of them finished before")
    for stop in (signal.SIGINT, signal.SIGTERM):  # shells start background jobs deaf to Ctrl-C
        signal.signal(stop, signal.default_int_handler)
    try:
        failed = work_off(jobs, args.workers)
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same call goes on with what is not finished") from None
    if failed:
        raise SystemExit(f"{len(failed)} of {len(jobs)} runs failed")


if __name__ == "__main__":
    main()
