"""A file with a line of JSON for each run, which tells what is still to be run after a stop."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def described_by(text: str) -> argparse.ArgumentParser:
    """A parser whose help begins with this docstring."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parser_of(text: str, first: int, end: int) -> argparse.ArgumentParser:
    """Of a program with that docstring: for the seeds from ``first`` to before ``end``, and a file
    of lines.
    """
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0], allow_abbrev=False)
    seeds = {"nargs": 2, "type": int, "default": [first, end]}
    parser.add_argument("--seeds", **seeds, help="the first, and one after the last")
    parser.add_argument("--out", type=Path, required=True, help="a file of lines of JSON")
    return parser


def run_all(
    path: Path,
    runs: Iterable[Sequence[Any]],
    names: Sequence[str],
    settings: Mapping[str, Any],
    train: Callable[..., dict[str, Any]],
) -> list[dict[str, Any]]:
    """Do each run that the file does not have, and add its line; the lines of all of them.

    :param runs: arguments of each.
    :param names: of these arguments, under which the lines have them.
    :param settings: what else determines the runs; a line holds them, and one with others is no
        run of these.
    :param train: called with the arguments, by name; returns what else the line has.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text() if path.exists() else ""
    done = list(whole_lines(text))
    if text and not text.endswith("\n"):  # stopped while it wrote
        path.write_text(text + "\n")
    lines = []
    for run in runs:
        described = dict(zip(names, run, strict=True)) | {"settings": dict(settings)}
        if there := [line for line in done if described.items() <= line.items()]:
            lines.append(there[0])
            continue
        found = described | train(**dict(zip(names, run, strict=True)))
        lines.append(found)
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        shown = {name: value for name, value in found.items() if not isinstance(value, dict | list)}
        print(json.dumps(shown), flush=True)
    return lines


def whole_lines(text: str) -> Iterable[dict[str, Any]]:
    """The lines that were written to their end."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
