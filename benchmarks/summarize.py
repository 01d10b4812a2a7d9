"""Mean and sample deviation of finished runs over their seeds.

python -m benchmarks.summarize runs/mnist-0 runs/mnist-1 runs/mnist-2
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["print_table"]


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, one a seed")
    args = parser.parse_args()
    scores = [json.loads((run / "scores.json").read_text()) for run in args.runs]
    for facet, label in [(facet, label) for facet, labels in scores[0].items() for label in labels]:
        for name in scores[0][facet][label]:
            values = [100 * run[facet][label][name] for run in scores]
            spread = f" ({statistics.stdev(values):.2f})" if len(values) > 1 else ""
            each = ", ".join(f"{value:.2f}" for value in values)
            print(
                f"{facet:10s} {label:12s} {name:22s} {statistics.mean(values):6.2f}{spread}   "
                f"{each}"
            )


if __name__ == "__main__":
    main()
