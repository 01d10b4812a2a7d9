"""Training with a prior over neighbors: the clusters' posterior and steps of SVI, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from torch import Tensor

from guides import FacetGuide
from inference.checkpoints.periodic import Checkpoints
from inference.initialization.graph import NeighborGraph
from inference.randomness import derive_seed
from inference.runner import SVIRunner
from ppl_models import NeighborMixture
from ppl_models.distributions import CERTAIN
from ppl_models.given.checks import check_count, check_kind
from ppl_models.modes import temporarily

# Most sweeps of mean field, and the largest change of a probability after which it ends.
SWEEPS, TOLERANCE = 50, 1e-3
# Largest strength, in nats for a neighbor of weight 1: beyond it neighbors never differ.
MOST_STRENGTH = 20.0


def fit_neighbors(
    runner: SVIRunner,
    x: ArrayLike | Tensor,
    graph: NeighborGraph | Mapping[str, NeighborGraph],
    epochs: int,
    every: int = 5,
    learn_strength: bool = True,
    hard: bool = False,
    augment: Callable[[Any, int], Any] | None = None,
    checkpoints: Checkpoints | None = None,
    **fit_options: Any,
) -> SVIRunner:
    r"""Train a model some of whose facets have a :class:`~ppl_models.NeighborMixture`.

    Variational EM: all clusters get their posterior on the graph, q(c_1) ... q(c_N), by mean field,

    .. math:: q_i(k) \propto q(c_i = k \mid x_i) \, \exp\Big(\beta \sum_j w_{ij} q_j(k)\Big)

    with the guide's own q(c given x), or the known cluster of a datum that has a ``label``; then
    model and guide are trained for ``every`` epochs, in which each datum's clusters are given its
    neighbors' q. While they are, the history's ``elbo`` bounds log p(x given the neighbors'
    clusters).

    :param runner: the runner to train, whose guide takes neighbors: a
        :class:`~guides.VaDEGuide`, :class:`~guides.AmortizedGuide` or
        :class:`~guides.LadderGuide`. Its facet should have taken shape: with a VaDEGuide, train
        first with ``label=`` clusters of the graph (:meth:`NeighborGraph.clusters`).
    :param x: the data of the graph ``[N, *x_shape]``.
    :param graph: of the only facet that can have one, or graphs by facet.
    :param learn_strength: whether the strength becomes that with the highest pseudo-likelihood of
        the clusters, each time they are computed.
    :param hard: whether each datum's most probable cluster is given as a known one, instead of what
        neighbors say: a guide with a ``label_weight`` of about 10 then learns to tell clusters as
        its neighbors would. The history's ``elbo`` bounds log p(x, clusters).
    :param augment: from ``x`` and a seed to other forms of the same data, such as moved images
        (:func:`random_affine`), which are trained on with their data's clusters; drawn anew for
        each epoch, which is a call of ``fit``.
    :param checkpoints: each call of ``fit`` has its own folder in theirs, and keeps as many.
    :param fit_options: for :meth:`~inference.SVIRunner.fit`, such as ``batch_size`` and ``label``.
    :returns: the runner.
    :raises ValueError: before training, if an argument does not fit.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, NeighborGraph, NeighborMixture, SVIRunner
        >>> from facetvae import SharedMLP, VaDE, VaDEGuide, fit_neighbors
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> model = VaDE((6,), NeighborMixture(GaussianMixture(3, 2)), network=SharedMLP((8,)))
        >>> runner = SVIRunner(model, VaDEGuide(model))
        >>> graph = NeighborGraph(x, num_neighbors=5)
        >>> runner = runner.fit(x, 2, progress=False, label=graph.clusters(3))
        >>> fit_neighbors(runner, x, graph, epochs=4, every=2, progress=False).epoch
        6
    """
    check_kind("runner", runner, SVIRunner, "an SVIRunner")
    check_count("epochs", epochs)
    check_count("every", every)
    if augment is not None:
        check_kind("augment", augment, cast(type, Callable), "a function of the data and a seed")
    number = len(runner.guide.observed(x, {}))
    graphs = _by_facet(runner.guide, graph, number)
    sizes = runner.model.neighborly
    starts = range(0, epochs, every if augment is None else 1)
    known = _known(runner.guide, x, fit_options.get("label"))
    even = {name: np.full((number, sizes[name]), 1 / sizes[name]) for name in graphs}
    given = {**fit_options, **_of_clusters(graphs, even, known, hard)}
    runner.plan(x, epochs, **given)  # refuses what does not fit
    try:
        runner.plan(x, min(starts.step, epochs), **given)
    except ValueError as error:
        raise ValueError(
            f"{error}\n  - a larger every: the schedule has to fit the first {starts.step} epochs, "
            "which are a call of fit"
        ) from error
    if not learn_strength and (weak := [n for n in graphs if not _prior(runner.guide, n).strength]):
        raise ValueError(
            f"with a strength of 0 the neighbors of {weak[0]!r} say nothing: leave learn_strength "
            "out, or give NeighborMixture(..., strength=1.0)"
        )
    if checkpoints is not None:
        check_kind("checkpoints", checkpoints, Checkpoints, "such as Checkpoints('folder')")
    kept = [None if checkpoints is None else checkpoints.part(f"after-{n:06d}") for n in starts]
    for start, part in zip(starts, kept, strict=True):
        if start % every == 0:
            alone = _log_alone(runner.guide, x, known)
            found = _posteriors(runner.guide, alone, graphs, learn_strength)
            given = {**fit_options, **_of_clusters(graphs, found, known, hard)}
        forms: Any = x
        if augment is not None:
            forms = augment(x, derive_seed(runner.seed, runner.epoch))
            if len(forms) != number:
                raise ValueError(
                    f"augment gives {len(forms)} data for {number}: give one form of each"
                )
        with temporarily(runner, continued=start > 0):  # callbacks wait over all parts
            runner.fit(forms, min(starts.step, epochs - start), checkpoints=part, **given)
        if runner.should_stop:
            break
    return runner


def cluster_posterior(
    guide: FacetGuide,
    x: ArrayLike | Tensor,
    graph: NeighborGraph,
    facet: str | None = None,
    label: Any = None,
) -> np.ndarray:
    """Probabilities of a facet's clusters ``[N, K]`` for the data of a graph, by mean field.

    :param x: the data of the graph ``[N, *x_shape]``.
    :param facet: by default the only one with a :class:`~ppl_models.NeighborMixture`.
    :param label: known clusters, as :meth:`~inference.runner.SVIRunner.fit` takes them.
    :raises ValueError: if an argument does not fit.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, NeighborGraph, NeighborMixture, SharedMLP, VaDE
        >>> from facetvae import VaDEGuide, cluster_posterior
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> model = VaDE((6,), NeighborMixture(GaussianMixture(3, 2)), network=SharedMLP((8,)))
        >>> cluster_posterior(VaDEGuide(model), x, NeighborGraph(x, num_neighbors=5)).shape
        (20, 3)
    """
    given = graph if facet is None else {facet: graph}
    name = next(iter(_by_facet(guide, given, len(guide.observed(x, {})))))
    alone = _log_alone(guide, x, _known(guide, x, label))[name]
    return mean_field(alone, graph, _prior(guide, name).strength.item())


def mean_field(log_alone: np.ndarray, graph: NeighborGraph, strength: float) -> np.ndarray:
    """The probabilities q ``[N, K]`` that are proportional to exp(log_alone + strength * counts of
    q), from those without neighbors on.

    Half of each change is taken: all data change at once, and would swing between two states.

    :param log_alone: log p(z, c) without neighbors ``[N, K]``, nats, up to each datum's constant.
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
    :param log_weights: of the clusters without neighbors ``[K]``, nats.
    """
    counts = graph.counts(q)
    own, bounds = (q * counts).sum(1).mean(), (0.0, MOST_STRENGTH)

    def minus_log_likelihood(strength: float) -> float:
        return float(logsumexp(log_weights + strength * counts, 1).mean() - strength * own)

    return float(minimize_scalar(minus_log_likelihood, bounds=bounds, method="bounded").x)


def _posteriors(
    guide: FacetGuide,
    alone: Mapping[str, np.ndarray],
    graphs: Mapping[str, NeighborGraph],
    learn_strength: bool,
) -> dict[str, np.ndarray]:
    """Probabilities of clusters ``[N, K]`` by facet, from logs of those without neighbors."""
    found = {}
    for name, graph in graphs.items():
        prior = _prior(guide, name)
        if learn_strength:
            q = mean_field(alone[name], graph, prior.strength.item())
            log_weights = prior.component().log_probs.detach().double().cpu().numpy()
            prior.strength.fill_(likeliest_strength(graph, q, log_weights))
        found[name] = mean_field(alone[name], graph, prior.strength.item())
    return found


def _of_clusters(
    graphs: Mapping[str, NeighborGraph],
    q: Mapping[str, np.ndarray],
    known: Mapping[str, np.ndarray],
    hard: bool,
) -> dict[str, Any]:
    """For ``fit``: how much of each datum's neighbors is in each cluster; or, if ``hard``, the most
    probable clusters as labels, beside those of facets without a graph.
    """
    if hard:
        return {"label": {**known, **{name: q[name].argmax(1) for name in graphs}}}
    return {"neighbors": {name: graph.counts(q[name]) for name, graph in graphs.items()}}


def _known(guide: FacetGuide, x: ArrayLike | Tensor, label: Any) -> dict[str, np.ndarray]:
    """Known clusters by facet, integers ``[N]``, -1 where unknown; none without ``label``."""
    if label is None:
        return {}
    given = guide.observed(x, {"label": label}).given["label"].cpu().numpy().astype(int)
    return dict(zip(guide.model.mixtures, given.reshape(len(given), -1).T, strict=True))


def _log_alone(
    guide: FacetGuide, x: ArrayLike | Tensor, known: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """log q(c given x) without neighbors, ``[N, K]`` by facet; what float32 takes for 0 is its
    smallest number, so that neighbors may still have a say. A known cluster is certain.
    """
    least = np.finfo(np.float32).tiny
    found = guide.predict_proba(x)
    alone = {name: np.log(probs.astype(np.float64).clip(least)) for name, probs in found.items()}
    for name, label in known.items():
        rows = np.flatnonzero(label >= 0)
        alone[name][rows] = -CERTAIN
        alone[name][rows, label[rows]] = 0
    return alone


def _prior(guide: FacetGuide, facet: str) -> NeighborMixture:
    return cast(NeighborMixture, guide.model.priors[facet])


def _by_facet(
    guide: FacetGuide, graph: NeighborGraph | Mapping[str, NeighborGraph], number: int
) -> dict[str, NeighborGraph]:
    """The graphs, of so many data, of facets whose clusters take neighbors."""
    facets = list(guide.model.neighborly)
    if "neighbors" not in guide.accepts or not facets:
        raise ValueError(
            "neighbors need a facet with a NeighborMixture, and a guide that takes them, such as "
            f"VaDEGuide, but the facets are {guide.model.priors} with a {type(guide).__name__}"
        )
    if not isinstance(graph, Mapping):
        if len(facets) > 1:
            raise ValueError(
                f"several facets take neighbors, {facets}: name one, in fit_neighbors by "
                f"{{{facets[-1]!r}: graph}}, in cluster_posterior by facet={facets[-1]!r}"
            )
        graph = {facets[0]: graph}
    if not graph:
        raise ValueError(f"no graph is given: give one to some of the facets {facets}")
    if unknown := [name for name in graph if name not in facets]:
        raise ValueError(f"facet {unknown[0]!r} takes no neighbors: those that do are {facets}")
    for name, each in graph.items():
        check_kind(f"the graph of {name!r}", each, NeighborGraph, "a NeighborGraph")
        if len(each) != number:
            raise ValueError(
                f"the graph of {name!r} joins {len(each)} data, but x has {number}: build it from x"
            )
    return dict(graph)
