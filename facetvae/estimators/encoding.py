"""How a user's array is converted for a model: the kind of its values, and their scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np
import torch
from scipy.stats import ortho_group, spearmanr
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from facetvae.table_rules.rows import in_parts, is_missing, parts, some_rows
from facetvae.table_rules.skewness import (
    LEAST_SHARE,
    NEAREST,
    Logarithms,
    NormalScores,
    Powers,
    Unskewed,
    unskewed_if_better,
)
from ppl_models import Likelihood
from ppl_models.warn import warn

# Exponents of 2: of the largest values whose squares and sums float64 holds, and beyond which
# constant columns are scaled.
LARGE, CONSTANT = 400, 30
# The largest encoded value; squares of it, summed, are within float32.
LARGEST = 1e15
# Values that are all below this are not shares or intensities, but real numbers.
TINY = 2.0**-20
# Fewest columns of a picture, and the least share of them that reach the largest value.
FEWEST_PIXELS, BRIGHT = 16, 0.1
# Of principal components: the fewest, the correlation that rounding leaves, how many times the last
# variance the first one is, and share of it below which one is rounding; the rank correlation of
# place and variance. Of so many, correlations by chance, in standard errors.
FEWEST_PRINCIPAL, UNCORRELATED, FALLING, SMALL, IN_ORDER = 3, 1e-4, 2.0, 1e-10, -0.9
SEVERAL, BY_CHANCE = 6, 5.0
# The brightest value of pictures of 8 bits is hardly below it.
DIM = 64
# Of values within bounds that all columns have in common.
BOUNDED = ("8-bit", "unit interval", "intensities")


@dataclass(frozen=True)
class Encoding:
    """The map between a user's values and a model's.

    :ivar values: ``"binary"``, ``"8-bit"``, ``"unit interval"``, ``"intensities"`` (such as pixels
        from 0 to 16) or ``"real"``; ``"as given"`` if the user chose a likelihood.
    :ivar x_shape: shape of one datum.
    :ivar loc: what is subtracted, after division by ``2**exponent``.
    :ivar scale: what the data are then divided by; both are arrays that broadcast against a datum.
    :ivar missing: share of the entries that are missing.
    :ivar exponent: 0 unless values are so large or small that their squares exceed float64.
    :ivar unskewed: the form that columns are then given.
    :ivar directions: whose coordinates are scaled ``[p, D]``, orthonormal; ``None`` for columns.
    :ivar constant: columns that the training data tell nothing of ``[D]``: encoded as 0.
    """

    values: str
    x_shape: tuple[int, ...]
    loc: np.ndarray
    scale: np.ndarray
    missing: float
    exponent: np.ndarray | int = 0
    unskewed: Unskewed | None = None
    directions: Any = None
    constant: np.ndarray | bool = False

    @property
    def divisor(self) -> np.ndarray:
        return np.where(self.constant, np.inf, self.scale)

    @property
    def scales(self) -> bool:
        """Whether a location and a scale are taken from values."""
        return self.values in ("real", "8-bit", "intensities", "embeddings")

    @property
    def of_columns(self) -> bool:
        """Whether data are rows of columns that have a scale each."""
        return self.values in ("real", "columns", "embeddings", "counts") and len(self.x_shape) == 1

    @property
    def of_real_columns(self) -> bool:
        return self.values == "real" and self.of_columns

    def encode(self, X: np.ndarray) -> np.ndarray:
        """``[N, *x_shape]`` for a model: 8-bit values as they are, others as float32."""
        if X.dtype == np.uint8 and self.values == "8-bit":
            return X
        return in_parts(self._encode, X)

    def _encode(self, X: np.ndarray) -> np.ndarray:
        if self.scales:
            with np.errstate(over="ignore"):  # refused below
                X = self._standardized(X)
        if self.unskewed is not None and (far := self.unskewed.beyond(X)).any():
            warn(
                f"X has values that no {self.unskewed} are taken of in the columns "
                f"{np.flatnonzero(far).tolist()}, where the training data had none: they are read "
                "as the nearest ones that have some; leave these rows out, or mark the values as "
                "missing (NaN)"
            )
        x = X if self.unskewed is None else self.unskewed.apply(X)
        if (np.abs(x) > np.float64(LARGEST)).any():
            raise ValueError(
                f"X has values beyond {LARGEST:g} in the model's units, too large for single "
                "precision: scale X, or drop the rows that are so far from the other data"
            )
        return x.astype(np.float32)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """A model's output in the user's units, at most the largest float."""
        if self.unskewed is not None:
            x = self.unskewed.undo(x)
        with np.errstate(over="ignore"):
            x = x * self.scale
            turned = x if self.directions is None else x @ self.directions
            values = np.ldexp(turned + self.loc, self.exponent)
        return representable(values, np.dtype(float))

    def log_volume(self, X: np.ndarray) -> np.ndarray:
        """Log of the ratio between densities of x and of the user's values, in nats ``[N]``."""
        return in_parts(self._log_volume, X)

    def _log_volume(self, X: np.ndarray) -> np.ndarray:
        volume = np.broadcast_to(np.log(self.scale) + self.exponent * log(2), X.shape)
        if self.unskewed is not None:
            volume = volume - self.unskewed.log_slope(self._standardized(X))
        return np.where(is_missing(X), 0.0, volume).reshape(len(X), -1).sum(1)

    def _standardized(self, X: np.ndarray) -> np.ndarray:
        x = _shifted(X, -self.exponent) - self.loc
        return (x if self.directions is None else x @ self.directions.T) / self.divisor


