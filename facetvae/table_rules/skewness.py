"""Columns of real numbers with their skewness removed, where that describes the data better: a
mixture of normals takes long tails for clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
# Least distance from 0 that a logarithm is taken of, in deviations.
NEAREST = 1e-9


@dataclass(frozen=True)
class Unskewed:
    """Yeo and Johnson's power of each column (2000, Eq. 2.1), or all columns' logarithms,
    standardized.

    :ivar power: ``[D]``, 1 where a column is as it was.
    :ivar loc: mean of the transformed columns ``[D]``.
    :ivar scale: their deviation ``[D]``.
    :ivar origin: what logarithms are taken of distances from ``[D]``; ``None`` for powers.
    """

    power: np.ndarray
    loc: np.ndarray
    scale: np.ndarray
    origin: np.ndarray | None = None

    def apply(self, x: np.ndarray) -> np.ndarray:
        """``[N, D]``, NaN where missing."""
        return (self._transformed(x) - self.loc) / self.scale

    def below(self, x: np.ndarray) -> np.ndarray:
        """Which columns ``[D]`` have values that no logarithm is taken of."""
        if self.origin is None:
            return np.zeros(x.shape[1], bool)
        return np.any(x.astype(np.float32) <= self.origin.astype(np.float32), axis=0)

    def undo(self, y: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # the caller's bounds are finite
            if self.origin is not None:
                return np.exp(y * self.scale + self.loc) + self.origin
            return self._transformer().inverse_transform(y * self.scale + self.loc)

    def log_slope(self, x: np.ndarray) -> np.ndarray:
        """Log of the derivative of :meth:`apply` at each entry ``[N, D]``."""
        if self.origin is not None:
            return -self._transformed(x) - np.log(self.scale)
        return np.sign(x) * (self.power - 1) * np.log1p(np.abs(x)) - np.log(self.scale)

    def _transformed(self, x: np.ndarray) -> np.ndarray:
        if self.origin is not None:
            return np.log((x - self.origin).clip(NEAREST))
        return self._transformer().transform(x)

    def _transformer(self) -> PowerTransformer:
        transformer = PowerTransformer(standardize=False).set_output(transform="default")
        transformer.lambdas_ = self.power
        transformer.n_features_in_ = len(self.power)
        return transformer


def unskewed_if_better(x: np.ndarray, zero: np.ndarray | None = None) -> Unskewed | None:
    """The powers that bring each column nearest to a normal, or, of columns that are all positive,
    logarithms, under which factors of all of them add up; ``None`` unless a mixture of normals in
    principal components, and noise, then describe held-out rows better, in the units of ``x``, of
    the most skewed columns. Where none is skewed nothing is fitted.

    :param x: ``[N, D]``, standardized; NaN where missing.
    :param zero: the place of 0 in each column ``[D]``.
    """
    rows = some_rows(x, most=MAX_ROWS)
    fitted = np.random.default_rng(0).permutation(len(rows)) % 3 < FITTED
    if len(rows) < FEWEST or x.shape[1] < 1:
        return None
    skewness = np.abs(np.nansum(rows**3, 0)) / (~np.isnan(rows)).sum(0).clip(1)
    # Between few values, as of answers from 1 to 5, a power would only move the steps.
    on_a_scale = (len(np.unique(own[~np.isnan(own)])) <= FEW_VALUES for own in rows.T)
    if skewness.max() < SYMMETRIC or all(on_a_scale):
        return None
    judged = skewness.argsort()[-MOST_SKEWED:]
    rows = rows[:, judged]
    candidates = [fitted_powers(rows[fitted])]
    if zero is not None and _all_beyond(x, zero):
        candidates.append(fitted_powers(rows[fitted], zero[judged]))
    candidates = [f for f in candidates if f.origin is not None or not np.allclose(f.power, 1)]
    if not candidates:
        return None
    before, most, best = _log_density(rows, fitted), 0.0, None
    for found in candidates:
        slope = np.nansum(found.log_slope(rows[~fitted]), 1)
        gain = _log_density(found.apply(rows), fitted) + slope - before
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        if gain.mean() > max(SIGNIFICANT * error, most):
            most, best = gain.mean(), found
    return best and fitted_powers(x, zero if best.origin is not None else None)


def _all_beyond(x: np.ndarray, zero: np.ndarray) -> bool:
    """Whether several columns vary, and all are positive."""
    with np.errstate(invalid="ignore"):
        low, high = np.fmin.reduce(x), np.fmax.reduce(x)
    return len(zero) > 1 and bool(((low > zero) & (high > low)).all())


def fitted_powers(x: np.ndarray, origin: np.ndarray | None = None) -> Unskewed:
    """The likeliest powers of columns ``[N, D]``, NaN where missing, or logarithms of distances
    from ``origin`` ``[D]``. Constant and empty columns stay as they are.
    """
    if origin is not None:
        logs = np.log(x - origin)
        one = np.ones(x.shape[1])
        return Unskewed(one, np.nanmean(logs, 0), np.nanstd(logs, 0).clip(NEAREST), origin)
    varies = np.fmax.reduce(x) > np.fmin.reduce(x)
    power, loc, scale = np.ones(x.shape[1]), np.zeros(x.shape[1]), np.ones(x.shape[1])
    if varies.any():
        fitted = PowerTransformer(standardize=False).fit(x[:, varies])
        power[varies] = fitted.lambdas_.clip(LOWEST, HIGHEST)
        columns = Unskewed(power, loc, scale).apply(x)[:, varies]
        loc[varies], scale[varies] = np.nanmean(columns, 0), np.nanstd(columns, 0)
    return Unskewed(power, loc, scale)


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
