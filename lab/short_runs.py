"""Short runs of the records' programs: whether the code still gives what it gave then.

    python -m lab.short_runs             # which give other numbers than are noted
    python -m lab.short_runs --update    # note what they give as of the last commit

A record of lab/results/ names the short runs that go through the code of its command, and is
current while these give the same numbers as at its commit. A formula that is changed makes the
records stale that it has a part in; a variable that is renamed makes none.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyro

from lab.records import ROOT, SHORT_RUNS, RecordError, ShortRun, load_shared
from lab.reproduce import check_committed, git
from lab.run_lines import described_by

# By how much numbers may differ besides: a score may have another row.
ABSOLUTE = 2e-3
CLOCK = {"seconds", "of one core"}  # what programs call their times


def run(command: str, out: Path) -> str:
    """Run a module of this repository with its options, here; returns what it printed."""
    module, *options = shlex.split(command)
    pyro.clear_param_store()
    with contextlib.redirect_stdout(io.StringIO()) as said, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such runs are too short to be of use
        importlib.import_module(module).main([*options, "--out", str(out)])
    return said.getvalue()


def numbers_in(out: Path) -> list[float]:
    """Of all that was trained, the objective by epoch; else every number that was written."""
    files = sorted(path for path in [out, *out.rglob("*.json*")] if path.is_file())
    trained = [path for path in files if path.name == "metrics.jsonl"]
    if trained:
        lines = [line for path in trained for line in path.read_text().splitlines()]
        found: Iterable[float] = (json.loads(line)["objective"] for line in lines)
    else:
        found = (number for path in files for each in contents(path) for number in leaves(each))
    return [float(f"{number:.6g}") for number in found]


def contents(path: Path) -> list[Any]:
    text = path.read_text()
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:  # lines of JSON
        return [json.loads(line) for line in text.splitlines()]


def leaves(content: Any) -> Iterator[float]:
    """All numbers, but a clock's."""
    if isinstance(content, dict):
        content = [each for name, each in content.items() if name not in CLOCK]
    if isinstance(content, list):
        for each in content:
            yield from leaves(each)
    elif isinstance(content, int | float):
        yield content


def differ(now: Sequence[float], noted: ShortRun) -> bool:
    """Whether numbers are further from those that are noted than rounding."""
    return len(now) != len(noted.numbers) or not all(
        math.isclose(a, b, rel_tol=noted.relative, abs_tol=ABSOLUTE)
        for a, b in zip(now, noted.numbers, strict=True)
    )


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = described_by(__doc__)
    parser.add_argument("--update", action="store_true", help="note the numbers that differ")
    args = parser.parse_args(argv)
    import tomlkit

    path = root / "lab/results" / SHORT_RUNS
    content = tomlkit.parse(path.read_text())
    try:
        if args.update:
            check_committed(root)
        commit = git(root, "rev-parse", "--short", "HEAD").strip()
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    changed = 0
    for name, noted in load_shared(root).short_runs.items():
        with tempfile.TemporaryDirectory() as folder:
            run(noted.command, Path(folder) / "run")
            now = numbers_in(Path(folder) / "run")
        if differ(now, noted):
            changed += 1
            print(f"{name}: {now} where {list(noted.numbers)} are noted, since {noted.since}")
            content[name].update({"since": commit, "numbers": now})  # type: ignore[union-attr]
    if args.update:
        path.write_text(tomlkit.dumps(content))
    return int(changed > 0 and not args.update)


if __name__ == "__main__":
    sys.exit(main())
