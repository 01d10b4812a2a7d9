"""Graphs that join data to their nearest neighbors, and clusters of their leading eigenvectors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isqrt

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_one_of, check_size

# Most rows to compute principal components from.
PCA_ROWS = 10_000
# Smallest distance to the last neighbor, as a share of the median.
LEAST_SCALE = 0.3
# Beyond so many data neighbors are searched in cells: all pairs of 60,000 take 10 seconds.
MANY = 20_000
# Data for each center, at least, and cells that are searched for each query. Of 60,000 images'
# eleven nearest 99.8 % are found.
ROWS_A_CELL, CELLS_SEARCHED = 40, 16
# Added to every degree, in mean degrees; tolerance of eigenvalues, enough for clusters; restarts.
REGULARIZER, TOLERANCE, RESTARTS = 0.1, 1e-3, 5


class NeighborGraph:
    r"""Each datum joined to its nearest neighbors, by edges whose weights fall with their length.

    Neighbors are found in principal components. The weight of an edge is

    .. math:: w_{ij} = \exp\Big(-\frac{d_{ij}^2}{\sigma_i \sigma_j}\Big)

    with the distances :math:`\sigma` of both ends from their last neighbors (Zelnik-Manor and
    Perona, *Self-tuning spectral clustering*, 2004); an edge that only one end has counts half.

    :param x: complete data ``[N, ...]``, with entries on one scale.
    :param num_neighbors: of each datum, below N.
    :param dim: most principal components to use.
    :param variants: the same data in other forms ``[N, ...]``, such as turned images: what is near
        to any form of a datum is its neighbor.
    :param seed: of the principal components.
    :param approximate: whether to search the nearest cells of k-means only, by faiss, which misses
        one neighbor in five hundred of 60,000 images and takes a sixth of the time; by default for
        more than 20,000 data, if faiss is installed (``facetvae[neighbors]``).
    :raises ValueError: if data are too few or not all finite, or variants differ in shape.
    :raises ImportError: if ``approximate=True`` and faiss is not installed.

    :ivar weights: of the edges, a sparse symmetric matrix ``[N, N]``.

    Example:
        >>> import numpy as np
        >>> from inference import NeighborGraph
        >>> rng = np.random.default_rng(0)
        >>> x = np.concatenate([rng.normal(0, 0.1, (20, 2)), rng.normal(5, 0.1, (20, 2))])
        >>> graph = NeighborGraph(x, num_neighbors=5)
        >>> label = np.repeat([0, 1], 20)
        >>> counts = graph.counts(np.eye(2)[label])  # how much of its neighbors is in each cluster
        >>> bool((counts.argmax(1) == label).all())
        True
    """

    def __init__(
        self,
        x: ArrayLike | Tensor,
        num_neighbors: int = 10,
        dim: int = 50,
        variants: Sequence[ArrayLike | Tensor] = (),
        seed: int = 0,
        approximate: bool | None = None,
    ) -> None:
        data = as_numbers(x)
        if data.ndim < 2 or not data.numel():
            raise ValueError(
                f"x has shape {list(data.shape)}, but data [N, ...] are needed, not empty"
            )
        self.num_neighbors = check_fewer("num_neighbors", num_neighbors, len(data))
        self._shape, self._loc = tuple(data.shape[1:]), data.flatten(1).double().mean(0)
        rows = centered_rows(data, self._loc)
        self._pca = principal_components(rows, check_size("dim", dim), seed)
        places = self._pca.transform(rows)
        self._search = nearest_search(places, approximate)
        forms = [places, *(self._new_places(each, len(data)) for each in variants)]
        self.weights, self._last, self._least = _joined(self._search, forms, num_neighbors)

    def __len__(self) -> int:
        return self.weights.shape[0]

    def counts(self, q: np.ndarray) -> np.ndarray:
        """Weights of neighbors in each cluster ``[N, K]``, by probabilities ``q`` ``[N, K]``."""
        return self.weights @ q

    def counts_for(
        self, x: ArrayLike | Tensor, q: np.ndarray, variants: Sequence[ArrayLike | Tensor] = ()
    ) -> np.ndarray:
        """The same ``[M, K]`` of new data, for their neighbors in the graph.

        :param x: ``[M, ...]``.
        :param q: probabilities of the graph's data ``[N, K]``.
        :param variants: other forms of the new data.
        :raises ValueError: if they do not fit the graph's data.
        """
        number = len(as_numbers(x))
        forms = [self._new_places(each, number) for each in (x, *variants)]
        distance, neighbor = _nearest(self._search, forms, self.num_neighbors, themselves=False)
        scale = distance[:, -1].clip(self._least)  # the graph's, whatever rows come together
        return edge_weights(distance, neighbor, scale, self._last) @ q

    def clusters(self, num_clusters: int, seed: int = 0) -> np.ndarray:
        """Spectral clusters of the graph ``[N]``, see :func:`~inference.neighbor_clusters`.

        :param num_clusters: K, below N.
        :raises ValueError: if there are not so many data.
        """
        check_fewer("num_clusters", num_clusters, len(self))
        return spectral_clusters(self.weights, num_clusters, seed)

    def _new_places(self, x: ArrayLike | Tensor, number: int) -> np.ndarray:
        data = as_numbers(x)
        if tuple(data.shape) != (number, *self._shape):
            raise ValueError(
                f"data of shape {list(data.shape)} are not other forms of those of the graph: "
                f"{[number, *self._shape]} is needed"
            )
        return self._pca.transform(centered_rows(data, self._loc))


def check_fewer(name: str, value: int, number: int) -> int:
    """A size below the number of data.

    :raises ValueError: if it is none.
    """
    found = check_size(name, value)
    if found >= number:
        raise ValueError(f"{name}={found} is too many for {number} data: it must be less")
    return found


class CellSearch:
    """Among the data in the cells around the nearest centers of k-means, by faiss.

    :param places: ``[N, d]``, float32.
    :raises ImportError: if faiss is not installed.
    """

    def __init__(self, places: np.ndarray) -> None:
        try:
            from faiss import IndexFlatL2, IndexIVFFlat
        except ImportError as error:
            raise ImportError(
                "approximate neighbors need faiss, which is not installed: pip install "
                "'facetvae[neighbors]', or give approximate=False"
            ) from error
        number, dim = places.shape
        cells = max(1, min(isqrt(number), number // ROWS_A_CELL))
        self._centers = IndexFlatL2(dim)  # kept: the index refers to it
        self._index = IndexIVFFlat(self._centers, dim, cells)
        self._index.train(places)
        self._index.add(places)
        self._index.nprobe = CELLS_SEARCHED
        self._cells = cells

    def kneighbors(self, places: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances and numbers ``[M, number]`` of the nearest data, as scikit-learn gives them."""
        squared, found = self._index.search(places, number)
        few = (found < 0).any(1)  # in their cells
        if few.any():
            from faiss import SearchParametersIVF

            everywhere = SearchParametersIVF()  # made here: it cannot be pickled
            everywhere.nprobe = self._cells
            squared[few], found[few] = self._index.search(places[few], number, params=everywhere)
        return np.sqrt(squared.clip(0)), found


