"""Data whose truth is known: sources with segments, mixed without noise, and labelings in separate
subspaces.

The first are the time-contrastive data of nonlinear ICA, after Hyvarinen and Morioka (2016) with
the settings of Willetts and Paige (*I Don't Need u*, 4.1): within a segment the sources are
independent Gaussians; their means and deviations are drawn again for each segment (in the iVAE
authors' code, as it is run, all means are 0). An invertible network of square layers mixes them.
Its matrices are orthogonal, as in that code, which has three where we have four, and applies the
first nonlinearity to the sources themselves (``bends_sources``): a product of random matrices, even
if each is well conditioned, is so ill conditioned that any noise hides some sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import pairwise_distances_argmin

SLOPE = 0.2  # of leaky ReLU below 0


@dataclass(frozen=True)
class Mixing:
    """``x = W_L f(... f(W_1 s))`` with leaky ReLU f: invertible wherever the matrices are.

    :ivar weights: square matrices, the first one applied first.
    :ivar bends_sources: whether f comes before W_1 as well.
    """

    weights: Sequence[np.ndarray]
    bends_sources: bool = False

    def __call__(self, sources: np.ndarray) -> np.ndarray:
        """``[N, d] -> [N, d]``."""
        x = (_bent(sources) if self.bends_sources else sources) @ self.weights[0].T
        for weight in self.weights[1:]:
            x = _bent(x) @ weight.T
        return x

    def inverse(self, x: np.ndarray) -> np.ndarray:
        """The sources of ``x``: ``[N, d] -> [N, d]``."""
        for weight in self.weights[:0:-1]:
            x = np.linalg.solve(weight, x.T).T
            x = _straightened(x)
        x = np.linalg.solve(self.weights[0], x.T).T
        return _straightened(x) if self.bends_sources else x


@dataclass(frozen=True)
class Segments:
    """Mixed sources ``x`` ``[N, d]``, the ``sources`` ``[N, d]``, and the ``segment`` ``[N]`` that
    each row is of.
    """

    x: np.ndarray
    sources: np.ndarray
    segment: np.ndarray
    mixing: Mixing

    def split(self, held_out: int) -> tuple[Segments, Segments]:
        """Two data sets in random order (the same in every call), the second with ``held_out`` rows
        of each segment.
        """
        rng = np.random.default_rng(0)
        last = [
            rng.choice(np.flatnonzero(self.segment == k), held_out, replace=False)
            for k in np.unique(self.segment)
        ]
        test = rng.permutation(np.concatenate(last))
        train = rng.permutation(np.setdiff1d(np.arange(len(self.x)), test))
        first, second = (
            Segments(self.x[rows], self.sources[rows], self.segment[rows], self.mixing)
            for rows in (train, test)
        )
        return first, second


def time_contrastive(
    per_segment: int,
    num_segments: int = 20,
    dim: int = 5,
    num_layers: int = 4,
    seed: int = 0,
    bends_sources: bool = False,
) -> Segments:
    """``num_segments * per_segment`` rows, segment after segment: shuffle them before they are
    split.

    Means are uniform on [-3, 3] and deviations on [0.01, 3], one of each per source and segment.
    The mixing and the segments' parameters depend on ``seed`` alone, so that data sets of several
    sizes differ in their draws only.
    """
    rng = np.random.default_rng(seed)
    mixing = Mixing([_orthogonal(dim, rng) for _ in range(num_layers)], bends_sources)
    mean = rng.uniform(-3, 3, (num_segments, 1, dim))
    scale = rng.uniform(0.01, 3, (num_segments, 1, dim))
    sources = (mean + scale * rng.normal(size=(num_segments, per_segment, dim))).reshape(-1, dim)
    return Segments(
        mixing(sources), sources, np.repeat(np.arange(num_segments), per_segment), mixing
    )


@dataclass(frozen=True)
class Labelings:
    """Data with several independent labelings, each with a subspace of its own.

    :ivar x: ``[N, D]``, mixed, with noise.
    :ivar sources: ``[N, D]``, before that: the labelings' coordinates one after the other, then
        zeros.
    :ivar labels: integers ``[N]`` of each labeling.
    :ivar centers: of each labeling's clusters in its own coordinates, before its scale, ``[K,
        d]``.
    :ivar scales: of each labeling.
    """

    x: np.ndarray
    sources: np.ndarray
    labels: Sequence[np.ndarray]
    centers: Sequence[np.ndarray]
    mixing: Mixing
    scales: Sequence[float]

    def likeliest(self) -> list[np.ndarray]:
        """Of each labeling, each row's likeliest cluster ``[N]`` given all that the data were
        drawn with: the Bayes rule, whose expected accuracy no method exceeds. Only for a mixing of
        one layer: several bend the noise.
        """
        # Rotated back, the noise is as it was; clusters are as likely and as wide as each other.
        sources, found, first = self.mixing.inverse(self.x), [], 0
        for centers, scale in zip(self.centers, self.scales, strict=True):
            own = sources[:, first : first + centers.shape[1]] / scale
            found.append(pairwise_distances_argmin(own, centers))
            first += centers.shape[1]
        return found


def labelings(
    n: int,
    clusters: Sequence[int] = (3, 4),
    dims: Sequence[int] = (2, 2),
    width: int = 10,
    separation: float = 6.0,
    scales: Sequence[float] | None = None,
    num_layers: int = 1,
    noise: float = 0.3,
    seed: int = 0,
) -> Labelings:
    """``n`` rows, each with a cluster of every labeling, chosen independently and all as likely.

    A labeling's clusters are Gaussians of unit deviation on a circle in its ``dims`` coordinates,
    or on a line if it has one, neighbors ``separation`` apart, all times its scale. All
    coordinates, and zeros up to ``width`` of them, are mixed by a random rotation, or by a network
    of such with leaky ReLU between; last comes Gaussian noise. The mixing and the circles depend on
    ``seed`` alone.

    :param clusters: of each labeling, at least 2.
    :param dims: of each labeling's subspace.
    :param width: D.
    :param scales: of each labeling; all 1 where not given.
    :param num_layers: of the mixing; one is linear.
    :param noise: its standard deviation, 0 for none.
    """
    scales = tuple(1.0 for _ in clusters) if scales is None else tuple(scales)
    rng = np.random.default_rng(seed)
    mixing = Mixing([_orthogonal(width, rng) for _ in range(num_layers)])
    centers = [_spread(K, d, separation, rng) for K, d in zip(clusters, dims, strict=True)]
    labels = [rng.integers(K, size=n) for K in clusters]
    own = [
        scale * (each[label] + rng.normal(size=(n, each.shape[1])))
        for scale, each, label in zip(scales, centers, labels, strict=True)
    ]
    sources = np.concatenate([*own, np.zeros((n, width - sum(dims)))], 1)
    return Labelings(
        mixing(sources) + noise * rng.normal(size=sources.shape),
        sources,
        labels,
        centers,
        mixing,
        scales,
    )


def _bent(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, SLOPE * x)


def _straightened(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, x / SLOPE)


def _spread(K: int, dim: int, separation: float, rng: np.random.Generator) -> np.ndarray:
    """K points around 0, neighbors ``separation`` apart: on a circle in a random plane, or on a
    line: ``[K, dim]``.
    """
    if dim == 1:
        return separation * (np.arange(K) - (K - 1) / 2)[:, None]
    angle = 2 * np.pi * np.arange(K) / K
    circle = separation / (2 * np.sin(np.pi / K)) * np.stack([np.cos(angle), np.sin(angle)], 1)
    return circle @ _orthogonal(dim, rng)[:2]


def _orthogonal(dim: int, rng: np.random.Generator) -> np.ndarray:
    """A random rotation or reflection."""
    q, r = np.linalg.qr(rng.normal(size=(dim, dim)))
    return q * np.sign(np.diag(r))
