"""Mean and sample deviation of finished runs over their seeds: of every number in scores.json, with
accuracies, probes, NMI and ARI in percent.

python -m lab.summarize runs/mnist-0 runs/mnist-1 runs/mnist-2
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["print_table", "print_tables", "read_scores"]

# Names of scores that are shares; they are printed in percent, and all others as they are.
FRACTION = re.compile(r"(accuracy|probe|nmi|ari)(_.*)?")


def print_table(rows: Sequence[Mapping[str, float]]) -> None:
    """Of every measure in the rows, a seed each: mean, sample deviation, range."""
    for name in rows[0]:
        values = [row[name] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(
            f"  {name:36s} {statistics.mean(values):8.3f} ({spread:.3f})  {min(values):.3f} to "
            f"{max(values):.3f}",
            flush=True,
        )


def print_tables(found: Sequence[Mapping[str, Mapping[str, float]]], heading: str = "") -> None:
    """The measures of every method, in turn.

    :param found: of each seed, by method.
    """
    for name in found[0]:
        print(heading + name)
        print_table([each[name] for each in found])


def flat(scores: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of nested scores, named by the way to it."""
    if isinstance(scores, int | float):
        yield name, float(scores)
    elif isinstance(scores, dict | list):
        for key, value in scores.items() if isinstance(scores, dict) else enumerate(scores):
            yield from flat(value, f"{name} {key}".strip())


def read_scores(run: Path) -> dict[str, float]:
    """Every number of a run's scores, by its name.

    :raises SystemExit: if there are none.
    """
    path = run / "scores.json"
    try:
        return dict(flat(json.loads(path.read_text())))
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{path}: folders of finished runs of one model are needed, as of lab.protocols.mfcvae "
            f"({error})"
        ) from None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, one a seed")
    args = parser.parse_args(argv)
    runs = [read_scores(run) for run in args.runs]
    for name in runs[0]:
        factor, digits = (100, 2) if FRACTION.fullmatch(name.rpartition(" ")[2]) else (1, 4)
        values = [factor * run[name] for run in runs if name in run]
        if len(values) < len(runs):
            raise SystemExit(f"not all runs have {name!r}: runs of one example are needed")
        spread = f" ({statistics.stdev(values):.{digits}f})" if len(values) > 1 else ""
        each = ", ".join(f"{value:.{digits}f}" for value in values)
        print(f"{name:46s} {statistics.mean(values):8.{digits}f}{spread}   {each}")


if __name__ == "__main__":
    main()
