"""Facets as independent subspaces of the data: how columns of numbers are started.

In images the depth at which a facet leaves the encoder tells facets apart; between columns there is
no such order. There the data's principal components are turned so that they are as independent as
can be (ICA), and what still depends on each other goes into one facet: a facet's clusters depend on
all of its coordinates, those of two facets do not (the model's own assumption, MFCVAE, Eq. 1). The
networks are then taught these linear maps, to go on from.

The latents of a plain VAE would not do in their place: its prior has pressed them towards a single
normal, of which neither clusters nor independence can be read.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import SpectralClustering
from sklearn.decomposition import PCA, FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import mutual_info_regression
from torch import Tensor

from guides import FacetGuide
from inference.estimators.base import Chosen
from inference.estimators.defaults import clarity
from inference.randomness import seeded
from ppl_models.distributions import raw_log_variance
from ppl_models.modes import training

__all__ = ["Subspaces", "independent_subspaces", "teach"]

# Rows that dependence is measured on, at most.
MAX_ROWS = 2000
# Standard deviations, of the estimates for independent coordinates, above which two coordinates
# depend on each other.
SIGNIFICANT = 4.0
# In nats: of coordinates that do not depend on each other, so that these are weakly tied and not
# apart.
TIE = 1e-3


@dataclass(frozen=True)
class Subspaces:
    """Linear maps from data ``[N, D]`` to the latents of each facet.

    :ivar loc: mean of the data ``[D]``.
    :ivar maps: ``[d_j, D]`` each; what they give has mean 0 and variance 1.
    """

    loc: np.ndarray
    maps: list[np.ndarray]

    @property
    def dims(self) -> list[int]:
        return [len(each) for each in self.maps]

    def sources(self, x: np.ndarray) -> np.ndarray:
        """All facets' latents side by side."""
        return (x - self.loc) @ np.concatenate(self.maps).T

    def given_to(self, labels: Sequence[np.ndarray | None], x: np.ndarray) -> Subspaces:
        """In another order: each facet that has labels gets the subspace in which these lie
        furthest apart.

        :param labels: of each facet, integers ``[N]``, -1 where unknown; ``None`` for a facet
            without any.
        """
        parts = np.split(self.sources(x), np.cumsum(self.dims)[:-1], axis=1)
        apart = [
            [0.0 if label is None else _apart(z[label >= 0], label[label >= 0]) for z in parts]
            for label in labels
        ]
        # Where nothing speaks for another order, this one.
        _, order = linear_sum_assignment(np.array(apart) + 1e-6 * np.eye(len(parts)), maximize=True)
        return Subspaces(self.loc, [self.maps[place] for place in order])

    def variances(self, scale: float) -> np.ndarray:
        """Of each latent given x ``[m]``, where x is a linear map of the latents and noise of
        deviation ``scale``.
        """
        back = np.linalg.pinv(np.concatenate(self.maps))
        return 1 / (1 + (back**2).sum(0) / scale**2)


def _apart(z: np.ndarray, label: np.ndarray) -> float:
    """Share of the variance of latents ``[N, d]`` that lies between classes; 0 where each datum is
    a class.
    """
    classes, label = np.unique(label, return_inverse=True)
    if len(classes) == len(label):
        return 0.0
    means = np.stack([z[label == k].mean(0) for k in range(len(classes))])
    within = (z - means[label]).var(0).sum() * len(label) / (len(label) - len(classes))
    return float(1 - within / z.var(0).sum())


def independent_subspaces(x: np.ndarray, dim: int, number: int, seed: int) -> Subspaces:
    """Split the space of ``dim`` principal components into so many subspaces.

    :param x: ``[N, D]``, complete.
    :param dim: at least ``number``.
    :returns: the subspace with the clearest clusters last, all the rest first.
    """
    pca = PCA(dim, random_state=seed, whiten=True).fit(x)
    white = pca.transform(x)
    ica = FastICA(random_state=seed, whiten="unit-variance", max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # where nothing is left but normal noise, to turn at will
        sources = ica.fit_transform(white)
    turned = ica.components_ @ (
        pca.components_ / np.sqrt(pca.explained_variance_.clip(np.finfo(float).tiny))[:, None]
    )
    group = _dependent(sources, number, seed)
    clearest = sorted(
        np.unique(group), key=lambda g: clarity(sources[:, group == g], seed), reverse=True
    )
    kept = clearest[: number - 1]
    rest = ~np.isin(group, kept)
    return Subspaces(pca.mean_, [turned[rest], *(turned[group == g] for g in kept[::-1])])


def _dependent(sources: np.ndarray, number: int, seed: int) -> np.ndarray:
    """The group of each source ``[m]``, at least so many groups: those of one group depend on each
    other.
    """
    m = sources.shape[1]
    if m == number:
        return np.arange(m)
    rows = sources[:: -(-len(sources) // MAX_ROWS)]
    dependence = _dependence(rows, rows, seed)
    shuffled = np.random.default_rng(seed).permuted(rows, axis=0)
    none = _dependence(rows, shuffled, seed)
    tied = dependence > none.mean() + SIGNIFICANT * none.std()
    groups, group = connected_components(tied)
    if groups >= number:
        return group
    cut = SpectralClustering(
        number, affinity="precomputed", assign_labels="cluster_qr", random_state=seed
    )
    group = cut.fit_predict(dependence + TIE)
    return group if len(np.unique(group)) == number else np.arange(m) % number


def _dependence(a: np.ndarray, b: np.ndarray, seed: int) -> np.ndarray:
    """Mutual information of each column of one with each of the other ``[m, m]``, nats, made
    symmetric.
    """
    each = np.stack([mutual_info_regression(a, column, random_state=seed) for column in b.T])
    return (each + each.T) / 2


def teach(
    guide: FacetGuide, x: Tensor, subspaces: Subspaces, scale: float, epochs: int, chosen: Chosen
) -> None:
    """Bring a guide's networks to the subspaces' maps, and back to the data.

    :param guide: with a facet for each subspace, and an :class:`~ppl_models.networks.MLP`.
    :param x: ``[N, D]``, as encoders read them.
    :param scale: of what the subspaces leave unexplained; posteriors start as wide as it asks for.
    :param chosen: its learning rate, batch size and seed.
    """
    sources = torch.as_tensor(subspaces.sources(x.cpu().numpy())).to(x)
    variance = torch.as_tensor(subspaces.variances(scale)).to(x).split(subspaces.dims)
    with torch.no_grad():
        for rung, width in zip(cast(Any, guide.encoder).rungs, variance, strict=True):
            rung.weight[len(width) :] = 0
            rung.bias[len(width) :] = raw_log_variance(width.log())
    optimizer = torch.optim.Adam(guide.parameters(), chosen.learning_rate, fused=True)
    with seeded(chosen.seed, x.device), training(guide):
        for _ in range(epochs):
            for rows in torch.randperm(len(x), device=x.device).split(chosen.batch_size):
                optimizer.zero_grad(set_to_none=True)
                _distance(guide, x[rows], sources[rows].split(subspaces.dims, -1)).backward()
                optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _distance(guide: FacetGuide, x: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """Of the posteriors' means from the sources, and of what is decoded from these from the
    data.
    """
    posterior = guide.encode(x).values()
    apart = [
        (q.mean - source).square().mean() for q, source in zip(posterior, sources, strict=True)
    ]
    back = guide.model.decode(dict(zip(guide.model.priors, sources, strict=True))).mean
    return torch.stack([*apart, (back - x).square().mean()]).sum()
