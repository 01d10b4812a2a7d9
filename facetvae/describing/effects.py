"""How much groups of rows explain of a column, and how far a group is from the others.

The interval of a share explained inverts a noncentral distribution (Steiger, 2004, *Beyond the F
test*; Smithson, 2003, *Confidence intervals*): its lower end is 0 exactly where a test of no
effect, at half of the remaining level, does not reject.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import chndtr, ncfdtr
from scipy.stats import chi2_contingency, norm
from scipy.stats import t as student

# Of all intervals, and the probabilities to exceed its lower and its upper end.
CONFIDENCE = 0.95
LEVELS = (1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2
# Largest noncentrality that is looked for, as a multiple of the statistic.
WIDEST = 64.0
# From which F statistic on the interval is the share alone, from which its ends hardly differ:
# SciPy's noncentral F is NaN from about 1e10 on.
VAST = 1e8
# A constant column far from 0 has up to ten times the rounding that single squared errors have.
ROUNDINGS = 100

Interval = tuple[float, float]


class Effect(NamedTuple):
    """How much the groups explain of a column, less what chance explains on average.

    :ivar share: in [0, 1]: of numbers an estimate of eta squared; of categories of V squared, the
        mean squared canonical correlation, which is the same for a column of two categories.
    :ivar interval: of that share.
    """

    share: float
    interval: Interval

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval[0] > 0


def variance_explained(values: np.ndarray, group: np.ndarray) -> Effect | None:
    """Share of the variance of ``[n]`` finite values that lies between the groups ``[n]``.

    The estimate is epsilon squared (Kelley, 1935), the interval that of a normal column of equal
    variances within the groups, from the noncentral F distribution.

    :returns: ``None`` with fewer than two groups, or as many groups as rows.
    """
    parts = [values[group == k] for k in np.unique(group)]
    n, between = len(values), len(parts) - 1
    within = n - len(parts)
    if between < 1 or within < 1:
        return None
    total = float(((values - values.mean()) ** 2).sum())
    rest = float(sum(((part - part.mean()) ** 2).sum() for part in parts))
    # A sum of squares of errors, each of which is of the size of the last digit.
    rounding = ROUNDINGS * np.finfo(float).eps ** 2 * float((values**2).sum())
    if rest <= rounding:  # the groups say all of the column, or there is nothing to say
        whole = float(total > rounding)
        return Effect(whole, (whole, whole))
    share = max(0.0, 1 - rest / total * (n - 1) / within)
    ratio = (total - rest) / rest
    if ratio * within > VAST * between:
        return Effect(share, (share, share))
    F = ratio * within / between
    ends = _ends(lambda nc: ncfdtr(between, within, nc, F), ratio * within)
    low, high = (nc / (nc + n) for nc in ends)
    return Effect(share, (low, high))


def associated(table: np.ndarray) -> Effect | None:
    """Association of categories and groups by their contingency table ``[levels, groups]``.

    The estimate is Cramer's V, corrected for bias (Bergsma, 2013, *A bias-correction for Cramer's
    V*), and squared; the interval is noncentral chi-squared's, and wider than need be near V = 1.

    :returns: ``None`` with fewer than two categories or groups.
    """
    table = table[table.any(1)][:, table.any(0)]
    levels, groups = table.shape
    if min(levels, groups) < 2:
        return None
    n, free = int(table.sum()), (levels - 1) * (groups - 1)
    statistic = float(chi2_contingency(table, correction=False).statistic)
    phi = max(0.0, statistic / n - free / (n - 1))
    most = min(size - (size - 1) ** 2 / (n - 1) for size in (levels, groups)) - 1
    ends = _ends(lambda nc: chndtr(statistic, free, nc), statistic)
    low, high = (min(1.0, nc / (n * (min(levels, groups) - 1))) for nc in ends)
    return Effect(min(1.0, phi / most) if most > 0 else 0.0, (low, high))


def _ends(cdf: Callable[[float], float], statistic: float) -> Interval:
    """Ends of the interval of a noncentrality, by the statistic's ``cdf``, which falls with it."""

    def where(level: float) -> float:
        """The noncentrality with this level; 0 if the level is not reached there."""
        if not cdf(0.0) > level:
            return 0.0
        high = max(1.0, statistic)
        while cdf(high) > level and high < WIDEST * max(1.0, statistic):
            high *= 2
        return float(brentq(lambda nc: cdf(nc) - level, 0.0, high, xtol=1e-6 * high))

    return where(LEVELS[0]), where(LEVELS[1])


def mean_difference(ours: np.ndarray, others: np.ndarray) -> tuple[float | None, Interval | None]:
    """Difference of two means, and Welch's interval (of unequal variances), or ``None``."""
    if not len(ours) or not len(others):
        return None, None
    value = float(ours.mean() - others.mean())
    if min(len(ours), len(others)) < 2 or not (np.ptp(ours) or np.ptp(others)):
        return value, None
    errors = np.array([part.var(ddof=1) / len(part) for part in (ours, others)])
    free = errors.sum() ** 2 / (errors**2 / (len(ours) - 1, len(others) - 1)).sum()
    half = float(student.ppf(LEVELS[0], free) * np.sqrt(errors.sum()))
    return value, (value - half, value + half)


def share_intervals(counts: np.ndarray, n: int) -> np.ndarray:
    """Wilson's intervals ``[..., 2]`` of the shares ``counts / n``."""
    z2 = float(norm.ppf(LEVELS[0])) ** 2
    share = np.asarray(counts) / n
    middle = share + z2 / (2 * n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2)))
    ends = np.stack([middle - half, middle + half], -1) / (1 + z2 / n)
    return ends.clip(0, 1)
