"""Score finished runs again from their weights, without training: writes each folder's scores.json anew.

python -m benchmarks.rescore --dataset mnist --data-root DATA runs/mnist-0 runs/mnist-1 runs/mnist-2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.common import score_run
from examples.datasets import DATASETS, load
from inference import SVIRunner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--dataset", choices=DATASETS, required=True)
    parser.add_argument("--data-root", type=Path, help="where data sets lie")
    args = parser.parse_args()
    data = load(args.dataset, args.data_root)
    for run in args.runs:
        runner = SVIRunner.load(run)
        score_run(runner.guide, data, run, runner.seed)


if __name__ == "__main__":
    main()