def nearest_search(places: np.ndarray, approximate: bool | None) -> NearestNeighbors | CellSearch:
    """By default cells for more than 20,000 data, where faiss is installed."""
    check_one_of("approximate", approximate, (None, True, False))
    if approximate is None and len(places) > MANY:
        with suppress(ImportError):
            return CellSearch(places)
    return CellSearch(places) if approximate else NearestNeighbors().fit(places)


def centered_rows(data: Tensor, loc: Tensor) -> np.ndarray:
    """Finite rows minus ``loc`` ``[N, D]``: an offset would cost float32 precision in distances."""
    rows = data.detach().flatten(1)
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    centered = (rows - loc.to(rows)).float().cpu().numpy()
    if not np.isfinite(centered).all():
        raise ValueError(
            "x holds NaN or infinity, but distances need complete data: fill in what is "
            "missing first"
        )
    return centered


def principal_components(rows: np.ndarray, dim: int, seed: int) -> PCA:
    """At most ``dim`` principal components of rows ``[N, D]``, or of 10,000 random ones."""
    if len(rows) > PCA_ROWS:
        rows = rows[np.random.default_rng(seed).choice(len(rows), PCA_ROWS, replace=False)]
    pca = PCA(min(dim, *rows.shape), random_state=seed)
    return pca.set_output(transform="default").fit(rows)  # whatever the user is to be given


