"""One protocol over seeds and settings, on this machine or on a Slurm cluster, gathered into one
table.

    python -m lab.protocols.sweep vade --seeds 0 1 2 --set dataset=digits lr=5e-4,1e-3

Each combination is one job (through submitit: pip install 'facetvae[cluster]'): the protocol's run,
in a folder below --out. When all have ended, sweep.json has mean and sample deviation of every
score over the seeds, and which runs failed, why, and where their logs are. Called again, it runs
what is not finished: a run that has its scores is not run again, and one that was stopped resumes
from its checkpoints. On a cluster, from a folder that all its machines see:

    python -m lab.protocols.sweep vade --seeds 0 1 2 --set "widths=200 400,500 2000" \\
        --device cuda --data-root DATA --cluster slurm \\
        --slurm timeout_min=240 gpus_per_node=1 cpus_per_task=4 slurm_partition=gpu

A job that is preempted or reaches its time limit is queued again, and resumes from its last
checkpoint, which is at most a minute old. When it reaches the limit a fourth time it has failed,
and a further call resumes it. If the sweep itself is stopped, jobs on this machine stop too; jobs
on a cluster continue, and the next call waits for those that are still running.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import isfinite, nan
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from lab.protocols.common import describe, differing

if TYPE_CHECKING:
    from submitit import AutoExecutor, Job
    from submitit.helpers import DelayedSubmission

# Those that leave the scores of one seed in scores.json; the others take several seeds by
# themselves.
EXAMPLES = ("mfcvae", "vade", "vlac", "mlvae", "nvae")
OWN_FLAGS = {"seed", "out", "resume", "smoke", "data-root", "device", "help"}
FOREVER = (
    60 * 24 * 365
)  # minutes; submitit ends jobs on this machine after two of them, if it is not told
# A line of a log that names an error; what follows it may be what to try.
ERROR = re.compile(r"[\w.]*(Error|Exception|Warning|Interrupt)\b[^:]*: ")
POLL = 0.5  # seconds between looks at what goes on


@dataclass(frozen=True)
class Run:
    """One call of an example's ``main``, as submitit takes it.

    :ivar setting: names of flags, and what they are given here.
    :ivar flags: of all runs of the sweep.
    :ivar cards: ``CUDA_VISIBLE_DEVICES`` where the sweep was started.
    :ivar here: whether the job is one of the same machine, and sees these cards.
    """

    example: str
    setting: tuple[tuple[str, str], ...]
    seed: int
    folder: Path
    flags: tuple[str, ...]
    cards: str | None = None
    here: bool = True

    @property
    def label(self) -> str:
        return label(self.setting)

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.seed}"

    @property
    def key(self) -> str:
        return str(self.folder.resolve())

    @property
    def argv(self) -> list[str]:
        argv = [*self.flags, f"--seed={self.seed}", f"--out={self.folder}", "--resume"]
        for name, value in self.setting:
            # A lone value may begin with a minus; of several, each is a word.
            argv += (
                [f"--{name}={value}"] if len(value.split()) == 1 else [f"--{name}", *value.split()]
            )
        return argv

    def __call__(self) -> None:
        if self.here:  # submitit hides the graphics cards from jobs on this machine
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            os.environ |= {} if self.cards is None else {"CUDA_VISIBLE_DEVICES": self.cards}
        try:
            importlib.import_module(f"lab.protocols.{self.example}").main(self.argv)
        except SystemExit as stop:
            # What is refused is a result. Ends with a number are signals', after which the job may
            # be started again.
            if isinstance(stop.code, str):
                raise RuntimeError(stop.code) from None
            raise

    def checkpoint(self) -> DelayedSubmission:
        """What submitit queues again when the job is preempted: itself, which resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def described(self) -> dict[str, Any]:
        """How the example understands its flags.

        :raises ValueError: if it refuses them.
        """
        words = io.StringIO()
        try:
            with contextlib.redirect_stderr(words):
                return describe(
                    *importlib.import_module(f"lab.protocols.{self.example}").parse(self.argv)
                )
        except SystemExit:
            said = words.getvalue().strip().splitlines()[-1].partition("error: ")[2]
            raise ValueError(
                f"{self.example} does not take {self.label}: {said} (its flags: python -m "
                f"lab.protocols.{self.example} "
                "--help)"
            ) from None

    def scores(self) -> dict[str, float] | None:
        """What the run ended with, by name; ``None`` where it has not ended."""
        try:
            return dict(flat(json.loads((self.folder / "scores.json").read_text())))
        except (OSError, ValueError):  # a file that is half written is as good as none
            return None


