"""Sources with segments, mixed without noise: the time-contrastive data of nonlinear ICA.

After Hyvarinen and Morioka (2016) with the settings of Willetts and Paige (*I Don't Need u*, 4.1): within a segment the
sources are independent Gaussians; their means and deviations are drawn anew for each segment, and the means are varied
(older code fixes them at 0). An invertible network of square layers mixes them. Its matrices are orthogonal, as in the
iVAE authors' code: random ones, even such as are each well conditioned, are together so ill conditioned that some
sources are lost in any noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppl_models.checks import check_count

__all__ = ["Mixing", "Segments", "time_contrastive"]

SLOPE = 0.2  # of leaky ReLU below 0


@dataclass(frozen=True)
class Mixing:
    """``x = W_L f(... f(W_1 s))`` with leaky ReLU f: invertible wherever the matrices are.

    :ivar weights: square matrices, the first one applied first.
    """

    weights: Sequence[np.ndarray]

    def __call__(self, sources: np.ndarray) -> np.ndarray:
        """``[N, d] -> [N, d]``."""
        x = sources @ self.weights[0].T
        for weight in self.weights[1:]:
            x = np.where(x > 0, x, SLOPE * x) @ weight.T
        return x

    def inverse(self, x: np.ndarray) -> np.ndarray:
        """The sources of ``x``: ``[N, d] -> [N, d]``."""
        for weight in self.weights[:0:-1]:
            x = np.linalg.solve(weight, x.T).T
            x = np.where(x > 0, x, x / SLOPE)
        return np.linalg.solve(self.weights[0], x.T).T


@dataclass(frozen=True)
class Segments:
    """Mixed sources ``x`` ``[N, d]``, the ``sources`` ``[N, d]``, and the ``segment`` ``[N]`` that each row is of."""

    x: np.ndarray
    sources: np.ndarray
    segment: np.ndarray
    mixing: Mixing

    def split(self, held_out: int) -> tuple[Segments, Segments]:
        """Two data sets in random order (the same in every call), the second with ``held_out`` rows of each segment."""
        rng = np.random.default_rng(0)
        last = [rng.choice(np.flatnonzero(self.segment == k), held_out, replace=False) for k in np.unique(self.segment)]
        test = rng.permutation(np.concatenate(last))
        train = rng.permutation(np.setdiff1d(np.arange(len(self.x)), test))
        first, second = (
            Segments(self.x[rows], self.sources[rows], self.segment[rows], self.mixing) for rows in (train, test)
        )
        return first, second


def time_contrastive(
    per_segment: int, num_segments: int = 20, dim: int = 5, num_layers: int = 4, seed: int = 0
) -> Segments:
    """``num_segments * per_segment`` rows, segment after segment: shuffle them before they are split.

    Means are uniform on [-3, 3] and deviations on [0.01, 3], one of each per source and segment. The mixing and the
    segments' parameters depend on ``seed`` alone, so that data sets of several sizes differ in their draws only.

    :raises ValueError: if a size is below 1.
    """
    sizes = {"per_segment": per_segment, "num_segments": num_segments, "dim": dim, "num_layers": num_layers}
    for name, value in sizes.items():
        check_count(name, value)
    rng = np.random.default_rng(seed)
    mixing = Mixing([_orthogonal(dim, rng) for _ in range(num_layers)])
    mean = rng.uniform(-3, 3, (num_segments, 1, dim))
    scale = rng.uniform(0.01, 3, (num_segments, 1, dim))
    sources = (mean + scale * rng.normal(size=(num_segments, per_segment, dim))).reshape(-1, dim)
    return Segments(mixing(sources), sources, np.repeat(np.arange(num_segments), per_segment), mixing)


def _orthogonal(dim: int, rng: np.random.Generator) -> np.ndarray:
    """A random rotation or reflection."""
    q, r = np.linalg.qr(rng.normal(size=(dim, dim)))
    return q * np.sign(np.diag(r))
