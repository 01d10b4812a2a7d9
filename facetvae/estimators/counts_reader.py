"""Rows of counts, sparse or not: read as sparse rows, and returned as the user gave them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from torch import nn

from facetvae.estimators.counts_view import CountsView, counts_view
from facetvae.estimators.data import Encoding
from facetvae.estimators.readers import Reader
from facetvae.estimators.tables import plain_table
from facetvae.estimators.views import View
from ppl_models import MLP, DirichletMultinomial, Likelihood, Multinomial
from ppl_models.given.sparse import SparseRows, is_sparse, sparse_rows
from ppl_models.networks import Architecture

# Widths of the default network. The first is paid for by every column: at 10,000 columns it takes
# most of a step.
WIDTHS = (128, 128)


@dataclass(frozen=True)
class CountsEncoding(Encoding):
    """Counts stay as they are; the likelihood standardises what networks see."""

    @property
    def of_columns(self) -> bool:
        return True

    def encode(self, X: Any) -> SparseRows:  # type: ignore[override]
        return sparse_rows(X if issparse(X) else csr_array(X))

    def decode(self, x: np.ndarray) -> np.ndarray:
        return x


@dataclass(frozen=True)
class CountsReader(Reader):
    """Rows of counts, of which each row's total is given.

    :ivar sparse: whether they came as a sparse matrix, so that draws are returned as one.
    :ivar num_batches: of which the last column of X holds codes, if there are several.
    """

    sparse: bool
    num_batches: int = 1

    @property
    def accepts(self) -> dict[str, Any]:
        return {"accept_sparse": "csr"}

    def numbers(self, X: Any) -> Any:
        if issparse(X):
            return X.astype(float) if X.dtype == np.longdouble else X
        return sparse_rows(X).tocsr() if is_sparse(X) else plain_table(X)

    def encoding(
        self, X: Any, likelihood: Likelihood | None, rows: np.ndarray | None = None
    ) -> Encoding:
        self._check(X, DirichletMultinomial() if likelihood is None else likelihood)
        if likelihood is None:
            _warn_of_one_hot(X)
        return CountsEncoding("counts", X.shape[1:], np.zeros(1), np.ones(1), 0.0)

    def likelihood(self, x: Any, encoding: Encoding, dim: int) -> Likelihood:
        return DirichletMultinomial()

    def completed(self, likelihood: Likelihood, x: Any, encoding: Encoding) -> Likelihood:
        """With a typical total, and the shares of the columns to begin with."""
        return likelihood.fitted(x) if isinstance(likelihood, Multinomial) else likelihood

    def network(self, shape: tuple[int, ...], view: View) -> Architecture:
        return MLP(WIDTHS, dropout=0)

    def module(self, encoding: Encoding) -> nn.Module:
        return nn.Identity()

    def view(self, x: Any, encoding: Encoding) -> CountsView:
        return counts_view(x, self.num_batches)

    def check_marking(self, encoding: Encoding) -> None:
        raise ValueError(
            "mark_outliers=True is for columns of numbers, and X holds counts: leave it out"
        )

    def check_gaps(self, X: Any, encoding: Encoding, likelihood: Likelihood) -> None:
        self._check(X, likelihood)

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        return csr_array(values) if self.sparse else values

    def _check(self, X: Any, likelihood: Likelihood) -> None:
        """:raises ValueError: if a value is no count, or missing."""
        values = X.data if issparse(X) else X
        why = "sparse, and so" if self.sparse else "given a likelihood of counts, and"
        with _about(f"X is {why} read as counts: "):
            if not np.isfinite(values).all():
                raise ValueError("it holds NaN or infinity, so drop those rows or set the values")
            if self.sparse and len(wrong := values[(values < 0) | (values != np.floor(values))]):
                raise ValueError(
                    f"x has values such as {wrong[0]:.4g}, but {type(likelihood).__name__} needs "
                    "counts, 0, 1, 2 and so on: give X.toarray(), whose columns are read as "
                    "numbers, or of many columns TruncatedSVD(30).fit_transform(X)"
                )
            likelihood.check_sparse(sparse_rows(X if issparse(X) else csr_array(X)))


def _warn_of_one_hot(X: Any) -> None:
    """Warn of zeros and ones of which every row has as many: they are rather categories."""
    totals = np.unique(np.asarray(X.sum(1)))
    ones = bool((X.data[X.data != 0] == 1).all())
    if ones and len(totals) == 1 and 0 < totals[0] < X.shape[1]:
        warnings.warn(
            f"X holds zeros and ones, {totals[0]:g} ones in each row, as the columns of a one-hot "
            "table do, but sparse data are read as counts: give X.toarray(), or better the "
            "categories themselves, as columns of a data frame; if they are counts, say so by "
            "likelihood=DirichletMultinomial()",
            stacklevel=2,
        )


@contextmanager
def _about(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}{error}") from error


def reads_counts(X: Any, likelihood: Likelihood | None) -> CountsReader | None:
    """The reader of rows of counts, where X is sparse or the likelihood is one of these.

    :param likelihood: the user's.
    :raises ValueError: if X is sparse and the likelihood does not read counts.
    """
    sparse = is_sparse(X)
    if isinstance(likelihood, Multinomial):
        return CountsReader(sparse, likelihood.num_batches)
    if not sparse:
        return None
    if isinstance(likelihood, Likelihood) and not likelihood.takes_sparse:
        raise ValueError(
            f"X is sparse, and sparse data are read as counts, which {likelihood!r} does not "
            "describe: give X.toarray(), or, if it holds counts, leave likelihood= out"
        )
    return CountsReader(sparse)