def label(setting: tuple[tuple[str, str], ...]) -> str:
    return " ".join(f"{name}={value.replace(' ', '_')}" for name, value in setting) or "defaults"


def flat(scores: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of nested scores, named by the way to it."""
    if isinstance(scores, int | float):
        yield name, float(scores)
    elif isinstance(scores, dict | list):
        for key, value in scores.items() if isinstance(scores, dict) else enumerate(scores):
            yield from flat(value, f"{name} {key}".strip())


# What is asked


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.protocols.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "example", choices=EXAMPLES, help="to run; the others take several seeds by themselves"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of each setting (default: 0)"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUES",
        help='a flag of the example and its values, as lr=5e-4,1e-3 or "widths=200 400,500 2000"; '
        "of several flags, "
        "every combination",
    )
    parser.add_argument("--out", type=Path, help="folder of all runs (default: runs/sweep-EXAMPLE)")
    parser.add_argument(
        "--cluster",
        choices=("local", "slurm"),
        default="local",
        help="default: local, this machine",
    )
    parser.add_argument(
        "--at-once",
        type=int,
        help="jobs side by side, at most (default: 1 on this machine, where OMP_NUM_THREADS "
        "bounds each one's threads; "
        "256 on a cluster)",
    )
    parser.add_argument(
        "--slurm",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="of each job, as submitit's AutoExecutor names them: timeout_min, mem_gb, "
        "slurm_partition, ...",
    )
    parser.add_argument("--smoke", action="store_true", help="each run with its --smoke")
    parser.add_argument(
        "--data-root", type=Path, help="where data sets are (default: $FACETVAE_DATA, else ./data)"
    )
    parser.add_argument(
        "--device", default="cpu", help='of each run, such as "cpu" or "cuda" (default: cpu)'
    )
    return parser


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, list[Run], dict[str, Any]]:
    """Flags, the runs that they ask for, and the parameters of jobs; ends with an error where one
    cannot be.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    args.out = args.out or Path("runs") / f"sweep-{args.example}"
    try:
        if importlib.util.find_spec("submitit") is None:
            raise ValueError(
                "submitit, which starts the jobs, is not installed: pip install 'facetvae[cluster]'"
            )
        if len(set(args.seeds)) < len(args.seeds):
            raise ValueError("--seeds: one is given twice")
        if args.at_once is not None and args.at_once < 1:
            raise ValueError(f"--at-once must be at least 1, got {args.at_once}")
        if args.slurm and args.cluster != "slurm":
            raise ValueError("--slurm is for --cluster slurm")
        parameters = {key: read_value(value) for key, value in pairs("--slurm", args.slurm)}
        runs = plan(args)
        check_runs(runs)
    except ValueError as error:
        parser.error(str(error))
    return args, runs, parameters


def dashed(item: str) -> str:
    """NAME=VALUE with the name as flags are spelled."""
    name, mark, value = item.partition("=")
    return f"{name.replace('_', '-')}{mark}{value}"


def pairs(flag: str, items: list[str]) -> Iterator[tuple[str, str]]:
    """Each NAME=VALUE, none of them twice."""
    names = set()
    for item in items:
        name, _, value = item.partition("=")
        if not name or not value:
            raise ValueError(f"{flag} {item}: NAME=VALUE is needed")
        if name in names:
            raise ValueError(f"{flag} {name} is given twice")
        names.add(name)
        yield name, value


def read_value(text: str) -> Any:
    """A number, a truth value or a list where it is one in JSON; else a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plan(args: argparse.Namespace) -> list[Run]:
    """A run for each combination of settings and seeds."""
    choices = []
    for name, listed in pairs("--set", [dashed(item) for item in args.set]):
        if name in OWN_FLAGS:
            raise ValueError(f"--set {name}: this is a flag of the sweep, or set by it")
        values = [value.strip() for value in listed.split(",")]
        if not all(values):
            raise ValueError(f"--set {name}={listed}: a value is missing")
        choices.append([(name, value) for value in values])
    flags = [f"--device={args.device}", *(["--smoke"] if args.smoke else [])]
    flags += [] if args.data_root is None else [f"--data-root={args.data_root}"]
    here, cards = args.cluster == "local", os.environ.get("CUDA_VISIBLE_DEVICES")
    return [
        Run(args.example, setting, seed, place(args.out, setting, seed), tuple(flags), cards, here)
        for setting in product(*choices)
        for seed in args.seeds
    ]


def place(out: Path, setting: tuple[tuple[str, str], ...], seed: int) -> Path:
    """A run's folder, by a name that every file system takes."""
    return out / re.sub(r"[^\w.=+-]+", "_", label(setting)) / f"seed-{seed}"


def check_runs(runs: list[Run]) -> None:
    """Refuse what does not fit.

    :raises ValueError: if the example refuses one, two are the same, or a folder has another
        run.
    """
    seen: list[tuple[Run, dict[str, Any]]] = []
    for run in runs:
        described = run.described()
        for other, before in seen:
            if not differing(before, described):
                raise ValueError(f"--set: {other.label} and {run.label} are the same run")
        seen.append((run, described))
        with contextlib.suppress(OSError, json.JSONDecodeError):
            if names := differing(json.loads((run.folder / "run.json").read_text()), described):
                raise ValueError(
                    f"{run.folder} has a run that was called with another "
                    f"{' and '.join(sorted(names))}: give another "
                    "--out, or remove it"
                )


# What is done


def make_executor(args: argparse.Namespace, parameters: Mapping[str, Any]) -> AutoExecutor:
    """What jobs are handed to.

    :raises SystemExit: if the folder cannot be written, or the cluster is not there or refuses a
        parameter.
    """
    from submitit import AutoExecutor

    # A folder for each call: on this machine jobs are named by their processes, and such numbers
    # come back.
    folder = args.out / "jobs" / time.strftime("%Y%m%d-%H%M%S")
    of_slurm = {} if args.at_once is None else {"slurm_array_parallelism": args.at_once}
    try:
        executor = AutoExecutor(folder, cluster=args.cluster)
        given = {"timeout_min": FOREVER} if args.cluster == "local" else {**of_slurm, **parameters}
        executor.update_parameters(name=f"sweep-{args.example}", **given)
        folder.mkdir(parents=True, exist_ok=True)
        note(args.out, submitted(args.out))
    except OSError as error:
        raise SystemExit(f"--out: {args.out} cannot be written: {error}") from None
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise SystemExit(f"--cluster {args.cluster}: {str(error).splitlines()[0]}") from None
    return executor


def submitted(out: Path) -> dict[str, list[str]]:
    """Of each run by its folder: the cluster's job that it was handed to last, and where its files
    are.
    """
    path = out / "jobs" / "submitted.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def note(out: Path, jobs: Mapping[str, list[str]]) -> None:
    temporary = out / "jobs" / ".submitted.tmp"
    temporary.write_text(json.dumps(jobs, indent=2) + "\n")
    temporary.replace(out / "jobs" / "submitted.json")


def at_work(out: Path, runs: list[Run]) -> list[tuple[Run, Job]]:
    """Runs that an earlier call handed to the cluster, and that have not ended: to be waited
    for.
    """
    from submitit import SlurmJob

    before = submitted(out)
    found = [(run, SlurmJob(*before[run.key])) for run in runs if run.key in before]
    return [(run, job) for run, job in found if not job.done(force_check=True)]


def work_off(
    args: argparse.Namespace, runs: list[Run], executor: AutoExecutor
) -> Iterator[tuple[Run, Job]]:
    """Hand in what is to be run and yield each run when its job has ended."""
    local = args.cluster == "local"
    waiting, going = list(runs), []
    if not local:  # one array of jobs, which the cluster works off by itself
        going = at_work(args.out, runs)
        for run, job in going:
            print(
                f"{run.name}: job {job.job_id} of an earlier call is at work or queued", flush=True
            )
        waiting = [run for run in runs if run not in [run for run, _ in going]]
        fresh = list(zip(waiting, executor.submit_array(waiting), strict=True)) if waiting else []
        handed = {run.key: [str(job.paths.folder), job.job_id] for run, job in fresh}
        note(args.out, {**submitted(args.out), **handed})
        waiting, going = [], going + fresh
    try:
        while waiting or going:
            while waiting and len(going) < (args.at_once or 1):
                going.append((waiting[0], start(executor, waiting.pop(0))))
            ended = [(run, job) for run, job in going if job.done()]
            going = [(run, job) for run, job in going if run not in [run for run, _ in ended]]
            yield from ended
            time.sleep(POLL)
    finally:
        if local:  # two processes must not work on one run, which the next call takes up
            stop([job for _, job in going])


def start(executor: AutoExecutor, run: Run) -> Job:
    """Hand a run to this machine. Ctrl-C is kept from it: the sweep passes it on in a way that
    leaves a checkpoint.
    """
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return executor.submit(run)
    finally:
        signal.signal(signal.SIGINT, heard)


def stop(jobs: list[Job]) -> None:
    """End jobs on this machine: each writes a checkpoint and goes, or is asked again if it was not
    training yet.
    """
    while going := [job for job in jobs if not job.done()]:
        for job in going:
            os.kill(
                int(job.job_id), signal.SIGTERM
            )  # submitit names them by their processes, which pass this on
        until = time.monotonic() + 5
        while time.monotonic() < until and not all(job.done() for job in going):
            time.sleep(POLL)


def failure(job: Job) -> dict[str, str] | None:
    """What a job's error says and where its log is; ``None`` where it ended well."""
    if job.exception() is None:
        return None
    for path in (job.paths.stderr, job.paths.stdout):
        lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
        if said := [line.rpartition("\r")[2].strip() for line in lines if line.strip()]:
            errors = [line for line in said if ERROR.match(line)]
            return {"error": (errors or said)[-1], "log": str(path)}
    return {"error": f"it ended without a word ({job.state})", "log": str(job.paths.folder)}


def carry_out(
    args: argparse.Namespace, runs: list[Run], executor: AutoExecutor
) -> list[dict[str, Any]]:
    """Carry out the runs, telling of each as it ends; returns those that failed."""
    failed: list[dict[str, Any]] = []
    with contextlib.closing(work_off(args, runs, executor)) as ended:
        for done, (run, job) in enumerate(ended, start=1):
            wrong = failure(job)
            if wrong is None and run.scores() is None:
                wrong = {"error": "it ended without scores", "log": str(job.paths.stdout)}
            if wrong is not None:
                failed.append({"setting": run.label, "seed": run.seed, **wrong})
            print(
                f"{done} of {len(runs)}: {run.name}: {'finished' if wrong is None else 'FAILED'}",
                flush=True,
            )
    return failed


# What is found


def deviation(values: list[float]) -> float | None:
    """The sample deviation; ``None`` of a single value, and NaN if one is not finite."""
    if len(values) < 2:
        return None
    return stdev(values) if all(map(isfinite, values)) else nan


def gather(runs: list[Run]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of each setting and score: mean, sample deviation where there are several seeds, and the
    value of each seed.
    """
    table: dict[str, dict[str, dict[str, Any]]] = {run.label: {} for run in runs}
    for run in runs:
        for score, value in (run.scores() or {}).items():
            table[run.label].setdefault(score, {"seeds": {}})["seeds"][run.seed] = value
    for rows in table.values():
        for row in rows.values():
            values = list(row["seeds"].values())
            row |= {"mean": mean(values), "deviation": deviation(values)}
    return table


def format_table(table: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A line for each score, a column for each setting."""
    names = list(dict.fromkeys(score for rows in table.values() for score in rows))
    left = max(len(name) for name in ["finished runs", *names])

    def cell(row: Mapping[str, Any]) -> str:
        return f"{row['mean']:.3f}" + (
            "" if row["deviation"] is None else f" ({row['deviation']:.3f})"
        )

    def ended(rows: Mapping[str, Mapping[str, Any]]) -> str:
        return str(max([len(row["seeds"]) for row in rows.values()], default=0))

    columns = {
        setting: [
            setting,
            ended(rows),
            *(cell(rows[name]) if name in rows else "" for name in names),
        ]
        for setting, rows in table.items()
    }
    for setting, cells in columns.items():
        width = max(len(cell) for cell in cells)
        columns[setting] = [f"{cell:{width}s}" for cell in cells]
    lines = zip(["", "finished runs", *names], *columns.values(), strict=True)
    return "\n".join("  ".join([f"{line[0]:{left}s}", *line[1:]]).rstrip() for line in lines)


def main(argv: list[str] | None = None) -> None:
    args, runs, parameters = parse(argv)
    left = [run for run in runs if run.scores() is None]
    print(
        f"{len(runs)} runs of {args.example}, {len(runs) - len(left)} of them finished before",
        flush=True,
    )
    failed = []
    if left:
        executor = make_executor(args, parameters)
        heard = signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # so that jobs are stopped, too
        try:
            failed = carry_out(args, left, executor)
        except KeyboardInterrupt:
            raise SystemExit(
                "stopped: the same command goes on with what is not finished"
            ) from None
        finally:
            signal.signal(signal.SIGTERM, heard)
    table = gather(runs)
    found = {"example": args.example, "seeds": args.seeds, "settings": table, "failed": failed}
    (args.out / "sweep.json").write_text(json.dumps(found, indent=2) + "\n")
    print(
        f"\nmean (sample deviation) over seeds:\n{format_table(table)}\n\n{args.out / 'sweep.json'}"
    )
    if failed:
        print(f"\n{len(failed)} of {len(runs)} runs failed; the same command goes on with them:")
        for each in failed:
            print(
                f"  {each['setting']}, seed {each['seed']}: {each['error']}\n    log: {each['log']}"
            )
        raise SystemExit(1)


if __name__ == "__main__":
    # Under its own name, so that jobs find what they are made of.
    from lab.protocols.sweep import main as named

    named()
