"""How many clusters are in use, and whether partitions agree."""

from facetvae.selection.agreement import clusters_in_use, redundancy, stability

__all__ = [
    "clusters_in_use",
    "redundancy",
    "stability",
]
