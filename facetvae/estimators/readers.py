"""How an estimator reads a user's data, and returns what it found in the same form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from facetvae.estimators.data import (
    Encoding,
    completed,
    default_likelihood,
    encoding_of,
)
from facetvae.estimators.defaults import default_plain_network
from facetvae.estimators.exporting import EncodingModule
from facetvae.estimators.tables import plain_table, with_numbers
from facetvae.estimators.views import View
from facetvae.table_rules.rows import has_missing
from ppl_models import Likelihood
from ppl_models.given.frames import Form, is_frame, native_columns
from ppl_models.networks import Architecture


@dataclass(frozen=True)
class Reader:
    """Arrays, tensors and frames of numbers: read as they are, and returned as arrays or frames.

    :ivar form: of a frame, without its rows.
    :ivar as_columns: whether values within bounds are read as real columns, too.
    """

    form: Form | None = field(default=None, kw_only=True)
    as_columns: bool = field(default=False, kw_only=True)

    @property
    def accepts(self) -> dict[str, Any]:
        """What scikit-learn's check is to accept besides arrays."""
        return {}

    def numbers(self, X: Any) -> Any:
        """What scikit-learn's check accepts: ``[N, ...]``.

        :raises ValueError: if ``X`` is not understood.
        """
        return plain_table(X)

    def encoding(
        self, X: np.ndarray, likelihood: Likelihood | None, rows: np.ndarray | None = None
    ) -> Encoding:
        """How checked training data are converted for the model.

        :param likelihood: the user's.
        :param rows: which rows have a say ``[N]``; by default all.
        """
        return encoding_of(X, likelihood, rows, self.as_columns)

    def likelihood(self, x: np.ndarray, encoding: Encoding, dim: int) -> Likelihood:
        """That of encoded data, where the user gave none.

        :param dim: length of all latents together.
        """
        return default_likelihood(encoding.values, x, dim)

    def completed(self, likelihood: Likelihood, x: np.ndarray, encoding: Encoding) -> Likelihood:
        """The user's or the default one, with what encoded data add to it."""
        return completed(likelihood, x, encoding)

    def network(self, shape: tuple[int, ...], view: View) -> Architecture:
        """That of data whose facets are subspaces, where the user gave none.

        :param shape: of one datum.
        """
        return default_plain_network(shape, skip=view.linear)

    def view(self, x: np.ndarray, encoding: Encoding) -> View:
        """How a start sees encoded data.

        :raises ValueError: if there is nothing to see.
        """
        if not (np.fmax.reduce(x) > np.fmin.reduce(x)).any():  # of what is there, gaps aside
            raise ValueError("the rows of X do not differ: there is nothing to cluster")
        return View()

    def settings(self) -> dict[str, Any]:
        """What was chosen, for ``settings_``."""
        return {}

    def module(self, encoding: Encoding) -> nn.Module:
        """What ``encoding.encode`` does to numbers, as a module of tensors."""
        return EncodingModule(encoding)

    def in_words(self) -> list[dict[str, Any]]:
        """What codes stand for, of each column that has such, in JSON types."""
        return []

    def check_marking(self, encoding: Encoding) -> None:
        """:raises ValueError: if outlying rows cannot be marked."""
        if not encoding.of_real_columns:
            read_as = "images" if len(encoding.x_shape) > 1 else repr(encoding.values)
            raise ValueError(
                "mark_outliers=True is for tables of real numbers without a likelihood, and X is "
                f"read as {read_as}: leave it out"
            )

    def check_gaps(self, X: np.ndarray, encoding: Encoding, likelihood: Likelihood) -> None:
        """Refuse later data whose gaps the model does not know.

        :param likelihood: the model's.
        :raises ValueError: if there are such.
        """
        if not likelihood.takes_missing and has_missing(X):
            raise ValueError(
                "X has missing entries (NaN), but the training data had none: fit to some that "
                "have, or give a likelihood=Incomplete(...)"
            )

    def shown(self, X: Any, seen: Any) -> Any:
        """The rows to describe: a frame with the user's own columns, in which text that was read as
        numbers is numbers; else what was read.

        :param X: the user's rows.
        :param seen: the same ones as a fitted estimator has checked them ``[N, ...]``.
        """
        return with_numbers(X, seen) if is_frame(X) else seen

    def returned(self, values: np.ndarray, like: Any = None) -> Any:
        """Decoded values in the user's form.

        :param like: the user's data with the same rows, if there are such.
        """
        if self.form is None or not (like is None or is_frame(like)):
            return values
        if like is None:
            return self.form.frame(list(values.T))
        own = [each for _, each in native_columns(like)]
        return self.form.filled(list(values.T), own, like)
