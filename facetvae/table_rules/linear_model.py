"""A table as a linear map of facets' coordinates, of components beside them, and of noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from facetvae.table_rules.components import MAX_ROWS
from facetvae.table_rules.merging import on_one_thread
from facetvae.table_rules.rows import some_rows
from facetvae.table_rules.subspaces import Subspaces

# Least deviation of a standardized column's noise: with less, steps of training would leave the
# columns' place. And the deviation of a component that is nothing but rounding.
LEAST_NOISE, NOTHING = 0.03, 1e-4
# Most components beside the facets' coordinates, and how many numbers of them are tried.
MOST, TRIED = 100, 12
# Steps to the noise and the posteriors' variances, each of which is best given the other.
STEPS = 50


@dataclass(frozen=True)
class LinearModel:
    """x = loc + decoder^T z + noise, and normal posteriors whose means are linear in x.

    :ivar subspaces: of the facets and, if there are any, one more of components beside them.
    :ivar decoder: ``[m, D]``.
    :ivar noise: deviation of each column's ``[D]``.
    :ivar variances: of the posteriors ``[m]``.
    """

    subspaces: Subspaces
    decoder: np.ndarray
    noise: np.ndarray
    variances: np.ndarray

    def bound(self, rows: FilledRows) -> float:
        """The mean ELBO under a standard normal prior, in nats."""
        means, variances = self.subspaces.sources(rows.seen), self.variances
        left = np.square(rows.seen - self.subspaces.loc - means @ self.decoder)
        misfit = (left + variances @ self.decoder**2) / self.noise**2
        misfit += np.log(2 * np.pi * self.noise**2)
        kl = np.square(means).sum(1) + (variances - 1 - np.log(variances)).sum()
        return float(-((misfit * rows.there).sum(1) + kl).mean() / 2)


@dataclass(frozen=True)
class FilledRows:
    """Rows of a standardized table ``[N, D]``, each three times.

    :ivar drawn: with draws in the gaps, so that they vary as complete rows would.
    :ivar seen: with means in the gaps, as encoders see them.
    :ivar there: which entries are there.
    """

    drawn: np.ndarray
    seen: np.ndarray
    there: np.ndarray

    def __getitem__(self, rows: Any) -> FilledRows:
        return FilledRows(self.drawn[rows], self.seen[rows], self.there[rows])


@on_one_thread
def linear_model(x: FilledRows, facets: Subspaces) -> LinearModel:
    """The linear model of the facets' coordinates and as many principal components of what these
    leave as make held-out rows likeliest.
    """
    chosen = some_rows(np.arange(len(x.drawn)), most=MAX_ROWS)
    rows = x[np.random.default_rng(0).permutation(chosen)]
    fitted, held_out = rows[::2], rows[1::2]
    beside = _components(fitted.drawn, facets)
    numbers = np.unique(np.geomspace(1, len(beside) + 1, TRIED).round().astype(int)) - 1
    bounds = [_fitted(fitted, facets, beside[:k]).bound(held_out) for k in numbers]
    best = numbers[int(np.argmax(bounds))]
    return _fitted(rows, facets, _components(rows.drawn, facets)[:best])


def _components(x: np.ndarray, facets: Subspaces) -> np.ndarray:
    """Maps to the principal components of what the facets leave of ``x`` ``[N, D]``, in units of
    its deviation, as far as that is noise; they have variance 1, the largest first: ``[k, D]``.
    """
    z, x = facets.sources(x), x - facets.loc
    number = min(MOST, len(x) - 1 - z.shape[1], x.shape[1] - z.shape[1])
    if number < 1:
        return np.zeros((0, x.shape[1]))
    back = _back(z, x)
    left = x - z @ back
    unit = left.std(0).clip(LEAST_NOISE)
    pca = PCA(number, random_state=0).set_output(transform="default").fit(left / unit)
    turn = pca.components_ / unit
    found = turn - turn @ back.T @ np.concatenate(facets.maps)
    deviation = (x @ found.T).std(0)
    return (found.T / deviation.clip(NOTHING)).T[deviation > NOTHING]


def _back(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The linear map from coordinates ``[N, m]`` to rows ``[N, D]`` that leaves least."""
    return np.linalg.lstsq(z.T @ z, z.T @ x, rcond=None)[0]


def _fitted(rows: FilledRows, facets: Subspaces, beside: np.ndarray) -> LinearModel:
    """With the noise at which the bound is largest.

    :param beside: maps to components ``[k, D]``, of variance 1. Their prior is the standard normal
        one, and so their posteriors' means are nearer to 0 the less the columns tell of them.
    """
    maps = [*facets.maps, *([beside] if len(beside) else [])]
    space = Subspaces(facets.loc, maps)
    back = _back(space.sources(rows.drawn), rows.drawn - facets.loc)
    left = np.square(rows.seen - facets.loc - space.sources(rows.seen) @ back)
    share = rows.there.mean(0)
    left = (left * rows.there).mean(0) / share.clip(NOTHING)
    shrunk = (np.arange(len(back)) >= len(back) - len(beside))[:, None]
    scale, variances = np.ones((len(back), 1)), np.zeros(len(back))
    for _ in range(STEPS):
        noise = (left + variances @ (back / scale) ** 2).clip(LEAST_NOISE**2)
        told = (share * back**2 / noise).sum(1, keepdims=True)
        scale = np.where(shrunk, np.sqrt((np.sqrt(told**2 + 4 * told) - told) / 2), 1.0)
        variances = 1 / (1 + (told / scale**2)[:, 0])
    if len(beside):
        maps[-1] = beside * scale[-len(beside) :]
    return LinearModel(Subspaces(facets.loc, maps), back / scale, np.sqrt(noise), variances)
