"""Search for nearest neighbors: among all data, or among those of the nearest cells."""

from __future__ import annotations

from contextlib import suppress
from math import isqrt

import numpy as np
from sklearn.neighbors import NearestNeighbors

from ppl_models.given.checks import check_one_of

# Beyond so many data neighbors are searched in cells: all pairs of 60,000 take 10 seconds.
MANY = 20_000
# Data for each center, at least, and cells that are searched for each query. Of 60,000 images'
# eleven nearest 99.8 % are found.
ROWS_A_CELL, CELLS_SEARCHED = 40, 16


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
