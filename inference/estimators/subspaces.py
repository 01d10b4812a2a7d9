"""Facets as independent subspaces of the data: the warm start for columns of real numbers.

In images, facets are distinguished by the depth at which they leave the encoder; columns have no
such order. For columns, the data's principal components are rotated to be as independent as
possible (ICA), and coordinates that still depend on each other go into one facet: a facet's
clusters depend on all of its coordinates, those of two facets do not (the model's own assumption,
MFCVAE, Eq. 1). These linear maps are where the networks start: with layers that skip the hidden
ones they are set, others are trained on them.

The latents of a plain VAE cannot replace them: its prior has pressed them towards a single normal,
which shows neither clusters nor independence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import SpectralClustering
from sklearn.feature_selection import mutual_info_regression
from torch import Tensor, nn

from guides import FacetGuide
from inference.estimators.base import Chosen
from inference.estimators.defaults import clarity
from inference.estimators.rows import MANY, thinned
from inference.estimators.sources import independent_sources
from inference.progress import progress_bar
from inference.randomness import seeded
from ppl_models.data import Observed
from ppl_models.distributions import raw_log_variance
from ppl_models.modes import training
from ppl_models.turns import let_others_in

__all__ = ["Subspaces", "independent_subspaces", "set_linear", "set_widths", "teach"]

# Most rows that dependence is measured on.
MAX_ROWS = 2000
# Two coordinates depend on each other if their dependence exceeds that of independent ones by this
# many standard deviations.
SIGNIFICANT = 4.0
# Dependence, in nats, that is added to all pairs of coordinates, so that the graph is connected.
TIE = 1e-3
# Rate of the networks' training at its first epoch, in learning rates.
FIRST_RATE = 3.0


@dataclass(frozen=True)
class Subspaces:
    """Linear maps from data ``[N, D]`` to the latents of each facet.

    :ivar loc: mean of the data ``[D]``.
    :ivar maps: ``[d_j, D]`` each; their outputs have mean 0 and variance 1.
    """

    loc: np.ndarray
    maps: list[np.ndarray]

    @property
    def dims(self) -> list[int]:
        return [len(each) for each in self.maps]

    def sources(self, x: np.ndarray) -> np.ndarray:
        """All facets' latents side by side."""
        return (x - self.loc) @ np.concatenate(self.maps).T

    def order_for(
        self, labels: Sequence[np.ndarray | None], x: np.ndarray, misfit: Any = 0
    ) -> list[int]:
        """For each facet, the place of its subspace: those with labels get the one in which their
        classes are best separated, others the one that misfits least. If there are more subspaces
        than facets, those that nothing suggests are the last.

        :param labels: for each facet, integers ``[N]``, -1 where unknown; ``None`` for a facet
            without labels.
        :param misfit: of each facet (rows) with each subspace (columns), which decides where labels
            do not.
        """
        parts = np.split(self.sources(x), np.cumsum(self.dims)[:-1], axis=1)
        apart = [
            [0.0 if label is None else _separation(z[label >= 0], label[label >= 0]) for z in parts]
            for label in labels
        ]
        # Keep the given order if nothing suggests another.
        J, most = np.shape(apart)
        gain = np.array(apart) - 1e-3 * np.array(misfit) + 1e-6 * np.eye(J, most, most - J)
        return linear_sum_assignment(gain, maximize=True)[1].tolist()

    def reordered(self, order: Sequence[int]) -> Subspaces:
        return Subspaces(self.loc, [self.maps[place] for place in order])

    def variances(self, scale: float | np.ndarray) -> np.ndarray:
        """Variance of each latent given x and the other latents ``[m]``, if x is a linear map of
        the latents plus noise of deviation ``scale``, one or each column's ``[D]``.
        """
        back = np.linalg.pinv(np.concatenate(self.maps))
        return 1 / (1 + ((back / np.reshape(scale, (-1, 1))) ** 2).sum(0))


def _separation(z: np.ndarray, label: np.ndarray) -> float:
    """Share of the variance of latents ``[N, d]`` that lies between classes; 0 if each datum is a
    class of its own.
    """
    classes, label = np.unique(label, return_inverse=True)
    if len(classes) == len(label):
        return 0.0
    means = np.stack([z[label == k].mean(0) for k in range(len(classes))])
    within = (z - means[label]).var(0).sum() * len(label) / (len(label) - len(classes))
    return float(1 - within / z.var(0).sum())


def independent_subspaces(x: np.ndarray, dim: int, number: int, seed: int) -> Subspaces:
    """Split the space of ``dim`` principal components into ``number`` subspaces.

    :param x: ``[N, D]``, complete.
    :param dim: at least ``number``.
    :returns: the subspaces, ordered by how clear their clusters are: the clearest last, the
        remaining coordinates first.
    """
    sources, turned, loc = independent_sources(x, dim, seed)
    group = _dependent(sources, number, seed)
    clearest = sorted(
        np.unique(group), key=lambda g: clarity(sources[:, group == g], seed), reverse=True
    )
    kept = clearest[: number - 1]
    rest = ~np.isin(group, kept)
    return Subspaces(loc, [turned[rest], *(turned[group == g] for g in kept[::-1])])


