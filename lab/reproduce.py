"""Run a record of lab/results/ again, and say whether its figures come out as they stand.

    python -m lab.reproduce --list                            # which records are stale
    python -m lab.reproduce quickstart --seeds 0 1
    python -m lab.reproduce mnist_half --data-root DATA --update

Old and new mean agree if they differ by no more than three standard errors of their difference,
which are estimated from the sample deviations over seeds, or by no more than the figure's own
tolerance; half of the record's last digit is allowed beside. One seed against several has their
deviation. Figures that a record does not tell how to read are not compared.

A long record's commands can be run by hand, each seed's with the --out of a folder of its own,
DIR/SEED; `--out DIR --finished COMMIT` then only reads them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lab.records import ROOT, Figure, Record, RecordError, Shared, load_all, load_shared, round_to
from lab.run_lines import described_by

STDOUT = "stdout.txt"
# Fields of a figure that a rerun replaces or makes void.
MEASURED = {"values", "mean", "deviation", "low", "high", "value", "commit", "date"}


@dataclass(frozen=True)
class Found:
    """A figure as the rerun gave it: a value a seed, or mean and deviation as printed."""

    values: tuple[float, ...] = ()
    mean: float = math.nan
    deviation: float | None = None

    @staticmethod
    def of(values: Iterable[float], median: bool = False) -> Found:
        """From every seed's value, or from the one that was printed."""
        each = tuple(values)
        deviation = statistics.stdev(each) if len(each) > 1 and not median else None
        return Found(each, (statistics.median if median else statistics.mean)(each), deviation)


def check_can_read(record: Record, seeds: Sequence[int]) -> None:
    """Refuse figures that cannot be read back, and seeds that the command does not take."""
    text = " ".join(record.command)
    if len(set(seeds)) < len(seeds):
        raise RecordError(f"--seeds: one is given twice, got {list(seeds)}")
    if not any(figure.read for figure in record.figures):
        by_hand = "\n    ".join(record.command or ("(none is kept)",))
        raise RecordError(
            f"lab/results/{record.name}.toml: no figure says how it is read back from a run: run "
            f"its command by hand\n    {by_hand}"
        )
    if "{runs}" in text and list(seeds) != list(range(len(seeds))):
        raise RecordError(
            f"lab/results/{record.name}.toml: its command counts seeds from 0: got {list(seeds)}"
        )
    if "{seed}" not in text and "{runs}" not in text and list(seeds) != list(record.seeds):
        raise RecordError(f"lab/results/{record.name}.toml: its command chooses its seeds itself")


def rerun(
    record: Record, seeds: Sequence[int], out: Path, data_root: Path | None, root: Path
) -> None:
    """Run the commands, once for each seed if they take one.

    :raises RecordError: before any work, if data are missing, or the folder holds files: programs
        would take these for their own, and go on from what another version had found.
    """
    if "{data_root}" in " ".join(record.command) and data_root is None:
        raise RecordError(f"lab/results/{record.name}.toml: needs data: give --data-root")
    if out.is_dir() and any(out.iterdir()):
        raise RecordError(f"{out} is not empty: remove it, or give another --out")
    for folder, seed in zip(folders_of(record, seeds, out), seeds or (0,), strict=False):
        run_commands(
            record, folder, {"seed": seed, "runs": len(seeds), "data_root": data_root}, root
        )


def folders_of(record: Record, seeds: Sequence[int], out: Path) -> list[Path]:
    """One for each seed, if the commands take one."""
    a_seed_each = any("{seed}" in command for command in record.command)
    return [out / str(seed) for seed in seeds] if a_seed_each else [out]


