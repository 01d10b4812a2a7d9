"""How well clusters match known labels, and latents match known sources."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata
from sklearn.cross_decomposition import CCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from ppl_models.given.arrays import as_numbers, gaps_in
from ppl_models.given.checks import check_count, check_one_of

__all__ = [
    "HeldOutCorrelation",
    "cluster_accuracy",
    "cluster_map",
    "clustering_scores",
    "held_out_correlation",
    "mean_correlation",
    "probe_accuracy",
]


def cluster_accuracy(
    labels: ArrayLike,
    clusters: ArrayLike,
    method: str = "majority",
    map_from: tuple[ArrayLike, ArrayLike] | None = None,
) -> float:
    """Share of data whose cluster is mapped to their label, in [0, 1].

    :param labels: true classes ``[N]``, integers.
    :param clusters: predicted clusters ``[N]``, integers; there may be more or fewer than classes.
    :param method: ``"majority"``: each cluster is mapped to its most common label, the usual choice
        if clusters outnumber classes (MFCVAE, E.5); ``"hungarian"``: the best one-to-one
        assignment, in which the data of a cluster without a class count as wrong.
    :param map_from: labels and clusters of another split, on which the map is fitted. By default it
        is fitted on the data that are scored, as in the papers, which favors many small clusters.
    :raises ValueError: if lengths differ, there are no data, or the method is unknown.

    Example:
        >>> from inference.metrics import cluster_accuracy
        >>> cluster_accuracy([0, 0, 1, 1], [5, 5, 3, 2])
        1.0
        >>> cluster_accuracy([0, 0, 1, 1], [5, 5, 3, 2], "hungarian")
        0.75
    """
    labels, clusters = _paired(labels, clusters)
    known_labels, known_clusters = (labels, clusters) if map_from is None else map_from
    meaning = cluster_map(known_labels, known_clusters, method)
    pairs = zip(clusters.tolist(), labels.tolist(), strict=True)
    return float(np.mean([meaning.get(cluster) == label for cluster, label in pairs]))


def cluster_map(labels: ArrayLike, clusters: ArrayLike, method: str = "majority") -> dict[Any, Any]:
    """The label of each cluster: ``{cluster: label}``, by ``"majority"`` or ``"hungarian"``; see
    :func:`cluster_accuracy`.

    Example:
        >>> from inference.metrics import cluster_map
        >>> cluster_map([0, 0, 1, 1], [5, 5, 3, 2])
        {2: 1, 3: 1, 5: 0}
    """
    check_one_of("method", method, ("majority", "hungarian"))
    labels, clusters = _paired(labels, clusters)
    counts = contingency_matrix(labels, clusters)  # [classes, clusters]
    classes, found = np.unique(labels).tolist(), np.unique(clusters).tolist()
    if method == "majority":
        pairs = zip(counts.argmax(0), range(len(found)), strict=True)
    else:
        pairs = zip(*linear_sum_assignment(counts, maximize=True), strict=True)
    return {found[k]: classes[t] for t, k in pairs}


def clustering_scores(
    labels: ArrayLike, clusters: ArrayLike, map_from: tuple[ArrayLike, ArrayLike] | None = None
) -> dict[str, float]:
    """All scores of one clustering, in [0, 1] but for ``ari``, on average 0 of random clusters.

    ``accuracy`` (majority, map fitted on the scored data), ``accuracy_hungarian``, ``nmi``,
    ``ari``; and ``accuracy_train_map`` if ``map_from`` gives those of the training split.

    Example:
        >>> from inference.metrics import clustering_scores
        >>> scores = clustering_scores([0, 0, 1, 1], [1, 1, 0, 0])
        >>> {name: round(score, 3) for name, score in scores.items()}
        {'accuracy': 1.0, 'accuracy_hungarian': 1.0, 'nmi': 1.0, 'ari': 1.0}
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
    train_z: ArrayLike,
    train_labels: ArrayLike,
    test_z: ArrayLike,
    test_labels: ArrayLike,
    seed: int = 0,
) -> float:
    """Test accuracy of a classifier that sees only ``z``: what a facet encodes (MFCVAE, Table 1).

    The classifier is scikit-learn's ``MLPClassifier`` with its defaults, one hidden layer of 100
    units, as in the paper; so it stops after 200 epochs, converged or not.

    :param train_z: latents ``[N, d]``.
    :raises ValueError: if shapes do not fit, or a latent is not finite.

    Example:
        >>> import numpy as np
        >>> from inference.metrics import probe_accuracy
        >>> labels = np.arange(2000) % 2
        >>> z = 10 * labels[:, None] + np.random.default_rng(0).normal(size=(2000, 1))
        >>> probe_accuracy(z[:1000], labels[:1000], z[1000:], labels[1000:])
        1.0
    """
    _check_latents(train_z, train_labels)
    _check_latents(test_z, test_labels, np.shape(train_z)[1])
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        classifier = MLPClassifier(random_state=seed).fit(train_z, train_labels)
    return float(classifier.score(test_z, test_labels))


