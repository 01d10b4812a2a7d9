"""Principal components of a table: how many exceed chance, and what linear latents leave."""

from __future__ import annotations

from math import prod

import numpy as np
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer

from facetvae.table_rules.rows import is_missing, some_rows

#: Columns of a narrow table, and the most principal components of a wide one.
NARROW = 15
# Most rows that components are judged on: all together, and one after the other.
MAX_ROWS, MAX_ROWS_BEYOND = 5000, 2000
# How far a component exceeds the largest of the shuffled tables, and how many of these there are.
EXCESS, SHUFFLES = 1.2, 5
# Bounds on the residual's deviation, in the data's own: with less, only the reconstruction would
# count; with more, latents would have nothing to encode.
RESIDUAL_SHARE = (0.1, 0.6)
# Least variance of a standardized column that others do not tell.
LEAST_UNTOLD = 0.05


def rank(x: np.ndarray) -> int:
    """The number of dimensions in which data ``[N, D]`` vary, in single precision."""
    rows = some_rows(x, most=MAX_ROWS)
    return int(np.linalg.matrix_rank(rows - rows.mean(0), rtol=1e-5))


def principal_dimensions(x: np.ndarray, at_least: int, at_most: int, seed: int = 0) -> int:
    """How many principal components of standardized ``x`` ``[N, D]`` exceed the 95 % quantile of
    shuffled columns (parallel analysis; Horn, 1965), within bounds.
    """
    rows = some_rows(x, most=MAX_ROWS)
    rng = np.random.default_rng(seed)
    chance = np.quantile([_spectrum(rng.permuted(rows, axis=0)) for _ in range(20)], 0.95, axis=0)
    more = _spectrum(rows) > chance
    return int(np.clip(more.argmin() if not more.all() else len(more), at_least, at_most))


def _spectrum(x: np.ndarray) -> np.ndarray:
    """Variances of the principal components, largest first."""
    return squared_singular(x - x.mean(0))


def components_beyond_chance(x: np.ndarray, seed: int) -> int:
    """How many principal components of standardized ``x`` ``[N, D]`` to look for clusters in: all
    if it varies in ``NARROW`` dimensions or fewer (Dobriban and Owen, 2019).
    """
    x = some_rows(x, most=MAX_ROWS_BEYOND)
    u, s, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
    dims = int((s > 1e-5 * max(s[0], np.finfo(float).tiny)).sum())
    if dims <= NARROW:
        return dims
    rng, full = np.random.default_rng(seed), min(len(x) - 1, x.shape[1])
    for k in range(NARROW):
        rest = (u[:, k:] * s[k:]) @ vt[k:]
        chance = max(largest(rng.permuted(rest, axis=0)) for _ in range(SHUFFLES))
        # What is left has the same variance in fewer dimensions than a shuffled table.
        if s[k] ** 2 <= EXCESS * chance * full / (dims - k):
            return k
    return NARROW


def noise_of(x: np.ndarray) -> np.ndarray:
    """Deviation of what other columns do not tell of each column of standardized ``x`` ``[N, D]``,
    by least squares, shrunken: ``[D]``. A column that nothing tells of has 1.
    """
    precision = LedoitWolf().fit(some_rows(x, most=MAX_ROWS).astype(float)).precision_
    return np.sqrt((1 / np.diag(precision)).clip(LEAST_UNTOLD))


def squared_singular(x: np.ndarray) -> np.ndarray:
    """Squared singular values, largest first, by the smaller product of ``x`` with itself."""
    product = x.T @ x if x.shape[1] <= len(x) else x @ x.T
    return np.linalg.eigvalsh(product)[::-1]


def largest(x: np.ndarray) -> float:
    """The largest squared singular value."""
    return float(squared_singular(x).max(initial=0.0))


def residual_scale(x: np.ndarray, dim: int) -> float:
    """Deviation of probabilistic PCA's noise with ``dim`` components (Tipping and Bishop, 1999),
    within bounds; gaps of ``x`` ``[N, ...]`` take their column's mean, and do not count.
    """
    rows = some_rows(x, most=MAX_ROWS).reshape(-1, prod(x.shape[1:])).astype(float)
    missing = is_missing(rows)
    total = float(np.nanstd(rows)) if not missing.all() else 1.0
    low, high = (share * (total or 1.0) for share in RESIDUAL_SHARE)
    k = min(dim, rows.shape[1] - 1, len(rows) - 1)
    if k < 1:
        return high
    imputer = SimpleImputer(keep_empty_features=True).set_output(transform="default")
    complete = imputer.fit_transform(rows) if missing.any() else rows
    with np.errstate(invalid="ignore"):  # shares of the variance of constant data
        noise = PCA(k, random_state=0).fit(complete).noise_variance_ / (1 - missing.mean())
    return float(np.clip(np.sqrt(noise), low, high))
