"""Measures of partitions without labels: clusters in use, redundant facets, agreement between
seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import number

__all__ = ["clusters_in_use", "redundancy", "stability"]

# Clusters [N] by facet.
Partitions = Mapping[str, ArrayLike]


def clusters_in_use(proba: ArrayLike, threshold: float = 0.01) -> int:
    """How many clusters are the most probable one for more than a share ``threshold`` of the data.

    :param proba: probability of every cluster for each datum, ``[N, K]``: a facet's
        ``predict_proba``.
    :param threshold: within [0, 1); 0 counts every cluster that has a datum.
    :raises ValueError: if these are not probabilities, or the threshold is out of range.

    Example:
        >>> from facetvae.selection import clusters_in_use
        >>> clusters_in_use([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.3, 0.7, 0.0]])
        2
    """
    proba = _probabilities(proba)
    if not 0 <= number(threshold) < 1:
        raise ValueError(
            f"threshold is a share of the data, at least 0 and below 1, got {threshold!r}"
        )
    shares = np.bincount(proba.argmax(-1), minlength=proba.shape[1]) / len(proba)
    return int((shares > threshold).sum())


def redundancy(partitions: Partitions) -> dict[tuple[str, str], float]:
    """How far the facets of one run repeat each other: the mutual information of each pair of
    partitions.

    It is normalized to 1 for equal partitions and corrected for chance (scikit-learn's adjusted
    mutual information, 0 on average for independent ones): without the correction, many clusters on
    few data seem to share much. It is also 1 for two facets that each put all data in one cluster
    and so encode nothing.

    :param partitions: clusters ``[N]`` by facet: a guide's ``predict``.
    :raises ValueError: if they do not have the same data.

    Example:
        >>> from facetvae.selection import redundancy
        >>> pairs = redundancy({"style": [0, 0, 1, 1], "digit": [1, 1, 0, 0]})
        >>> {pair: round(value, 3) for pair, value in pairs.items()}
        {('style', 'digit'): 1.0}
    """
    (checked,) = _checked_runs([partitions])
    return {
        (a, b): float(adjusted_mutual_info_score(checked[a], checked[b]))
        for a, b in combinations(checked, 2)
    }


def stability(runs: Sequence[Partitions]) -> dict[str, tuple[float, float]]:
    """How well runs with different seeds agree: for each facet, the mean and sample standard
    deviation of the ARI over all pairs of runs. As facets may change places from run to run, each
    run's are matched to those of the run that agrees best with all others, and take its names.

    The mean is 1 if all runs find the same clusters, in any numbering (also if all put all data in
    one cluster: check the mutual information as well), and 0 on average for random clusters. Pairs
    that share a run are not independent, so do not divide the deviation by the root of their
    number. It is NaN for a single pair.

    :param runs: clusters ``[N]`` by facet, of two runs or more on the same data.
    :raises ValueError: if there are fewer than two runs, or their data or numbers of facets differ.

    Example:
        >>> from facetvae.selection import stability
        >>> runs = [{"digit": [0, 0, 1, 1]}, {"digit": [1, 1, 0, 0]}, {"digit": [2, 2, 0, 0]}]
        >>> stability(runs)
        {'digit': (1.0, 0.0)}
    """
    checked = _checked_runs(runs)
    if len(checked) < 2:
        raise ValueError(f"agreement takes two runs or more, got {len(checked)}")
    aligned = _aligned(checked)
    return {
        name: mean_and_deviation(
            [adjusted_rand_score(a[name], b[name]) for a, b in combinations(aligned, 2)]
        )
        for name in aligned[0]
    }


def mean_and_deviation(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Mean, and standard deviation with n - 1: NaN for a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _probabilities(proba: ArrayLike) -> np.ndarray:
    values = np.asarray(as_numbers(proba, "proba").cpu())
    if values.ndim != 2 or not values.size or not np.isfinite(values).all() or values.min() < 0:
        raise ValueError(
            f"proba must hold probabilities [N, K], got shape {list(values.shape)}: a facet's "
            "predict_proba"
        )
    if np.abs(values.sum(-1) - 1).max() > 1e-3:
        raise ValueError("each row of proba must add up to 1: give a facet's predict_proba")
    return values


def _checked_runs(runs: Sequence[Partitions]) -> list[dict[str, np.ndarray]]:
    """Partitions as arrays.

    :raises ValueError: if their data or numbers of facets differ.
    """
    if not isinstance(runs, Sequence) or not all(isinstance(run, Mapping) for run in runs):
        raise ValueError("clusters by facet are needed of each run: what a guide's predict gives")
    checked = [
        {name: np.asarray(as_numbers(each, name).cpu()) for name, each in run.items()}
        for run in runs
    ]
    found = [(name, each) for run in checked for name, each in run.items()]
    shapes = {each.shape for _, each in found}
    if len(shapes) > 1 or any(len(shape) != 1 or not shape[0] for shape in shapes):
        raise ValueError(
            "clusters must be [N], of the same data in all runs and facets, got shapes "
            f"{sorted(shapes)}"
        )
    for name, each in found:
        if each.dtype.kind not in "bui":
            raise ValueError(f"clusters of facet {name!r} must be integers, got {each.dtype}")
    names = [list(run) for run in checked]
    if len(set(map(len, names))) > 1:
        raise ValueError(f"runs must have equally many facets, got {names}")
    return checked


def _aligned(runs: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Each run's facets, matched to those of the run that agrees best with all others, so that a
    failed run does not decide.
    """
    matched = [[_matched(a, b) for b in runs] for a in runs]
    central = max(matched, key=lambda row: sum(total for _, total in row))
    return [found for found, _ in central]


def _matched(
    reference: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], float]:
    """The partitions of ``other`` by the names of the reference's: the assignment with the highest
    sum of ARIs, and this sum.
    """
    names, found = list(reference), list(other.values())
    agreement = [[adjusted_rand_score(a, b) for b in found] for a in reference.values()]
    scores = np.reshape(agreement, (len(found), len(found)))  # also of no facets
    rows, columns = linear_sum_assignment(scores, maximize=True)
    matched = {names[i]: found[j] for i, j in zip(rows, columns, strict=True)}
    return matched, scores[rows, columns].sum()
