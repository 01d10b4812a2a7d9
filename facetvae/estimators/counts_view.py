"""How a start sees rows of counts: a few directions of their logarithms at a common total."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csc_array, csr_array, vstack
from scipy.sparse.linalg import LinearOperator, svds

from facetvae.estimators.views import View
from ppl_models.given.sparse import SparseRows

# Most directions.
DIRECTIONS = 15
# Fewest directions, of which chance alone may be the reason.
FEWEST = 2
# Shuffled matrices that a direction is compared with.
SHUFFLES = 3
# Columns that the directions are spread over, for each direction.
SPREAD = 4
# Share of a column's squares that rounding alone leaves as variance.
NO_VARIANCE = 1e-12
# Noise that fills gaps between equal rows, in deviations of the numbers, and the relative length
# below which a direction is rounding.
FILLING, NO_DIRECTION = 0.05, 1e-6


@dataclass(frozen=True)
class CountsView(View):
    """Rows of counts as numbers: principal directions of log(1 + x m / n), where n is the row's
    total and m the median one, in columns less their mean in the row's batch.

    Columns are divided by the root of their variance plus the median column's: without that
    frequent columns would hide the others, and with their own deviation alone the rarest, which are
    noise, would. Directions are those that exceed the first direction of matrices whose columns are
    shuffled, each by itself within the batches (parallel analysis; Horn, 1965). A rotation spreads
    them over several times as many columns, as tables have them, in which directions that exceed
    chance are few among all.

    :ivar total: m.
    :ivar weights: from logarithms to the numbers, whose mean variance is 1: ``[D, F]``.
    :ivar loc: the numbers' means in each batch ``[M, F]``.
    :ivar noise: deviation along the first direction of shuffled columns.
    """

    linear = False
    total: float
    weights: np.ndarray
    loc: np.ndarray
    noise: float

    def numbers(self, x: SparseRows) -> np.ndarray:  # type: ignore[override]
        counts, batch = _apart(x, len(self.weights))
        seen = logarithms(counts, self.total) @ self.weights - self.loc[batch]
        return seen.astype(np.float32)

    def smooth(self, x: SparseRows, seed: int) -> np.ndarray:  # type: ignore[override]
        """With a little noise in the directions: short texts that are alike have equal numbers."""
        numbers = self.numbers(x).astype(float)
        _, sizes, turns = np.linalg.svd(self.weights, full_matrices=False)
        turns = turns[sizes > NO_DIRECTION * sizes[0]]
        noise = np.random.default_rng(seed).normal(size=(len(x), len(turns)))
        return numbers + FILLING * noise @ turns

    def taught(self, x: SparseRows) -> SparseRows:  # type: ignore[override]
        return x

    def residual_scale(self, x: SparseRows, dim: int) -> float:  # type: ignore[override]
        return self.noise


def counts_view(x: SparseRows, num_batches: int = 1, seed: int = 0) -> CountsView:
    """The view of rows of counts, in two directions if fewer exceed chance.

    :param x: ``[N, D]``, or ``[N, D + 1]`` with the batches' codes in the last column if there are
        several batches.
    :raises ValueError: if rows do not differ.

    Example:
        >>> import numpy as np
        >>> from scipy.sparse import csr_array
        >>> from facetvae.estimators.counts_view import counts_view
        >>> from ppl_models.given.sparse import sparse_rows
        >>> rng = np.random.default_rng(0)
        >>> rates = np.where(rng.random((2, 60)) < 0.3, 2.0, 0.4)  # of two kinds of texts
        >>> x = sparse_rows(csr_array(rng.poisson(np.repeat(rates, 100, 0))))
        >>> counts_view(x).numbers(x).shape  # two directions, spread over eight columns
        (200, 8)
    """
    rng = np.random.default_rng(seed)
    counts, batch = _apart(x, x.num_columns - (num_batches > 1))
    totals = counts.sum(1)
    total = float(np.median(totals[totals > 0])) if totals.any() else 1.0
    seen = Centred.of(logarithms(counts, total), batch, num_batches)
    most = min(DIRECTIONS, *(size - 1 for size in counts.shape))
    if most < 1 or not seen.variance.any():
        raise ValueError("the rows of X do not differ: there is nothing to cluster")
    sizes, turns = seen.directions(most, rng)
    chance = max(seen.shuffled(rng).directions(1, rng)[0][0] for _ in range(SHUFFLES))
    kept = (sizes > chance) | (np.arange(most) < FEWEST)
    turns = _spread(turns[kept], rng)
    unit = np.sqrt(np.square(sizes[kept]).sum() / len(x) / turns.shape[0])
    weights = (seen.scale * turns / unit).T
    return CountsView(total, weights, seen.means @ weights, chance / np.sqrt(len(x)) / unit)


def logarithms(counts: csr_array, total: float) -> csr_array:
    """log(1 + counts) with rows at a common total: ``[N, D]``, as sparse as the counts."""
    factors = total / counts.sum(1).clip(1)
    values = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
    return csr_array((values, counts.indices, counts.indptr), shape=counts.shape)


@dataclass(frozen=True)
class Centred:
    """A sparse matrix, scaled by columns, less the columns' means in each batch; never dense.

    :ivar matrix: ``[N, D]``, as it is.
    :ivar batch: of each row ``[N]``.
    :ivar means: of the columns in each batch ``[M, D]``.
    :ivar variance: within batches ``[D]``.
    """

    matrix: csr_array
    batch: np.ndarray
    means: np.ndarray
    variance: np.ndarray

    @property
    def scale(self) -> np.ndarray:
        """What the columns are multiplied by ``[D]``."""
        return 1 / np.sqrt(self.variance + np.median(self.variance[self.variance > 0]))

    @classmethod
    def of(cls, matrix: csr_array, batch: np.ndarray, num_batches: int) -> Centred:
        sizes = np.bincount(batch, minlength=num_batches)
        means = (_members(batch, num_batches) @ matrix).toarray() / sizes.clip(1)[:, None]
        squares = (matrix * matrix).sum(0)
        variance = ((squares - sizes @ means**2) / len(batch)).clip(0)
        return cls(matrix, batch, means, np.where(variance > NO_VARIANCE * squares, variance, 0))

    def directions(self, number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The largest singular values, the first one first, and their directions ``[k, D]``."""
        x = csr_array(self.matrix * self.scale)
        of, means = _members(self.batch, len(self.means)), self.means * self.scale
        back, from_batches = x.T.tocsr(), of.T.tocsr()
        centred = LinearOperator(
            x.shape,
            matvec=lambda v: x @ v - from_batches @ (means @ v),
            rmatvec=lambda u: back @ u - means.T @ (of @ u),
            dtype=float,
        )
        _, sizes, turns = svds(centred, number, v0=rng.normal(size=min(x.shape)))
        return sizes[::-1], turns[::-1]

    def shuffled(self, rng: np.random.Generator) -> Centred:
        """With each column's entries in other rows of the same batch, drawn at random."""
        parts = [self.matrix[self.batch == b] for b in range(len(self.means))]
        matrix = csr_array(vstack([_shuffled_columns(part, rng) for part in parts]))
        return replace(self, matrix=matrix, batch=np.sort(self.batch))


