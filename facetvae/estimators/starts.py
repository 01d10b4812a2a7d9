"""Several starts of the same fit: which one is kept, and whether the others find the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score

from facetvae.estimators.facets import labeled_rows
from facetvae.estimators.posteriors import Reads, most_probable
from facetvae.estimators.strategies import FitStrategy
from facetvae.estimators.training import bound
from facetvae.table_rules.merging import ClusterCount
from inference.runner import SVIRunner
from ppl_models.warn import warn

# Draws of the latents in a bound.
DRAWS = 10
# Share of the rows of a further start: all rows would give every start what is there by chance; and
# the stability below which a facet is not found again.
PART, FOUND_AGAIN = 0.6, 0.5


class UnstableFacetWarning(UserWarning):
    """Other starts do not find a facet: it may be one of many equally good groupings, or none."""


@dataclass(frozen=True)
class Start:
    """One fit, with each facet's number of clusters, and how its training ended, in words."""

    strategy: FitStrategy
    counts: Mapping[str, ClusterCount]
    runner: SVIRunner
    ended: str


def part_of_rows(n: int, label: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Rows of a further start ``[M]``, in order: a part of those without any label, all others."""
    chosen = (np.random.default_rng(seed).random(n) < PART) | labeled_rows(label, n)
    return np.flatnonzero(chosen) if chosen.sum() > 1 else np.arange(n)


def likeliest(starts: Sequence[Start], x: np.ndarray) -> Start:
    """The start with the highest ELBO of ``x``, of those with as many facets as the first."""
    number = len(starts[0].strategy.names)
    alike = [start for start in starts if len(start.strategy.names) == number]
    bounds = [bound(each.runner.guide, x, DRAWS) if len(alike) > 1 else 0.0 for each in alike]
    return alike[int(np.nan_to_num(bounds, nan=-np.inf, posinf=-np.inf).argmax())]


def stability(labels: np.ndarray, others: Sequence[Reads], x: np.ndarray) -> np.ndarray:
    """For each facet of labels ``[N, J]``, the mean over other fits of the best adjusted Rand index
    with one of their facets ``[J]``; NaN if there are no others.
    """
    if not others:
        return np.full(labels.shape[1], np.nan)
    found = [most_probable(guide, x).T for guide in others]
    best = [
        [max(adjusted_rand_score(facet, other) for other in fit) for fit in found]
        for facet in labels.T
    ]
    return np.mean(best, axis=1)


def unstable(names: Sequence[str], stability: np.ndarray) -> list[str]:
    """Names of the facets that other starts do not find, of which it warns; none without others."""
    found = {name: s for name, s in zip(names, stability, strict=True) if s < FOUND_AGAIN}
    for name, agreement in found.items():
        warn(
            f"other starts do not find facet {name!r} (adjusted Rand index {agreement:.2f}): its "
            "clusters are not to be relied on; give fewer clusters or facets, or more data",
            UnstableFacetWarning,
        )
    return list(found)
