"""Clusters that are all combinations of two groupings: which rows and columns of a grid they are.

Rows and columns explain the centers as in a two-way analysis of variance. A hierarchy is explained
by its rows alone; so the smaller of two shares counts, that of the columns in what the rows leave
and the reverse, compared with those of centers turned at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import entropy, ortho_group

# Of random grids that are as good, and how many of these there are.
LEVEL, RANDOM = 0.01, 99
# Information that two facets share, in nats, from which on they are one: independent labelings
# share up to 0.09.
JOINT = 0.35
# Places of the clusters from which the best grid is sought.
STARTS = 20


def grid_of(centers: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The row and the column of each of K clusters in a grid without gaps.

    :param centers: ``[K, d]``, in units of the deviation within clusters.
    :returns: two arrays of integers ``[K]``, the one with more values first; ``None`` if no grid
        of two rows and columns or more is better than by chance.
    """
    rng = np.random.default_rng(seed)
    centered = centers - centers.mean(0)
    found = _best(centered @ centered.T, rng)
    if found is None:
        return None
    share, rows, columns = found
    as_good = 1  # the grid itself
    for products in _turned_at_random(centered, rng):
        other = _best(products, rng)
        as_good += other is not None and other[0] >= share
        if as_good > LEVEL * (RANDOM + 1):
            return None
    return _in_order(rows), _in_order(columns)


def _turned_at_random(centered: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Products ``[K, K]`` of centers with the same principal components."""
    K = len(centered)
    size = np.linalg.svd(centered, compute_uv=False)[: K - 1]
    without_mean = np.linalg.svd(np.eye(K) - 1 / K)[0][:, : K - 1]
    for _ in range(RANDOM):
        turn = ortho_group.rvs(K - 1, random_state=rng)[:, : len(size)]
        scores = without_mean @ (turn * size)
        yield scores @ scores.T


def _best(
    products: np.ndarray, rng: np.random.Generator
) -> tuple[float, np.ndarray, np.ndarray] | None:
    """The best grid of any size: how good, and the row and column of each cluster."""
    K = len(products)
    sizes = [K // k for k in range(2, int(np.sqrt(K)) + 1) if K % k == 0]
    return max((_of_size(products, k, rng) for k in sizes), key=lambda grid: grid[0], default=None)


def _of_size(
    products: np.ndarray, rows: int, rng: np.random.Generator
) -> tuple[float, np.ndarray, np.ndarray]:
    K = len(products)
    climbed = [_climb(products, *np.divmod(rng.permutation(K), K // rows)) for _ in range(STARTS)]
    row, column = max(climbed, key=lambda grid: sum(_share(products, part) for part in grid))
    of_row, of_column = _share(products, row), _share(products, column)
    tiny = np.finfo(float).eps
    left = of_column / max(1 - of_row, tiny), of_row / max(1 - of_column, tiny)
    return min(left), row, column


def _climb(
    products: np.ndarray, row: np.ndarray, column: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Two clusters change places while that helps."""
    least = 1e-9 * np.trace(products)
    while True:
        gain = _gain(products, row) + _gain(products, column)
        a, b = np.unravel_index(gain.argmax(), gain.shape)
        if gain[a, b] <= least:
            return row, column
        row[[a, b]], column[[a, b]] = row[[b, a]], column[[b, a]]


def _share(products: np.ndarray, part: np.ndarray) -> float:
    """Of the centers' variance, that of the means of equal parts."""
    one = np.eye(part.max() + 1)[part]
    size = len(part) // one.shape[1]
    return float((one * (products @ one)).sum() / size / np.trace(products))


def _gain(products: np.ndarray, part: np.ndarray) -> np.ndarray:
    """What the variance of the parts' means gains if two clusters change places ``[K, K]``."""
    K = len(part)
    sums = products @ np.eye(part.max() + 1)[part]  # of each cluster's products with a part
    own, size = sums[np.arange(K), part], K // sums.shape[1]
    other, square = sums[:, part], np.diag(products)
    gain = other + other.T - own - own[:, None] + square + square[:, None] - 2 * products
    return np.where(part == part[:, None], 0.0, 2 * gain / size)


def _in_order(part: np.ndarray) -> np.ndarray:
    """Numbered by the first cluster of each part."""
    _, first, inverse = np.unique(part, return_index=True, return_inverse=True)
    return first.argsort().argsort()[inverse]


def shared_information(labels: Sequence[np.ndarray]) -> float:
    """The sum of the labelings' entropies less that of their combination, in nats."""
    alone = sum(entropy(np.unique(label, return_counts=True)[1]) for label in labels)
    together = np.unique(np.stack(labels), axis=1, return_counts=True)[1]
    return float(alone - entropy(together))
