"""How many facets and clusters: comparison of candidates, and agreement of partitions."""

from facetvae.selection.agreement import clusters_in_use, redundancy, stability
from facetvae.selection.candidates import FittedRun, Selection, select_model

__all__ = [
    "FittedRun",
    "Selection",
    "clusters_in_use",
    "redundancy",
    "select_model",
    "stability",
]
