"""Clusters of neighboring data, found before training."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from inference.initialization.graph import (
    centered_rows,
    check_fewer,
    leading_eigenvectors,
    neighbor_weights,
    principal_components,
    spectral_clusters,
)
from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_size

# Most principal components in which neighbors are found.
DIM = 50
# Rows on which clusters are counted, the most clusters, and samples of a normal to compare with.
COUNTED_ROWS, MOST_CLUSTERS, NORMAL_SAMPLES = 3000, 40, 3
# How far an eigenvalue is above those of normal samples, as a share of the way to the largest one:
# data with bounds or tails, which have one cluster, are a little above.
ABOVE_CHANCE = 0.25


def neighbor_clusters(
    x: ArrayLike | Tensor,
    num_clusters: int | None = None,
    num_neighbors: int = 10,
    max_rows: int = 60_000,
    seed: int = 0,
) -> np.ndarray:
    """Spectral clustering of the graph that joins each datum to its nearest neighbors.

    A network learns late that distant data belong together if others lie between them; the graph
    has this information from the start. So these clusters can serve as a facet's starting point:
    given as ``label=`` to :func:`fit_mixtures` and ``fit``, with a guide whose ``label_weight`` is
    about 30, encoder and decoder learn them within a few passes over the data. Train on without
    labels to release them: the model may then find clusters that agree less with them.

    Neighbors are found in at most 50 principal components, and edges have the weights of
    :class:`~inference.NeighborGraph`; a tenth of the mean degree is added to every degree, so that
    a few isolated data do not form a cluster (Qin and Rohe, *Regularized spectral clustering under
    the degree-corrected stochastic blockmodel*, 2013). The rows of the leading eigenvectors, scaled
    to length 1, are clustered by k-means (Ng, Jordan and Weiss, *On spectral clustering*, 2001).

    :param x: complete data ``[N, ...]``, with entries on one scale. Every pair of data is compared,
        unless there are more than 20,000 and faiss is installed (``facetvae[neighbors]``).
    :param num_clusters: K, below N. ``None`` to count them, up to 40: as many as the graph has
        eigenvalues well above the second one of graphs of normal samples with the same covariance,
        which have a single cluster, or as it has parts that no edge joins, if there are more.
    :param num_neighbors: of each datum, below N.
    :param max_rows: most data to use, chosen at random.
    :param seed: of this choice, the components, the eigenvectors' starting values and k-means.
    :returns: clusters ``[N]``, integers from 0 to K - 1, and -1 for data that were not used.
    :raises ValueError: if there are too few data, or some entries are not finite.

    Example:
        >>> import numpy as np
        >>> from inference import neighbor_clusters
        >>> rng = np.random.default_rng(0)
        >>> x = np.concatenate([rng.normal(0, 0.1, (20, 2)), rng.normal(5, 0.1, (20, 2))])
        >>> clusters = neighbor_clusters(x, num_clusters=2, num_neighbors=5)
        >>> len(set(clusters[:20])), len(set(clusters[20:])), len(set(clusters))
        (1, 1, 2)
    """
    data = as_numbers(x)
    if data.ndim < 2 or not data.numel():
        raise ValueError(f"x has shape {list(data.shape)}, but data [N, ...] are needed, not empty")
    sizes = {} if num_clusters is None else {"num_clusters": num_clusters}
    sizes["num_neighbors"] = num_neighbors
    check_size("max_rows", max_rows)
    looked_at = np.random.default_rng(seed).permutation(len(data))[:max_rows]
    for name, size in sizes.items():
        check_fewer(name, size, len(looked_at))
    chosen = data[torch.as_tensor(looked_at, device=data.device)]
    rows = centered_rows(chosen, chosen.flatten(1).double().mean(0))
    rows, copy_of = _distinct(rows, more_than=max(sizes.values()))
    rows = principal_components(rows, DIM, seed).transform(rows)
    if num_clusters is None:
        num_clusters = _number_of_clusters(rows[:COUNTED_ROWS], num_neighbors, seed)
    affinity = neighbor_weights(rows, num_neighbors)
    clusters = np.full(len(data), -1)
    clusters[looked_at] = spectral_clusters(affinity, num_clusters, seed)[copy_of]
    return clusters


def _distinct(rows: np.ndarray, more_than: int) -> tuple[np.ndarray, np.ndarray]:
    """Each distinct datum once, in order of first appearance, and the index of each row's datum.

    Copies would only be neighbors of each other. If too few data are distinct, all rows are kept.
    """
    places: dict[bytes, int] = {}
    copy_of = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows])
    if len(places) <= more_than:
        return rows, np.arange(len(rows))
    return rows[np.unique(copy_of, return_index=True)[1]], copy_of


def _number_of_clusters(rows: np.ndarray, num_neighbors: int, seed: int) -> int:
    """How many eigenvalues are well above those of a normal sample, or how many parts there are."""
    most = min(MOST_CLUSTERS, len(rows) - 2)
    if most < 2:
        return 1
    rng, scale = np.random.default_rng(seed), rows.std(0)
    normal = [rng.normal(size=rows.shape) * scale for _ in range(NORMAL_SAMPLES)]
    graphs = [neighbor_weights(each, num_neighbors) for each in (*normal, rows)]
    chance = max(leading_eigenvectors(graph, 2, seed)[0].min() for graph in graphs[:-1])
    values, _ = leading_eigenvectors(graphs[-1], most, seed)
    well_above = int((values > chance + ABOVE_CHANCE * (values.max() - chance)).sum())
    # Where samples of the same covariance are nearly apart too, as along a line, all eigenvalues
    # are alike, and the parts tell more.
    sizes = np.bincount(connected_components(graphs[-1], directed=False)[1])
    parts = int((sizes >= 2 * num_neighbors).sum())
    return min(most, max(1, well_above, parts))