def run_commands(record: Record, folder: Path, blanks: dict[str, Any], root: Path) -> None:
    """All commands of one run, with what they print kept in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if record.threads:
        environment["OMP_NUM_THREADS"] = str(record.threads)
    with (folder / STDOUT).open("w") as printed:
        for command in record.command:
            for name, value in {**blanks, "out": folder.resolve()}.items():
                command = command.replace(f"{{{name}}}", shlex.quote(str(value)))
            settings, words = split(command)
            print("$", command, flush=True)
            how = {"cwd": root, "env": {**environment, **settings}, "stdout": subprocess.PIPE}
            started = subprocess.Popen(words, text=True, **how)  # type: ignore[call-overload]
            with started as process:
                for line in process.stdout:
                    printed.write(line)
                    print(line, end="", flush=True)
            if process.returncode:
                where = f"lab/results/{record.name}.toml: command"
                raise RecordError(f"{where}: ended with {process.returncode}: {command}")


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """Variables that are set before the command, and its words; ``python`` is this one."""
    words, settings = shlex.split(command), {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    return settings, [sys.executable if word == "python" else word for word in words]


def read(figure: Figure, folders: Sequence[Path]) -> Found:
    """What the rerun says of a figure; values of all folders together."""
    source, _, path = figure.read.partition(": ")
    median = figure.value is not None
    if source != "stdout":
        values = [v for folder in folders for v in highest(folder / source, path, figure)]
        if not values:
            raise RecordError(f"figure {figure.name}: {source} has no number at {path!r}")
        return Found.of((figure.scale * value for value in values), median)
    texts = [(folder / STDOUT).read_text() for folder in folders]
    matches = [found for text in texts for found in re.finditer(path, text, re.M)]
    if not matches:
        raise RecordError(f"figure {figure.name}: nothing that was printed matches {path!r}")
    if "mean" not in matches[0].groupdict():
        return Found.of((figure.scale * float(found[1]) for found in matches), median)
    if len(matches) > 1:
        raise RecordError(f"figure {figure.name}: {path!r} matches {len(matches)} times, not once")
    mean, deviation = (figure.scale * float(matches[0][part]) for part in ("mean", "deviation"))
    return Found(mean=mean, deviation=deviation)


def highest(path: Path, keys: str, figure: Figure) -> list[float]:
    """The numbers at a path of keys, or the higher ones of two: ``these.keys or those.keys``."""
    each = (numbers_at(path, one, figure) for one in keys.split(" or "))
    return [max(numbers) for numbers in zip(*each, strict=True)]


def numbers_at(path: Path, keys: str, figure: Figure) -> list[float]:
    """The number or numbers at a path of keys in a JSON file; ``*`` stands for every element.

    In a file of JSON lines, as a run's metrics are, the first key is the epoch.
    """
    try:
        text = path.read_text()
        if path.suffix == ".jsonl":
            lines = map(json.loads, text.splitlines())
            content = {str(line["epoch"]): line for line in lines}
        else:
            content = json.loads(text)
        found = list(at(content, keys.split(".")))
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise RecordError(f"figure {figure.name}: {path}: {keys}: {error!r}") from None
    lists = (value if isinstance(value, list) else [value] for value in found)
    return [float(each) for values in lists for each in values]


def at(content: Any, keys: Sequence[str]) -> Iterable[Any]:
    """Keys may have points in them: the longest that is there is taken."""
    if not keys:
        yield content
    elif keys[0] == "*":
        for each in content.values() if isinstance(content, dict) else content:
            yield from at(each, keys[1:])
    else:
        ends = [n for n in range(len(keys), 0, -1) if ".".join(keys[:n]) in content]
        if not ends:
            raise KeyError(keys[0])
        yield from at(content[".".join(keys[: ends[0]])], keys[ends[0] :])


def allowed(figure: Figure, found: Found, old_runs: int, new_runs: int) -> float:
    """By how much the two means may differ, the half digit that the record rounds away included.

    Their errors follow from the deviation of both together, since that of few seeds says little.
    """
    spreads = [(figure.spread, old_runs), (found.deviation, new_runs)]
    known = [(spread, runs - 1) for spread, runs in spreads if spread is not None and runs > 1]
    freedom = sum(degrees for _, degrees in known)
    pooled = sum(degrees * spread**2 for spread, degrees in known) / max(freedom, 1)
    error = math.sqrt(pooled / max(old_runs, 1) + pooled / max(new_runs, 1))
    return max(3 * error, figure.tolerance or 0.0) + 0.5 * 10.0**figure.last_digit


def compare(record: Record, found: dict[str, Found], seeds: Sequence[int]) -> bool:
    """Print old and new beside each other; whether all agree."""
    agreed = True
    print(f"\n{'figure':44s} {'record':>22s} {'now':>22s} {'differ by':>10s} {'allowed':>9s}")
    for name, new in found.items():
        figure = record.figure(name)
        limit = allowed(figure, new, figure.runs or len(record.seeds), figure.runs or len(seeds))
        fine = abs(new.mean - figure.center) <= limit
        agreed &= fine
        spread = "" if new.deviation is None else f" ({spelled(new.deviation, figure, 1)})"
        now = spelled(new.mean, figure, 1) + spread
        print(
            f"{figure.what[:43]:44s} {figure.show():>22s} {now:>22s}"
            f" {new.mean - figure.center:>+10.2g} {limit:>9.2g}"
            f"  {'agrees' if fine else 'DOES NOT AGREE'}"
        )
    unread = [figure.name for figure in record.figures if not figure.read]
    print(f"not read back: {', '.join(unread)}\n" if unread else "", end="")
    return agreed


def spelled(number: float, figure: Figure, more: int = 0) -> str:
    """With as many digits as the record has, or more of them."""
    if figure.places > 6:
        return f"{number:.{2 + more}g}"
    return round_to(number, figure.places + more)


def check_counts(record: Record, found: dict[str, Found], runs: int) -> None:
    """Refuse what would leave a record that cannot be read: a figure has a value for each seed."""
    for name, new in found.items():
        if record.figure(name).value is None and new.values and len(new.values) != runs:
            raise RecordError(
                f"lab/results/{record.name}.toml: figure {name}: {runs} values are needed, one for "
                f"each seed, and {len(new.values)} were found: give the --seeds of these runs, or "
                "mend how the figure is read"
            )


def update(
    path: Path, record: Record, found: dict[str, Found], seeds: Sequence[int], commit: str
) -> None:
    """Write what was found into the record; what was not read back keeps the commit it is of."""
    import tomlkit

    check_counts(record, found, max(len(seeds) if record.seeds else 0, 1))
    content = tomlkit.parse(path.read_text())
    for entry in [*content.get("figure", []), *content.get("table", [])]:
        new = found.get(entry.get("name"))
        if new is None:
            entry.setdefault("commit", record.commit)
            entry.setdefault("date", record.date)
            continue
        fields = written(record.figure(entry["name"]), new)
        for field in MEASURED - fields.keys():
            entry.pop(field, None)
        entry.update(fields)
    if "seeds" in content:
        content["seeds"] = list(seeds)
    content.pop("added", None)
    content["commit"] = commit
    content["date"] = datetime.date.today()
    path.write_text(tomlkit.dumps(content))


def written(figure: Figure, new: Found) -> dict[str, Any]:
    """The new figure's fields, with as many digits as before."""
    import tomlkit

    def number(value: float) -> Any:
        return tomlkit.value(spelled(value, figure))

    if figure.value is not None:
        ends = {"low": min(new.values), "high": max(new.values)} if len(new.values) > 1 else {}
        return {name: number(value) for name, value in {"value": new.mean, **ends}.items()}
    if new.values:
        values = tomlkit.array()
        values.extend(number(value) for value in new.values)
        return {"values": values}
    known = {"mean": new.mean, "deviation": new.deviation}
    return {name: number(value) for name, value in known.items() if value is not None}


