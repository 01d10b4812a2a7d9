"""Figures of single experiments: classes, groups, and comparisons of runs."""

from lab.figures.classes import (
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
from lab.figures.comparisons import (
    grouped_boxes,
    grouped_curves,
    grouped_means,
    grouped_points,
    paired_changes,
)
from lab.figures.groups import (
    evidence_reconstructions,
    group_generations,
    latent_interpolation,
    style_swaps,
)

__all__ = [
    "class_latents",
    "class_samples",
    "class_traversals",
    "evidence_reconstructions",
    "group_generations",
    "grouped_boxes",
    "grouped_curves",
    "grouped_means",
    "grouped_points",
    "kl_by_class",
    "kl_of_blocks",
    "latent_interpolation",
    "latent_scatter",
    "paired_changes",
    "shared_latents",
    "shared_traversals",
    "style_swaps",
    "traversed",
]
