"""Columns of real numbers that are given another form, where that describes the data better: a
mixture of normals takes long tails, and values at a bound, for clusters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.decomposition import PCA
from sklearn.preprocessing import PowerTransformer

from facetvae.table_rules.components import principal_dimensions
from facetvae.table_rules.levels import FEW_VALUES
from facetvae.table_rules.merging import likeliest_mixture
from facetvae.table_rules.rows import some_rows

# Bounds on the powers: 0 takes logarithms of the upper tail, 2 of the lower one. Beyond them, a
# model's output may have no counterpart in the user's units.
LOWEST, HIGHEST = 0.0, 2.0
# Fewest and most rows to judge by, the most skewed columns that are judged, most principal
# components, and how many of three rows are fitted to.
FEWEST, MAX_ROWS, MOST_SKEWED, MAX_DIM, FITTED = 30, 1500, 30, 10, 2
# Skewness below which a column is roughly symmetric (Bulmer, 1979, *Principles of Statistics*).
SYMMETRIC = 0.5
# By how many standard errors the transformed data must be more likely.
SIGNIFICANT = 3.0
# Least distance from 0 that a logarithm is taken of, in deviations; and from a bound, as a share of
# the distance of the two.
NEAREST, LEAST_SHARE = 1e-9, 2.0**-53
# Location and scale, until they are known.
UNIT = (np.zeros(1), np.ones(1))


@dataclass(frozen=True)
class Unskewed(ABC):
    """Another form of columns, standardized.

    :ivar loc: mean of the transformed columns ``[D]``.
    :ivar scale: their deviation ``[D]``.
    """

    loc: np.ndarray
    scale: np.ndarray

    def apply(self, x: np.ndarray) -> np.ndarray:
        """``[N, D]``, NaN where missing."""
        return (self._transformed(x) - self.loc) / self.scale

    def undo(self, y: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # the caller's bounds are finite
            return self._inverse(y * self.scale + self.loc)

    def log_slope(self, x: np.ndarray) -> np.ndarray:
        """Log of the derivative of :meth:`apply` at each entry ``[N, D]``."""
        return self._log_slope(x) - np.log(self.scale)

    def beyond(self, x: np.ndarray) -> np.ndarray:
        """Which columns ``[D]`` have values that have no such form."""
        return np.zeros(x.shape[1], bool)

    def standardized(self, x: np.ndarray) -> Unskewed:
        """With the location and scale of columns ``[N, D]``."""
        y = self._transformed(x)
        return replace(self, loc=np.nanmean(y, 0), scale=np.nanstd(y, 0).clip(NEAREST))

    @abstractmethod
    def _transformed(self, x: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def _inverse(self, y: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def _log_slope(self, x: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Powers(Unskewed):
    """Yeo and Johnson's (2000, Eq. 2.1).

    :ivar power: ``[D]``, 1 where a column is as it was.
    """

    power: np.ndarray

    def __str__(self) -> str:
        return "powers"

    def _transformed(self, x: np.ndarray) -> np.ndarray:
        return self._transformer().transform(x)

    def _inverse(self, y: np.ndarray) -> np.ndarray:
        return self._transformer().inverse_transform(y)

    def _log_slope(self, x: np.ndarray) -> np.ndarray:
        return np.sign(x) * (self.power - 1) * np.log1p(np.abs(x))

    def _transformer(self) -> PowerTransformer:
        transformer = PowerTransformer(standardize=False).set_output(transform="default")
        transformer.lambdas_ = self.power
        transformer.n_features_in_ = len(self.power)
        return transformer


@dataclass(frozen=True)
class Logarithms(Unskewed):
    """Under which factors of all columns add up.

    :ivar origin: what they are taken of distances from ``[D]``.
    """

    origin: np.ndarray

    def __str__(self) -> str:
        return "logarithms"

    def beyond(self, x: np.ndarray) -> np.ndarray:
        return np.any(x <= self.origin, axis=0)

    def _transformed(self, x: np.ndarray) -> np.ndarray:
        return np.log((x - self.origin).clip(NEAREST))

    def _inverse(self, y: np.ndarray) -> np.ndarray:
        return np.exp(y) + self.origin

    def _log_slope(self, x: np.ndarray) -> np.ndarray:
        return -self._transformed(x)


@dataclass(frozen=True)
class NormalScores(Unskewed):
    """Quantiles of the standard normal, of probabilities or ranks.

    :ivar low: the least that a column may be ``[D]``.
    :ivar high: the most ``[D]``.
    """

    low: np.ndarray
    high: np.ndarray

    def __str__(self) -> str:
        return "normal scores"

    def beyond(self, x: np.ndarray) -> np.ndarray:
        return np.any((x <= self.low) | (x >= self.high), axis=0)

    def _transformed(self, x: np.ndarray) -> np.ndarray:
        share = (x - self.low) / (self.high - self.low)
        return ndtri(share.clip(LEAST_SHARE, 1 - LEAST_SHARE))

    def _inverse(self, y: np.ndarray) -> np.ndarray:
        return self.low + ndtr(y) * (self.high - self.low)

    def _log_slope(self, x: np.ndarray) -> np.ndarray:
        volume = np.log(self.high - self.low) - np.log(2 * np.pi) / 2
        return self._transformed(x) ** 2 / 2 - volume


def unskewed_if_better(
    x: np.ndarray, zero: np.ndarray | None = None, bounds: np.ndarray | None = None
) -> Unskewed | None:
    """The powers that bring each column nearest to a normal; of columns that are all positive,
    logarithms; of columns within the same bounds, normal scores. ``None`` unless a mixture of
    normals in principal components, and noise, then describe held-out rows better, in the units of
    ``x``, of the most skewed columns.

    :param x: ``[N, D]``, standardized; NaN where missing.
    :param zero: the place of 0 in each column ``[D]``.
    :param bounds: places that no column reaches ``[2, D]``.
    """
    rows = some_rows(x, most=MAX_ROWS)
    fitted = np.random.default_rng(0).permutation(len(rows)) % 3 < FITTED
    if len(rows) < FEWEST or x.shape[1] < 1:
        return None
    skewness = np.abs(np.nansum(rows**3, 0)) / (~np.isnan(rows)).sum(0).clip(1)
    # Between few values, as of answers from 1 to 5, a power would only move the steps.
    if all(len(np.unique(own[~np.isnan(own)])) <= FEW_VALUES for own in rows.T):
        return None
    judged = skewness.argsort()[-MOST_SKEWED:]
    rows = rows[:, judged]
    before, most, best = None, 0.0, None
    for form in _forms(x, skewness.max() >= SYMMETRIC, zero, bounds):
        found = form(rows[fitted], judged)
        if isinstance(found, Powers) and np.allclose(found.power, 1):
            continue
        before = _log_density(rows, fitted) if before is None else before
        slope = np.nansum(found.log_slope(rows[~fitted]), 1)
        gain = _log_density(found.apply(rows), fitted) + slope - before
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        if gain.mean() > max(SIGNIFICANT * error, most):
            most, best = gain.mean(), form
    return None if best is None else best(x, slice(None))


def _forms(
    x: np.ndarray, skewed: bool, zero: np.ndarray | None, bounds: np.ndarray | None
) -> Iterator[Callable[..., Unskewed]]:
    """From rows of some columns, and these columns, to forms that their ends allow."""
    with np.errstate(invalid="ignore"):
        low, high = np.fmin.reduce(x), np.fmax.reduce(x)
    several = x.shape[1] > 1 and bool((high > low).all())
    if skewed:
        yield lambda rows, own: fitted_powers(rows)
    if skewed and several and zero is not None and (low > zero).all():
        yield lambda rows, own: Logarithms(*UNIT, zero[own]).standardized(rows)
    # Of small probabilities logarithms are much the same.
    if several and bounds is not None and (high > bounds.mean(0)).any():
        yield lambda rows, own: NormalScores(*UNIT, *bounds[:, own]).standardized(rows)


def fitted_powers(x: np.ndarray) -> Powers:
    """The likeliest powers of columns ``[N, D]``, NaN where missing. Constant and empty columns
    stay as they are.
    """
    varies = np.fmax.reduce(x) > np.fmin.reduce(x)
    power, loc, scale = np.ones(x.shape[1]), np.zeros(x.shape[1]), np.ones(x.shape[1])
    if varies.any():
        fitted = PowerTransformer(standardize=False).fit(x[:, varies])
        power[varies] = fitted.lambdas_.clip(LOWEST, HIGHEST)
        columns = Powers(loc, scale, power).apply(x)[:, varies]
        loc[varies], scale[varies] = np.nanmean(columns, 0), np.nanstd(columns, 0)
    return Powers(loc, scale, power)


def _log_density(x: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Of the rows that nothing was fitted to, in nats; missing entries take their column's mean."""
    complete = np.nan_to_num(x)
    most = min(MAX_DIM, x.shape[1], int(fitted.sum()) // 3)
    pca = PCA(principal_dimensions(complete, 1, most), random_state=0)
    pca.set_output(transform="default").fit(complete[fitted])
    z = pca.transform(complete)
    mixture = likeliest_mixture(z[fitted], seed=0)
    rest = complete - pca.inverse_transform(z)
    variance = max(float(np.square(rest[fitted]).mean()), 1e-6)
    noise = -0.5 * np.square(rest).sum(1) / variance
    free = x.shape[1] - z.shape[1]
    others = noise - 0.5 * free * np.log(2 * np.pi * variance) if free else np.zeros(len(x))
    return mixture.score_samples(z[~fitted]) + others[~fitted]
