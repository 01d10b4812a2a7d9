"""How much groups of rows explain of a column, and how far a group is from the others.

The interval of a share explained inverts a noncentral distribution (Steiger, 2004, *Beyond the F
test*; Smithson, 2003, *Confidence intervals*): its lower end is 0 exactly where a test of no
effect, at half of the remaining level, does not reject.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import chndtr, ncfdtr
from scipy.stats import chi2, chi2_contingency, norm
from scipy.stats import t as student
from scipy.stats.contingency import association

# Largest noncentrality that is looked for, as a multiple of the statistic.
WIDEST = 64.0
# From which F statistic on the limit is taken, which has four digits of the interval in common with
# the exact one there: SciPy's noncentral F is NaN from about 1e10 on.
VAST = 1e8
# A constant column far from 0 has up to ten times the rounding that single squared errors have.
ROUNDINGS = 100

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """A number and its interval; ``None`` where the data do not allow one."""

    value: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Effect:
    """How much the groups explain of a column.

    :ivar measure: the measure of ``raw``: ``"eta squared"`` or ``"Cramer's V"``.
    :ivar raw: as it is in these rows; it exceeds 0 by chance alone.
    :ivar share: the share explained, in [0, 1], less what chance explains on average. For numbers
        an estimate of eta squared; for categories of V squared, the mean squared canonical
        correlation, which is the same for a column of two categories.
    :ivar interval: of that share.
    """

    measure: str
    raw: float
    share: float
    interval: Interval

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval[0] > 0


def variance_explained(
    values: np.ndarray, group: np.ndarray, confidence: float = 0.95
) -> Effect | None:
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
        return Effect("eta squared", whole, whole, (whole, whole))
    raw = 1 - rest / total
    share = max(0.0, 1 - (1 - raw) * (n - 1) / within)
    ratio = (total - rest) / rest
    low, high = (nc / (nc + n) for nc in _noncentralities(ratio, between, within, confidence))
    return Effect("eta squared", raw, share, (low, high))


def _noncentralities(ratio: float, between: int, within: int, confidence: float) -> Interval:
    """Both ends of the interval, for a ratio of the sums of squares between and within groups."""
    if ratio > VAST * between / within:  # where what varies is the sum within alone
        low, high = chi2.interval(confidence, within)
        return ratio * float(low), ratio * float(high)
    F = ratio * within / between
    return _ends(lambda nc: ncfdtr(between, within, nc, F), ratio * within, confidence)


def associated(table: np.ndarray, confidence: float = 0.95) -> Effect | None:
    """Association of categories and groups by their contingency table ``[levels, groups]``.

    The estimate is Cramer's V, corrected for bias (Bergsma, 2013), and squared; the interval is
    from the noncentral chi-squared distribution, and wider than need be where V is near 1.

    :returns: ``None`` with fewer than two categories or groups.
    """
    table = table[table.any(1)][:, table.any(0)]
    levels, groups = table.shape
    if min(levels, groups) < 2:
        return None
    n, least = int(table.sum()), min(levels, groups) - 1
    free = (levels - 1) * (groups - 1)
    statistic = float(chi2_contingency(table, correction=False).statistic)
    raw = float(association(table, method="cramer", correction=False))
    share = _unbiased_v_squared(statistic / n, levels, groups, n)
    ends = _ends(lambda nc: chndtr(statistic, free, nc), statistic, confidence)
    low, high = (min(1.0, nc / (n * least)) for nc in ends)
    return Effect("Cramer's V", min(1.0, raw), share, (low, high))


def _unbiased_v_squared(phi: float, levels: int, groups: int, n: int) -> float:
    """V squared by ``phi``, chi squared over n (Bergsma, 2013, *A bias-correction for Cramer's
    V*).
    """
    corrected = max(0.0, phi - (levels - 1) * (groups - 1) / (n - 1))
    least = min(size - (size - 1) ** 2 / (n - 1) for size in (levels, groups)) - 1
    return min(1.0, corrected / least) if least > 0 else 0.0


def _ends(cdf: Callable[[float], float], statistic: float, confidence: float) -> Interval:
    """Both ends of the interval of a noncentrality.

    :param cdf: of the statistic that was found, as a function of the noncentrality; it falls.
    """

    def where(level: float) -> float:
        """The noncentrality with this level; 0 if the level is not reached there."""
        if not cdf(0.0) > level:
            return 0.0
        high = max(1.0, statistic)
        while cdf(high) > level and high < WIDEST * max(1.0, statistic):
            high *= 2
        return float(brentq(lambda nc: cdf(nc) - level, 0.0, high, xtol=1e-6 * high))

    return where((1 + confidence) / 2), where((1 - confidence) / 2)


def mean_difference(ours: np.ndarray, others: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Difference of two means, with Welch's interval, which needs no equal variances."""
    if not len(ours) or not len(others):
        return Estimate(None, None)
    value = float(ours.mean() - others.mean())
    if min(len(ours), len(others)) < 2 or not (np.ptp(ours) or np.ptp(others)):
        return Estimate(value, None)
    errors = np.array([part.var(ddof=1) / len(part) for part in (ours, others)])
    free = errors.sum() ** 2 / (errors**2 / (len(ours) - 1, len(others) - 1)).sum()
    half = float(student.ppf((1 + confidence) / 2, free) * np.sqrt(errors.sum()))
    return Estimate(value, (value - half, value + half))


def rate_ratio(ours: np.ndarray, others: np.ndarray, confidence: float = 0.95) -> Estimate:
    """Ratio of two mean counts; the interval is normal for its logarithm, with the variances that
    the counts have, so that they may vary more than a Poisson variable.
    """
    if not len(ours) or not len(others) or not others.mean():
        return Estimate(None, None)
    value = float(ours.mean() / others.mean())
    if min(len(ours), len(others)) < 2 or not value:
        return Estimate(value, None)
    parts = (part.var(ddof=1) / (len(part) * part.mean() ** 2) for part in (ours, others))
    half = float(norm.ppf((1 + confidence) / 2)) * math.sqrt(sum(parts))
    return Estimate(value, (value * math.exp(-half), value * math.exp(half)))


def share_intervals(counts: np.ndarray, n: int, confidence: float = 0.95) -> np.ndarray:
    """Wilson's intervals ``[..., 2]`` of the shares ``counts / n``."""
    z2 = float(norm.ppf((1 + confidence) / 2)) ** 2
    share = np.asarray(counts) / n
    middle = share + z2 / (2 * n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2)))
    ends = np.stack([middle - half, middle + half], -1) / (1 + z2 / n)
    return ends.clip(0, 1)