def _dependent(sources: np.ndarray, number: int, seed: int) -> np.ndarray:
    """The group of each source ``[m]``, at least ``number`` groups; sources of one group depend on
    each other.
    """
    m = sources.shape[1]
    if m == number:
        return np.arange(m)
    rows = thinned(sources, MAX_ROWS)
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
    """Mutual information of each column of ``a`` with each of ``b`` ``[m, m]``, in nats, made
    symmetric.
    """
    each = np.stack([mutual_info_regression(a, column, random_state=seed) for column in b.T])
    return (each + each.T) / 2


@torch.no_grad()
def set_widths(guide: FacetGuide, variances: np.ndarray) -> None:
    """Give the posteriors the same variances for all data.

    :param guide: with a normal posterior whose scales come from its heads' second halves.
    :param variances: of all facets' latents side by side ``[m]``.
    """
    rungs = cast(Any, guide.encoder).rungs
    ends = np.cumsum([len(rung.bias) // 2 for rung in rungs])[:-1]
    for rung, variance in zip(rungs, np.split(variances, ends), strict=True):
        width = len(variance)
        rung.weight[width:] = 0
        rung.bias[width:] = raw_log_variance(torch.as_tensor(variance).log())


@torch.no_grad()
def set_linear(guide: FacetGuide, subspaces: Subspaces, x: np.ndarray) -> None:
    """Set a guide's networks to linear maps: the encoder to the subspaces', the decoder to the way
    back that leaves least of the data. Hidden layers have no say until they are trained.

    :param guide: with a facet for each subspace, and an :class:`~ppl_models.networks.MLP` whose
        heads and last layer read the input, too.
    :param x: complete data ``[N, D]``, as the encoder reads them.
    """
    for rung, turn in zip(cast(Any, guide.encoder).rungs, subspaces.maps, strict=True):
        _set_last(rung, turn, -turn @ subspaces.loc)
    sources = subspaces.sources(x)
    back = np.linalg.lstsq(np.column_stack([sources, np.ones(len(x))]), x, rcond=None)[0].T
    _set_last(cast(Any, guide.model.decoder).trunk[-2], back[:, :-1], back[:, -1])


def _set_last(layer: nn.Linear, weight: np.ndarray, bias: np.ndarray) -> None:
    """The layer's first outputs, as a linear map of its last inputs."""
    outputs, inputs = weight.shape
    layer.weight[:outputs] = 0
    layer.weight[:outputs, -inputs:] = torch.as_tensor(weight)
    layer.bias[:outputs] = torch.as_tensor(bias)


def teach(guide: FacetGuide, data: Observed, sources: Tensor, epochs: int, chosen: Chosen) -> None:
    """Train a guide's networks: the encoder on the subspaces' maps, the decoder on the way back to
    the data.

    The rate falls linearly from three times the learning rate, in the first epoch, towards 0, so
    that all epochs together end in convergence: from epoch to epoch, of more than 20,000 rows from
    step to step.

    :param guide: with a facet for each subspace, and an :class:`~ppl_models.networks.MLP`.
    :param data: x ``[N, D]``, encoded, on the guide's device.
    :param sources: all facets' latents side by side ``[N, m]``.
    :param chosen: gives the learning rate, batch size and seed.
    """
    dims = [prior.dim for prior in guide.model.priors.values()]
    sources = sources.to(guide.model.gates)
    optimizer = torch.optim.Adam(guide.parameters(), chosen.learning_rate, fused=True)
    steps = -(-len(data) // chosen.batch_size)
    bar = progress_bar(epochs * steps, "step", chosen.verbose)
    with seeded(chosen.seed, data.x.device), training(guide), bar:
        for epoch in range(epochs):
            order = torch.randperm(len(data), device=data.x.device)
            for step, rows in enumerate(order.split(chosen.batch_size)):
                if step == 0 or len(data) > MANY:  # of many rows there are few passes
                    left = 1 - (epoch + step / steps) / epochs
                    for group in optimizer.param_groups:
                        group["lr"] = FIRST_RATE * chosen.learning_rate * left
                optimizer.zero_grad(set_to_none=True)
                batch = chosen.view.taught(data[rows].x)
                _distance(guide, batch, sources[rows].split(dims, -1)).backward()
                optimizer.step()
                bar.update()
                let_others_in()
    optimizer.zero_grad(set_to_none=True)


def _distance(guide: FacetGuide, x: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """Squared distance between the posteriors' means and the sources, and how far the data are from
    the decoded sources.
    """
    posterior = guide.encode(x).values()
    apart = [
        (q.mean - source).square().mean() for q, source in zip(posterior, sources, strict=True)
    ]
    back = guide.model.decode(dict(zip(guide.model.priors, sources, strict=True)))
    return torch.stack([*apart, guide.model.likelihood.misfit(back, x)]).sum()
