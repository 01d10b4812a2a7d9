"""Rows of counts, sparse or not: how they are read, and seen in directions of their logarithms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array, csr_array, issparse, vstack
from scipy.sparse.linalg import LinearOperator, svds

from facetvae.estimators.arrays import Reader, View, plain_table
from facetvae.estimators.encoding import Encoding
from ppl_models import MLP, DirichletMultinomial, Likelihood, Multinomial
from ppl_models.given.frames import Form, frame_like, is_frame, native_columns
from ppl_models.given.sparse import SparseRows, is_sparse, sparse_rows
from ppl_models.networks import Architecture
from ppl_models.warn import warn

# Widths of the default network, of which the first is paid for by every column.
WIDTHS = (128, 128)
# Most directions; and fewest, of which chance alone may be the reason.
DIRECTIONS, FEWEST = 15, 2
# Share of all counts that is large for a column, and how many times the average one it is at least.
LARGE, TIMES = 0.05, 10
# Shuffled matrices that a direction is compared with, and columns that each is spread over.
SHUFFLES, SPREAD = 3, 4
# Share of a column's squares that rounding alone leaves as variance.
NO_VARIANCE = 1e-12
# Noise that fills gaps between equal rows, in deviations, and a direction's length of rounding.
FILLING, NO_DIRECTION = 0.05, 1e-6


@dataclass(frozen=True)
class CountsView(View):
    """Rows of counts as numbers: principal directions of log(1 + x m / n), where n is the row's
    total and m the median one, in columns less their mean in the row's batch, divided by the root
    of their variance plus the median column's. Columns with a large share of all counts do not
    count in the total of the others, which would move with them. Directions are those that exceed
    the first one of matrices whose columns are shuffled within the batches (parallel analysis;
    Horn, 1965), spread over several times as many columns, as tables have them.

    :ivar large: which columns have a large share ``[D]``.
    :ivar totals: m of the other columns, and of all.
    :ivar weights: from logarithms to the numbers, whose mean variance is 1: ``[D, F]``.
    :ivar loc: the numbers' means in each batch ``[M, F]``.
    :ivar noise: deviation along the first direction of shuffled columns.
    """

    linear = False
    large: np.ndarray
    totals: np.ndarray
    weights: np.ndarray
    loc: np.ndarray
    noise: float

    def numbers(self, x: SparseRows) -> np.ndarray:  # type: ignore[override]
        counts, batch = _apart(x, len(self.weights))
        numbers = logarithms(counts, self.large, self.totals) @ self.weights - self.loc[batch]
        return numbers.astype(np.float32)

    def smooth(self, x: SparseRows, seed: int) -> np.ndarray:  # type: ignore[override]
        """With a little noise in the directions: short texts that are alike have equal numbers."""
        numbers = self.numbers(x).astype(float)
        _, sizes, turns = np.linalg.svd(self.weights, full_matrices=False)
        turns = turns[sizes > NO_DIRECTION * sizes[0]]
        noise = np.random.default_rng(seed).normal(size=(len(x), len(turns)))
        return numbers + FILLING * noise @ turns

    def residual_scale(self, x: SparseRows, dim: int) -> float:  # type: ignore[override]
        return self.noise


def counts_view(x: SparseRows, num_batches: int = 1) -> CountsView:
    """The view of rows of counts ``[N, D]``, with codes of batches in a last column if there are
    several; in two directions if fewer exceed chance.
    """
    rng = np.random.default_rng(0)
    counts, batch = _apart(x, x.num_columns - (num_batches > 1))
    share = counts.sum(0) / max(counts.sum(), 1)
    large = share > max(LARGE, TIMES / len(share))
    totals = np.array([np.median(n[n > 0]) if n.any() else 1.0 for n in _totals(counts, large)])
    centered = Centered.of(logarithms(counts, large, totals), batch, num_batches)
    most = min(DIRECTIONS, *(size - 1 for size in counts.shape))
    if most < 1 or not centered.variance.any():
        raise ValueError("the rows of X do not differ: there is nothing to cluster")
    sizes, turns = centered.directions(most, rng)
    chance = max(centered.shuffled(rng).directions(1, rng)[0][0] for _ in range(SHUFFLES))
    kept = (sizes > chance) | (np.arange(most) < FEWEST)
    # As several times as many directions, which together keep distances.
    mixing, _ = np.linalg.qr(rng.normal(size=(SPREAD * kept.sum(), kept.sum())))
    turns = mixing @ turns[kept]
    unit = np.sqrt(np.square(sizes[kept]).sum() / len(x) / turns.shape[0])
    weights = (centered.scale * turns / unit).T
    loc, noise = centered.means @ weights, chance / np.sqrt(len(x)) / unit
    return CountsView(large, totals, weights, loc, noise)


def logarithms(counts: csr_array, large: np.ndarray, totals: np.ndarray) -> csr_array:
    """log(1 + counts) with rows at common totals: ``[N, D]``, as sparse as the counts."""
    factors = totals[:, None] / _totals(counts, large).clip(1)
    row = np.repeat(np.arange(len(factors[0])), np.diff(counts.indptr))
    values = np.log1p(counts.data * factors[large[counts.indices].astype(int), row])
    return csr_array((values, counts.indices, counts.indptr), shape=counts.shape)


def _totals(counts: csr_array, large: np.ndarray) -> np.ndarray:
    """Of rows without the large columns, and with them ``[2, N]``."""
    return np.stack([counts @ ~large, counts.sum(1)])


@dataclass(frozen=True)
class Centered:
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
    def of(cls, matrix: csr_array, batch: np.ndarray, num_batches: int) -> Centered:
        sizes = np.bincount(batch, minlength=num_batches)
        means = (_members(batch, num_batches) @ matrix).toarray() / sizes.clip(1)[:, None]
        squares = (matrix * matrix).sum(0)
        variance = ((squares - sizes @ means**2) / max(len(batch), 1)).clip(0)
        return cls(matrix, batch, means, np.where(variance > NO_VARIANCE * squares, variance, 0))

    def directions(self, number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The largest singular values, the first one first, and their directions ``[k, D]``."""
        x = csr_array(self.matrix * self.scale)
        of, means = _members(self.batch, len(self.means)), self.means * self.scale
        back, from_batches = x.T.tocsr(), of.T.tocsr()
        centered = LinearOperator(
            x.shape,
            matvec=lambda v: x @ v - from_batches @ (means @ v),
            rmatvec=lambda u: back @ u - means.T @ (of @ u),
            dtype=float,
        )
        _, sizes, turns = svds(centered, number, v0=rng.normal(size=min(x.shape)))
        return sizes[::-1], turns[::-1]

    def shuffled(self, rng: np.random.Generator) -> Centered:
        """With each column's entries in other rows of the same batch."""
        parts = [self.matrix[self.batch == b] for b in range(len(self.means))]
        matrix = csr_array(vstack([shuffled_columns(part, rng) for part in parts]))
        return replace(self, matrix=matrix, batch=np.sort(self.batch))


