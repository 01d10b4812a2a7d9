"""Whether a method is ahead of another beyond chance, table by table.

    OMP_NUM_THREADS=1 python -m benchmarks.rivals_paired ours "NR-Kmeans, told" --seeds 30

Both are fitted to the same data. The difference of their scores (the mean over labellings of the
normalised mutual information with the best facet) has the standard error that it has over rows
drawn anew, the same ones for both (paired bootstrap). It tells what other rows from the same source
would change, with the clusters as they are, not what another seed of a method would.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.rivals import DATA, METHODS, Data

__all__ = ["difference", "score"]

DRAWS = 100
SURE = 2.0  # standard errors


def score(facets: np.ndarray, labels: Sequence[np.ndarray]) -> float:
    """Mean over labellings ``[N]`` of the NMI with the best of the facets ``[N, J]``."""
    best = [max(normalized_mutual_info_score(y, each) for each in facets.T) for y in labels]
    return float(np.mean(best))


def difference(
    facets: Sequence[np.ndarray], labels: Sequence[np.ndarray], seed: int = 0
) -> tuple[float, float]:
    """By how much the first clusters ``[N, J]`` score higher than the second, and its standard
    error.
    """
    rng, N = np.random.default_rng(seed), len(labels[0])

    def apart(rows: np.ndarray) -> float:
        first, second = (score(each[rows], [y[rows] for y in labels]) for each in facets)
        return first - second

    drawn = [apart(rng.integers(N, size=N)) for _ in range(DRAWS)]
    return apart(np.arange(N)), float(np.std(drawn, ddof=1))


def clusters(method: str, data: Data, seed: int) -> np.ndarray:
    return np.reshape(METHODS[method].fit(data, seed), (len(data.x), -1))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs=2, choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--data", choices=list(DATA), default="tables")
    parser.add_argument("--seeds", type=int, default=30, help="how many, counted from 0")
    args = parser.parse_args(arguments)
    found = []
    for seed in range(args.seeds):
        data = DATA[args.data].load(seed)
        facets = [clusters(method, data, seed) for method in args.methods]
        found.append(difference(facets, [*data.labels.values()]))
        print("seed {}: {:+.4f} (standard error {:.4f})".format(seed, *found[-1]), flush=True)
    ahead, behind = (sum(sign * apart > SURE * error for apart, error in found) for sign in (1, -1))
    level = args.seeds - ahead - behind
    first, second = args.methods
    print(f"{first} beside {second}: ahead in {ahead}, level in {level}, behind in {behind}")


if __name__ == "__main__":
    main()
