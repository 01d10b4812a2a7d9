"""Facets as independent subspaces of one plain latent space: how columns of numbers are started.

In images the depth at which a facet leaves the encoder tells facets apart; between columns there is no such order.
There the latents of a plain VAE are turned so that they are as independent as can be (ICA), and what still depends on
each other goes into one facet: a facet's clusters depend on all of its coordinates, those of two facets do not (the
model's own assumption, MFCVAE, Eq. 1).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from sklearn.cluster import SpectralClustering
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import mutual_info_regression
from torch import nn

from guides import FacetGuide
from ppl_models.distributions import raw_log_variance

__all__ = ["Subspaces", "independent_subspaces", "turn"]

# Rows that dependence is measured on, at most.
MAX_ROWS = 2000
# Variance of the posterior means below which a latent says nothing (Burda et al., 2016).
ACTIVE = 0.01
# In nats: of coordinates that do not depend on each other, so that these are weakly tied and not apart.
TIE = 1e-3


@dataclass(frozen=True)
class Subspaces:
    """Linear maps from latents ``[N, m]`` to those of each facet.

    :ivar loc: mean of the latents ``[m]``.
    :ivar maps: ``[d_j, m]`` each; what they give has variance 1.
    """

    loc: np.ndarray
    maps: list[np.ndarray]

    @property
    def dims(self) -> list[int]:
        return [len(each) for each in self.maps]


def independent_subspaces(z: np.ndarray, number: int, seed: int) -> Subspaces:
    """Split latents ``[N, m]`` into so many subspaces, the one of most variance last.

    :param z: posterior means, m at least ``number``.
    """
    z = z.astype(float)
    loc, active = z.mean(0), np.flatnonzero(z.var(0) > ACTIVE)
    if len(active) < number or len(z) <= 2 * z.shape[1]:  # too little to turn by: each coordinate is left as it is
        parts = np.array_split(np.argsort(z.var(0)), number)
        scale = np.maximum(z.std(0), ACTIVE)
        return Subspaces(loc, [np.eye(z.shape[1])[part] / scale[part, None] for part in parts])
    ica = FastICA(len(active), random_state=seed, whiten="unit-variance", max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # where nothing is left but normal noise, to turn at will
        sources = ica.fit_transform(z[:, active])
    maps = np.zeros((len(active), z.shape[1]))
    maps[:, active] = ica.components_
    weight = (np.linalg.pinv(maps) ** 2).sum(0)  # variance of the latents that each source accounts for
    group = _dependent(sources, number, seed)
    order = sorted(range(number), key=lambda g: weight[group == g].sum())
    return Subspaces(loc, [maps[group == g] for g in order])


def _dependent(sources: np.ndarray, number: int, seed: int) -> np.ndarray:
    """The group of each source ``[m]``: those of one group depend on each other most."""
    m = sources.shape[1]
    if m == number or number == 1:
        return np.arange(m) % number
    rows = sources[:: -(-len(sources) // MAX_ROWS)]
    dependence = np.stack([mutual_info_regression(rows, column, random_state=seed) for column in rows.T])
    affinity = (dependence + dependence.T) / 2 + TIE
    group = SpectralClustering(number, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    found = group.fit_predict(affinity)
    return found if len(np.unique(found)) == number else np.arange(m) % number


@torch.no_grad()
def turn(old: FacetGuide, new: FacetGuide, subspaces: Subspaces, variance: np.ndarray) -> None:
    """Give ``new`` the networks of ``old``, its latents being those of ``old`` in the subspaces.

    Both have an :class:`~ppl_models.networks.MLP` of the same widths, whose layers next to the latents are linear:
    means and reconstructions are then the same, but for what ``old`` says in directions that are left out.

    :param old: with a single facet of m latents.
    :param new: with a facet for each subspace.
    :param variance: of the posteriors of ``old``, the data's mean ``[m]``; those of ``new`` start alike for all data.
    """
    to = torch.as_tensor(np.concatenate(subspaces.maps)).to(old.model.gates)
    loc = torch.as_tensor(subspaces.loc).to(to)
    read, turned = cast(Any, old.encoder), cast(Any, new.encoder)
    turned.trunk.load_state_dict(read.trunk.state_dict())
    head, m = read.rungs[0], len(loc)
    log_variance = (to.square() @ torch.as_tensor(variance).to(to)).log().split(subspaces.dims)
    for part, width, rung in zip(to.split(subspaces.dims), log_variance, turned.rungs, strict=True):
        d = len(part)
        rung.weight.zero_()
        rung.weight[:d] = part @ head.weight[:m]
        rung.bias[:d] = part @ (head.bias[:m] - loc)
        rung.bias[d:] = raw_log_variance(width)
    layers = old.model.decoder.state_dict()
    first = next(name for name, layer in old.model.decoder.named_modules() if isinstance(layer, nn.Linear))
    weight = layers[f"{first}.weight"]
    layers[f"{first}.bias"] = layers[f"{first}.bias"] + weight @ loc
    layers[f"{first}.weight"] = weight @ torch.linalg.pinv(to)
    new.model.decoder.load_state_dict(layers)
