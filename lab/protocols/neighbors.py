"""Starts from a graph of neighbors, for examples whose facet has a prior over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from facetvae.datasets import Dataset
from inference import NeighborGraph, SVIRunner, fit_mixtures, image_graph, standard_normal_priors

# Images of so many pixels a side are compared by gradients.
ENOUGH_PIXELS = 16


def graph_of(data: Dataset, seed: int = 0) -> NeighborGraph:
    """Of pixels, or of gradients where there are enough of them."""
    images = data.train.reshape(-1, *data.image_shape)
    if images.shape[-1] >= ENOUGH_PIXELS:
        return image_graph(images, seed=seed)
    return NeighborGraph(data.train, seed=seed)


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
    """Train while a facet's clusters are those of the graph.

    With restarts the other facets have standard normal priors meanwhile, and so many fits of their
    mixtures at the end; without, mixtures that were fitted to untrained latents.
    """
    mixtures = runner.model.mixtures
    others = [name for name in mixtures if name != facet]
    label = {facet: graph.clusters(mixtures[facet].num_components, seed)}
    if not restarts:
        fit_mixtures(runner.guide, x, seed=seed, facets=others)
        return runner.fit(x, epochs, label=label, **fit_options)
    with standard_normal_priors(runner.model, others):
        runner.fit(x, epochs, label=label, **fit_options)
    fit_mixtures(runner.guide, x, seed=seed, facets=others, n_init=restarts)
    return runner
