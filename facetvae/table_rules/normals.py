"""One normal of rows with gaps, by what is there."""

from __future__ import annotations

import numpy as np

# Passes over the rows, and the change of a covariance that ends them; what is added to variances.
PASSES, ENOUGH, RIDGE = 50, 1e-3, 1e-3
# Numbers of inverses at a time.
AT_ONCE = 2**22


def covariance_of(x: np.ndarray) -> np.ndarray:
    """The likeliest covariance ``[D, D]`` of rows ``[N, D]`` whose means are 0, by
    expectation-maximization where entries are missing (Little and Rubin, *Statistical Analysis
    with Missing Data*, 2019, section 11.2).
    """
    covariance = np.eye(x.shape[1])
    for _ in range(PASSES):
        inverse, at, _ = _inverses(x, covariance)
        filled, told = _times(x, inverse, at) @ covariance, np.bincount(at) / len(x)
        left = covariance - covariance @ np.einsum("p,pij->ij", told, inverse) @ covariance
        last, covariance = covariance, filled.T @ filled / len(x) + left
        covariance = (covariance + RIDGE * np.eye(len(covariance))) / (1 + RIDGE)
        if abs(covariance - last).max(initial=0.0) < ENOUGH:
            break
    return covariance


def conditional_means(x: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Rows ``[N, D]`` whose means are 0, with the mean given the others in each gap."""
    each = []
    for rows in np.array_split(x, 1 + x.size * x.shape[1] // AT_ONCE):
        inverse, at, _ = _inverses(rows, covariance)
        each.append(_times(rows, inverse, at) @ covariance)
    return np.concatenate(each)


def log_normal(x: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The log-density of what is there of rows ``[..., N, D]`` whose means are 0, and whose gaps
    are the first's: ``[..., N]``.
    """
    first = x[(0,) * (x.ndim - 2)]
    inverse, at, volume = _inverses(first, covariance)
    squares = (_times(x, inverse, at) * np.nan_to_num(x)).sum(-1)
    return -(squares + volume[at] + np.log(2 * np.pi) * (~np.isnan(first)).sum(1)) / 2


def _times(x: np.ndarray, inverse: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Each row, 0 in its gaps, times its pattern's matrix."""
    x = np.nan_to_num(x)
    return x @ inverse[0] if len(inverse) == 1 else np.einsum("...ni,nij->...nj", x, inverse[at])


def _inverses(x: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of what is there in each pattern of gaps: the inverse of its covariance, 0 elsewhere,
    ``[P, D, D]``; each row's pattern ``[N]``; and the logarithm of its determinant ``[P]``.
    """
    bits, at = np.unique(np.packbits(~np.isnan(x), axis=1), axis=0, return_inverse=True)
    there = np.unpackbits(bits, axis=1, count=x.shape[1]).astype(bool)
    pairs, one = there[:, :, None] & there[:, None], np.eye(len(covariance))
    own = np.where(pairs, covariance, one)
    return np.where(pairs, np.linalg.inv(own), 0.0), at.reshape(-1), np.linalg.slogdet(own)[1]
