"""Whether a method is ahead of another beyond chance, table by table.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.rivals_paired ours "NR-Kmeans, told" --seeds 30

Both are fitted to the same data. The difference of their scores (the mean over labelings of the
normalized mutual information with the best facet) has the standard error that it has over rows
drawn anew, the same ones for both (paired bootstrap). It tells what other rows from the same source
would change, with the clusters as they are, not what another seed of a method would.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from lab.benchmarks.rivals import DATA, METHODS, Data

__all__ = ["difference", "scores"]

DRAWS = 50
SURE = 2.0  # standard errors


def best_facets(facets: np.ndarray, labels: Sequence[np.ndarray]) -> np.ndarray:
    """Of facets ``[N, J]`` that with the highest NMI with each labeling ``[N, len(labels)]``."""
    nmi = [[normalized_mutual_info_score(y, each) for each in facets.T] for y in labels]
    return facets[:, np.argmax(nmi, axis=1)]


def scores(facets: Sequence[np.ndarray], labels: Sequence[np.ndarray], seed: int = 0) -> np.ndarray:
    """Means over labelings of the NMI with the best of each method's facets, ``[1 + DRAWS, 2]``:
    of all rows, and of rows drawn anew.

    :param facets: of each of two methods ``[N, J]``.
    :param labels: ``[N]`` each.
    """
    rng, N = np.random.default_rng(seed), len(labels[0])
    best = [best_facets(each, labels) for each in facets]

    def mean(each: np.ndarray, rows: np.ndarray) -> float:
        pairs = zip(labels, each.T, strict=True)
        return float(np.mean([normalized_mutual_info_score(y[rows], z[rows]) for y, z in pairs]))

    draws = [np.arange(N), *(rng.integers(N, size=N) for _ in range(DRAWS))]
    return np.array([[mean(each, rows) for each in best] for rows in draws])


def difference(
    facets: Sequence[np.ndarray], labels: Sequence[np.ndarray], seed: int = 0
) -> tuple[float, float]:
    """By how much the first method scores higher, and the standard error of that."""
    apart = np.subtract(*scores(facets, labels, seed).T)
    return float(apart[0]), float(apart[1:].std(ddof=1))


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
