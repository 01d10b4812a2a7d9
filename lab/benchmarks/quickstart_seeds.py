"""The quickstart over many seeds: accuracy of each facet, and whether any facet died.

    python -m lab.benchmarks.quickstart_seeds --seeds 10

Networks, shuffling, draws and mixture fits differ between seeds; the data and their split do not.
"""

from __future__ import annotations

import time

from examples.common import score_facets
from examples.quickstart import Settings, train
from facetvae.datasets import digits
from lab.run_lines import described_by
from lab.summarize import print_table


def main() -> None:
    parser = described_by(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many, counted from 0")
    args = parser.parse_args()
    data = digits()
    rows = []
    for seed in range(args.seeds):
        started = time.perf_counter()
        runner = train(data, Settings(), seed, "cpu", progress=False)
        row = {"seconds": time.perf_counter() - started}
        for facet, scores in score_facets(runner.guide, data).items():
            row[f"accuracy_{facet}"] = scores["digit"]["accuracy"]
            row[f"train_map_{facet}"] = scores["digit"]["accuracy_train_map"]
            row[f"nmi_{facet}"] = scores["digit"]["nmi"]
            row[f"mi_{facet}"] = runner.history[-1][f"mutual_information_{facet}"]
        rows.append(row)
        print(
            f"seed {seed}  " + "  ".join(f"{name} {value:.3f}" for name, value in row.items()),
            flush=True,
        )
    print_table(rows)


if __name__ == "__main__":
    main()
