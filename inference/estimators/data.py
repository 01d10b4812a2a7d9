"""How a user's array is converted for a model: the kind of its values, and their scale."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from math import log, prod

import numpy as np
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer

from inference.estimators.skewness import Unskewed, unskewed_if_better
from ppl_models import Bernoulli, Incomplete, Likelihood, Normal

__all__ = [
    "Encoding",
    "completed",
    "default_likelihood",
    "encoding_of",
    "is_missing",
    "representable",
    "residual_scale",
]

# Rows to use when a rough estimate is enough.
SOME_ROWS = 5000
# Bounds on the residual's standard deviation, in units of the data's own: with less, only the
# reconstruction would count; with more, the latents would have nothing to encode.
RESIDUAL_SHARE = (0.1, 0.6)
# Exponent of 2 of the largest values whose squares and sums float64 holds with a wide margin.
LARGE = 400
# Constant columns are scaled only if their magnitude is beyond 2 to the power of this or its
# inverse.
CONSTANT = 30
# The largest encoded value; squares of it, summed, are within float32.
LARGEST = 1e15
# Values that are all below this are not shares or intensities, but real numbers.
TINY = 2.0**-20


@dataclass(frozen=True)
class Encoding:
    """The map between a user's values and a model's.

    :ivar values: ``"binary"``, ``"8-bit"``, ``"unit interval"`` or ``"real"``; ``"as given"`` if
        the user chose a likelihood.
    :ivar x_shape: shape of one datum.
    :ivar loc: what is subtracted, after division by ``2**exponent``.
    :ivar scale: what the data are then divided by; both are arrays that broadcast against a datum.
    :ivar missing: share of the entries that are missing.
    :ivar exponent: 0 unless values are so large or small that their squares exceed float64.
    :ivar unskewed: what is then done to skewed columns.
    """

    values: str
    x_shape: tuple[int, ...]
    loc: np.ndarray
    scale: np.ndarray
    missing: float
    exponent: np.ndarray | int = 0
    unskewed: Unskewed | None = None

    @property
    def of_columns(self) -> bool:
        """Whether data are rows of columns that have a scale of their own."""
        return self.values in ("real", "columns", "embeddings") and len(self.x_shape) == 1

    def encode(self, X: np.ndarray) -> np.ndarray:
        """``[N, *x_shape]`` for a model: 8-bit values as they are, others as float32.

        :raises ValueError: if a value is so far from the training data that float32 cannot hold the
            squares of such values.
        """
        if X.dtype == np.uint8 and self.values == "8-bit":
            return X
        if self.values in ("real", "8-bit"):
            with np.errstate(over="ignore"):  # refused below
                X = self._standardized(X)
        return _single(X if self.unskewed is None else self.unskewed.apply(X))

    def decode(self, x: np.ndarray) -> np.ndarray:
        """A model's output in the user's units, at most the largest float."""
        if self.unskewed is not None:
            x = self.unskewed.undo(x)
        with np.errstate(over="ignore"):
            values = np.ldexp(x * self.scale + self.loc, self.exponent)
        return representable(values, np.dtype(float))

    def log_volume(self, X: np.ndarray) -> np.ndarray:
        """Log of the ratio between densities of x and of the user's values, in nats, for each datum
        ``[N]``.
        """
        each = np.broadcast_to(np.log(self.scale) + self.exponent * log(2), X.shape)
        if self.unskewed is not None:
            each = each - self.unskewed.log_slope(self._standardized(X))
        return np.where(is_missing(X), 0.0, each).reshape(len(X), -1).sum(1)

    def _standardized(self, X: np.ndarray) -> np.ndarray:
        return (_shifted(X, -self.exponent) - self.loc) / self.scale


def encoding_of(X: np.ndarray, likelihood: Likelihood | None) -> Encoding:
    """The encoding for ``X`` ``[N, ...]``; if the user chose a likelihood, only 8-bit values are
    converted.

    Real columns are standardised one by one, without their skewness if the data are then more
    likely; real images by a common mean and deviation.
    """
    observed = X[~is_missing(X)]
    values = _kind(X, observed)
    if likelihood is not None and values != "8-bit":
        values = "as given"
    loc, scale, exponent = np.zeros(1), np.ones(1), np.zeros(1, int)
    if values == "8-bit":
        scale = np.full(1, 255.0)
    elif values == "real":
        loc, scale, exponent = _moments(X, 0 if X.ndim == 2 else None)
    encoding = Encoding(values, X.shape[1:], loc, scale, 1 - len(observed) / X.size, exponent)
    if values != "real" or X.ndim > 2:
        return encoding
    return replace(encoding, unskewed=unskewed_if_better(encoding.encode(X).astype(float)))


def _moments(X: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, deviation and exponent along an axis, such that no square overflows or vanishes.

    Columns that are constant, up to rounding, are not scaled, unless their magnitude demands it.
    """
    size = _exponent(X, axis)
    exponent = size - size.clip(-LARGE, LARGE)
    shifted = _shifted(X, -exponent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns whose entries are all missing
        loc, scale = (
            np.nan_to_num(np.atleast_1d(f(shifted, axis, dtype=float)))
            for f in (np.nanmean, np.nanstd)
        )
    size = size - exponent
    unscaled = np.clip(1.0, np.ldexp(1.0, size - CONSTANT), np.ldexp(1.0, size + CONSTANT))
    scale = np.where(scale > 10 * np.finfo(float).eps * np.abs(loc), scale, unscaled)
    return loc, scale, exponent


def _exponent(X: np.ndarray, axis: int | None) -> np.ndarray:
    """The exponent of 2 of the largest magnitude along an axis; 0 if there is none."""
    top, low = (np.atleast_1d(f.reduce(X, axis)).astype(float) for f in (np.fmax, np.fmin))
    return np.frexp(np.nan_to_num(np.maximum(top, -low)))[1]


def _shifted(X: np.ndarray, exponent: np.ndarray | int) -> np.ndarray:
    """``X * 2**exponent`` as float64: NumPy squares shorter floats in their own precision."""
    return np.ldexp(X.astype(float), exponent)


def _single(x: np.ndarray) -> np.ndarray:
    """As float32.

    :raises ValueError: if squares of the values are too large for it.
    """
    if (np.abs(x) > np.float64(LARGEST)).any():
        raise ValueError(
            f"X has values beyond {LARGEST:g} in the model's units, which single precision does "
            "not take: scale X, or drop the rows that are so far from the other data"
        )
    return x.astype(np.float32)


def representable(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``values`` as floats of ``dtype``, at most the largest of these."""
    most = np.finfo(dtype).max
    return values.clip(-most, most).astype(dtype)


def _kind(X: np.ndarray, observed: np.ndarray) -> str:
    if not len(observed):
        return "real"
    if X.dtype == bool or np.isin(observed, (0, 1)).all():
        return "binary"
    if X.dtype == np.uint8:
        return "8-bit"
    within = observed.min() >= 0 and TINY < observed.max() <= 1
    return "unit interval" if within else "real"


def default_likelihood(values: str, x: np.ndarray, dim: int) -> Likelihood:
    """Bernoulli for binary data; else a normal with the scale of what ``dim`` linear latents leave
    unexplained.

    :param x: encoded data.
    """
    return (
        Bernoulli()
        if values == "binary"
        else Normal(residual_scale(x / 255 if x.dtype == np.uint8 else x, dim))
    )


def completed(likelihood: Likelihood, x: np.ndarray) -> Likelihood:
    """The likelihood, extended if entries are missing; encoders see the mean of the observed
    entries in their place.
    """
    if likelihood.takes_missing or not is_missing(x).any():
        return likelihood
    low, high = likelihood.support
    return Incomplete(
        likelihood, float(np.clip(np.nan_to_num(np.nanmean(x, dtype=float)), low, high))
    )


def residual_scale(x: np.ndarray, dim: int) -> float:
    """Deviation of probabilistic PCA's noise with ``dim`` components (Tipping and Bishop, 1999),
    within bounds.

    Missing entries take their column's mean, and do not count in the deviation.

    :param x: ``[N, ...]``.
    """
    rows = x[:: -(-len(x) // SOME_ROWS)].reshape(-1, prod(x.shape[1:])).astype(float)
    missing = is_missing(rows)
    total = float(np.nanstd(rows)) if not missing.all() else 1.0
    low, high = (share * (total or 1.0) for share in RESIDUAL_SHARE)
    k = min(dim, rows.shape[1] - 1, len(rows) - 1)
    if k < 1:
        return high
    filled = SimpleImputer(keep_empty_features=True).fit_transform(rows) if missing.any() else rows
    with np.errstate(invalid="ignore"):  # shares of the variance of constant data
        noise = PCA(k, random_state=0).fit(filled).noise_variance_ / (1 - missing.mean())
    return float(np.clip(np.sqrt(noise), low, high))


def is_missing(X: np.ndarray) -> np.ndarray:
    """Which entries are missing, for numbers of any type."""
    return np.isnan(X) if X.dtype.kind == "f" else np.zeros(X.shape, bool)
