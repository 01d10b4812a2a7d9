"""A file with a line of JSON for each run, which tells what is still to be run after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["run_all"]


def run_all(
    path: Path,
    runs: Iterable[Sequence[Any]],
    names: Sequence[str],
    train: Callable[..., dict[str, Any]],
) -> None:
    """Do each run that the file does not have, and add its line.

    :param runs: arguments of each.
    :param names: of these arguments, under which the lines have them.
    :param train: called with the arguments, by name; returns what else the line has.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {tuple(json.loads(line)[name] for name in names) for line in lines}
    for run in runs:
        if tuple(run) in done:
            continue
        described = dict(zip(names, run, strict=True))
        found = described | train(**described)
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        shown = {name: value for name, value in found.items() if not isinstance(value, dict | list)}
        print(json.dumps(shown), flush=True)
