"""Embeddings: rows of length one, as encoders of texts and images give them. The model sees leading
principal components; what is left is normal noise (probabilistic PCA; Tipping and Bishop, 1999).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from facetvae.estimators.arrays import Reader, View
from facetvae.estimators.encoding import Encoding
from facetvae.table_rules.rows import some_rows
from ppl_models import Likelihood

# Fewest columns of embeddings, so that no ordinary table is taken for them, and how far from one
# the length of a row may be: rounding to 16 bits moves it by less than a hundredth of this.
FEWEST_COLUMNS, TOLERANCE = 32, 5e-3
# Rows that are looked at first, and the share of rows of length one that is no chance.
LOOKED_AT, NEARLY_ALL = 100, 0.9
# Principal components that the model sees, and fewest rows for each.
COMPONENTS, ROWS_PER_COMPONENT = 30, 20
# Share of the first component's variance below which another is rounding.
ROUNDING = 1e-8


def of_length_one(X: np.ndarray) -> np.ndarray:
    """Which rows ``[N]`` of ``X`` ``[N, D]`` have length one."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt(np.einsum("nd,nd->n", X, X, dtype=float))
    return np.abs(length - 1) < TOLERANCE


def are_embeddings(X: np.ndarray) -> bool:
    """Whether ``X`` has at least 32 columns of floats, and rows that all have length one."""
    is_float = X.dtype.kind == "f" and X.dtype.itemsize <= np.dtype(float).itemsize
    if not is_float or X.ndim != 2 or X.shape[1] < FEWEST_COLUMNS or not len(X):
        return False
    usual = of_length_one(X[:LOOKED_AT])  # which suffice to tell most tables
    if usual.mean() >= NEARLY_ALL:
        usual = of_length_one(X)
    if NEARLY_ALL <= usual.mean() < 1:
        warnings.warn(
            f"rows {np.flatnonzero(~usual)[:5].tolist()} of X have not the length one, as nearly "
            "all others have, and so X is read as a table: leave such rows out, and it is read as "
            "embeddings",
            stacklevel=5,
        )
    return bool(usual.all())


@dataclass(frozen=True)
class EmbeddingEncoding(Encoding):
    """The map between rows of length one and their leading principal components.

    :ivar noise: deviation of the rows along each other direction.
    """

    noise: float = 1.0

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Rows of length one ``[N, D]``."""
        rows = super().decode(x)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(np.finfo(float).tiny)

    def _log_volume(self, X: np.ndarray) -> np.ndarray:
        """Less the log-density of what components leave of each row, which is normal noise."""
        p, D = self.directions.shape
        seen = np.square(self._standardized(X) * self.scale).sum(1)
        left = np.square(X.astype(float) - self.loc).sum(1) - seen
        rest = (D - p) / 2 * log(2 * pi * self.noise**2) + left.clip(0) / (2 * self.noise**2)
        return np.log(self.scale).sum() + rest


def embedding_encoding(X: np.ndarray) -> EmbeddingEncoding:
    """The encoding for embeddings ``X`` ``[N, D]``: 30 components, or fewer of few rows."""
    rows = some_rows(X).astype(float)
    p = int(np.clip(len(X) // ROWS_PER_COMPONENT, 1, min(COMPONENTS, *rows.shape)))
    pca = PCA(p, svd_solver="covariance_eigh").fit(rows)
    variance = pca.explained_variance_
    kept = variance > max(ROUNDING * variance[0], np.finfo(float).tiny)
    kept[0] = True
    scale = np.sqrt(variance.clip(np.finfo(float).tiny))[kept]
    noise = float(np.sqrt(max(pca.noise_variance_, np.finfo(np.float32).eps ** 2)))
    turns, shape = pca.components_[kept], X.shape[1:]
    how = {"directions": turns, "noise": noise}
    return EmbeddingEncoding("embeddings", shape, pca.mean_, scale, 0.0, **how)


@dataclass(frozen=True)
class EmbeddingView(View):
    """Components with their own deviations (``scale`` ``[p]``), all of which are looked at."""

    linear = False
    scale: np.ndarray

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return x * (self.scale / self.scale[0])


@dataclass(frozen=True)
class EmbeddingReader(Reader):
    """Rows of length one: read as leading principal components, and returned with length one."""

    def encoding(self, X: np.ndarray, likelihood: Likelihood | None, rows: Any = None) -> Encoding:
        return embedding_encoding(X)

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        return EmbeddingView(encoding.scale, dims=len(encoding.scale))

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        if not (usual := of_length_one(X)).all():
            row = int(usual.argmin())
            raise ValueError(
                f"row {row} of X has the length {np.linalg.norm(X[row].astype(float)):.4g}, but "
                "the training data were embeddings, whose rows have length one: divide by "
                "np.linalg.norm(X, axis=1, keepdims=True), and leave out rows with gaps"
            )
