"""What a fitted estimator says of rows, in the form that facets are described in."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import softmax

from facetvae.describing import FacetClusters
from ppl_models.given.frames import is_frame


def clusters_found(
    facet: str, log_joint: np.ndarray, left_out: np.ndarray, stability: float
) -> FacetClusters:
    """A facet's clusters of rows.

    :param log_joint: log p(c, z) of its clusters at the means of its latents ``[N, K]``.
    """
    return FacetClusters(facet, softmax(log_joint, -1), log_joint, left_out, stability)


def shown_columns(rows: Any, names: Any) -> Any:
    """Rows with the user's own columns: a frame as it is; else numbers, by name if they have any.

    :param names: names of the training data's columns, or ``None``.
    """
    if is_frame(rows):
        return rows
    if issparse(rows):
        rows = rows.toarray()
    return rows if names is None else dict(zip(map(str, names), rows.T, strict=True))