def shuffled_columns(matrix: Any, rng: np.random.Generator) -> csc_array:
    """A sparse matrix with each column's entries in other rows, drawn at random."""
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


@dataclass(frozen=True)
class CountsEncoding(Encoding):
    """Counts stay as they are; the likelihood standardizes what networks see."""

    def encode(self, X: Any) -> SparseRows:  # type: ignore[override]
        return sparse_rows(csr_array(X))

    def decode(self, x: np.ndarray) -> np.ndarray:
        return x


@dataclass(frozen=True)
class CountsReader(Reader):
    """Rows of counts, of which each row's total is given.

    :ivar sparse: whether they came as a sparse matrix, so that draws are returned as one.
    :ivar num_batches: of which the last column of X holds codes, if there are several.
    """

    accepts: ClassVar[dict[str, Any]] = {"accept_sparse": "csr"}

    sparse: bool
    num_batches: int = 1

    def numbers(self, X: Any) -> Any:
        if issparse(X):
            return X.astype(float) if X.dtype == np.longdouble else X
        return sparse_rows(X).tocsr() if is_sparse(X) else plain_table(X)

    def encoding(self, X: Any, likelihood: Likelihood | None, rows: Any = None) -> Encoding:
        self._check(X, DirichletMultinomial() if likelihood is None else likelihood)
        if likelihood is None:
            _warn_of_one_hot(X)
        return CountsEncoding("counts", X.shape[1:], np.zeros(1), np.ones(1), 0.0)

    def likelihood(self, x: Any, encoding: Encoding, dim: int) -> Likelihood:
        return DirichletMultinomial()

    def completed(
        self, likelihood: Likelihood, x: Any, encoding: Encoding, fill: Any
    ) -> Likelihood:
        """With a typical total, and the shares of the columns."""
        return likelihood.fitted(x) if isinstance(likelihood, Multinomial) else likelihood

    def network(self, shape: tuple[int, ...]) -> Architecture:
        return MLP(WIDTHS, dropout=0)

    def view(self, x: Any, encoding: Encoding) -> CountsView:
        return counts_view(x, self.num_batches)

    def beyond(self, x: SparseRows) -> np.ndarray:  # type: ignore[override]
        """Rows without a count, of which a likelihood given the total says nothing."""
        return _apart(x, x.num_columns - (self.num_batches > 1))[0].sum(1) == 0

    def check_gaps(self, X: Any, encoding: Encoding, likelihood: Likelihood) -> None:
        self._check(X, likelihood)

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        if self.sparse:
            return csr_array(values)
        if self.form is not None and (values % 1).any():  # means of draws
            own = zip(native_columns(self.form.empty), values.T, strict=True)
            return frame_like(self.form.empty, {name: column for (name, _), column in own})
        return super().returned(values, like)

    def _check(self, X: Any, likelihood: Likelihood) -> None:
        """:raises ValueError: if a value is no count, or missing."""
        values = X.data if issparse(X) else X
        try:
            if not np.isfinite(values).all():
                raise ValueError("it holds NaN or infinity, so drop those rows or set the values")
            if self.sparse and len(wrong := values[(values < 0) | (values != np.floor(values))]):
                raise ValueError(
                    f"x has values such as {wrong[0]:.4g}, but {type(likelihood).__name__} needs "
                    "counts, 0, 1, 2 and so on: give those that X was made of (CountVectorizer's), "
                    "X.toarray(), whose columns are read as numbers, or of many columns "
                    "TruncatedSVD(30).fit_transform(X)"
                )
            likelihood.check_sparse(sparse_rows(csr_array(X)))
        except ValueError as error:
            why = "sparse, and so" if self.sparse else "given a likelihood of counts, and"
            raise ValueError(f"X is {why} read as counts: {error}") from error