def _check_latents(z: ArrayLike, labels: ArrayLike, dim: int | None = None) -> None:
    """:raises ValueError: unless these are latents ``[N, d]`` with N labels, and d is ``dim``."""
    z, labels = np.asarray(z), np.asarray(labels)
    wrong = z.ndim != 2 or not z.size or labels.shape != z.shape[:1]
    if wrong or z.shape[1] != (dim or z.shape[1]):
        needed = "[N, d]" if dim is None else f"[N, {dim}], as in training,"
        raise ValueError(
            f"latents {needed} with N labels are needed, got shapes {z.shape} and {labels.shape}"
        )
    if z.dtype.kind not in "buif" or not np.isfinite(z).all():
        raise ValueError(
            "latents hold NaN, infinity or values that are not numbers: drop those rows from both "
            "latents and labels"
        )


def mean_correlation(sources: ArrayLike, latents: ArrayLike, method: str = "pearson") -> float:
    """Mean absolute correlation of matched coordinates (MCC), in [0, 1].

    Coordinates are matched by the assignment that maximizes the sum of absolute correlations. A
    constant latent counts as a correlation of 0. The match is made on the data that are scored, so
    the score is too high if data are few; :func:`held_out_correlation` avoids this.

    :param sources: ``[N, d]``.
    :param latents: ``[N, d]``.
    :param method: ``"pearson"`` or ``"spearman"``.
    :raises ValueError: if shapes differ, fewer than two data are given, a number is not finite, a
        source is constant, or the method is unknown.

    Example:
        >>> import numpy as np
        >>> from inference.metrics import mean_correlation
        >>> sources = np.random.default_rng(0).normal(size=(100, 2))
        >>> latents = sources[:, ::-1] * [2.0, -3.0]  # permuted, scaled and flipped
        >>> round(mean_correlation(sources, latents), 3)
        1.0
    """
    s, z = _matching_columns(sources, latents, method)
    correlation = np.abs(_correlations(s, z, method))
    return float(correlation[linear_sum_assignment(correlation, maximize=True)].mean())


@dataclass(frozen=True)
class HeldOutCorrelation:
    """Mean correlation of matched coordinates, on the data used for matching and on held-out data.

    :ivar in_sample: in [0, 1]; biased upwards by the match.
    :ivar out_of_sample: in [-1, 1]; 0 on average if sources and latents are unrelated.
    :ivar rematched: in [0, 1]; on held-out data as well, but their coordinates are matched once
        more, on themselves; biased upwards, as ``in_sample`` is.
    """

    in_sample: float
    out_of_sample: float
    rematched: float