def git(root: Path, *words: str) -> str:
    """What git says, or an error with its words."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode:
        raise RecordError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def states(records: Iterable[Record], shared: Shared, root: Path = ROOT) -> dict[str, str]:
    """Of every record, which of its short runs have given other numbers since its commit."""
    found = {}
    for record in records:
        runs = {name: shared.short_runs[name].since for name in record.short_runs}
        since = (state(root, commit, runs) for commit in record.commits)
        measured = f"of {record.commit}, {record.date}; no short run tells whether it is current"
        found[record.name] = next(filter(None, since), "current") if runs else measured
    return found


@cache
def precedes(root: Path, earlier: str, later: str) -> bool:
    """Whether the one commit is the other, or before it."""
    words = ["git", "-C", str(root), "merge-base", "--is-ancestor", earlier, later]
    return subprocess.run(words, capture_output=True).returncode == 0


def state(root: Path, commit: str, runs: Mapping[str, str]) -> str:
    """What is amiss with figures of this commit; empty if nothing is.

    :param runs: since when each short run gives what it gives now.
    """
    if not precedes(root, commit, "HEAD"):
        return f"unknown commit {commit}"
    later = [name for name, since in runs.items() if not precedes(root, since, commit)]
    return f"stale ({', '.join(later)}: other numbers since {commit})" if later else ""


def check_committed(root: Path) -> None:
    """Refuse to note a commit that is not what is run."""
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        raise RecordError(
            "--update: files differ from the commit that would be noted: commit them first"
        )


def check_can_update(record: Record, seeds: Sequence[int]) -> None:
    """Refuse, before any work, what would not leave a whole record."""
    unread = [figure.name for figure in record.figures if figure.values and not figure.read]
    if len(seeds) < len(record.seeds) or (unread and list(seeds) != list(record.seeds)):
        raise RecordError(
            f"--update: needs the record's seeds, {list(record.seeds)}, or more of them"
            + (f"; not more, as these are not read back: {', '.join(unread)}" if unread else "")
        )


def reproduce(args: argparse.Namespace, records: dict[str, Record], root: Path) -> int:
    """One record: 0 if every figure agrees."""
    if args.name not in records:
        raise RecordError(f"no record {args.name!r}: there are {', '.join(records)}")
    record = records[args.name]
    seeds = args.seeds or list(record.seeds)
    if args.update:
        check_can_update(record, seeds)
    check_can_read(record, seeds)
    out = args.out or root / "runs" / "reproduce" / record.name
    if args.update and not args.finished:
        check_committed(root)
    commit = git(root, "rev-parse", "--short", args.finished or "HEAD").strip()
    if not args.finished:
        rerun(record, seeds, out, args.data_root and args.data_root.resolve(), root)
    folders = folders_of(record, seeds, out)
    found = {figure.name: read(figure, folders) for figure in record.figures if figure.read}
    agreed = compare(record, found, seeds)
    if args.update:
        update(root / f"lab/results/{record.name}.toml", record, found, seeds, commit)
        print(f"lab/results/{record.name}.toml written; it still says machine {record.machine!r}")
        print("look at its notes, then run `python -m lab.write_results`")
    return int(not agreed)


def main(root: Path = ROOT) -> int:
    parser = described_by(__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a record, lab/results/NAME.toml")
    parser.add_argument(
        "--list", action="store_true", help="every record, and whether it is current"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="default: the record's")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    parser.add_argument("--out", type=Path, help="for runs (default: runs/reproduce/NAME)")
    parser.add_argument(
        "--finished", metavar="COMMIT", help="only read runs of this commit in --out"
    )
    parser.add_argument("--update", action="store_true", help="write what is found into the record")
    args = parser.parse_args()
    if args.list == (args.name is not None):
        parser.error("give the name of a record, or --list")
    try:
        records = {record.name: record for record in load_all(root)}
        if not args.list:
            return reproduce(args, records, root)
        width = max(map(len, records), default=0) + 2
        for name, state in states(records.values(), load_shared(root), root).items():
            print(f"{name:{width}s}{state}")
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
