"""How a start sees data: as complete numbers, among which independent subspaces can be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag

from inference.estimators.data import residual_scale
from ppl_models import Columns
from ppl_models.columns import numeric
from ppl_models.configurable import from_config, to_config

__all__ = ["ColumnsView", "View", "columns_view"]

# Shuffled tables that a direction is compared with, the share of these that it must exceed, and the
# most rows of them.
SHUFFLES, LEVEL, MAX_ROWS = 20, 0.95, 5000
# Directions of a column that are this much shorter than its longest have no variance.
NO_VARIANCE = 1e-6
# Noise that fills the gaps between codes and between counts, in deviations: without it every code
# would be a hill of the density.
FILLING = 0.4


@dataclass(frozen=True)
class View:
    """Encoded data are numbers already; a gap is their mean, 0."""

    @property
    def dims(self) -> int | None:
        """How many principal components of the numbers to look for facets in; ``None`` for those
        that exceed chance.
        """
        return None

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Complete numbers ``[N, F]``."""
        return np.nan_to_num(x)

    def smooth(self, x: np.ndarray, seed: int) -> np.ndarray:
        """The same, with a density whose hills can be counted."""
        return self.numbers(x).astype(float)

    def taught(self, x: np.ndarray) -> np.ndarray:
        """What networks read, and learn to give back, before the bound is trained."""
        return self.numbers(x)

    def residual_scale(self, x: np.ndarray, dim: int) -> float:
        """Deviation of what ``dim`` linear latents leave unexplained of the numbers."""
        return residual_scale(x, dim)


@dataclass(frozen=True)
class ColumnsView(View):
    """Columns of all kinds as numbers of equal weight (factor analysis of mixed data; Pages, 2004).

    Each column's features (:func:`~ppl_models.columns.numeric`) become uncorrelated and of variance
    1: K categories are K - 1 such numbers. Of categories and counts only those directions stay that
    depend on other columns more than by chance (parallel analysis over whole columns), since by
    itself every column of categories is a grouping.

    :ivar columns: description of the :class:`~ppl_models.columns.Columns`.
    :ivar loc: mean of the features ``[F]``.
    :ivar whitening: ``[F, G]``.
    :ivar directions: orthonormal ones that stay ``[m, G]``.
    :ivar discrete: which of the numbers are of codes and counts ``[G]``.
    """

    columns: Any
    loc: np.ndarray
    whitening: np.ndarray
    directions: np.ndarray
    discrete: np.ndarray

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return self._projected(self._white(x))

    def smooth(self, x: np.ndarray, seed: int) -> np.ndarray:
        white = self._white(x)
        noise = FILLING * np.random.default_rng(seed).normal(size=white.shape)
        return self._projected(
            (white + noise * self.discrete) / np.hypot(1, FILLING * self.discrete)
        )

    def taught(self, x: np.ndarray) -> np.ndarray:
        return x

    def residual_scale(self, x: np.ndarray, dim: int) -> float:
        return residual_scale(self.numbers(x), dim)

    def _white(self, x: np.ndarray) -> np.ndarray:
        features = np.concatenate(_features(from_config(self.columns), x), 1)
        return (features - self.loc) @ self.whitening

    def _projected(self, white: np.ndarray) -> np.ndarray:
        return white @ self.directions.T @ self.directions


def columns_view(columns: Columns, x: np.ndarray) -> ColumnsView:
    """The view of encoded data ``[N, D]``."""
    features = _features(columns, x)
    loc = [each.mean(0) for each in features]
    turns = [_whitening(each - mean) for each, mean in zip(features, loc, strict=True)]
    white = [(each - m) @ turn for each, m, turn in zip(features, loc, turns, strict=True)]
    discrete = np.repeat([each.discrete for each in columns], [each.shape[1] for each in white])
    kept = np.concatenate([_beyond_chance(white), np.eye(len(discrete))[~discrete]])
    directions = _orthonormal(kept)
    return ColumnsView(
        to_config(columns), np.concatenate(loc), block_diag(*turns), directions, discrete
    )


def _features(columns: Columns, x: np.ndarray) -> list[np.ndarray]:
    with torch.no_grad():
        return [each.double().numpy() for each in numeric(columns, torch.tensor(x))]


def _whitening(features: np.ndarray) -> np.ndarray:
    """From centred features to uncorrelated numbers of variance 1: ``[F, G]``."""
    _, size, turn = np.linalg.svd(features, full_matrices=False)
    kept = size > NO_VARIANCE * max(size.max(initial=0), np.sqrt(len(features)) * NO_VARIANCE)
    return turn[kept].T * (np.sqrt(len(features)) / size[kept])


def _beyond_chance(white: list[np.ndarray]) -> np.ndarray:
    """Principal components ``[m, G]`` of columns side by side that exceed shuffled columns'."""
    rng = np.random.default_rng(0)
    rows = [each[:: -(-len(each) // MAX_ROWS)] for each in white]
    shuffled = [
        np.concatenate([rng.permutation(each) for each in rows], 1) for _ in range(SHUFFLES)
    ]
    chance = np.quantile([np.linalg.svd(each, compute_uv=False) for each in shuffled], LEVEL, 0)
    _, size, components = np.linalg.svd(np.concatenate(rows, 1), full_matrices=False)
    more = size > chance
    return components[: len(more) if more.all() else more.argmin()]


def _orthonormal(directions: np.ndarray) -> np.ndarray:
    """An orthonormal basis of their span."""
    _, size, basis = np.linalg.svd(directions, full_matrices=False)
    return basis[: int((size > NO_VARIANCE).sum())]