def encoding_of(
    X: np.ndarray,
    likelihood: Likelihood | None,
    counts: np.ndarray | None = None,
    as_columns: bool = False,
) -> Encoding:
    """The encoding for ``X`` ``[N, ...]``; if the user chose a likelihood, only of 8-bit values.

    Real columns are standardized one by one, without their skewness if the data are then more
    likely; real images together; and principal components in random directions, so that the
    variance of each says how much it counts. Warns of images whose channels seem to be last.

    :param counts: which rows count ``[N]``; by default all.
    :param as_columns: whether values within bounds are real columns, too.
    """
    if X.ndim == 4 and X.shape[3] in (1, 3, 4) and min(X.shape[1:3]) > 4:
        warn(
            f"X of shape {X.shape} is read as [N, C, H, W], images of {X.shape[1]} channels and "
            f"{X.shape[2]} x {X.shape[3]} pixels. If its channels are last, pass "
            "X.transpose(0, 3, 1, 2)"
        )
    summary = _Summary(X, counts)
    values = summary.kind()
    if as_columns and values in BOUNDED:
        values = "real"
    if likelihood is not None and values != "8-bit":
        values = "as given"
    loc, exponent, constant = np.zeros(1), np.zeros(1, int), np.zeros(1, bool)
    scale = np.full(1, {"8-bit": 255.0, "intensities": float(summary.most)}.get(values, 1.0))
    if values == "real":
        loc, scale, exponent, constant = _moments(summary, 0 if X.ndim == 2 else None)
    form = values, X.shape[1:], loc, scale, summary.missing, exponent
    encoding = Encoding(*form, constant=constant)
    if values == "8-bit" and summary.most < DIM:
        warn(
            f"8-bit values are read as shares of 255, and the largest of X is {summary.most}: if "
            "that is the brightest there can be, pass X.astype(float)"
        )
    if not encoding.of_real_columns:
        return encoding
    if not (exponent.any() or summary.missing) and are_principal(X):
        turns = ortho_group(len(scale), seed=0).rvs()
        scale = np.linalg.norm(turns * np.where(constant, 0.0, scale), axis=1)
        return replace(encoding, scale=scale, directions=turns, constant=False)
    rows, zero = (encoding._standardized(own) for own in (summary.some(), np.zeros((1, 1))))
    bounds = summary.bounds()
    bounds = None if bounds is None else encoding._standardized(bounds)
    return replace(encoding, unskewed=unskewed_if_better(rows, zero[0], bounds))