def _shuffled_columns(matrix: csr_array, rng: np.random.Generator) -> csc_array:
    columns, rows = csc_array(matrix), range(matrix.shape[0])
    drawn = [rng.choice(rows.stop, n, replace=False) for n in np.diff(columns.indptr)]
    places = np.concatenate([np.zeros(0, int), *drawn])
    return csc_array((columns.data, places, columns.indptr), shape=matrix.shape)


def _members(batch: np.ndarray, num_batches: int) -> csr_array:
    """Which rows are in which batch, as ones ``[M, N]``."""
    ones = np.ones(len(batch))
    return csr_array((ones, (batch, np.arange(len(batch)))), shape=(num_batches, len(batch)))


def _apart(x: SparseRows, num_columns: int) -> tuple[csr_array, np.ndarray]:
    """Counts ``[N, D]``, and the batch of each row ``[N]``: 0 if x has no codes."""
    matrix = x.tocsr()
    if matrix.shape[1] == num_columns:
        return matrix, np.zeros(len(x), int)
    return matrix[:, :num_columns], matrix[:, [num_columns]].toarray()[:, 0].astype(int)


def _spread(turns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Directions ``[m, D]`` as several times as many that depend on each other, and that together
    keep distances.
    """
    mixing, _ = np.linalg.qr(rng.normal(size=(SPREAD * len(turns), len(turns))))
    return mixing @ turns
