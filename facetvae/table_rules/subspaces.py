"""Independent coordinates of a table (ICA), which of them depend on each other none the less, and
facets as subspaces of those that do: the warm start for columns of real numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from picard import picard
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from scipy.stats import f as f_distribution
from sklearn.cluster import SpectralClustering
from sklearn.decomposition import PCA
from sklearn.feature_selection import mutual_info_regression

from facetvae.table_rules.components import LEAST_UNTOLD, noise_of
from facetvae.table_rules.known import classes_of
from facetvae.table_rules.merging import clarity
from facetvae.table_rules.rows import some_rows

# Most rows that a rotation and dependence are judged on.
MAX_ROWS = 2000
# Frequencies of the sines and cosines, in one over the deviation of a coordinate.
FREQUENCIES = (0.8, 1.6)
# Two coordinates depend on each other if their dependence, the sum of squared canonical
# correlations or information, exceeds that of independent ones by so many standard deviations, and
# the former by a least amount.
SIGNIFICANT, DEPENDENCE = 4.0, 0.08
# Dependence, in nats, that is added to all pairs of coordinates, so that the graph is connected.
TIE = 1e-3
# Leading components of what linear maps leave that are tested for a curve, and fewest rows for each
# square or product.
LEADING, ROWS_PER_TERM = 10, 3


@dataclass(frozen=True)
class Subspaces:
    """Linear maps from data ``[N, D]`` to the latents of each facet.

    :ivar loc: mean of the data ``[D]``.
    :ivar maps: ``[d_j, D]`` each; their outputs have mean 0 and variance 1.
    """

    loc: np.ndarray
    maps: list[np.ndarray]

    @property
    def dims(self) -> list[int]:
        return list(map(len, self.maps))

    def sources(self, x: np.ndarray) -> np.ndarray:
        """All facets' latents side by side."""
        return (x - self.loc) @ np.concatenate(self.maps).T

    def order_for(
        self, labels: Sequence[np.ndarray | None], x: np.ndarray, misfit: Any = 0
    ) -> list[int]:
        """For each facet, the place of its subspace: those with labels get the one in which their
        classes are best separated, others the one that misfits least. If there are more subspaces
        than facets, those that nothing suggests are the last.

        :param labels: for each facet, integers ``[N]``, -1 where unknown; ``None`` for a facet
            without labels.
        :param misfit: of each facet (rows) with each subspace (columns), which decides where labels
            do not.
        """
        parts = np.split(self.sources(x), np.cumsum(self.dims)[:-1], axis=1)
        known = [None if label is None else classes_of(label) for label in labels]
        apart = [
            [0.0 if of is None else _separation(z[of[0]], of[1]) for z in parts] for of in known
        ]
        # Keep the given order if nothing suggests another.
        J, most = np.shape(apart)
        gain = np.array(apart) - 1e-3 * np.array(misfit) + 1e-6 * np.eye(J, most, most - J)
        return linear_sum_assignment(gain, maximize=True)[1].tolist()

    def reordered(self, order: Sequence[int]) -> Subspaces:
        return Subspaces(self.loc, [self.maps[place] for place in order])

    def variances(self, scale: float) -> np.ndarray:
        """Variance of each latent given x and the other latents ``[m]``, if x is a linear map of
        the latents plus noise of deviation ``scale``.
        """
        return 1 / (1 + ((np.linalg.pinv(np.concatenate(self.maps)) / scale) ** 2).sum(0))


def _separation(z: np.ndarray, label: np.ndarray) -> float:
    """Share of the variance of latents ``[N, d]`` between classes; 0 if none has two rows."""
    classes, label = np.unique(label, return_inverse=True)
    if len(classes) == len(label):
        return 0.0
    means = np.stack([z[label == k].mean(0) for k in range(len(classes))])
    within = (z - means[label]).var(0).sum() * len(label) / (len(label) - len(classes))
    return float(1 - within / z.var(0).sum())


def independent_subspaces(x: np.ndarray, dim: int, number: int, seed: int) -> Subspaces:
    """The space of ``dim`` principal components of ``x`` ``[N, D]`` as ``number`` subspaces,
    ordered by how clear their clusters are: the clearest last, the remaining coordinates first.
    """
    sources, turned, loc = independent_sources(x, dim, seed)
    group = _dependent(sources, number, seed)
    clear = {g: clarity(sources[:, group == g], seed) for g in np.unique(group)}
    kept = sorted(clear, key=clear.__getitem__, reverse=True)[: number - 1]
    rest = ~np.isin(group, kept)
    return Subspaces(loc, [turned[rest], *(turned[group == g] for g in kept[::-1])])


