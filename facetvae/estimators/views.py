"""How a start sees data: as complete numbers, among which independent subspaces can be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from facetvae.describing.columns import FEW_VALUES
from facetvae.table_rules.chance import largest
from facetvae.table_rules.filling import LinearFilling, linear_filling
from facetvae.table_rules.noise import linear_noise, residual_scale
from facetvae.table_rules.rows import has_missing, thinned
from ppl_models import Columns
from ppl_models.columns import numeric
from ppl_models.configurable import from_config, to_config

# Shuffled tables that a direction is compared with, the share of these that it must exceed, and the
# most rows of them.
SHUFFLES, LEVEL, MAX_ROWS = 20, 0.95, 5000
# Directions of a column that are this much shorter than its longest have no variance.
NO_VARIANCE = 1e-6
# Noise that fills the gaps between codes and between counts, in deviations: without it every code
# would be a hill of the density.
FILLING = 0.4
# Where a smaller share of the rows is distinct, they may lie in a lattice.
DISTINCT = 0.75


@dataclass(frozen=True)
class View:
    """Encoded data are numbers already; a gap is their mean, 0.

    :cvar linear: whether encoders read these numbers, so that a linear map of them is one of an
        encoder's.
    """

    linear: ClassVar[bool] = True

    @property
    def dims(self) -> int | None:
        """How many principal components of the numbers to look for facets in; ``None`` for those
        that exceed chance.
        """
        return None

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Complete numbers ``[N, F]``."""
        return np.nan_to_num(x) if has_missing(x) else x

    def smooth(self, x: np.ndarray, seed: int) -> np.ndarray:
        """The same, with a density whose hills can be counted: columns of few steps, such as
        answers from 1 to 5, and rows of a lattice, such as whole numbers in few columns, are spread
        over the gaps around their values.
        """
        numbers, rng = self.numbers(x).astype(float), np.random.default_rng(seed)
        everywhere = _in_lattice(numbers, rng)
        for column in numbers.T:
            if everywhere or _has_few_steps(column):
                column[:] = _spread(column, rng)
        return numbers

    def taught(self, x: Tensor) -> Tensor:
        """What networks read, and learn to give back, before the bound is trained."""
        return x.nan_to_num()

    def residual_scale(self, x: np.ndarray, dim: int) -> float | np.ndarray:
        """Deviation of what ``dim`` linear latents leave unexplained of the numbers: one, or each
        number's.
        """
        return linear_noise(x, dim)


