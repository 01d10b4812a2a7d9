"""Training with a prior over neighbours: the clusters' posterior on the graph, and steps of SVI, in
turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from torch import Tensor

from guides import FacetGuide
from inference.initialization.graph import NeighborGraph
from inference.runner import SVIRunner
from ppl_models.checks import check_count, check_kind
from ppl_models.priors import NeighborMixture

__all__ = ["cluster_posterior", "fit_neighbors", "likeliest_strength", "mean_field"]

# Most sweeps of mean field, and the largest change of a probability after which it ends.
SWEEPS, TOLERANCE = 50, 1e-3
# Largest strength, in nats for a neighbour of weight 1: beyond it neighbours never differ.
MOST_STRENGTH = 20.0


def fit_neighbors(
    runner: SVIRunner,
    x: ArrayLike | Tensor,
    graph: NeighborGraph,
    epochs: int,
    facet: str | None = None,
    every: int = 5,
    learn_strength: bool = True,
    **fit_options: Any,
) -> SVIRunner:
    r"""Train a model one of whose facets has a :class:`~ppl_models.NeighborMixture`.

    Variational EM: the clusters of all data get their posterior on the graph, q(c_1) ... q(c_N), by
    mean field,

    .. math:: q_i(k) \propto q(c_i = k \mid x_i) \, \exp\Big(\beta \sum_j w_{ij} q_j(k)\Big)

    with the guide's own q(c given x); then model and guide are trained for ``every`` epochs, in
    which each datum's clusters are given its neighbours' q. While they are, the history's ``elbo``
    bounds log p(x given the neighbours' clusters).

    :param runner: the runner to train, whose guide takes neighbours: a
        :class:`~guides.VaDEGuide`, :class:`~guides.AmortizedGuide` or
        :class:`~guides.LadderGuide`. Its facet should have taken shape: with a VaDEGuide, train
        first with ``label=`` clusters of the graph (:meth:`NeighborGraph.clusters`).
    :param x: the data of the graph ``[N, *x_shape]``.
    :param facet: the facet that gets the graph; by default the only one that can.
    :param learn_strength: whether the strength becomes that with the highest pseudo-likelihood of
        the clusters, each time they are computed.
    :param fit_options: for :meth:`~inference.runner.SVIRunner.fit`, such as ``batch_size``.
    :returns: the runner.
    :raises ValueError: before training, if an argument does not fit.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import NeighborGraph, SVIRunner, fit_neighbors
        >>> from ppl_models import GaussianMixture, NeighborMixture, SharedMLP, VaDE
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> model = VaDE((6,), NeighborMixture(GaussianMixture(3, 2)), network=SharedMLP((8,)))
        >>> runner = SVIRunner(model, VaDEGuide(model))
        >>> graph = NeighborGraph(x, num_neighbors=5)
        >>> runner = runner.fit(x, 2, progress=False, label=graph.clusters(3))
        >>> fit_neighbors(runner, x, graph, epochs=4, every=2, progress=False).epoch
        6
    """
    check_kind("runner", runner, SVIRunner, "an SVIRunner")
    check_kind("graph", graph, NeighborGraph, "a NeighborGraph")
    check_count("epochs", epochs)
    check_count("every", every)
    name, prior = _neighborly(runner.guide, facet)
    if len(graph) != (number := len(runner.guide.observed(x, {}))):
        raise ValueError(f"the graph joins {len(graph)} data, but x has {number}: build it from x")
    none = np.zeros((len(graph), prior.num_components))
    runner.plan(x, epochs, **fit_options, neighbors={name: none})  # refuses what does not fit
    end = runner.epoch + epochs
    while runner.epoch < end and not runner.should_stop:
        alone = _log_alone(runner.guide, x, name)
        if learn_strength:
            q = mean_field(alone, graph, prior.strength.item())
            prior.strength.fill_(likeliest_strength(graph, q, _log_weights(prior)))
        q = mean_field(alone, graph, prior.strength.item())
        now = min(every, end - runner.epoch)
        runner.fit(x, now, **fit_options, neighbors={name: graph.counts(q)})
    return runner


def cluster_posterior(
    guide: FacetGuide, x: ArrayLike | Tensor, graph: NeighborGraph, facet: str | None = None
) -> np.ndarray:
    """Probabilities of a facet's clusters ``[N, K]`` for the data of a graph, by mean field.

    :param x: the data of the graph ``[N, *x_shape]``.
    :param facet: by default the only one with a :class:`~ppl_models.NeighborMixture`.
    :raises ValueError: if an argument does not fit.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import NeighborGraph, cluster_posterior
        >>> from ppl_models import GaussianMixture, NeighborMixture, SharedMLP, VaDE
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> model = VaDE((6,), NeighborMixture(GaussianMixture(3, 2)), network=SharedMLP((8,)))
        >>> cluster_posterior(VaDEGuide(model), x, NeighborGraph(x, num_neighbors=5)).shape
        (20, 3)
    """
    name, prior = _neighborly(guide, facet)
    return mean_field(_log_alone(guide, x, name), graph, prior.strength.item())


def mean_field(log_alone: np.ndarray, graph: NeighborGraph, strength: float) -> np.ndarray:
    """The probabilities q ``[N, K]`` that are proportional to exp(log_alone + strength * counts of
    q), from those without neighbours on.

    Half of each change is taken: all data change at once, and would otherwise swing between two
    states.

    :param log_alone: log p(z, c) for every c without neighbours ``[N, K]``, nats, up to a constant
        of each datum.
    """
    q = softmax(log_alone, 1)
    for _ in range(SWEEPS):
        change = softmax(log_alone + strength * graph.counts(q), 1) - q
        q += change / 2
        if abs(change).max() < TOLERANCE:
            break
    return q


def likeliest_strength(graph: NeighborGraph, q: np.ndarray, log_weights: np.ndarray) -> float:
    """The strength with the highest pseudo-likelihood of clusters, sum of log p(c_i given the
    others) under q (Besag, 1975, *Statistical analysis of non-lattice data*).

    :param q: probabilities of the clusters ``[N, K]``.
    :param log_weights: of the clusters without neighbours ``[K]``, nats.
    """
    counts = graph.counts(q)
    own = (q * counts).sum(1).mean()

    def minus_log_likelihood(strength: float) -> float:
        return float(logsumexp(log_weights + strength * counts, 1).mean() - strength * own)

    bounds = (0.0, MOST_STRENGTH)
    return float(minimize_scalar(minus_log_likelihood, bounds=bounds, method="bounded").x)


def _log_alone(guide: FacetGuide, x: ArrayLike | Tensor, facet: str) -> np.ndarray:
    """log q(c given x) without neighbours ``[N, K]``; what float32 takes for 0 is its smallest
    number, so that neighbours may still have a say.
    """
    probs = guide.predict_proba(x)[facet].astype(np.float64)
    return np.log(probs.clip(np.finfo(np.float32).tiny))


def _log_weights(prior: NeighborMixture) -> np.ndarray:
    return prior.component().log_probs.detach().double().cpu().numpy()


def _neighborly(guide: FacetGuide, facet: str | None) -> tuple[str, NeighborMixture]:
    """The facet whose clusters take neighbours, and its prior."""
    facets = {n: p for n, p in guide.model.priors.items() if isinstance(p, NeighborMixture)}
    if "neighbors" not in guide.accepts or not facets:
        raise ValueError(
            "neighbours need a facet with a NeighborMixture, and a guide that takes them, such as "
            "VaDEGuide, but the facets are "
            f"{guide.model.priors} with a {type(guide).__name__}"
        )
    if facet is None and len(facets) > 1:
        raise ValueError(f"several facets take neighbours, {list(facets)}: name one as facet=")
    name = next(iter(facets)) if facet is None else facet
    if name not in facets:
        raise ValueError(f"facet {name!r} takes no neighbours: those that do are {list(facets)}")
    return name, facets[name]
