"""Simulated embeddings: rows of length one with two labelings, as an encoder of texts would
give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Power of a direction's variance with which centers prefer it: 0 for none, 1 for as much as rows.
PREFERENCE = 0.5
# How unequal clusters are: the smallest and largest weight.
WEIGHTS = (0.5, 1.5)
# How rows scatter along a direction, each of them drawn with variance 1.
SCATTER = (
    lambda rng, n: rng.normal(size=n),
    lambda rng, n: rng.laplace(scale=np.sqrt(0.5), size=n),
    lambda rng, n: (rng.gamma(4, size=n) - 4) / 2,
)


@dataclass(frozen=True)
class DrawnEmbeddings:
    """Embeddings with several independent labelings.

    :ivar x: rows of length one ``[N, D]``, float32.
    :ivar labels: integers ``[N]`` of each labeling.
    """

    x: np.ndarray
    labels: Sequence[np.ndarray]


def drawn_embeddings(
    n: int,
    clusters: Sequence[int] = (5, 3),
    shares: Sequence[float] = (0.2, 0.06),
    width: int = 384,
    common: float = 0.1,
    decay: float = 1.0,
    seed: int = 0,
) -> DrawnEmbeddings:
    """``n`` rows, each with a cluster of every labeling, chosen independently.

    A row is the sum of a vector that all have in common, of the center of its cluster in each
    labeling, and of what is its own, divided by its length. What is its own has variances that
    fall as a power law along random directions, some of them skewed or with heavy tails. Centers
    are drawn at random and prefer strong directions.

    :param clusters: of each labeling, at least 2.
    :param shares: of each labeling, in the variance.
    :param width: D.
    :param common: share of the squared length that all rows have in common: 0.1 is like encoders of
        sentences, 0.5 like CLIP.
    :param decay: exponent of the power law.

    Example:
        >>> from lab.protocols.embeddings import drawn_embeddings
        >>> drawn = drawn_embeddings(100)
        >>> drawn.x.shape, float((drawn.x**2).sum(1).mean().round(4))
        ((100, 384), 1.0)
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
    deviation = np.arange(1, width + 1) ** (-decay / 2)
    deviation /= np.sqrt((deviation**2).sum())
    labels = [_labels(n, K, rng) for K in clusters]
    x = np.sqrt(1 - sum(shares)) * deviation * _scatter(n, width, rng)
    for label, share in zip(labels, shares, strict=True):
        x += np.sqrt(share) * _centers(label, deviation**PREFERENCE, rng)[label]
    every = rng.normal(size=width)
    x = np.sqrt(1 - common) * x @ basis + np.sqrt(common) * every / np.linalg.norm(every)
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    return DrawnEmbeddings(rows.astype(np.float32), labels)


def _labels(n: int, K: int, rng: np.random.Generator) -> np.ndarray:
    weights = rng.uniform(*WEIGHTS, K)
    return rng.choice(K, n, p=weights / weights.sum())


def _scatter(n: int, width: int, rng: np.random.Generator) -> np.ndarray:
    return np.stack([SCATTER[i](rng, n) for i in rng.integers(len(SCATTER), size=width)], 1)


def _centers(label: np.ndarray, deviation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Centers ``[K, D]`` whose mean over rows is 0, and their mean squared length 1."""
    centers = rng.normal(size=(int(label.max()) + 1, len(deviation))) * deviation
    weights = np.bincount(label) / len(label)
    centers -= weights @ centers
    return centers / np.sqrt(weights @ (centers**2).sum(1))
