"""Clusters of a graph's nodes, from its leading eigenvectors."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans

# Added to every degree, as a share of the mean degree.
REGULARIZER = 0.1
# Tolerance of the eigenvalues, which is enough for clusters.
TOLERANCE = 1e-3
# Restarts of k-means.
RESTARTS = 5


def spectral_clusters(affinity: csr_matrix, num_clusters: int, seed: int) -> np.ndarray:
    """k-means in the leading eigenvectors of the graph's normalized affinity."""
    _, vectors = leading_eigenvectors(affinity, num_clusters, seed)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(np.finfo(vectors.dtype).tiny)
    return KMeans(num_clusters, n_init=RESTARTS, random_state=seed).fit_predict(vectors)


def leading_eigenvectors(
    affinity: csr_matrix, number: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues and eigenvectors of the normalized affinity.

    scikit-learn's ``SpectralClustering`` finds the same ones by factorizing the matrix, so it is
    not used here.
    """
    degree = affinity.sum(1).A1
    root = diags((degree + REGULARIZER * degree.mean()) ** -0.5)
    start = np.random.default_rng(seed).standard_normal(len(degree))
    return eigsh(root @ affinity @ root, number, which="LA", tol=TOLERANCE, v0=start)