class _Summary:
    """What the rows of ``X`` that count say about the kind of its values."""

    def __init__(self, X: np.ndarray, counts: np.ndarray | None) -> None:
        self.X, self.counts = X, counts
        self.binary, self.least, self.most, self.observed, size = True, np.inf, -np.inf, 0, 0
        for part in self.parts():
            size += part.size
            if len(observed := part[~is_missing(part)]):
                self.observed += len(observed)
                self.binary = self.binary and bool(np.isin(observed, (0, 1)).all())
                self.least = min(self.least, observed.min())
                self.most = max(self.most, observed.max())
        self.missing = 1 - self.observed / size

    def parts(self) -> Iterator[np.ndarray]:
        for rows in parts(len(self.X)):
            yield self.X[rows] if self.counts is None else self.X[rows][self.counts[rows]]

    def some(self) -> np.ndarray:
        """A part of the rows that is enough to judge by."""
        if self.counts is None:
            return some_rows(self.X)
        return self.X[some_rows(np.flatnonzero(self.counts))]

    def kind(self) -> str:
        if not self.observed:
            return "real"
        if self.binary:
            return "binary"
        if self.X.dtype == np.uint8:
            return "8-bit"
        if self.least < 0 or self.most <= TINY:
            return "real"
        if self.most <= 1:
            return "unit interval"
        return "intensities" if self._are_pixels() else "real"

    def bounds(self) -> np.ndarray | None:
        """What values do not reach that are from 0 to 1, or from one number to another in every
        column, as ranks and marks are: these two or, where some values are there, half a step
        beyond ``[2, 1]``; ``None`` for others.
        """
        low, top = self.extremes(0)
        ends = np.unique(np.stack([low, top])[:, low < top], axis=1)
        if self.kind() == "unit interval":
            ends = np.array([[0.0], [1.0]])
        if ends.shape[1] != 1:
            return None
        values = self.some()
        within = values[(values > ends[0]) & (values < ends[1])]
        if not len(within):
            return None
        step = np.array([[within.min()], [within.max()]]) - ends
        return ends - step / 2 * (ends == [[self.least], [self.most]])

    def _are_pixels(self) -> bool:
        """Whether all columns begin at 0, and many, but not all that vary, reach the largest."""
        if self.X.ndim != 2 or self.X.shape[1] < FEWEST_PIXELS:
            return False
        low, top = self.extremes(0)
        share = (top == self.most).sum() / max((top > low).sum(), 1)
        return bool((low == 0).all() and BRIGHT <= share < 1)

    def extremes(self, axis: int | None) -> list[np.ndarray]:
        """The least and the largest values along an axis; 0 if there are none."""
        both = (np.fmin, np.fmax)
        ends = [[f.reduce(part, axis) for f in both] for part in self.parts() if len(part)]
        return [
            np.nan_to_num(np.atleast_1d(f.reduce(values)))
            for f, values in zip(both, zip(*ends, strict=True), strict=True)
        ]


def _moments(summary: _Summary, axis: int | None) -> tuple[np.ndarray, ...]:
    """Mean, deviation and exponent along an axis, such that no square overflows or vanishes, and
    which columns are constant; these are scaled only if their magnitude demands it.
    """
    low, top = (each.astype(float) for each in summary.extremes(axis))
    size = np.frexp(np.maximum(top, -low))[1]
    exponent = size - size.clip(-LARGE, LARGE)
    scaler = StandardScaler()
    with np.errstate(invalid="ignore"):  # of columns whose entries are all missing
        for part in summary.parts():
            if len(part):
                shifted = _shifted(part, -exponent)
                scaler.partial_fit(shifted if axis == 0 else shifted.reshape(-1, 1))
    loc, scale = np.nan_to_num(scaler.mean_), np.nan_to_num(np.sqrt(scaler.var_))
    size = size - exponent
    unscaled = np.clip(1.0, np.ldexp(1.0, size - CONSTANT), np.ldexp(1.0, size + CONSTANT))
    varies = (low < top) & (scale > 10 * np.finfo(float).eps * np.abs(loc))
    return loc, np.where(varies, scale, unscaled), exponent, ~varies


def are_principal(X: np.ndarray) -> bool:
    """Whether columns ``[N, D]`` are principal components of these rows or of others beside them,
    or coordinates along singular vectors: of falling size, and uncorrelated about their mean or
    about 0, of few columns but for rounding, of more but for chance.
    """
    loc = _mean(X)
    return any(_are_orthogonal(X, each, _fall, BY_CHANCE) for each in (loc, np.zeros_like(loc)))


def are_whitened(X: np.ndarray) -> bool:
    """Whether six columns ``[N, D]`` or more are uncorrelated and of the same variance, but for
    rounding.
    """
    return _are_orthogonal(X, _mean(X), _are_alike)


def _mean(X: np.ndarray) -> np.ndarray:
    first = X[:1].astype(float)
    return sum((X[rows] - first).sum(0) for rows in parts(len(X))) / len(X) + first


