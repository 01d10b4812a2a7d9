"""Embeddings: rows of length one, as encoders of texts and images give them (CLIP, sentences).

Their columns mean nothing one by one, a few directions hold much of the variance, and it falls
slowly over the others. So the model sees the leading principal components, each with variance 1,
and what is left is normal noise of one deviation (probabilistic PCA; Tipping and Bishop, 1999).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import numpy as np
from sklearn.decomposition import PCA
from torch import Tensor, nn

from facetvae.estimators.arrays import Reader, View
from facetvae.estimators.encoding import Encoding, doubles
from facetvae.table_rules.components import residual_scale
from facetvae.table_rules.rows import some_rows
from ppl_models import Likelihood, Normal

# Fewest columns of embeddings, so that no ordinary table is taken for them, and how far from one
# the length of a row may be: rounding to 16 bits moves it by less than a hundredth of this.
FEWEST_COLUMNS, TOLERANCE = 32, 5e-3
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
    # One row suffices to tell most tables.
    return bool(of_length_one(X[:1]).all() and of_length_one(X).all())


@dataclass(frozen=True)
class EmbeddingEncoding(Encoding):
    """The map between rows of length one and their leading principal components.

    :ivar directions: the components' ``[p, D]``, orthonormal.
    :ivar noise: deviation of the rows along each other direction.
    """

    directions: np.ndarray = None  # type: ignore[assignment]
    noise: float = 1.0

    def _encode(self, X: np.ndarray) -> np.ndarray:
        """``[N, p]``, each component with variance 1 in the training data, float32."""
        return (self._coordinates(X) / self.scale).astype(np.float32)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Rows of length one ``[N, D]``."""
        rows = (x * self.scale) @ self.directions + self.loc
        return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(np.finfo(float).tiny)

    def _log_volume(self, X: np.ndarray) -> np.ndarray:
        """Less the log-density of what components leave of each row, which is normal noise."""
        p, D = self.directions.shape
        left = np.square(X.astype(float) - self.loc).sum(1) - np.square(self._coordinates(X)).sum(1)
        rest = (D - p) / 2 * log(2 * pi * self.noise**2) + left.clip(0) / (2 * self.noise**2)
        return np.log(self.scale).sum() + rest

    def _coordinates(self, X: np.ndarray) -> np.ndarray:
        return (X.astype(float) - self.loc) @ self.directions.T


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
    return EmbeddingEncoding(
        "embeddings", shape, pca.mean_, scale, 0.0, directions=turns, noise=noise
    )


@dataclass(frozen=True)
class EmbeddingView(View):
    """Components in the embeddings' own proportions, all of which are looked at.

    :ivar scale: deviation of each component ``[p]``.
    """

    linear = False
    scale: np.ndarray

    @property
    def dims(self) -> int | None:
        return len(self.scale)

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return x * (self.scale / self.scale[0])

    def network_input(self, x: Tensor) -> Tensor:
        return x

    def residual_scale(self, x: np.ndarray, dim: int) -> float:
        return residual_scale(self.numbers(x), dim)


class ComponentsModule(nn.Module):
    """What :meth:`EmbeddingEncoding.encode` does, in float64."""

    loc: Tensor
    weight: Tensor

    def __init__(self, encoding: EmbeddingEncoding) -> None:
        super().__init__()
        self.register_buffer("loc", doubles(encoding.loc))
        self.register_buffer("weight", doubles(encoding.directions.T / encoding.scale))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, D] -> [B, p]``, as float32."""
        return ((x.double() - self.loc) @ self.weight).float()


@dataclass(frozen=True)
class EmbeddingReader(Reader):
    """Rows of length one: read as leading principal components, and returned with length one."""

    def encoding(
        self, X: np.ndarray, likelihood: Likelihood | None, rows: np.ndarray | None = None
    ) -> Encoding:
        return embedding_encoding(X)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        return Normal(residual_scale(x, dim))

    def module(self, encoding: Encoding) -> nn.Module:
        assert isinstance(encoding, EmbeddingEncoding)
        return ComponentsModule(encoding)

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        return EmbeddingView(encoding.scale)

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        if not (usual := of_length_one(X)).all():
            row = int(usual.argmin())
            raise ValueError(
                f"row {row} of X has the length {np.linalg.norm(X[row].astype(float)):.4g}, but "
                "the training data were embeddings, whose rows have length one: divide by "
                "np.linalg.norm(X, axis=1, keepdims=True), and leave out rows with gaps"
            )
