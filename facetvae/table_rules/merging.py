"""How many clusters latents have: by BIC, or the components of a mixture, merged (Baudry et al.,
2010; Hennig, 2010) unless the density has a minimum between them, along the ridge line of the two
(Ray and Lindsay, 2005, Eq. 4) or the straight one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from facetvae.table_rules.rows import some_rows

# Components whose density at the lowest point between them is at least this share of the lower of
# their modes are one cluster. On simulated tables shares from 0.6 to 0.9 give the same numbers.
SEPARATED = 0.8
# Of a mixture with k-means; the likeliest is kept.
STARTS = 2
# Points at which the density is computed along each line.
STEPS = 21
# Numbers of clusters to try by BIC alone.
NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25)
# Numbers of components to try, and how many in a row without a lower BIC end the search.
COMPONENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 21, 25)
PATIENCE = 3
# Covariances of the components: one for each, or one for all, which few rows suffice for.
COVARIANCES = ("full", "tied")
# Fewest data for each component, and most data that a mixture is fitted to.
ROWS_PER_COMPONENT, MAX_ROWS = 15, 5000


#: Decorator, for tens of thousands of products of microseconds, which more threads slow down.
on_one_thread = threadpool_limits.wrap(limits=1, user_api="blas")


@dataclass(frozen=True)
class MergeTree:
    """The M components of a mixture, joined two clusters at a time; those with the highest density
    between them come first.

    :ivar mixture: the fitted mixture (scikit-learn's).
    :ivar joins: ``[M - 1, 2]``, the clusters that are joined at each step, each by the number of
        its first component.
    :ivar heights: ``[M - 1]``, the lowest density between the two, as a share of that at the lower
        of their modes: 1 if there is no minimum. They never increase.
    """

    mixture: GaussianMixture
    joins: np.ndarray
    heights: np.ndarray

    @property
    def modes(self) -> int:
        """The number of clusters: components between which the density falls enough."""
        return 1 + int((self.heights < SEPARATED).sum())

    def clusters_at(self, k: int) -> np.ndarray:
        """The cluster of each component ``[M]``, numbered from 0, if there are ``k`` clusters.

        :raises ValueError: if ``k`` is not between 1 and M.
        """
        M = len(self.joins) + 1
        if not 1 <= k <= M:
            raise ValueError(
                f"k must be between 1 and {M}, the mixture's number of components, got {k!r}"
            )
        cluster = np.arange(M)
        for kept, joined in self.joins[: M - k]:
            cluster[cluster == joined] = kept
        return np.unique(cluster, return_inverse=True)[1]

    def labels(self, z: np.ndarray, k: int) -> np.ndarray:
        """The most probable of ``k`` clusters for latents ``[N, d]``: integers ``[N]``."""
        members = np.eye(k)[self.clusters_at(k)]
        return (self.mixture.predict_proba(z) @ members).argmax(1)

    def joined_at(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The components of the two clusters, of ``k`` (at least 2), that are joined next."""
        cluster = self.clusters_at(k)
        first, second = cluster[self.joins[len(cluster) - k]]
        return np.flatnonzero(cluster == first), np.flatnonzero(cluster == second)

    def linkage(self) -> np.ndarray:
        """The tree in SciPy's form ``[M - 1, 4]``, for :func:`scipy.cluster.hierarchy.dendrogram`;
        the distance of two clusters is 1 - height.
        """
        M = len(self.joins) + 1
        at, size = np.arange(M), np.ones(M, int)
        rows = []
        for i, (kept, joined) in enumerate(self.joins):
            size[kept] += size[joined]
            rows.append([at[kept], at[joined], 1 - self.heights[i], size[kept]])
            at[kept] = M + i
        return np.array(rows, float).reshape(-1, 4)

    @property
    def evidence(self) -> str:
        """What was found, in words."""
        M, k = len(self.joins) + 1, self.modes
        found = f"{k} clusters of {M} components by BIC"
        if k == 1:
            return found
        least = f"{self.heights[M - k]:.2f} of the lower mode's density"
        return f"{found}, with at most {least} between them"


@dataclass(frozen=True)
class ClusterCount:
    """How many clusters a facet is fitted with, and why.

    :ivar tree: ``None`` if the number does not come from one.
    """

    number: int
    why: str
    tree: MergeTree | None = None


def merged_number(z: np.ndarray, seed: int) -> ClusterCount:
    """The number of clusters of latents ``[N, d]`` between which the density has minima; 2, the
    fewest that a facet is fitted with, if there are fewer.
    """
    tree = merge_tree(z, seed)
    why = tree.evidence + ("; a facet has 2 or more" if tree.modes < 2 else "")
    return ClusterCount(max(2, tree.modes), why, tree)


def likeliest_number(z: np.ndarray, covariance: str, seed: int) -> int:
    """The number of clusters of the latents ``[N, d]`` with the lowest BIC, at least 2."""
    bic = _bic(z, covariance, seed)
    return min(list(bic)[1:], key=bic.__getitem__)


def clarity(z: np.ndarray, seed: int) -> float:
    """By how much the BIC of clusters in the latents ``[N, d]`` is below that of one normal."""
    bic = _bic(z, "full", seed)
    return bic.pop(1) - min(bic.values())


@on_one_thread
def _bic(z: np.ndarray, covariance: str, seed: int) -> dict[int, float]:
    """BIC by number of clusters, from 1 on."""
    z = some_rows(z, most=MAX_ROWS).astype(float)
    numbers = [k for k in NUMBERS if k <= max(2, len(z) // ROWS_PER_COMPONENT)]
    return {k: float(fitted_mixture(z, k, covariance, seed).bic(z)) for k in numbers}


@on_one_thread
def merge_tree(z: np.ndarray, seed: int) -> MergeTree:
    """The mixture with the lowest BIC in latents ``[N, d]``, and how its components merge, where a
    cluster's mode is the highest density at the means of its components.
    """
    mixture = likeliest_mixture(z, seed)
    mode, between = mixture.score_samples(mixture.means_), _lowest_between(mixture)
    alive, joins, heights = list(range(len(mode))), [], []
    while len(alive) > 1:
        height, a, b = max(
            (min(0.0, between[a, b] - min(mode[a], mode[b])), a, b)
            for a, b in combinations(alive, 2)
        )
        joins.append((a, b))
        heights.append(np.exp(height))
        between[a] = between[:, a] = np.maximum(between[a], between[b])
        mode[a] = max(mode[a], mode[b])
        alive.remove(b)
    return MergeTree(mixture, np.array(joins, int).reshape(-1, 2), np.array(heights, float))


def likeliest_mixture(z: np.ndarray, seed: int) -> GaussianMixture:
    """The mixture with the lowest BIC in ``[N, d]``, of any number of components and either kind of
    covariances.
    """
    z = some_rows(z, most=MAX_ROWS).astype(float)
    fitted = [pair for kind in COVARIANCES for pair in _mixtures(z, seed, kind)]
    return min(fitted, key=lambda pair: pair[0])[1]


def _mixtures(z: np.ndarray, seed: int, covariance: str) -> list[tuple[float, GaussianMixture]]:
    """BIC and mixture by number of components, until BIC has not fallen for several."""
    fitted: list[tuple[float, GaussianMixture]] = []
    for k in COMPONENTS:
        if k > max(2, len(z) // ROWS_PER_COMPONENT) or _no_longer_falls([bic for bic, _ in fitted]):
            break
        mixture = fitted_mixture(z, k, covariance, seed)
        fitted.append((float(mixture.bic(z)), mixture))
    return fitted


def fitted_mixture(z: np.ndarray, k: int, covariance: str, seed: int) -> GaussianMixture:
    """The likeliest of a few mixtures of ``k`` components in ``[N, d]``."""
    starts = min(k, STARTS)  # a single component has one answer
    mixture = GaussianMixture(k, covariance_type=covariance, n_init=starts, random_state=seed)
    # BIC does not choose those that have not converged.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return mixture.fit(z)


def _no_longer_falls(values: Sequence[float]) -> bool:
    return len(values) > PATIENCE and min(values[-PATIENCE:]) >= min(values[:-PATIENCE])


def _lowest_between(mixture: GaussianMixture) -> np.ndarray:
    """The lowest log-density on the way between the means of each pair ``[M, M]``, on the higher
    of the two lines.
    """
    mean, precision = mixture.means_, mixture.precisions_  # of tied ones a single matrix
    M = len(mean)
    precision = np.broadcast_to(precision, (M, *precision.shape[-2:]))
    lowest = np.full((M, M), -np.inf)
    step = np.linspace(0, 1, STEPS)[:, None]
    for a, b in combinations(range(M), 2):
        apart = mean[b] - mean[a]
        # Each by its size along the way, so that points lie evenly where one is much narrower.
        first, second = (own / (apart @ own @ apart or 1) for own in precision[[a, b]])
        weight = (1 - step[..., None]) * first + step[..., None] * second
        pull = (1 - step) * (first @ mean[a]) + step * (second @ mean[b])
        ridge = np.linalg.solve(weight, pull[..., None])[..., 0]
        straight = mean[a] + step * apart
        density = mixture.score_samples(np.concatenate([ridge, straight])).reshape(2, STEPS)
        lowest[a, b] = lowest[b, a] = density.min(1).max()
    return lowest
