"""Score finished runs again from their weights, without training: writes each folder's scores.json
anew.

python -m benchmarks.rescore --data-root DATA runs/mnist-0 runs/mnist-1 runs/mnist-2
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

from examples.common import score_run
from examples.datasets import Dataset, load, some_rows
from inference import SVIRunner


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    args = parser.parse_args()

    @cache
    def data_of(name: str, rows: int | None) -> Dataset:
        data = load(name.removesuffix("-drawn"), args.data_root)
        if data.name != name:
            raise ValueError(f"the run was of {name}, but {args.data_root} has {data.name}")
        return data if rows is None else some_rows(data, rows)

    for folder in args.runs:
        run = json.loads((folder / "run.json").read_text())
        runner = SVIRunner.load(folder)
        score_run(
            runner.guide,
            data_of(run["data"], run["settings"].get("train_rows")),
            folder,
            runner.seed,
        )


if __name__ == "__main__":
    main()