def edge_weights(
    distance: np.ndarray, neighbor: np.ndarray, scale: np.ndarray, scale_of_neighbors: np.ndarray
) -> csr_matrix:
    """Weights of edges from M data to their neighbors among N ``[M, N]``, at most 1, by distances
    and numbers of these ``[M, k]``, and sigma of both, ``[M]`` and ``[N]``.
    """
    number, k = distance.shape
    weight = np.exp(-(distance / scale[:, None]) * (distance / scale_of_neighbors[neighbor]))
    starts = np.arange(0, weight.size + 1, k)
    edges = (weight.ravel(), neighbor.ravel(), starts)
    return csr_matrix(edges, shape=(number, len(scale_of_neighbors)))


def neighbor_weights(places: np.ndarray, num_neighbors: int) -> csr_matrix:
    """Symmetric weights ``[N, N]`` of the edges between data at these places ``[N, d]``."""
    return _joined(nearest_search(places, None), [places], num_neighbors)[0]


def _joined(
    search: NearestNeighbors | CellSearch, forms: Sequence[np.ndarray], number: int
) -> tuple[csr_matrix, np.ndarray, float]:
    """Weights of edges, the mean of both directions' ``[N, N]``; each datum's distance from its
    last neighbor ``[N]``, and the least of these, as data that coincide would be cut off at 0.
    """
    distance, neighbor = _nearest(search, forms, number)
    last = distance[:, -1]
    least = LEAST_SCALE * float(np.median(last[last > 0])) if last.any() else 1.0
    last = last.clip(least)
    one_way = edge_weights(distance, neighbor, last, last)
    return (one_way + one_way.T) / 2, last, least


def _nearest(
    search: NearestNeighbors | CellSearch,
    forms: Sequence[np.ndarray],
    number: int,
    themselves: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Distances and numbers ``[N, number]`` of the data that are nearest to any form of each; none
    is its own neighbor, where the forms are of ``themselves``.
    """
    found = [search.kneighbors(each, number + themselves) for each in forms]
    distance, neighbor = (np.concatenate(each, 1) for each in zip(*found, strict=True))
    rows = np.arange(len(distance))[:, None]
    if themselves:
        distance = np.where(neighbor == rows, np.inf, distance)
    # By neighbor, and by distance for each: of a neighbor that is found again, the nearest form.
    order = np.lexsort((distance, neighbor))
    again = np.take_along_axis(neighbor, order, 1)
    repeated = np.zeros_like(distance, bool)
    np.put_along_axis(repeated, order[:, 1:], again[:, 1:] == again[:, :-1], 1)
    distance = np.where(repeated, np.inf, distance)
    nearest = distance.argsort(1, kind="stable")[:, :number]
    return distance[rows, nearest], neighbor[rows, nearest]


def spectral_clusters(affinity: csr_matrix, num_clusters: int, seed: int) -> np.ndarray:
    """k-means in the leading eigenvectors of the graph's normalized affinity."""
    _, vectors = leading_eigenvectors(affinity, num_clusters, seed)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(np.finfo(vectors.dtype).tiny)
    return KMeans(num_clusters, n_init=RESTARTS, random_state=seed).fit_predict(vectors)


def leading_eigenvectors(
    affinity: csr_matrix, number: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues and eigenvectors of the normalized affinity, which scikit-learn's
    ``SpectralClustering`` finds by factorizing it.
    """
    degree = affinity.sum(1).A1
    root = diags((degree + REGULARIZER * degree.mean()) ** -0.5)
    start = np.random.default_rng(seed).standard_normal(len(degree))
    return eigsh(root @ affinity @ root, number, which="LA", tol=TOLERANCE, v0=start)
