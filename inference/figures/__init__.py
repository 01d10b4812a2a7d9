"""Figures of a fitted model; each function returns a new figure, and ``save_figures`` writes those
of facets and clusters.
"""

from inference.figures.classes import (
    class_latents,
    class_samples,
    class_traversals,
    kl_by_class,
    kl_of_blocks,
    latent_scatter,
    shared_latents,
    shared_traversals,
    traversed,
)
from inference.figures.comparisons import (
    grouped_boxes,
    grouped_curves,
    grouped_means,
    grouped_points,
    guide_comparison,
    run_curves,
    score_panels,
)
from inference.figures.description import describe_figure
from inference.figures.facets import (
    cluster_gallery,
    cluster_samples,
    facet_draws,
    facet_overview,
    facet_swaps,
    save_figures,
)
from inference.figures.groups import (
    evidence_reconstructions,
    group_generations,
    latent_interpolation,
    style_swaps,
)
from inference.figures.selection import selection_overview
from inference.figures.training import training_curves

__all__ = [
    "class_latents",
    "class_samples",
    "class_traversals",
    "cluster_gallery",
    "cluster_samples",
    "describe_figure",
    "evidence_reconstructions",
    "facet_draws",
    "facet_overview",
    "facet_swaps",
    "group_generations",
    "grouped_boxes",
    "grouped_curves",
    "grouped_means",
    "grouped_points",
    "guide_comparison",
    "kl_by_class",
    "kl_of_blocks",
    "latent_interpolation",
    "latent_scatter",
    "run_curves",
    "save_figures",
    "score_panels",
    "selection_overview",
    "shared_latents",
    "shared_traversals",
    "style_swaps",
    "training_curves",
    "traversed",
]
