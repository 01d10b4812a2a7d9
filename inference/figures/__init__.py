"""Figures of a fitted model; ``save_figures`` writes those of facets and clusters."""

from inference.figures.facets import (
    cluster_gallery,
    cluster_samples,
    facet_draws,
    facet_overview,
    facet_swaps,
    save_figures,
)
from inference.figures.training import training_curves

__all__ = [
    "cluster_gallery",
    "cluster_samples",
    "facet_draws",
    "facet_overview",
    "facet_swaps",
    "save_figures",
    "training_curves",
]
