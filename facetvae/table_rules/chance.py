"""How many principal components of a table exceed chance."""

from __future__ import annotations

import numpy as np
from sklearn.impute import SimpleImputer

from facetvae.table_rules.rows import thinned

#: Columns of a narrow table, and the most principal components of a wide one.
NARROW = 15
# Most rows that components are judged on: all together, and one after the other.
MAX_ROWS, MAX_ROWS_BEYOND = 5000, 2000
# How far a component exceeds the largest of the shuffled tables, and how many of these there are.
EXCESS, SHUFFLES = 1.2, 5


def rank(x: np.ndarray) -> int:
    """The number of dimensions in which data ``[N, D]`` vary, in single precision."""
    rows = filled(thinned(x, MAX_ROWS))
    return int(np.linalg.matrix_rank(rows - rows.mean(0), rtol=1e-5))


def principal_dimensions(x: np.ndarray, at_least: int, at_most: int, seed: int = 0) -> int:
    """How many principal components of standardised ``x`` ``[N, D]`` exceed chance, within bounds.

    A component counts if its variance exceeds the 95 % quantile over data sets whose columns are
    shuffled independently (parallel analysis; Horn, 1965).
    """
    rows = filled(thinned(x, MAX_ROWS))
    rng = np.random.default_rng(seed)
    chance = np.quantile([_spectrum(rng.permuted(rows, axis=0)) for _ in range(20)], 0.95, axis=0)
    more = _spectrum(rows) > chance
    return int(np.clip(more.argmin() if not more.all() else len(more), at_least, at_most))


def filled(rows: np.ndarray) -> np.ndarray:
    """Rows ``[N, D]`` whose gaps hold their column's mean: an array, whatever scikit-learn is set
    to give the user.
    """
    imputer = SimpleImputer(keep_empty_features=True).set_output(transform="default")
    return imputer.fit_transform(rows)


def _spectrum(x: np.ndarray) -> np.ndarray:
    """Variances of the principal components, largest first."""
    return np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2


def components_beyond_chance(x: np.ndarray, seed: int) -> int:
    """How many principal components of standardised ``x`` ``[N, D]`` to look for clusters in: all
    if it varies in ``NARROW`` dimensions or fewer.

    Removing k components leaves the same variance in fewer dimensions than a shuffled table has;
    the chance spectrum is scaled by that ratio.
    """
    x = thinned(x, MAX_ROWS_BEYOND)
    u, s, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
    dims = int((s > 1e-5 * max(s[0], np.finfo(float).tiny)).sum())
    if dims <= NARROW:
        return dims
    rng = np.random.default_rng(seed)
    full, most = min(len(x) - 1, x.shape[1]), min(NARROW, dims)
    for k in range(most):
        rest = (u[:, k:] * s[k:]) @ vt[k:]
        chance = max(largest(rng.permuted(rest, axis=0)) for _ in range(SHUFFLES))
        if s[k] ** 2 <= EXCESS * chance * full / (dims - k):
            return k
    return most


def largest(x: np.ndarray) -> float:
    """The largest squared singular value, by the smaller product of ``x`` with itself, which is
    faster than a decomposition.
    """
    product = x.T @ x if x.shape[1] <= len(x) else x @ x.T
    return float(np.linalg.eigvalsh(product).max(initial=0.0))
