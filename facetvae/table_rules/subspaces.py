"""Facets as independent subspaces of the data, the warm start for columns of real numbers: its
principal components are rotated to be as independent as possible (ICA), and coordinates that still
depend on each other go into one facet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import SpectralClustering
from sklearn.feature_selection import mutual_info_regression

from facetvae.table_rules.merging import clarity
from facetvae.table_rules.rows import thinned
from facetvae.table_rules.sources import independent_sources

# Most rows that dependence is measured on.
MAX_ROWS = 2000
# Two coordinates depend on each other if their dependence exceeds that of independent ones by this
# many standard deviations.
SIGNIFICANT = 4.0
# Dependence, in nats, that is added to all pairs of coordinates, so that the graph is connected.
TIE = 1e-3


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
        apart = [
            [0.0 if label is None else _separation(z[label >= 0], label[label >= 0]) for z in parts]
            for label in labels
        ]
        # Keep the given order if nothing suggests another.
        J, most = np.shape(apart)
        gain = np.array(apart) - 1e-3 * np.array(misfit) + 1e-6 * np.eye(J, most, most - J)
        return linear_sum_assignment(gain, maximize=True)[1].tolist()

    def reordered(self, order: Sequence[int]) -> Subspaces:
        return Subspaces(self.loc, [self.maps[place] for place in order])

    def variances(self, scale: float | np.ndarray) -> np.ndarray:
        """Variance of each latent given x and the other latents ``[m]``, if x is a linear map of
        the latents plus noise of deviation ``scale``, one or each column's ``[D]``.
        """
        back = np.linalg.pinv(np.concatenate(self.maps))
        return 1 / (1 + ((back / np.reshape(scale, (-1, 1))) ** 2).sum(0))


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
    rows = thinned(sources, MAX_ROWS)
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
