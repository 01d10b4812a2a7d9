"""What gaps hold, given the rest of their row: means of a linear model with a few latents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from facetvae.table_rules.rows import thinned

# Passes of expectation-maximisation, and the most rows that they see.
PASSES, MAX_ROWS = 20, 5000
# Rows that are filled at once.
CHUNK = 1000
# Least variance that the latents leave of standardised columns.
LEAST = 1e-6


@dataclass(frozen=True)
class LinearFilling:
    """Probabilistic PCA: x = W z + noise, z standard normal (Tipping and Bishop, 1999).

    :ivar loadings: W ``[G, m]``.
    :ivar noise: its variance.
    """

    loadings: np.ndarray
    noise: float

    def filled(self, x: np.ndarray, gaps: np.ndarray) -> np.ndarray:
        """``x`` ``[N, G]`` with the mean given the rest of the row in its ``gaps`` ``[N, G]``."""
        return np.concatenate([rows for rows, _ in self._expected(x, gaps)])

    def _expected(self, x: np.ndarray, gaps: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Filled rows, a part at a time, and the sum of their covariances ``[G, G]``."""
        for start in range(0, len(x), CHUNK):
            yield self._expected_at_once(x[start : start + CHUNK], gaps[start : start + CHUNK])

    def _expected_at_once(self, x: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        W, m = self.loadings, self.loadings.shape[1]
        products = (W[:, :, None] * W[:, None, :]).reshape(len(W), m * m)
        precision = (~gaps @ products).reshape(-1, m, m) + self.noise * np.eye(m)
        covariance = np.linalg.inv(precision)
        z = covariance @ (np.where(gaps, 0, x) @ W)[..., None]
        filled = np.where(gaps, z[..., 0] @ W.T, x)
        unseen = gaps[:, :, None] * W
        spread = self.noise * np.einsum(
            "ngi,nij,nhj->gh", unseen, covariance, unseen, optimize=True
        )
        return filled, spread + self.noise * np.diag(gaps.sum(0))


def linear_filling(x: np.ndarray, gaps: np.ndarray, dim: int) -> LinearFilling:
    """The likeliest model with ``dim`` latents, by expectation-maximisation from gaps at 0.

    :param x: ``[N, G]``, centred and of about unit variance.
    :param gaps: which entries are missing ``[N, G]``.
    """
    x, gaps = thinned(np.where(gaps, 0, x), MAX_ROWS), thinned(gaps, MAX_ROWS)
    covariance = x.T @ x / len(x)
    for _ in range(PASSES):
        parts = _principal(covariance, dim)._expected(x, gaps)
        covariance = sum(filled.T @ filled + spread for filled, spread in parts) / len(x)
    return _principal(covariance, dim)


def _principal(covariance: np.ndarray, dim: int) -> LinearFilling:
    size, turn = np.linalg.eigh(covariance)
    noise = max(LEAST, float(size[:-dim].mean()))
    return LinearFilling(turn[:, -dim:] * np.sqrt((size[-dim:] - noise).clip(LEAST)), noise)