def _warn_of_one_hot(X: Any) -> None:
    """Warn of zeros and ones of which every row has as many: they are rather categories."""
    totals = np.unique(np.asarray(X.sum(1)))
    ones = bool((X.data[X.data != 0] == 1).all())
    if ones and len(totals) == 1 and 0 < totals[0] < X.shape[1]:
        warn(
            f"X holds zeros and ones, {totals[0]:g} ones in each row, as the columns of a one-hot "
            "table do, but sparse data are read as counts: give X.toarray(), or better the "
            "categories themselves, as columns of a data frame; if they are counts, say so by "
            "likelihood=DirichletMultinomial()"
        )


def reads_counts(X: Any, likelihood: Likelihood | None) -> CountsReader | None:
    """The reader of rows of counts, where X is sparse or the likelihood is one of these."""
    sparse = is_sparse(X)
    if isinstance(likelihood, Multinomial):
        form = Form.of(X) if is_frame(X) and not sparse else None
        return CountsReader(sparse, likelihood.num_batches, form=form)
    if not sparse:
        return None
    if isinstance(likelihood, Likelihood) and not likelihood.takes_sparse:
        raise ValueError(
            f"X is sparse, and sparse data are read as counts, which {likelihood!r} does not "
            "describe: give X.toarray(), or, if it holds counts, leave likelihood= out"
        )
    return CountsReader(sparse)
