"""Starting values: of mixtures, from clusters of neighbors, of networks, of encoders."""

from inference.initialization.encoders import infer_tables, learn_to_encode
from inference.initialization.mixtures import (
    cold_start,
    fit_mixtures,
    standard_normal_priors,
    warm_start,
)
from inference.initialization.neighbors import neighbor_clusters
from inference.initialization.networks import data_dependent_start

__all__ = [
    "cold_start",
    "data_dependent_start",
    "fit_mixtures",
    "infer_tables",
    "learn_to_encode",
    "neighbor_clusters",
    "standard_normal_priors",
    "warm_start",
]
