"""Is a sample unimodal? The dip test (Hartigan and Hartigan, 1985)."""

from __future__ import annotations

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from facetvae.table_rules.rows import some_rows

# Root N times the dip of draws of a uniform distribution, and how often it is exceeded: from 7,774
# draws of 500 values.
DIPS = (0.2842, 0.3675, 0.4442, 0.4874, 0.5287, 0.5765, 0.61, 0.6347, 0.6646, 0.7101)
DIP_LEVELS = (0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# Of longer samples so many are drawn.
MAX_VALUES = 2000
# Fewest rows of a cluster whose dip is tested.
FEWEST = 5


def dip_p_value(values: np.ndarray) -> float:
    """The probability of so large a dip in draws of a uniform distribution, the unimodal one that
    is hardest to tell (Hartigan and Hartigan, 1985, section 3), interpolated.
    """
    values = some_rows(values, most=MAX_VALUES)
    size = len(values) * dip(values) ** 2
    square, log_p = np.square(DIPS), np.log(DIP_LEVELS)
    slope = (log_p[-1] - log_p[-2]) / (square[-1] - square[-2])
    beyond = slope * max(0.0, size - square[-1])
    return float(np.exp(np.interp(size, square, log_p) + beyond))


def dip_between(z: np.ndarray, first: np.ndarray) -> float:
    """The p-value of the dip between two clusters, along the line that separates them best; 1 if
    one has fewer than five rows.

    :param z: ``[N, d]``.
    :param first: which rows are of the first cluster ``[N]``.
    """
    if min(first.sum(), len(first) - first.sum()) < FEWEST:
        return 1.0
    line = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-6)
    return dip_p_value(line.fit(z, first).decision_function(z))


def dip(values: np.ndarray) -> float:
    """How far the empirical distribution of distinct ``values`` ``[N]`` is from the nearest
    unimodal one: the largest difference of the two distribution functions, between 1 / (2 N) and
    1 / 4 (Hartigan and Hartigan, 1985, section 4; here with ranks as values).
    """
    x = np.sort(values)
    if x[0] == x[-1]:
        return 1 / (2 * len(x))
    low, high, largest = 0, len(x) - 1, 1.0
    while True:
        convex, concave = _hull(x, low, high, 1), _hull(x, low, high, -1)
        above = np.interp(x[convex], x[concave], concave.astype(float)) - convex + 1
        below = concave - np.interp(x[concave], x[convex], convex.astype(float)) + 1
        if above.max() >= below.max():
            left = int(convex[above.argmax()])
            right = max(left, int(concave[np.searchsorted(x[concave], x[left])]))
        else:
            right = int(concave[below.argmax()])
            left = min(right, int(convex[np.searchsorted(x[convex], x[right], side="right") - 1]))
        if max(above.max(), below.max()) <= largest:
            break
        before, after = np.arange(low, left + 1), np.arange(right, high + 1)
        minorant = np.interp(x[before], x[convex], convex.astype(float))
        majorant = np.interp(x[after], x[concave], concave.astype(float))
        largest = max(
            largest, (before - minorant + 1).max(initial=0), (majorant - after + 1).max(initial=0)
        )
        if left >= right or (left == low and right == high):
            break
        low, high = left, right
    return float(largest / (2 * len(x)))


def _hull(x: np.ndarray, low: int, high: int, sign: int) -> np.ndarray:
    """Ranks at which the lower (``sign`` 1) or upper (-1) hull of the points (x, rank) bends."""
    hull = [low]
    for i in range(low + 1, high + 1):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if sign * (b - a) * (x[i] - x[a]) < sign * (i - a) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull)
