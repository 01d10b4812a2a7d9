"""Independent sources of a table (ICA), and which of them depend on each other none the less."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
from scipy.sparse.csgraph import connected_components
from sklearn.decomposition import PCA, FastICA
from sklearn.exceptions import ConvergenceWarning

from facetvae.table_rules.rows import thinned

# Most rows that a rotation is judged on.
MAX_ROWS = 2000
# How far products of two rows of ICA's matrix may be from those of a rotation: FastICA can end
# with one source that is a sum of others.
NOT_ORTHOGONAL = 0.1
# Angles at which each pair is tried, and how often all pairs are turned.
STEPS, SWEEPS = 18, 10
# Frequencies of the sines and cosines, in one over the deviation of a coordinate.
FREQUENCIES = (0.8, 1.6)
# Two coordinates depend on each other if the sum of the squared canonical correlations is this far
# above that of independent ones, and by so many standard deviations.
DEPENDENCE, SIGNIFICANT = 0.08, 4.0


def independent_sources(
    x: np.ndarray, dim: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ICA of ``dim`` principal components of ``x`` ``[N, D]``: the sources ``[N, dim]``, their maps
    ``[dim, D]`` from data less their mean, and that mean ``[D]``.
    """
    pca = PCA(dim, random_state=seed, whiten=True).set_output(transform="default").fit(x)
    white = pca.transform(x)
    ica = FastICA(random_state=seed, whiten="unit-variance", max_iter=1000)
    ica.set_output(transform="default")
    with warnings.catch_warnings():
        # Expected if only normal noise remains, which has no preferred rotation.
        warnings.simplefilter("ignore", ConvergenceWarning)
        sources = ica.fit_transform(white)
    rotation = ica.components_
    if np.abs(rotation @ rotation.T - np.eye(dim)).max() > NOT_ORTHOGONAL:
        left, _, right = np.linalg.svd(rotation)
        rotation = left @ right
        sources = white @ rotation.T
    deviation = np.sqrt(pca.explained_variance_.clip(np.finfo(float).tiny))
    return sources, rotation @ (pca.components_ / deviation[:, None]), pca.mean_


def farthest_from_normal(sources: np.ndarray, turned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn pairs of sources ``[N, m]``, and their maps ``[m, D]``, while that raises the sum of
    their squared negentropy contrasts (log cosh; Hyvarinen, 1999, Eq. 6).
    """
    m, rows = sources.shape[1], thinned(sources, MAX_ROWS)
    rotation, angle = np.eye(m), np.pi / 2 * np.arange(STEPS) / STEPS
    cos, sin = np.cos(angle), np.sin(angle)
    for _ in range(SWEEPS):
        changed = False
        for a, b in combinations(range(m), 2):
            first, second = rows @ rotation[a], rows @ rotation[b]
            gain = _contrast(np.outer(first, cos) + np.outer(second, sin))
            gain += _contrast(np.outer(second, cos) - np.outer(first, sin))
            best = int(gain.argmax())
            if gain[best] > 1.01 * gain[0] + 1e-6:
                turn = np.array([[cos[best], sin[best]], [-sin[best], cos[best]]])
                rotation[[a, b]] = turn @ rotation[[a, b]]
                changed = True
        if not changed:
            break
    return sources @ rotation.T, rotation @ turned


def _contrast(s: np.ndarray) -> np.ndarray:
    """Squared difference of E log cosh from that of a standard normal, 0.3746, for each column."""
    return (np.log(np.cosh(s)).mean(0) - 0.37457) ** 2


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
