"""Starts from a graph of neighbours, for examples whose facet has a prior over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.datasets import Dataset
from inference import NeighborGraph, SVIRunner, fit_mixtures, image_graph

__all__ = ["graph_of", "known_start"]

# Images of so many pixels a side are compared by gradients.
ENOUGH_PIXELS = 16


def graph_of(data: Dataset) -> NeighborGraph:
    """Of pixels, or of gradients where there are enough of them."""
    images = data.train.reshape(-1, *data.image_shape)
    return image_graph(images) if images.shape[-1] >= ENOUGH_PIXELS else NeighborGraph(data.train)


def known_start(
    runner: SVIRunner,
    x: np.ndarray,
    epochs: int,
    facet: str,
    graph: NeighborGraph,
    seed: int,
    restarts: int = 0,
    **fit_options: Any,
) -> SVIRunner:
    """Train while a facet's clusters are those of the graph; the other facets' mixtures are fitted
    to untrained latents first, and to trained ones at the end if there are restarts.
    """
    mixtures = runner.model.mixtures
    others = [name for name in mixtures if name != facet]
    fit_mixtures(runner.guide, x, seed=seed, facets=others)
    clusters = graph.clusters(mixtures[facet].num_components, seed)
    runner.fit(x, epochs, label={facet: clusters}, **fit_options)
    if restarts:
        fit_mixtures(runner.guide, x, seed=seed, facets=others, n_init=restarts)
    return runner