def _in_lattice(x: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether rows ``[N, F]`` repeat each other, and those that differ share values, as copies of
    a few rows do not. Rows are told apart by their places in one direction.
    """
    distinct = len(np.unique((x @ rng.normal(size=x.shape[1])).round(9)))
    if distinct > DISTINCT * len(x):
        return False
    return x.shape[1] == 1 or distinct > max(len(np.unique(column)) for column in x.T)


def _has_few_steps(values: np.ndarray) -> bool:
    """Whether a column ``[N]`` has a few values at equal distances, and none in most rows, as
    amounts that are mostly 0 have.
    """
    levels, counts = np.unique(values, return_counts=True)
    if not 2 < len(levels) <= FEW_VALUES or counts.max() > len(values) / 2:
        return False
    return bool(np.allclose(np.diff(levels), levels[1] - levels[0]))


def _spread(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each value ``[N]`` drawn anew from the interval up to halfway to the next ones, or to where
    they would lie at the median step: a gap that is wider stays one.
    """
    levels, of = np.unique(values, return_inverse=True)
    if len(levels) < 2:
        return values
    steps = np.diff(levels)
    steps = np.minimum(steps, np.median(steps)) / 2
    below, above = (np.concatenate(each) for each in ((steps[:1], steps), (steps, steps[-1:])))
    return values + rng.uniform(-below[of], above[of])


@dataclass(frozen=True)
class ColumnsView(View):
    """Columns of all kinds as numbers of equal weight (factor analysis of mixed data; Pages, 2004).

    Each column's features (:func:`~ppl_models.columns.numeric`) become uncorrelated and of variance
    1: K categories are K - 1 such numbers. Of categories and counts only those directions stay that
    depend on other columns more than by chance (parallel analysis over whole columns), since by
    itself every column of categories is a grouping.

    A gap holds its mean given the rest of the row, as its column's mean would lie between clusters.

    :ivar columns: description of the :class:`~ppl_models.columns.Columns`.
    :ivar loc: mean of the features ``[F]``.
    :ivar whitening: ``[F, G]``.
    :ivar owner: the number of the column that each number belongs to ``[G]``.
    :ivar directions: orthonormal ones that stay ``[m, G]``.
    :ivar discrete: which of the numbers are of codes and counts ``[G]``.
    :ivar filling: of gaps, if there were any and columns depend on each other.
    """

    linear = False
    columns: Any
    loc: np.ndarray
    whitening: np.ndarray
    owner: np.ndarray
    directions: np.ndarray
    discrete: np.ndarray
    filling: LinearFilling | None

    def numbers(self, x: np.ndarray) -> np.ndarray:
        return self._projected(self._white(x))

    def smooth(self, x: np.ndarray, seed: int) -> np.ndarray:
        """The same, with a density whose hills can be counted, of the rows with the fewest gaps: at
        least half of all. What is filled in would be hills and valleys of its own.
        """
        white = self._white(x[_most_complete(x)])
        noise = FILLING * np.random.default_rng(seed).normal(size=white.shape)
        return self._projected(
            (white + noise * self.discrete) / np.hypot(1, FILLING * self.discrete)
        )

    def taught(self, x: Tensor) -> Tensor:
        return x

    def residual_scale(self, x: np.ndarray, dim: int) -> float:
        return residual_scale(self.numbers(x), dim)

    def _white(self, x: np.ndarray) -> np.ndarray:
        features = np.concatenate(_features(from_config(self.columns), x), 1)
        white = (features - self.loc) @ self.whitening
        return white if self.filling is None else self.filling.filled(white, self._gaps(x))

    def _gaps(self, x: np.ndarray) -> np.ndarray:
        return np.isnan(x)[:, self.owner]

    def _projected(self, white: np.ndarray) -> np.ndarray:
        return white @ self.directions.T @ self.directions


def columns_view(columns: Columns, x: np.ndarray) -> ColumnsView:
    """The view of encoded data ``[N, D]``."""
    features = _features(columns, x)
    loc = [each.mean(0) for each in features]
    turns = [_whitening(each - mean) for each, mean in zip(features, loc, strict=True)]
    white = [(each - m) @ turn for each, m, turn in zip(features, loc, turns, strict=True)]
    owner = np.repeat(np.arange(len(white)), [each.shape[1] for each in white])
    is_code = np.array([each.discrete for each in columns])
    kept = np.eye(len(owner))[~is_code[owner]]
    directions = np.concatenate([_dependent(white, is_code, owner), kept])
    filling = _filling(white, np.isnan(x)[:, owner])
    turn = block_diag(*turns)
    return ColumnsView(
        to_config(columns), np.concatenate(loc), turn, owner, directions, is_code[owner], filling
    )


def _most_complete(x: np.ndarray) -> np.ndarray:
    """Which rows ``[N]`` have no more gaps than the median row."""
    gaps = np.isnan(x).sum(1)
    return gaps <= np.median(gaps)


def _filling(white: list[np.ndarray], gaps: np.ndarray) -> LinearFilling | None:
    """With as many latents as principal components exceed chance."""
    if not gaps.any():
        return None
    dim = min(len(_beyond_chance(white)), gaps.shape[1] - 1)
    return linear_filling(np.concatenate(white, 1), gaps, dim) if dim else None


def _features(columns: Columns, x: np.ndarray) -> list[np.ndarray]:
    with torch.no_grad():
        return [each.double().numpy() for each in numeric(columns, torch.tensor(x))]


def _whitening(features: np.ndarray) -> np.ndarray:
    """From centred features to uncorrelated numbers of variance 1: ``[F, G]``."""
    _, size, turn = np.linalg.svd(features, full_matrices=False)
    kept = size > NO_VARIANCE * max(size.max(initial=0), np.sqrt(len(features)) * NO_VARIANCE)
    return turn[kept].T * (np.sqrt(len(features)) / size[kept])


def _dependent(white: list[np.ndarray], is_code: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Orthonormal directions ``[m, G]`` of codes and counts that depend on other columns.

    They are principal components of all columns side by side that exceed those of shuffled columns.
    All numbers count as one column without correlations: their directions stay anyhow, and
    components that are due to their own correlations would only bring chance from the codes along.

    :param is_code: of each column, whether it holds codes or counts.
    :param owner: the column of each number ``[G]``.
    """
    codes, numbers = ([white[i] for i in np.flatnonzero(is_code == kind)] for kind in (True, False))
    if not codes:
        return np.zeros((0, len(owner)))
    if numbers:
        together = np.concatenate(numbers, 1)
        codes.append(together @ _whitening(together))
    found = _beyond_chance(codes)[:, : int(is_code[owner].sum())]
    return _orthonormal(found) @ np.eye(len(owner))[is_code[owner]]


def _beyond_chance(white: list[np.ndarray]) -> np.ndarray:
    """Principal components ``[m, G]`` of columns side by side that exceed the largest of shuffled
    columns'.

    Each is compared with the largest, not with the one of its rank, as components before it are no
    chance.
    """
    rng = np.random.default_rng(0)
    rows = [thinned(each, MAX_ROWS) for each in white]
    shuffled = [
        np.concatenate([rng.permutation(each) for each in rows], 1) for _ in range(SHUFFLES)
    ]
    chance = np.quantile([np.sqrt(largest(each)) for each in shuffled], LEVEL)
    _, size, components = np.linalg.svd(np.concatenate(rows, 1), full_matrices=False)
    return components[size > chance]


def _orthonormal(directions: np.ndarray) -> np.ndarray:
    """An orthonormal basis of their span."""
    _, size, basis = np.linalg.svd(directions, full_matrices=False)
    return basis[: int((size > NO_VARIANCE).sum())]
