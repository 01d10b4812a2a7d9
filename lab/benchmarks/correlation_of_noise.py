"""What the mean correlation coefficient finds in independent noise, on the data that made the match
and on others.

python -m lab.benchmarks.correlation_of_noise
"""

from __future__ import annotations

import argparse

import numpy as np

from inference.metrics import held_out_correlation


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=50)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{'rows':>6s}{'d':>4s}{'aligned':>9s}{'in sample':>20s}{'out of sample':>20s}")
    for rows, d in ((100, 5), (400, 5), (4000, 5), (400, 50), (4000, 50)):
        for align in (False, True):
            found = [
                held_out_correlation(
                    rng.normal(size=(rows, d)), rng.normal(size=(rows, d)), align=align
                )
                for _ in range(args.trials)
            ]
            cells = (
                _mean(np.array([getattr(f, part) for f in found]))
                for part in ("in_sample", "out_of_sample")
            )
            print(f"{rows:6d}{d:4d}{align!s:>9s}" + "".join(f"{cell:>20s}" for cell in cells))


def _mean(values: np.ndarray) -> str:
    return f"{values.mean():.4f} +- {values.std(ddof=1) / np.sqrt(len(values)):.4f}"


if __name__ == "__main__":
    main()