def held_out_correlation(
    sources: ArrayLike,
    latents: ArrayLike,
    method: str = "pearson",
    align: bool = False,
    num_variates: int | None = None,
) -> HeldOutCorrelation:
    """MCC with the map from latents to sources fitted on one half of the data and scored on both.

    The map matches coordinates with their signs. With ``align`` a linear map comes first: both
    sides are transformed to their canonical variates (scikit-learn's CCA), so that models that
    differ by an invertible linear map correlate perfectly (Willetts and Paige, *I Don't Need u*,
    4.2). The paper's authors take ``out_of_sample`` without a linear map, up to its signs, and
    ``rematched`` with one: there only the map is held out, and the matching is not. Latents that
    are constant or linear in others have no variates of their own, and a variate that is missing
    counts as a correlation of 0.

    :param sources: ``[N, d]``, true sources or another model's latents, in random order.
    :param latents: ``[N, d]``.
    :param method: ``"pearson"`` or ``"spearman"``.
    :param num_variates: how many canonical variates count, the best correlated first; all d by
        default. The paper's authors keep 20 of 50, 90 or 200, which leaves out the latents that a
        model does not use.
    :raises ValueError: as :func:`mean_correlation`; also if a source is constant in a half; and,
        with ``align``, if a half has fewer data than 2 d, or fewer than ``num_variates`` variates
        exist.

    Example:
        >>> import numpy as np
        >>> from inference.metrics import held_out_correlation
        >>> sources = np.random.default_rng(0).normal(size=(100, 2))
        >>> latents = sources @ [[1.0, 2.0], [-1.0, 1.0]]  # an invertible linear map
        >>> round(held_out_correlation(sources, latents, align=True).out_of_sample, 3)
        1.0
    """
    s, z = _matching_columns(sources, latents, method)
    half, d = len(s) // 2, s.shape[1]
    kept = d
    if half < 2 or any((np.ptp(part, axis=0) == 0).any() for part in (s[:half], s[half:])):
        raise ValueError(
            f"each half of the {len(s)} data needs at least two rows and no constant source"
        )
    if align:
        if half < 2 * d:
            raise ValueError(
                f"{len(s)} data are too few to align {d} coordinates: give {4 * d} or more"
            )
        kept = d if num_variates is None else check_count("num_variates", num_variates)
        if kept > d:
            raise ValueError(
                f"{d} coordinates have only as many canonical variates, fewer than {kept}"
            )
        z, s = (_independent(columns, half) for columns in (z, s))
        if not z.shape[1]:
            return HeldOutCorrelation(0.0, 0.0, 0.0)
        map_ = CCA(n_components=min(kept, z.shape[1], s.shape[1]), max_iter=5000)
        z, s = map_.fit(z[:half], s[:half]).transform(z, s)
    first, second = (
        _correlations(s[rows], z[rows], method) for rows in (slice(half), slice(half, None))
    )
    match, anew = (linear_sum_assignment(np.abs(c), maximize=True) for c in (first, second))
    signs = np.sign(first[match])
    return HeldOutCorrelation(
        float(np.abs(first[match]).sum() / kept),
        float((signs * second[match]).sum() / kept),
        float(np.abs(second[anew]).sum() / kept),
    )


def _independent(columns: np.ndarray, half: int) -> np.ndarray:
    """The principal components of the first rows' standardized columns, without those that rounding
    alone gives: ``[N, rank]``. CCA's iterations are wrong with a direction without variance.
    """
    columns = columns[:, np.ptp(columns[:half], axis=0) > 0]
    if not columns.shape[1]:
        return columns
    scaled = StandardScaler().fit(columns[:half]).transform(columns)
    _, sizes, axes = np.linalg.svd(scaled[:half], full_matrices=False)
    return scaled @ axes[sizes > sizes[0] * half * np.finfo(float).eps].T


def _matching_columns(
    sources: ArrayLike, latents: ArrayLike, method: str
) -> tuple[np.ndarray, np.ndarray]:
    s, z = (
        as_numbers(each, name).double().numpy()
        for each, name in ((sources, "sources"), (latents, "latents"))
    )
    if s.shape != z.shape or s.ndim != 2 or len(s) < 2:
        raise ValueError(
            f"sources and latents must both be [N, d] with N >= 2, got {s.shape} and {z.shape}"
        )
    check_one_of("method", method, ("pearson", "spearman"))
    if not (np.isfinite(s).all() and np.isfinite(z).all()):
        raise ValueError("sources or latents hold NaN or infinity: drop those rows from both")
    if (np.ptp(s, axis=0) == 0).any():
        raise ValueError(
            "sources has a constant column, whose correlation is undefined: drop it from both"
        )
    # By powers of 2, which is exact: squares of columns within [-1, 1] neither over- nor underflow.
    s, z = (np.ldexp(each, -np.frexp(np.abs(each).max(0))[1]) for each in (s, z))
    return s, z


def _correlations(s: np.ndarray, z: np.ndarray, method: str) -> np.ndarray:
    """Correlations of the columns of ``s`` with those of ``z``, ``[d, d]``; 0 if constant."""
    dead = np.ptp(z, axis=0) == 0
    if method == "spearman":
        s, z = rankdata(s, axis=0), rankdata(z, axis=0)
    d = s.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.corrcoef(s, z, rowvar=False)[:d, d:]
    correlation[:, dead] = 0
    return correlation


def _paired(labels: ArrayLike, clusters: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    shapes = np.shape(labels), np.shape(clusters)
    if shapes[0] != shapes[1] or len(shapes[0]) != 1 or not shapes[0][0]:
        raise ValueError(
            "labels and clusters must be non-empty vectors of one length, "
            f"got shapes {shapes[0]} and {shapes[1]}"
        )
    for name, values in (("labels", labels), ("clusters", clusters)):
        array = np.asarray(values)
        if gaps_in(values).any() or (array.dtype.kind == "f" and np.isinf(array).any()):
            raise ValueError(
                f"{name} hold NaN, infinity or missing entries, which are not classes: drop those "
                "rows from both"
            )
    return np.asarray(labels), np.asarray(clusters)
