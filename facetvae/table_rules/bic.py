"""The Bayesian information criterion (BIC) of Gaussian mixtures in latents."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from facetvae.table_rules.rows import thinned
from facetvae.table_rules.threads import on_one_thread

# Numbers of clusters to try.
NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25)
# Fewest data for each cluster, and most data that the number is chosen on.
ROWS_PER_CLUSTER, MAX_ROWS = 15, 5000


def likeliest_number(z: np.ndarray, covariance: str, seed: int) -> int:
    """The number of clusters with the lowest BIC of a Gaussian mixture in the latents ``[N, d]``,
    at least 2.
    """
    bic = _bic(z, covariance, seed)
    return min(list(bic)[1:], key=bic.__getitem__)


def clarity(z: np.ndarray, seed: int) -> float:
    """How much better (lower) the BIC of clusters in the latents ``[N, d]`` is than that of a
    single normal.
    """
    bic = _bic(z, "full", seed)
    return bic.pop(1) - min(bic.values())


@on_one_thread
def _bic(z: np.ndarray, covariance: str, seed: int) -> dict[int, float]:
    """BIC by number of clusters (scikit-learn's mixtures), from 1 on."""
    z = thinned(z, MAX_ROWS).astype(float)
    numbers = [k for k in NUMBERS if k <= max(2, len(z) // ROWS_PER_CLUSTER)]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # for numbers that are too large, which BIC does not choose
        return {
            k: GaussianMixture(k, covariance_type=covariance, n_init=2, random_state=seed)
            .fit(z)
            .bic(z)
            for k in numbers
        }
