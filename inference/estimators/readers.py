"""How an estimator reads a user's data, and returns what it found in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inference.estimators.data import (
    Encoding,
    default_likelihood,
    encoding_of,
    is_missing,
    residual_scale,
)
from inference.estimators.embeddings import (
    EmbeddingView,
    are_embeddings,
    embedding_encoding,
    of_length_one,
)
from inference.estimators.frames import Table, is_mixed, read_table
from inference.estimators.tables import is_frame, plain_table
from inference.estimators.views import View, columns_view
from ppl_models import Likelihood, Normal

__all__ = ["FrameReader", "Reader", "reader_for"]


@dataclass(frozen=True)
class Reader:
    """Arrays, tensors and frames of numbers: read as they are, and returned as arrays."""

    def numbers(self, X: Any) -> Any:
        """What scikit-learn's check accepts: ``[N, ...]``.

        :raises ValueError: if ``X`` is not understood.
        """
        return plain_table(X)

    def encoding(self, X: np.ndarray, likelihood: Likelihood | None) -> Encoding:
        """How checked training data are converted for the model.

        :param likelihood: the user's.
        """
        return encoding_of(X, likelihood)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        """That of encoded data, where the user gave none.

        :param dim: length of all latents together.
        """
        return default_likelihood(encoding.values, x, dim)

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        """How a start sees encoded data.

        :raises ValueError: if there is nothing to see.
        """
        return View()

    def settings(self) -> dict[str, Any]:
        """What was chosen, for ``settings_``."""
        return {}

    def check_marking(self) -> None:
        """:raises ValueError: if outlying rows cannot be marked."""

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        """Refuse later data whose gaps the model does not know.

        :param likelihood: the model's.
        :raises ValueError: if there are such.
        """
        if not likelihood.takes_missing and is_missing(X).any():
            raise ValueError(
                "X has missing entries (NaN), but the training data had none: fit to some that "
                "have, or give a likelihood=Incomplete(...)"
            )

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        """Decoded values in the user's form.

        :param like: the user's data with the same rows, if there are such.
        """
        return values


@dataclass(frozen=True)
class EmbeddingReader(Reader):
    """Rows of length one: read as leading principal components, and returned with length one."""

    def encoding(self, X: np.ndarray, likelihood: Likelihood | None) -> Encoding:
        return embedding_encoding(X)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        return Normal(residual_scale(x, dim))

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        return EmbeddingView(encoding.scale)

    def settings(self) -> dict[str, Any]:
        return {}

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        """Refuse later rows that have another length."""
        if not (usual := of_length_one(X)).all():
            row = int(usual.argmin())
            raise ValueError(
                f"row {row} of X has the length {np.linalg.norm(X[row].astype(float)):.4g}, but "
                "the training data were embeddings, whose rows have length one: divide by "
                "np.linalg.norm(X, axis=1, keepdims=True), and leave out rows with gaps"
            )


@dataclass(frozen=True)
class FrameReader(Reader):
    """Data frames whose columns have a likelihood each: read as codes, and returned as frames.

    :ivar table: its columns.
    """

    table: Table

    def numbers(self, X: Any) -> Any:
        return self.table.codes(X)

    def encoding(self, X: np.ndarray, likelihood: Likelihood | None) -> Encoding:
        """Codes stay as they are; columns are standardised in their likelihoods."""
        missing = float(is_missing(X).mean())
        return Encoding("columns", X.shape[1:], np.zeros(1), np.ones(1), missing)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        return self.table.likelihood()

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        view = columns_view(self.table.likelihood(), x)
        if not np.ptp(view.numbers(x), axis=0).any():
            raise ValueError(
                "no column of X tells its rows apart beyond chance: there is nothing to cluster"
            )
        return view

    def settings(self) -> dict[str, Any]:
        return {"columns": self.table.chosen()}

    def check_marking(self) -> None:
        raise ValueError(
            "mark_outliers=True is for columns of numbers alone: leave it out, and give a "
            'column with outliers columns={"name": StudentT()}'
        )

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        gaps = is_missing(X)
        if not encoding.missing and gaps.any():
            raise ValueError(
                f"X has missing entries in column {self.table.names[int(gaps.any(0).argmax())]!r}, "
                "but the training data had none: fit to some that have"
            )

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        return self.table.frame(values, None if like is None else like.index)


def reader_for(
    X: Any, columns: Mapping[str, Likelihood] | None, likelihood: Likelihood | None
) -> Reader:
    """The reader of ``X``.

    :param columns: likelihoods that the user gave to columns of a frame.
    :param likelihood: the one that the user gave to all entries.
    :raises ValueError: if these do not suit, or a column is not understood.
    """
    if columns is not None and not is_frame(X):
        raise ValueError(
            "columns= is for a data frame, whose columns have names, but X is "
            f"{type(X).__name__}: give pandas.DataFrame(X, columns=[...])"
        )
    if not is_frame(X) or not X.shape[1] or (columns is None and not is_mixed(X)):
        embeddings = likelihood is None and are_embeddings(np.asarray(plain_table(X)))
        return EmbeddingReader() if embeddings else Reader()
    if likelihood is not None:
        raise ValueError(
            "likelihood= is one for all entries, which does not do for a frame with a likelihood a "
            'column: give columns= by name alone, such as {"age": Normal()}'
        )
    return FrameReader(read_table(X, columns or {}))
