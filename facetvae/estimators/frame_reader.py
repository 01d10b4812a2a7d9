"""Data frames whose columns have a likelihood each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from facetvae.estimators.data import Encoding
from facetvae.estimators.exporting import columns_in_words
from facetvae.estimators.frames import Table
from facetvae.estimators.readers import Reader
from facetvae.estimators.views import View, columns_view
from facetvae.table_rules.rows import is_missing
from ppl_models import Likelihood


@dataclass(frozen=True)
class FrameReader(Reader):
    """Data frames whose columns have a likelihood each: read as codes, and returned as frames.

    :ivar table: its columns.
    """

    table: Table

    def numbers(self, X: Any) -> Any:
        return self.table.codes(X)

    def encoding(
        self, X: np.ndarray, likelihood: Likelihood | None, rows: np.ndarray | None = None
    ) -> Encoding:
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

    def in_words(self) -> list[dict[str, Any]]:
        return columns_in_words(self.table)

    def check_marking(self, encoding: Encoding) -> None:
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

    def shown(self, X: Any, seen: Any) -> Any:
        return X

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        return self.table.frame(values) if like is None else self.table.filled(values, like)