def _fall(size: np.ndarray) -> bool:
    """Whether so many fall from the first to the last, hardly one out of order."""
    if len(size) < FEWEST_PRINCIPAL or size[0] < FALLING * size[-1]:
        return False
    return bool(spearmanr(np.arange(len(size)), size)[0] < IN_ORDER)


def _are_alike(size: np.ndarray) -> bool:
    return len(size) >= SEVERAL and bool(np.ptp(size) < UNCORRELATED * size.max())


def _are_orthogonal(
    X: np.ndarray, origin: np.ndarray, suit: Callable[[np.ndarray], bool], errors: float = 0.0
) -> bool:
    """Whether those columns less ``origin`` ``[1, D]`` that vary have mean squares that suit, and
    no cosine beyond rounding, or of several beyond so many standard errors.
    """
    size = sum(((X[rows] - origin) ** 2).sum(0) for rows in parts(len(X))) / len(X)
    own = size > SMALL * size.max()
    if own.sum() >= len(X) or not suit(size[own]):
        return False
    unit = (((X[rows] - origin)[:, own] / np.sqrt(size[own])) for rows in parts(len(X)))
    cosines = sum(part.T @ part for part in unit) / len(X) - np.eye(own.sum())
    chance = errors / np.sqrt(len(X)) if own.sum() >= SEVERAL else 0.0
    return bool(np.abs(cosines).max() < max(UNCORRELATED, chance))


def _shifted(X: np.ndarray, exponent: np.ndarray | int) -> np.ndarray:
    """``X * 2**exponent`` as float64: NumPy squares shorter floats in their own precision."""
    return np.ldexp(X.astype(float), exponent)


def representable(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``values`` as floats of ``dtype``, at most the largest of these."""
    most = np.finfo(dtype).max
    return values.clip(-most, most).astype(dtype)


class EncodingModule(nn.Module):
    """What :meth:`Encoding.encode` does, in float64, without its checks; for export."""

    factor: Tensor
    loc: Tensor
    scale: Tensor
    turn: Tensor | None

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        turn = encoding.directions
        self.register_buffer("factor", doubles(np.ldexp(1.0, -np.asarray(encoding.exponent))))
        self.register_buffer("loc", doubles(encoding.loc))
        self.register_buffer("scale", doubles(encoding.divisor))
        self.register_buffer("turn", doubles(None if turn is None else turn.T))
        self.unskewed = None if encoding.unskewed is None else UnskewedModule(encoding.unskewed)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, *x_shape]``: 8-bit values as they are, others as float32."""
        if x.dtype == torch.uint8:
            return x
        x = x.double() * self.factor - self.loc
        x = (x if self.turn is None else x @ self.turn) / self.scale
        return (x if self.unskewed is None else self.unskewed(x)).float()


class UnskewedModule(nn.Module):
    """What :meth:`Unskewed.apply <facetvae.table_rules.skewness.Unskewed.apply>` does."""

    loc: Tensor
    scale: Tensor

    def __init__(self, unskewed: Unskewed) -> None:
        super().__init__()
        self.form = FORMS[type(unskewed)]
        for name, values in vars(unskewed).items():
            self.register_buffer(name, doubles(values))

    def forward(self, x: Tensor) -> Tensor:
        return (self.form(self, x) - self.loc) / self.scale


def _powers(of: Any, x: Tensor) -> Tensor:
    power = torch.where(x < 0, 2 - of.power, of.power)
    straight = power == 0  # whose limit is the logarithm
    size = x.abs().log1p()
    bent = torch.expm1(power * size) / torch.where(straight, 1.0, power)
    return torch.copysign(torch.where(straight, size, bent), x)


def _logarithms(of: Any, x: Tensor) -> Tensor:
    return (x - of.origin).clamp(min=NEAREST).log()


def _normal_scores(of: Any, x: Tensor) -> Tensor:
    share = (x - of.low) / (of.high - of.low)
    return torch.special.ndtri(share.clamp(LEAST_SHARE, 1 - LEAST_SHARE))


FORMS = {Powers: _powers, Logarithms: _logarithms, NormalScores: _normal_scores}


def doubles(values: np.ndarray | None) -> Tensor | None:
    return None if values is None else torch.as_tensor(np.atleast_1d(values)).double()
