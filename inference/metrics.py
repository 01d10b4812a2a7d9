"""How well clusters and latents match what is known: labels for facets, sources for latents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.neural_network import MLPClassifier

__all__ = ["cluster_accuracy", "cluster_map", "clustering_scores", "mean_correlation", "probe_accuracy"]


def cluster_accuracy(
    labels: ArrayLike,
    clusters: ArrayLike,
    method: str = "majority",
    map_from: tuple[ArrayLike, ArrayLike] | None = None,
) -> float:
    """Share of data whose cluster stands for their label, in [0, 1].

    :param labels: true classes ``[N]``, integers.
    :param clusters: predicted clusters ``[N]``, integers; their number need not be that of the classes.
    :param method: ``"majority"``: each cluster stands for its commonest label, the usual choice where clusters
        outnumber classes (MFCVAE, E.5); ``"hungarian"``: the best one-to-one assignment, where a cluster without
        a class of its own counts as wrong.
    :param map_from: labels and clusters of another split that fix what each cluster stands for. Without it the map is
        fitted on the data that are scored, as the papers do, which flatters many small clusters.
    :raises ValueError: for arrays of unequal length, no data, or an unknown method.
    """
    labels, clusters = _paired(labels, clusters)
    known_labels, known_clusters = (labels, clusters) if map_from is None else _paired(*map_from)
    meaning = cluster_map(known_labels, known_clusters, method)
    correct = [
        meaning.get(cluster, None) == label for cluster, label in zip(clusters.tolist(), labels.tolist(), strict=True)
    ]
    return float(np.mean(correct))


def cluster_map(labels: ArrayLike, clusters: ArrayLike, method: str = "majority") -> dict[Any, Any]:
    """What each cluster stands for: ``{cluster: label}``, by ``"majority"`` or ``"hungarian"``; see above."""
    labels, clusters = _paired(labels, clusters)
    counts = contingency_matrix(labels, clusters)  # [classes, clusters]
    classes, found = np.unique(labels), np.unique(clusters)
    if method == "majority":
        pairs = zip(counts.argmax(0), range(len(found)), strict=True)
    elif method == "hungarian":
        pairs = zip(*linear_sum_assignment(counts, maximize=True), strict=True)
    else:
        raise ValueError(f'method must be "majority" or "hungarian", got {method!r}')
    return {found[k].item(): classes[t].item() for t, k in pairs}


def clustering_scores(
    labels: ArrayLike, clusters: ArrayLike, map_from: tuple[ArrayLike, ArrayLike] | None = None
) -> dict[str, float]:
    """Every score of one clustering side by side, all in [0, 1] but ``ari``, which chance makes 0.

    ``accuracy`` (majority, map fitted on the scored data), ``accuracy_hungarian``, ``nmi``, ``ari``; and
    ``accuracy_train_map`` where ``map_from`` gives labels and clusters of the training split.
    """
    scores = {
        "accuracy": cluster_accuracy(labels, clusters),
        "accuracy_hungarian": cluster_accuracy(labels, clusters, "hungarian"),
        "nmi": float(normalized_mutual_info_score(labels, clusters)),
        "ari": float(adjusted_rand_score(labels, clusters)),
    }
    if map_from is not None:
        scores["accuracy_train_map"] = cluster_accuracy(labels, clusters, map_from=map_from)
    return scores


def probe_accuracy(
    train_z: ArrayLike, train_labels: ArrayLike, test_z: ArrayLike, test_labels: ArrayLike, seed: int = 0
) -> float:
    """Test accuracy of a classifier that sees only ``z``: what a facet knows (MFCVAE, Table 1).

    scikit-learn's ``MLPClassifier`` at its defaults, one hidden layer of 100 units, as in the paper.

    :param train_z: latents ``[N, d]``.
    """
    return float(MLPClassifier(random_state=seed).fit(train_z, train_labels).score(test_z, test_labels))


def mean_correlation(sources: ArrayLike, latents: ArrayLike, method: str = "pearson") -> float:
    """Mean absolute correlation of matched coordinates (MCC), in [0, 1].

    Coordinates are matched by the assignment that maximises the sum of absolute correlations. A latent that is
    constant tells nothing, and counts as a correlation of 0.

    :param sources: ``[N, d]``.
    :param latents: ``[N, d]``.
    :param method: ``"pearson"`` or ``"spearman"``.
    :raises ValueError: if shapes differ, fewer than two data are given, a source is constant, or the method is unknown.
    """
    s, z = np.asarray(sources, float), np.asarray(latents, float)
    if s.shape != z.shape or s.ndim != 2 or len(s) < 2:
        raise ValueError(f"sources and latents must both be [N, d] with N >= 2, got {s.shape} and {z.shape}")
    if method not in ("pearson", "spearman"):
        raise ValueError(f'method must be "pearson" or "spearman", got {method!r}')
    if (np.ptp(s, axis=0) == 0).any():
        raise ValueError("sources has a constant column, whose correlation is undefined: drop it from both")
    dead = np.ptp(z, axis=0) == 0
    if method == "spearman":
        s, z = rankdata(s, axis=0), rankdata(z, axis=0)
    d = s.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.abs(np.corrcoef(s, z, rowvar=False)[:d, d:])
    correlation[:, dead] = 0
    return float(correlation[linear_sum_assignment(correlation, maximize=True)].mean())


def _paired(labels: ArrayLike, clusters: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    labels, clusters = np.asarray(labels), np.asarray(clusters)
    if labels.shape != clusters.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(
            "labels and clusters must be non-empty vectors of one length, "
            f"got shapes {labels.shape} and {clusters.shape}"
        )
    return labels, clusters
