"""How a start sees columns of several kinds: as complete numbers of equal weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import block_diag

from facetvae.estimators.arrays import View
from facetvae.table_rules.components import largest
from facetvae.table_rules.levels import has_steps, levels_of_one, spread
from facetvae.table_rules.rows import some_rows
from ppl_models import Columns
from ppl_models.columns import numeric

# Shuffled tables, the share of these that a direction must exceed, and their most rows.
SHUFFLES, LEVEL, MAX_ROWS = 20, 0.95, 5000
# Directions of a column that are this much shorter than its longest have no variance.
NO_VARIANCE = 1e-6
# Noise, in deviations, without which every code and count would be a mode of the density.
FILLING = 0.4


@dataclass(frozen=True)
class ColumnsView(View):
    """Columns of all kinds as numbers of equal weight (factor analysis of mixed data; Pages, 2004).

    Each column's features (:func:`~ppl_models.columns.numeric`) become uncorrelated and of variance
    1. Of categories and counts, each a grouping by itself, only those directions stay that depend
    on other columns more than by chance. A gap holds its column's mean.

    :ivar loc: mean of the features ``[F]``.
    :ivar whitening: ``[F, G]``.
    :ivar directions: orthonormal ones that stay ``[m, G]``.
    :ivar discrete: which of the numbers are of codes and counts ``[G]``.
    """

    linear = False
    columns: Columns
    loc: np.ndarray
    whitening: np.ndarray
    directions: np.ndarray
    discrete: np.ndarray

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return self._projected(self._white(x))

    def smooth(self, x: np.ndarray, seed: int) -> np.ndarray:
        """The same, with a density whose modes can be counted, of the half with the fewest gaps:
        what is filled in would have modes that are not the data's.
        """
        gaps = np.isnan(x).sum(1)
        white = self._white(x[gaps <= np.median(gaps)])
        noise = FILLING * np.random.default_rng(seed).normal(size=white.shape)
        deviation = np.hypot(1, FILLING * self.discrete)
        return self._projected((white + noise * self.discrete) / deviation)

    def table(self, x: np.ndarray, seed: int) -> tuple[np.ndarray, list[int]]:
        """Codes as they are, other columns as encoders see them; of counts roots, which vary evenly
        about different means. Rounded numbers are spread over the steps between them.
        """
        values, rng, levels = x.astype(float), np.random.default_rng(seed), _levels(self.columns)
        for own, column, number in zip(self.columns, values.T, levels, strict=True):
            if number:
                continue
            there = ~np.isnan(column)
            if has_steps(column[there]) or (column[there] % 1 == 0).all():
                column[there] = spread(column[there], rng)
            if own.discrete:
                column[:] = np.sqrt(column + 0.5)
            else:
                column[:] = own.features(torch.as_tensor(column[:, None]))[:, 0].detach()
        return values, levels

    def _white(self, x: np.ndarray) -> np.ndarray:
        features = np.concatenate(_features(self.columns, x), 1)
        return (features - self.loc) @ self.whitening

    def _projected(self, white: np.ndarray) -> np.ndarray:
        return white @ self.directions.T @ self.directions


def columns_view(columns: Columns, x: np.ndarray) -> ColumnsView:
    """The view of encoded data ``[N, D]``. Columns that are levels of one category count as one."""
    each = _features(columns, x)
    owner = np.repeat(np.arange(len(each)), [own.shape[1] for own in each])
    sets = levels_of_one(x, np.array(_levels(columns)))
    alone = np.setdiff1d(np.arange(len(each)), np.concatenate([np.zeros(0, int), *sets]))
    parts = [np.flatnonzero(np.isin(owner, own)) for own in (*sets, *alone[:, None])]
    features = np.concatenate(each, 1)
    loc = features.mean(0)
    turns = [_whitening(features[:, own] - loc[own]) for own in parts]
    white = [(features[:, own] - loc[own]) @ turn for own, turn in zip(parts, turns, strict=True)]
    of_codes = np.array([likelihood.discrete for likelihood in columns])
    is_code = of_codes[[owner[own[0]] for own in parts]]
    discrete = is_code.repeat([turn.shape[1] for turn in turns])
    dependent = _dependent(white, is_code, discrete)
    directions = np.concatenate([dependent, np.eye(len(discrete))[~discrete]])
    whitening = np.zeros((len(loc), len(discrete)))
    whitening[np.concatenate(parts)] = block_diag(*turns)
    return ColumnsView(columns, loc, whitening, directions, discrete)


def _levels(columns: Columns) -> list[int]:
    """Of each column the number of its categories; 0 for numbers and counts."""
    coded = (own.discrete and own.support[1] < np.inf for own in columns)
    return [
        int(own.support[1]) + 1 if code else 0 for own, code in zip(columns, coded, strict=True)
    ]


def _features(columns: Columns, x: np.ndarray) -> list[np.ndarray]:
    with torch.no_grad():
        return [numbers.double().numpy() for numbers in numeric(columns, torch.tensor(x))]


def _whitening(features: np.ndarray) -> np.ndarray:
    """From centered features to uncorrelated numbers of variance 1: ``[F, G]``."""
    _, size, turn = np.linalg.svd(features, full_matrices=False)
    kept = size > NO_VARIANCE * max(size.max(initial=0), np.sqrt(len(features)) * NO_VARIANCE)
    return turn[kept].T * (np.sqrt(len(features)) / size[kept])


def _dependent(white: list[np.ndarray], is_code: np.ndarray, discrete: np.ndarray) -> np.ndarray:
    """Orthonormal directions ``[m, G]`` of codes and counts that depend on other columns: principal
    components beyond those of shuffled ones. Numbers, which stay in any case, count as one column
    without correlations of its own.
    """
    codes, numbers = ([white[i] for i in np.flatnonzero(is_code == kind)] for kind in (True, False))
    if not codes:
        return np.zeros((0, len(discrete)))
    if numbers:
        together = np.concatenate(numbers, 1)
        codes.append(together @ _whitening(together))
    kept = _beyond_chance(codes)[:, : int(discrete.sum())]
    _, size, basis = np.linalg.svd(kept, full_matrices=False)
    return basis[: int((size > NO_VARIANCE).sum())] @ np.eye(len(discrete))[discrete]


def _beyond_chance(white: list[np.ndarray]) -> np.ndarray:
    """Principal components ``[m, G]`` of columns side by side that exceed the largest of shuffled
    columns': not the one of its rank, as components before it are no chance.
    """
    rng = np.random.default_rng(0)
    rows = [some_rows(column, most=MAX_ROWS) for column in white]
    shuffled = (np.concatenate([rng.permutation(c) for c in rows], 1) for _ in range(SHUFFLES))
    chance = np.quantile([np.sqrt(largest(table)) for table in shuffled], LEVEL)
    _, size, components = np.linalg.svd(np.concatenate(rows, 1), full_matrices=False)
    return components[size > chance]
