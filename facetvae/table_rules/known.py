"""Known clusters of some rows, in rules that find clusters."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.semi_supervised import LabelSpreading

from facetvae.table_rules.rows import MANY

# The least probability of a cluster that is counted.
LEAST = 1e-300
# Principal components in which labels spread, to how many neighbors, and how far.
COMPONENTS, NEIGHBORS, SPREAD = 50, 10, 0.9


def labeled_first(labels: Iterable[np.ndarray], most: int, seed: int) -> np.ndarray:
    """At most so many rows, in order, drawn at random: those with a label before the others.

    :param labels: ``[N]`` each, -1 where unknown.
    """
    unlabeled = np.all([label < 0 for label in labels], axis=0)
    drawn = np.random.default_rng(seed).permutation(len(unlabeled))
    return np.sort(drawn[np.argsort(unlabeled[drawn], kind="stable")][:most])


def spread_labels(x: np.ndarray, label: np.ndarray, seed: int) -> np.ndarray:
    """The labels ``[N]`` that rows ``[N, D]`` get from their neighbors (Zhou et al., *Learning with
    local and global consistency*, 2004), in at most 50 principal components; -1 where no chain of
    neighbors leads to a label, and, of many rows, for some.
    """
    rows, spread = labeled_first([label], MANY, seed), np.full_like(label, -1)
    near = PCA(min(COMPONENTS, *x[rows].shape), random_state=seed).fit_transform(x[rows])
    graph = LabelSpreading("knn", n_neighbors=NEIGHBORS, alpha=SPREAD)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what is left to spread is little
        found = graph.fit(near, label[rows])
    told = np.isfinite(found.label_distributions_).all(1) & found.label_distributions_.any(1)
    spread[rows[told]] = found.transduction_[told]
    return np.where(label >= 0, label, spread)


def named_after(clusters: np.ndarray, label: np.ndarray, k: int | None = None) -> np.ndarray:
    """Clusters ``[N]``, of ``k`` or those that occur, with the numbers of the labels that they
    share most rows with, in which rows with a label are those; -1 where unknown.
    """
    number, both = k or max(clusters.max(), label.max()) + 1, (clusters >= 0) & (label >= 0)
    shared = np.zeros((number, number))
    np.add.at(shared, (clusters[both], label[both]), 1)
    new = linear_sum_assignment(shared, maximize=True)[1]
    return np.where(label >= 0, label, np.where(clusters >= 0, new[clusters], -1))


def allowed(label: np.ndarray, k: int) -> np.ndarray:
    """0 for the clusters that a row may be in ``[N, K]``, and ``-inf`` for others."""
    apart = label[:, None] != np.arange(k)
    return np.where((label[:, None] >= 0) & apart, -np.inf, 0.0)


def classes_of(label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows ``[N]`` tell classes apart, and their classes: those with a label, or, if all of
    these have the same, all rows, by whether they have it.
    """
    there = label >= 0
    alike = len(np.unique(label[there])) == 1
    return (np.ones_like(there), there.astype(int)) if alike else (there, label[there])


def shared_with(label: np.ndarray, clusters: np.ndarray) -> float:
    """What clusters ``[N]`` tell of known ones, as adjusted mutual information."""
    rows, classes = classes_of(label)
    return float(adjusted_mutual_info_score(classes, clusters[rows]))


def sureness(r: np.ndarray, label: np.ndarray) -> float:
    """The mean log-probability of known clusters, by those of all clusters ``[N, K]``."""
    there = np.flatnonzero(label >= 0)
    return float(np.log(r[there, label[there]].clip(LEAST)).mean())


def starts_of(z: np.ndarray, label: np.ndarray, clusters: np.ndarray, k: int) -> list[np.ndarray]:
    """Two that agree with known clusters ``[N]``: clusters with the numbers that agree best, and
    those of a linear rule for the labels, if each of the ``k`` has such, and some has several.

    :param z: ``[N, D]``.
    :param clusters: that were found ``[N]``.
    """
    there, starts = label >= 0, [named_after(clusters, label, k)]
    if len(np.unique(label[there])) == k > 1 and there.sum() > k:
        rule = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
        starts.append(np.where(there, label, rule.fit(z[there], label[there]).predict(z)))
    return [starts[0], starts[-1]]
