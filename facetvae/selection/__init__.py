"""How many facets and clusters: comparison of candidates, and agreement of partitions."""

from facetvae.selection.agreement import (
    clusters_in_use,
    effective_clusters,
    match_facets,
    redundancy,
    stability,
)
from facetvae.selection.candidates import FittedRun, Selection, one_standard_error, select_model

__all__ = [
    "FittedRun",
    "Selection",
    "clusters_in_use",
    "effective_clusters",
    "match_facets",
    "one_standard_error",
    "redundancy",
    "select_model",
    "stability",
]