def _dependent(sources: np.ndarray, number: int, seed: int) -> np.ndarray:
    """The group of each source ``[m]``, at least ``number`` groups that depend within."""
    m = sources.shape[1]
    if m == number:
        return np.arange(m)
    rows = some_rows(sources, most=MAX_ROWS)
    dependence = _dependence(rows, rows, seed)
    shuffled = np.random.default_rng(seed).permuted(rows, axis=0)
    none = _dependence(rows, shuffled, seed)
    tied = dependence > none.mean() + SIGNIFICANT * none.std()
    groups, group = connected_components(tied)
    if groups >= number:
        return group
    cut = SpectralClustering(
        number, affinity="precomputed", assign_labels="cluster_qr", random_state=seed
    )
    group = cut.fit_predict(dependence + TIE)
    return group if len(np.unique(group)) == number else np.arange(m) % number


def _dependence(a: np.ndarray, b: np.ndarray, seed: int) -> np.ndarray:
    """Mutual information of each two columns ``[m, m]``, in nats, made symmetric."""
    shared = np.stack([mutual_info_regression(a, column, random_state=seed) for column in b.T])
    return (shared + shared.T) / 2


def independent_sources(
    x: np.ndarray, dim: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ICA of ``dim`` principal components of standardized ``x`` ``[N, D]``: the sources
    ``[N, dim]``, their maps ``[dim, D]`` from data less their mean, and that mean ``[D]``.

    Of columns in units of their noise, where components lose least: of what other columns do not
    tell, and then of what as many components leave.
    """
    x = x.astype(float)
    unit = noise_of(x)
    pca = _components(x / unit, dim, seed)
    left = x / unit - pca.inverse_transform(pca.transform(x / unit))
    unit = unit * np.sqrt(left.var(0).clip(LEAST_UNTOLD))
    pca = _components(x / unit, dim, seed)
    white = pca.transform(x / unit)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        # Expected if only normal noise remains, which has no preferred rotation.
        _, rotation, sources = picard(
            white.T, ortho=True, extended=True, whiten=False, centering=False, random_state=seed
        )
    deviation = np.sqrt(pca.explained_variance_.clip(np.finfo(float).tiny))
    return sources.T, rotation @ (pca.components_ / deviation[:, None]) / unit, pca.mean_ * unit


def _components(x: np.ndarray, dim: int, seed: int) -> PCA:
    pca = PCA(dim, random_state=seed, whiten=True)
    return pca.set_output(transform="default").fit(x)


def dependent_groups(sources: np.ndarray) -> np.ndarray:
    """The group of each source ``[m]``: sources of one group depend on each other.

    The sum of squared canonical correlations of q with q functions has the mean q^2 / N and about
    the deviation sqrt(2) q / N if the sources are independent.
    """
    n, m = sources.shape
    waves = [_waves(column) for column in sources.T]
    q = 2 * len(FREQUENCIES)
    tied = np.zeros((m, m), bool)
    least = max(DEPENDENCE, SIGNIFICANT * np.sqrt(2) * q / n)
    for a, b in combinations(range(m), 2):
        tied[a, b] = np.square(waves[a].T @ waves[b]).sum() - q**2 / n > least
    return connected_components(tied, directed=False)[1]


def _waves(column: np.ndarray) -> np.ndarray:
    """Sines and cosines of a source, as orthonormal columns ``[N, q]`` with mean 0."""
    waves = np.stack([f(w * column) for w in FREQUENCIES for f in (np.sin, np.cos)], 1)
    return np.linalg.qr(waves - waves.mean(0))[0]


def curvature_p_value(x: np.ndarray, sources: np.ndarray) -> float:
    """Whether what a linear map of sources ``[N, m]`` leaves of ``x`` ``[N, D]`` depends on their
    squares and products: the lowest p-value of F tests of its leading components, times their
    number. 1 if nothing is left.
    """
    x, z = some_rows(x, most=MAX_ROWS).astype(float), some_rows(sources, most=MAX_ROWS)
    z = (z - z.mean(0)) / z.std(0).clip(np.finfo(float).tiny)
    plain = np.column_stack([np.ones(len(z)), z])
    bent = [z[:, a] * z[:, b] for a in range(z.shape[1]) for b in range(a, z.shape[1])]
    if len(plain.T) + len(bent) > len(z) / ROWS_PER_TERM:
        bent = list((z**2).T)
    free = len(z) - plain.shape[1] - len(bent)
    number = min(LEADING, x.shape[1] - z.shape[1], len(z) - 1)
    if number < 1 or free < 1:
        return 1.0
    left = np.linalg.svd(left_of(x, plain), full_matrices=False)[0][:, :number]
    before, after = (
        (left_of(left, by) ** 2).sum(0) for by in (plain, np.column_stack([plain, *bent]))
    )
    ratio = (before - after) / len(bent) / (after / free).clip(np.finfo(float).tiny)
    return float(min(1.0, number * f_distribution.sf(ratio, len(bent), free).min()))


def left_of(y: np.ndarray, by: np.ndarray) -> np.ndarray:
    """What least squares by other columns leaves of ``y``."""
    return y - by @ np.linalg.lstsq(by, y, rcond=None)[0]
