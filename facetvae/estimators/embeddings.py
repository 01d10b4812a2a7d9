"""Embeddings: rows as encoders of texts and images give them. The model sees leading principal
components; what is left is normal noise (probabilistic PCA; Tipping and Bishop, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from facetvae.estimators.arrays import Reader, View
from facetvae.estimators.encoding import Encoding
from facetvae.table_rules.components import MAX_ROWS, principal_dimensions
from facetvae.table_rules.rows import some_rows
from ppl_models import Likelihood
from ppl_models.warn import warn

# Fewest columns of embeddings, so that no ordinary table is taken for them, and how far from one
# the length of a row may be: rounding to 16 bits moves it by less than a hundredth of this.
FEWEST_COLUMNS, TOLERANCE = 32, 5e-3
# Rows that are looked at first, and the share of rows of length one that is no chance.
LOOKED_AT, NEARLY_ALL = 100, 0.9
# Of encoders' rows: least share of entries of each sign, and values of a column; most distance of
# the quartiles of the lengths, in medians; and least share of the squared length in common. Without
# both signs or that, as of rectified or centered ones: least columns, and most distance of lengths.
BOTH_SIGNS, FEWEST_VALUES, ALIKE, IN_COMMON, WIDE, MORE_ALIKE = 0.25, 50, 0.4, 0.05, 128, 0.2
# Their dimensions beyond chance: so many, or one for so many rows.
MANY, ROWS_PER_DIMENSION = 20, 30
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
    """Whether ``X`` has at least 32 columns of numbers, and rows that all have length one, or are
    as encoders give them.
    """
    is_number = X.dtype.kind in "if" and X.dtype.itemsize <= np.dtype(float).itemsize
    if not is_number or X.ndim != 2 or X.shape[1] < FEWEST_COLUMNS or not len(X):
        return False
    if X.dtype.kind == "i":  # ones of a category have length one, too
        return _of_an_encoder(X)
    usual = of_length_one(X[:LOOKED_AT])  # which suffice to tell most tables
    if usual.mean() >= NEARLY_ALL:
        usual = of_length_one(X)
    found = bool(usual.all()) or _of_an_encoder(X)
    if NEARLY_ALL <= usual.mean() < 1:
        warn(
            f"rows {np.flatnonzero(~usual)[:5].tolist()} of X have not the length one, as nearly "
            f"all others have, and X is read as {'embeddings' if found else 'a table'}: such rows "
            "may stand for nothing; leave them out"
        )
    return found


def _of_an_encoder(X: np.ndarray) -> bool:
    """Whether rows are of similar lengths, of both signs or fractions and never negative, of many
    values, vary in many dimensions, and have a direction in common or, as centered and rectified
    ones, many columns: by each of these most tables differ.
    """
    rows = some_rows(X, most=MAX_ROWS).astype(float)
    if not np.isfinite(rows).all():
        return False
    below = (rows < 0).mean()
    rectified = below == 0 and rows.max() > 1 and bool((rows % 1).any())
    if not (rectified or BOTH_SIGNS < below < 1 - BOTH_SIGNS):
        return False
    if np.median([len(np.unique(column)) for column in rows.T]) < FEWEST_VALUES:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        rows /= np.abs(rows).max()
        squared, loc = np.square(rows).sum(1), rows.mean(0)
        low, middle, high = np.sqrt(np.quantile(squared, (0.25, 0.5, 0.75)))
        strictly = rectified or loc @ loc <= IN_COMMON * squared.mean()
        alike = high - low < (MORE_ALIKE if strictly else ALIKE) * middle
    if not alike or (strictly and rows.shape[1] < WIDE):
        return False
    varying = rows[:, np.ptp(rows, axis=0) > 0]
    many = min(MANY, len(rows) // ROWS_PER_DIMENSION)
    return principal_dimensions(varying / varying.std(0), 0, many) == many


@dataclass(frozen=True)
class EmbeddingEncoding(Encoding):
    """The map between rows and their leading principal components.

    :ivar noise: deviation of the rows along each other direction.
    :ivar unit: whether all rows have length one.
    """

    noise: float = 1.0
    unit: bool = True

    def decode(self, x: np.ndarray) -> np.ndarray:
        rows = super().decode(x)
        if not self.unit:
            return rows
        return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(np.finfo(float).tiny)

    def _log_volume(self, X: np.ndarray) -> np.ndarray:
        """Less the log-density of what components leave of each row, which is normal noise."""
        p, D = self.directions.shape
        seen = np.square(self._standardized(X) * self.scale).sum(1)
        left = np.square(X.astype(float) - self.loc).sum(1) - seen
        rest = (D - p) / 2 * log(2 * pi * self.noise**2) + left.clip(0) / (2 * self.noise**2)
        return np.log(self.scale).sum() + rest


@dataclass(frozen=True)
class EmbeddingView(View):
    """Components in their own proportions, all of which are looked at.

    :ivar unit: what encoded ones are multiplied by ``[p]``.
    """

    linear = False
    unit: np.ndarray

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return x * self.unit


@dataclass(frozen=True)
class EmbeddingReader(Reader):
    """Read as leading principal components; returned with length one if they had it."""

    def encoding(
        self, X: np.ndarray, likelihood: Likelihood | None, rows: Any = None
    ) -> EmbeddingEncoding:
        """That of all rows: 30 components, or fewer of few rows."""
        some = some_rows(X).astype(float)
        p = int(np.clip(len(X) // ROWS_PER_COMPONENT, 1, min(COMPONENTS, *some.shape)))
        pca = PCA(p, svd_solver="covariance_eigh").fit(some)
        variance = pca.explained_variance_
        kept = variance > max(ROUNDING * variance[0], np.finfo(float).tiny)
        kept[0] = True
        scale = np.sqrt(variance.clip(np.finfo(float).tiny))[kept]
        noise = float(np.sqrt(max(pca.noise_variance_, np.finfo(np.float32).eps ** 2)))
        turns, shape = pca.components_[kept], X.shape[1:]
        how = {"directions": turns, "noise": noise, "unit": bool(of_length_one(X).all())}
        return EmbeddingEncoding("embeddings", shape, pca.mean_, scale, 0.0, **how)

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        return EmbeddingView(encoding.scale / encoding.scale[0], dims=len(encoding.scale))

    def check_gaps(self, X: np.ndarray, encoding: Any, likelihood: Likelihood) -> None:
        if not encoding.unit:
            super().check_gaps(X, encoding, likelihood)
        elif not (usual := of_length_one(X)).all():
            row = int(usual.argmin())
            raise ValueError(
                f"row {row} of X has the length {np.linalg.norm(X[row].astype(float)):.4g}, but "
                "the training data were embeddings, whose rows have length one: divide by "
                "np.linalg.norm(X, axis=1, keepdims=True), and leave out rows with gaps"
            )
