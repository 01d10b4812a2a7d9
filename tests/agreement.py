"""How well facets agree with groupings that are known."""

from collections.abc import Iterable

import numpy as np
from sklearn.metrics import normalized_mutual_info_score


def agreement(facets: Iterable[np.ndarray], labels: Iterable[np.ndarray]) -> list[float]:
    """Of each labeling, the normalized mutual information with the facet that shares most of it."""
    found = list(facets)
    return [max(normalized_mutual_info_score(own, each) for each in found) for own in labels]
