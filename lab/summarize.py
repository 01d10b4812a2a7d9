"""Tables of what several runs found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


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
