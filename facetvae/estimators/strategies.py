"""How the clustering estimator fits: latents first, then mixtures in them, then all together."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from facetvae.estimators.arrays import View
from facetvae.estimators.base import Chosen
from facetvae.estimators.defaults import Lengths, epochs_of
from facetvae.estimators.embeddings import EmbeddingView
from facetvae.estimators.encoding import FEWEST_PIXELS
from facetvae.estimators.facets import REST, facet_names, number_of_facets
from facetvae.estimators.gaps import without_gaps
from facetvae.estimators.linear_maps import fit_networks, set_best_widths, set_linear, set_widths
from facetvae.estimators.training import STEPS_PER_LOOK, StopConverged, check_trained, warn_if_long
from facetvae.table_rules.column_views import (
    MANY_KINDS,
    MAX_COLUMNS,
    MAX_ROWS,
    ColumnViews,
    SubspaceView,
    column_views,
    contrasts,
    contrasts_of,
)
from facetvae.table_rules.components import rank
from facetvae.table_rules.counting import FacetCount
from facetvae.table_rules.known import labeled_first, named_after, shared_with, spread_labels
from facetvae.table_rules.linear_model import LinearModel, linear_model
from facetvae.table_rules.merging import ClusterCount, likeliest_number, merged_number
from facetvae.table_rules.rows import MANY, has_missing, in_parts, some_rows
from facetvae.table_rules.subspaces import Subspaces, curvature_p_value, independent_subspaces
from facetvae.table_rules.sums import MOST_FACETS, FacetSum, agreeing, enough, facets_that_add_up
from guides import FacetGuide, VaDEGuide
from inference.initialization.mixtures import fit_mixtures
from inference.initialization.neighbors import neighbor_clusters
from inference.randomness import derive_seed, seeded
from inference.runner import SVIRunner
from inference.schedules import AbruptFadeInWarning, ProgressiveFadeIn, Schedule
from inference.training.loop import DeadFacetWarning
from ppl_models import MFCVAE, GaussianMixture, Incomplete, Normal, StandardNormal
from ppl_models.likelihood_base import rebuilt
from ppl_models.warn import warn

# Fits of each mixture, of which the most likely one is kept.
RESTARTS = 10
# Weight of the neighbors' clusters while they are learned.
LABEL_WEIGHT = 30.0
# By how much the rate is below the learning rate if networks know the facets' subspaces; and rows
# below which it is lower still.
SLOWER, FEW = 3.0, 500
# Variance of a posterior of the probabilities of clusters.
NARROW = 0.01
# Largest share of a row's entries that are hidden from networks that are to know gaps.
MOST_HIDDEN = 0.7
# Standard errors by which views of numbers must be likelier than facets in subspaces.
LIKELIER = 2.0
# Draws of what is missing.
DRAWS = 10
# What views gain that tell a facet's labels: more than they may have clusters.
FAR = 1000.0
# p-value below which tables are curved.
CURVED = 0.001
# With fewer rows neighbors say nothing.
FEWEST_FOR_NEIGHBORS = 30
# Rows times squared numbers of a row in which facets are looked for: about a minute on one core;
# and fewest rows.
MOST_WORK, FEWEST_SEARCHED = 15_000_000_000, 2000


#: Known clusters by facet, -1 where unknown; numbers of clusters by facet, ``None`` where unknown;
#: and numbers that are found, with why.
Labels = Mapping[str, np.ndarray]
Numbers = Mapping[str, int | None]
Counts = dict[str, ClusterCount]


@dataclass(frozen=True)
class FitStrategy(ABC):
    """A warm start and the training that follows, for any number of facets.

    :param names: names of the facets, shallow to deep.
    :param trains: whether networks and mixtures are trained together in the end.
    :param model: which model that is, and why, in words.

    :cvar covariance: of the mixtures' components.
    """

    covariance: ClassVar[Literal["diag", "full"]] = "diag"

    x_shape: tuple[int, ...]
    names: Sequence[str]
    chosen: Chosen
    lengths: Lengths
    trains: bool = field(default=True, kw_only=True)
    model: str = field(default="deep", kw_only=True)

    @property
    def slower(self) -> float:
        """By how much the rate of training is below the learning rate."""
        return 1.0

    @property
    def found_as(self) -> str:
        """Where the facets come from, in words."""
        return "facets as given"

    def again(self, x: np.ndarray, number: int) -> FitStrategy:
        """Another start of the same kind, for other data and from another seed."""
        seed = derive_seed(self.chosen.seed, number) % 2**31
        return replace(self, chosen=replace(self.chosen, seed=seed))

    def given(self, x: np.ndarray, label: Labels, numbers: Numbers) -> FitStrategy:
        """The strategy in view of the data."""
        return self

    def with_model(self, x: np.ndarray, label: Labels, told: bool) -> FitStrategy:
        """The strategy, with the simplest model that explains the data.

        :param told: whether held-out rows tell what training gains.
        """
        return self

    @abstractmethod
    def latents(self, x: np.ndarray, label: Labels) -> FacetGuide:
        """The facets' latents under a standard normal prior."""

    def mixtures(
        self, x: np.ndarray, latents: FacetGuide, numbers: Mapping[str, int], label: Labels
    ) -> SVIRunner:
        """A runner with the same networks and mixture priors, which are fitted to the latents."""
        runner = self._with_mixtures(latents, numbers)
        fit_mixtures(runner.guide, x, seed=self.chosen.seed, label=label or None, n_init=RESTARTS)
        return runner

    def _with_mixtures(self, latents: FacetGuide, numbers: Mapping[str, int]) -> SVIRunner:
        dims = {name: prior.dim for name, prior in latents.model.priors.items()}
        runner = self._runner(dims, numbers)
        runner.guide.encoder.load_state_dict(latents.encoder.state_dict())
        runner.model.decoder.load_state_dict(latents.model.decoder.state_dict())
        runner.model.likelihood.load_state_dict(latents.model.likelihood.state_dict())
        return runner

    def together(
        self, runner: SVIRunner, x: np.ndarray, held_out: np.ndarray | None, label: Labels
    ) -> str:
        """Train everything together until it has converged; say how training ended, of which epoch
        the state is, and what it gained.
        """
        if not self.trains:
            return "not trained"
        epochs = self.lengths.together
        log_every = min(epochs, epochs_of(STEPS_PER_LOOK, len(x), self.chosen.batch_size))
        stop = StopConverged(runner, held_out)
        self._fit(runner, x, epochs, log_every=log_every, callbacks=[stop], label=label or None)
        how = "converged in" if runner.should_stop else "took all"
        ended = f"{how} {runner.epoch} of {epochs} epochs"
        kept = stop.restore()
        if kept != runner.epoch:
            ended += f"; the state after {kept} is kept"
        if held_out is not None:
            ended += f"; held-out bound {stop.first:.5g} before, {stop.best:.5g} after"
        return ended

    def numbers(self, x: np.ndarray, latents: FacetGuide, chosen: Numbers) -> Counts:
        """How many clusters each facet has: the requested number, or one found in the latents."""
        z = latents.embed(some_rows(x, self.chosen.seed))
        return {
            name: self.clusters_in(z[name]) if k is None else ClusterCount(k, "as given")
            for name, k in chosen.items()
        }

    def clusters_in(self, z: np.ndarray) -> ClusterCount:
        """How many clusters latents ``[N, d]`` have."""
        return ClusterCount(likeliest_number(z, self.covariance, self.chosen.seed), "lowest BIC")

    def _runner(
        self,
        dims: Mapping[str, int],
        numbers: Mapping[str, int] = {},
        schedule: Schedule | None = None,
        **options: Any,
    ) -> SVIRunner:
        """With mixtures of so many components as priors, and of other facets standard normals."""
        facets: dict[str, Any] = {name: StandardNormal(dim) for name, dim in dims.items()}
        with seeded(self.chosen.seed, torch.device("cpu")):  # starting values of mixtures are drawn
            for name, number in numbers.items():
                facets[name] = GaussianMixture(number, dims[name], self.covariance)
        model, guide = partial(MFCVAE, self.x_shape, facets), partial(VaDEGuide, **options)
        return self.chosen.runner(model, guide, schedule, self.slower)

    def _fit(self, runner: SVIRunner, x: np.ndarray, epochs: int, **options: Any) -> None:
        how = {"log_every": epochs, "progress": self.chosen.verbose, **options}
        runner.fit(x, epochs, self.chosen.batch_size, **how)

    def _start(self, runner: SVIRunner, x: np.ndarray, **given: Any) -> FacetGuide:
        alone = sum(self.lengths.alone)
        warn_if_long(runner, x, self.chosen.batch_size, alone + self.lengths.together)
        with warnings.catch_warnings():
            # Expected with few epochs, which the user asked for; the last phase warns if a facet is
            # dead.
            for expected in (AbruptFadeInWarning, DeadFacetWarning):
                warnings.simplefilter("ignore", expected)
            self._fit(runner, x, alone, **given)
        return runner.guide


@dataclass(frozen=True)
class LadderStrategy(FitStrategy):
    """Facets at different depths of a ladder are faded in one after the other, the deepest first
    (MFCVAE, D.3).

    :param dims: length of each facet's latent vector.
    :param counted: facets of subspaces that were found in vain, if any were looked for.
    """

    dims: Mapping[str, int]
    counted: FacetCount | None

    @property
    def found_as(self) -> str:
        if self.counted is None:
            return super().found_as
        return f"neighbors tell more clusters than subspaces: {self.counted.evidence}"

    def latents(self, x: np.ndarray, label: Labels) -> FacetGuide:
        return self._start(self._runner(self.dims, schedule=self._schedule), x)

    def given(self, x: np.ndarray, label: Labels, numbers: Numbers) -> FitStrategy:
        deepest, seed = self.names[-1], self.chosen.seed
        if has_missing(x) or len(x) <= FEWEST_FOR_NEIGHBORS:
            return self
        features, known, number = self.chosen.view.numbers(x), label.get(deepest), numbers[deepest]
        if known is not None and len(np.unique(known[known >= 0])) == number:
            neighbors = spread_labels(features.reshape(len(x), -1), known, seed)
        else:
            neighbors = neighbor_clusters(features, number, seed=seed)
            neighbors = neighbors if known is None else named_after(neighbors, known)
        if neighbors.max() < 1:
            return self
        return NeighborStrategy(**vars(self), neighbors=neighbors)

    @property
    def _schedule(self) -> Schedule | None:
        if len(self.names) == 1:
            return None
        return ProgressiveFadeIn(self.lengths.alone, self.lengths.fade_steps)


@dataclass(frozen=True)
class NeighborStrategy(LadderStrategy):
    """The same, while the deepest facet learns the clusters of neighboring data
    (:func:`~inference.neighbor_clusters`), or the labels of neighbors.

    :param neighbors: clusters ``[N]``, -1 where there is none.
    """

    neighbors: np.ndarray

    def latents(self, x: np.ndarray, label: Labels) -> FacetGuide:
        known, numbers = {self.names[-1]: self.neighbors}, {self.names[-1]: self._number}
        runner = self._runner(self.dims, numbers, self._schedule, label_weight=LABEL_WEIGHT)
        fit_mixtures(runner.guide, x, seed=self.chosen.seed, label=known, n_init=RESTARTS)
        return self._start(runner, x, label=known)

    @property
    def _number(self) -> int:
        return int(self.neighbors.max()) + 1

    def mixtures(
        self, x: np.ndarray, latents: FacetGuide, numbers: Mapping[str, int], label: Labels
    ) -> SVIRunner:
        return super().mixtures(x, latents, numbers, {**label, self.names[-1]: self.neighbors})

    def numbers(self, x: np.ndarray, latents: FacetGuide, chosen: Numbers) -> Counts:
        deepest, K = self.names[-1], self._number
        counts = super().numbers(x, latents, {**chosen, deepest: K})
        why = "as given" if chosen[deepest] else "clusters of neighbors"
        return counts | {deepest: ClusterCount(K, why)}


@dataclass(frozen=True)
class SubspaceStrategy(FitStrategy):
    """Facets are independent subspaces of the data, which together hold ``dim`` dimensions.

    :param dim: length of all latents together.
    :param rows: of the data.
    :param linear: what networks of complete numbers begin as, and may stay.
    """

    covariance = "full"
    dim: int
    rows: int
    linear: LinearModel | None = field(default=None, kw_only=True)

    @property
    def slower(self) -> float:
        """The networks know the subspaces; a full rate moves clusters of few rows at random."""
        return SLOWER * max(1.0, FEW / self.rows)

    def latents(self, x: np.ndarray, label: Labels) -> FacetGuide:
        """Those of the subspaces, whose posteriors have their widths."""
        view, some = self.chosen.view, some_rows(x)
        if self.linear is None:
            subspaces = self._subspaces(x, label)
            variances = subspaces.variances(view.residual_scale(some, self.dim))
        else:
            subspaces, variances = self.linear.subspaces, self.linear.variances
        guide = self._runner(dict(zip([*self.names, REST], subspaces.dims, strict=False))).guide
        set_widths(guide, variances)
        if view.linear or self.linear is not None:
            set_linear(guide, subspaces, view.completed(some))
        else:
            self._fit_networks(guide, lambda part: subspaces.sources(view.numbers(part)), x)
        return guide

    def with_model(self, x: np.ndarray, label: Labels, told: bool) -> SubspaceStrategy:
        """Linear maps of numbers; they are trained where what they leave shows a curve, or
        labels are known, of which they know nothing, and others always.
        """
        view, likelihood = self.chosen.view, self.chosen.likelihood
        if not (view.linear and isinstance(getattr(likelihood, "likelihood", likelihood), Normal)):
            return self._trained_if(True, "columns of several kinds")
        some, found = view.numbers(some_rows(x)), self._subspaces(x, label)
        linear = self._linear(x, Subspaces(found.loc, found.maps[: len(self.names)]))
        if label or self.chosen.deep is not None:
            return linear._trained_if(True, "labels")
        p = curvature_p_value(some, found.sources(some))
        bent = f"what linear maps leave of the columns, and squares of the latents: p = {p:.2g}"
        if p < CURVED and not told:
            bent += "; too few rows to hold some out"
        return linear._trained_if(p < CURVED and told, bent)

    def _trained_if(self, pays: bool, why: str, simple: str = "linear") -> SubspaceStrategy:
        """Trained if that pays, or as the user asks."""
        trains = pays if self.chosen.deep is None else self.chosen.deep
        why = why if self.chosen.deep is None else "asked for"
        return replace(self, trains=trains, model=f"{'deep' if trains else simple}: {why}")

    def _linear(self, x: np.ndarray, facets: Subspaces) -> SubspaceStrategy:
        """With the linear model that these subspaces are part of."""
        linear = linear_model(self.chosen.view.filled(some_rows(x)), facets)
        return replace(self.with_noise(linear.noise), linear=linear)

    def with_noise(self, scale: np.ndarray) -> Any:
        """With a normal likelihood of these deviations ``[D]``."""
        likelihood: Any = self.chosen.likelihood
        if isinstance(likelihood, Incomplete):
            inside = rebuilt(cast(Normal, likelihood.likelihood), scale=scale)
            likelihood = rebuilt(likelihood, likelihood=inside)
        else:
            likelihood = rebuilt(likelihood, scale=scale)
        return replace(self, chosen=replace(self.chosen, likelihood=likelihood))

    def mixtures(
        self, x: np.ndarray, latents: FacetGuide, numbers: Mapping[str, int], label: Labels
    ) -> SVIRunner:
        runner = super().mixtures(self.chosen.view.completed(x), latents, numbers, label)
        if self.linear is not None:
            set_best_widths(runner.guide, x)
        return runner

    def numbers(self, x: np.ndarray, latents: FacetGuide, chosen: Numbers) -> Counts:
        return super().numbers(self.chosen.view.completed(x), latents, chosen)

    def _fit_networks(
        self, guide: FacetGuide, sources_of: Callable[[np.ndarray], np.ndarray], x: np.ndarray
    ) -> None:
        sources = torch.as_tensor(in_parts(lambda part: sources_of(part).astype(np.float32), x))
        data = guide.observed(x, {}).to(guide.model.gates.device)
        try:
            fit_networks(guide, data, sources, sum(self.lengths.alone), self.chosen)
        except ValueError:
            check_trained(guide, x, self.chosen.learning_rate)  # which says so if it diverged
            raise

    def clusters_in(self, z: np.ndarray) -> ClusterCount:
        return merged_number(z, self.chosen.seed)

    def _subspaces(self, x: np.ndarray, label: Labels) -> Subspaces:
        """One for each facet, and one more of what they leave if there is such."""
        features = self.chosen.view.numbers(some_rows(x, self.chosen.seed))
        found = independent_subspaces(features, self.dim, len(self.names), self.chosen.seed)
        return found.reordered(self._order(found, x, label)) if label else found

    def _order(self, found: Subspaces, x: np.ndarray, label: Labels, misfit: Any = 0) -> list[int]:
        rows: Any = labeled_first(label.values(), MANY, self.chosen.seed) if label else slice(0)
        labels = [label[name][rows] if name in label else None for name in self.names]
        return found.order_for(labels, self.chosen.view.numbers(x[rows]), misfit)


@dataclass(frozen=True)
class CountedStrategy(SubspaceStrategy):
    """Facets are subspaces with clusters; a latent without clusters describes what they leave.

    :param found: the facets, at least as many as names, and the evidence for them.
    :param named: whether the user gave the facets' number or names.
    :param places: which of them are fitted, in the order of the names; by default all.
    """

    found: FacetCount
    named: bool
    places: Sequence[int] | None = None

    @property
    def found_as(self) -> str:
        return self.found.evidence

    @property
    def fitted(self) -> FacetCount:
        return self.found if self.places is None else self.found.only(self.places)

    def given(self, x: np.ndarray, label: Labels, numbers: Numbers) -> CountedStrategy:
        """Facets get the subspace that separates their labels best, or whose number of clusters is
        nearest to theirs, or the clearest.
        """
        modes = np.array([count.number for count in self.found.counts])
        misfit = [np.zeros(len(modes)) if k is None else abs(modes - k) for k in numbers.values()]
        places = self._order(self.found.subspaces, x, label, misfit)
        return replace(self, places=places) if self.found.number else self

    def again(self, x: np.ndarray, number: int) -> FitStrategy:
        """Facets are looked for once more; if fewer are found, the data are merely split."""
        other = cast(CountedStrategy, super().again(x, number))
        names = self.names if self.named else None
        found = facets_found(x, other.chosen.seed, other.chosen.view)
        if found.offers(len(names) if names else None):
            names, dim = names or numbered(found), len(found.maps)
            return replace(other, names=names, dim=dim, found=found, places=None)
        how = (other.chosen, self.lengths, self.dim, self.rows)
        return SubspaceStrategy(self.x_shape, self.names, *how)

    def with_model(self, x: np.ndarray, label: Labels, told: bool) -> SubspaceStrategy:
        """Columns of several kinds without clusters are nothing to train networks for."""
        if self.found.number or label or self.chosen.view.linear:
            return super().with_model(x, label, told)
        return self._trained_if(False, "no clusters")

    def numbers(self, x: np.ndarray, latents: FacetGuide, chosen: Numbers) -> Counts:
        counted = dict(zip(self.names, self.fitted.counts, strict=True))
        given = {name: ClusterCount(k, "as given") for name, k in chosen.items() if k is not None}
        return counted | given

    def _subspaces(self, x: np.ndarray, label: Labels) -> Subspaces:
        facets, rest = self.fitted.subspaces, self.fitted.rest
        return Subspaces(facets.loc, [*facets.maps, *([rest] if len(rest) else [])])


@dataclass(frozen=True)
class SumStrategy(SubspaceStrategy):
    """Facets that add up in embeddings: latents are the coordinates that their clusters' means
    span, and a latent without clusters describes what they leave.

    :param found: the facets, as many as names, in the units of the encoded data.
    """

    found: FacetSum

    @property
    def found_as(self) -> str:
        return f"facets that add up, of {' and '.join(map(str, self.found.numbers))} clusters"

    def given(self, x: np.ndarray, label: Labels, numbers: Numbers) -> SubspaceStrategy:
        wanted = [k or own for k, own in zip(numbers.values(), self.found.numbers, strict=True)]
        seed, view = self.chosen.seed, cast(EmbeddingView, self.chosen.view)
        if label:
            rows = labeled_first(label.values(), MANY, seed)
            unit, places = view.unit, [*numbers]
            known = {places.index(name): own[rows] for name, own in label.items()}
            before, asked = self.found.divided_by(1 / unit), list(numbers.values())
            found = agreeing(x[rows] * unit, before, known, asked, seed)
            return replace(self, found=found.divided_by(unit))
        if wanted == self.found.numbers:
            return self
        if found := sums_found(x, seed, view, wanted):
            return replace(self, found=found)
        how = (self.chosen, self.lengths, self.dim, self.rows)  # too few rows for such numbers
        return SubspaceStrategy(self.x_shape, self.names, *how)

    def again(self, x: np.ndarray, number: int) -> FitStrategy:
        other = cast(SumStrategy, super().again(x, number))
        view = cast(EmbeddingView, self.chosen.view)
        found = sums_found(x, other.chosen.seed, view, [None] * len(self.names))
        return replace(other, found=found or self.found)

    def numbers(self, x: np.ndarray, latents: FacetGuide, chosen: Numbers) -> Counts:
        why, each = "lowest BIC, or the same in halves", self.found.numbers
        return {
            name: ClusterCount(k, "as given" if chosen[name] else why)
            for name, k in zip(self.names, each, strict=True)
        }

    def mixtures(
        self, x: np.ndarray, latents: FacetGuide, numbers: Mapping[str, int], label: Labels
    ) -> SVIRunner:
        runner, some = self._with_mixtures(latents, numbers), enough(x, self.found.numbers)
        place_components(runner, latents.embed(some), self.found.responsibilities(some))
        return runner

    def with_model(self, x: np.ndarray, label: Labels, told: bool) -> SubspaceStrategy:
        linear = self._linear(x, self.found.subspaces)
        return linear._trained_if(False, "a sum of the facets' clusters")

    def _subspaces(self, x: np.ndarray, label: Labels) -> Subspaces:
        return self.found.subspaces


@dataclass(frozen=True)
class ViewStrategy(SubspaceStrategy):
    """Facets are sets of columns with a mixture in each. Latents are the probabilities of its
    clusters, as coordinates of their simplex; networks learn these, and are not trained further
    unless the user asks for ``epochs``.

    :param views: at least as many as names.
    :param named: whether the user gave the facets' number or names.
    """

    views: ColumnViews
    named: bool

    @property
    def found_as(self) -> str:
        return self.views.evidence

    def given(self, x: np.ndarray, label: Labels, numbers: Numbers) -> ViewStrategy:
        """Facets get the views that share most with their labels, that gain most, or whose numbers
        of clusters are nearest.
        """
        misfit = [
            [0.0 if k is None else abs(view.num_clusters - k) for view in self.views.views]
            for k in numbers.values()
        ]
        kept = np.array(misfit) - 1e-3 * np.arange(self.views.number)
        if label:
            rows = labeled_first(label.values(), MAX_ROWS, self.chosen.seed)
            values, _ = self.chosen.view.table(x[rows], self.chosen.seed)
            label = {name: own[rows] for name, own in label.items()}
            clusters = [r.argmax(1) for r in self.views.responsibilities(values)]
            for row, name in zip(kept, numbers, strict=True):
                if name in label:
                    row -= [FAR * shared_with(label[name], own) for own in clusters]
        places = linear_sum_assignment(kept)[1].tolist()
        if not any(numbers.values()):
            places = sorted(places)
        free = [None if name in label else k for name, k in numbers.items()]
        views = self.views.only(places, free)
        for j, (name, k) in enumerate(numbers.items()):
            if name in label:
                views = views.known(j, values, label[name], cast(int, k))
        return replace(self, views=views)

    def again(self, x: np.ndarray, number: int) -> FitStrategy:
        other = cast(ViewStrategy, super().again(x, number))
        seed, view = other.chosen.seed, other.chosen.view
        views = views_found(x, seed, view, facets_found(x, seed, view) if view.linear else None)
        if not views.offers(len(self.names) if self.named else None):
            dim = min(self.dim, rank(view.numbers(some_rows(x))))
            how = (other.chosen, self.lengths, dim, self.rows)
            return SubspaceStrategy(self.x_shape, self.names, *how)
        names = self.names if self.named else facet_names(views.number)
        return replace(other, names=names, views=views)

    def latents(self, x: np.ndarray, label: Labels) -> FacetGuide:
        dims = {
            name: contrasts_of(view.num_clusters)
            for name, view in zip(self.names, self.views.views, strict=True)
        }
        guide = self._runner(dims).guide
        self._fit_networks(guide, self._sources, self._with_more_gaps(x) if has_missing(x) else x)
        return guide

    def _with_more_gaps(self, x: np.ndarray) -> np.ndarray:
        """Rows, and as many with further entries hidden, so that networks know any pattern."""
        rng = np.random.default_rng(self.chosen.seed)
        hidden = rng.random(x.shape) < rng.uniform(0, MOST_HIDDEN, (len(x), 1))
        return np.concatenate([x, np.where(hidden, np.nan, x).astype(x.dtype)])

    def numbers(self, x: np.ndarray, latents: FacetGuide, chosen: Numbers) -> Counts:
        return {
            name: ClusterCount(view.num_clusters, "as given" if chosen[name] else "lowest BIC")
            for name, view in zip(self.names, self.views.views, strict=True)
        }

    def mixtures(
        self, x: np.ndarray, latents: FacetGuide, numbers: Mapping[str, int], label: Labels
    ) -> SVIRunner:
        runner, some = self._with_mixtures(latents, numbers), some_rows(x)
        place_components(runner, latents.embed(some), self._clusters(some))
        set_best_widths(runner.guide, some)
        return runner

    def with_model(self, x: np.ndarray, label: Labels, told: bool) -> SubspaceStrategy:
        return self._trained_if(False, "a mixture in each set of columns", "columns")

    def noise(self, x: np.ndarray) -> np.ndarray:
        """Deviation of what the clusters leave of each column of ``x`` ``[N, D]``."""
        design, scales = np.column_stack([self._sources(x), np.ones(len(x))]), []
        for column in x.T.astype(float):
            if not (there := ~np.isnan(column)).any():
                scales.append(1.0)
                continue
            back = np.linalg.lstsq(design[there], column[there], rcond=None)[0]
            scales.append((column[there] - design[there] @ back).std())
        return np.clip(scales, NARROW, None)

    def _clusters(self, x: np.ndarray) -> list[np.ndarray]:
        values, _ = self.chosen.view.table(x, self.chosen.seed)
        return self.views.responsibilities(values)

    def _sources(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([contrasts(r) for r in self._clusters(x)], 1)


def place_components(
    runner: SVIRunner, latents: Mapping[str, np.ndarray], clusters: Sequence[np.ndarray]
) -> None:
    """Components where clusters of these probabilities ``[N, K]`` lie among the facets' latents,
    with one covariance: fitted anew, they would leave what columns tell.
    """
    for (name, z), r in zip(latents.items(), clusters, strict=False):
        rows = r.sum(0).clip(1e-6)
        loc = r.T @ z / rows[:, None]
        apart = z[:, None] - loc
        within = np.einsum("nk,nki,nkj->ij", r, apart, apart) / len(z)
        within += NARROW * np.eye(len(within))
        covariances = np.broadcast_to(within, (len(loc), *within.shape))
        where = torch.as_tensor(loc), torch.as_tensor(covariances.copy())
        runner.model.mixtures[name].place(*where, torch.as_tensor(rows / len(z)))


def views_found(x: np.ndarray, seed: int, view: View, count: FacetCount | None) -> ColumnViews:
    """The views of a table's columns, sought in at most 2,000 rows. Of numbers that no view with
    codes has, facets in subspaces take the place of views that are not likelier by two standard
    errors.

    :param count: the facets, of a table of numbers.
    """
    found = column_views(*view.table(some_rows(x, seed), seed), seed)
    numbers = found.free_numbers
    if not found.views or len(numbers) < 2 or len(x) < FEWEST_FOR_NEIGHBORS:
        return found
    filled = without_gaps(found.statistics.values[:, numbers], DRAWS)
    rows, _ = filled[0]
    loc, scale = rows.mean(0), rows.std(0).clip(1e-12)
    if count is None or len(numbers) < x.shape[1] or found.recoding.atoms:
        count = number_of_facets((rows - loc) / scale, seed)
        count = replace(count, loc=loc, maps=count.maps / scale)
    if not count.number:
        return found
    if found.of_numbers:
        # Of what is there, by importance sampling of what is not.
        each = [count.log_density(rows) - log_q for rows, log_q in filled]
        gain = found.log_density() - (logsumexp(each, 0) - np.log(len(each)))
        if gain.mean() > LIKELIER * gain.std() / np.sqrt(len(gain)):
            return found
    instead = [
        SubspaceView(
            found.statistics,
            numbers,
            loc,
            np.cov(rows.T),
            maps,
            facet.tree.mixture,
            facet.tree.clusters_at(facet.tree.modes),
        )
        for facet, maps in zip(count.facets, count.subspaces.maps, strict=True)
    ]
    views = [*instead, *found.of_codes] if found.of_codes else []
    return replace(found, views=views, curved=())  # subspaces are of these columns, too


def sums_found(
    x: np.ndarray, seed: int, view: EmbeddingView, numbers: Sequence[int | None] | None
) -> FacetSum | None:
    """Facets that add up in embeddings; ``None`` if there are none, or too few rows.

    :param numbers: of each facet's clusters, ``None`` where unknown; ``None`` for at most two
        facets.
    """
    if len(numbers or ()) > MOST_FACETS:
        return None
    found = facets_that_add_up(view.numbers(some_rows(x, seed)), numbers, seed)
    return found and found.divided_by(view.unit)


def facets_found(
    x: np.ndarray, seed: int, view: View, say: Callable[[str], None] = lambda sees: None
) -> FacetCount:
    """The facets of columns ``[N, D]``, sought in at most 20,000 rows; of hundreds of numbers a row
    in fewer, so that it takes about a minute at most, with a warning.

    :param say: told what is seen before all is tested.
    """
    width = view.numbers(x[:1]).shape[1]
    rows = some_rows(x, seed, max(FEWEST_SEARCHED, MOST_WORK // width**2))
    if len(rows) < len(some_rows(x, seed)):
        warn(
            f"X has {width} numbers a row (each category is one), so facets are looked for in "
            f"{len(rows)} of {len(x)} rows: give facets=, or fewer columns or categories"
        )
    return number_of_facets(view.smooth(rows, seed), seed, view.dims, say)


def are_pictures(found: FacetCount, x: np.ndarray, view: View) -> bool:
    """Whether complete, wide rows have clusters that divide those of facets, as pictures have; many
    of them, if rows are so narrow that sets of columns may explain them.
    """
    wide = view.linear and x.shape[1] >= FEWEST_PIXELS
    many = found.combined >= MANY_KINDS or x.shape[1] > MAX_COLUMNS
    return wide and many and found.is_divided and not has_missing(x)


def numbered(found: FacetCount) -> list[str]:
    """Names of the facets that were found; of one with a single cluster, if none were."""
    return facet_names(max(1, found.number))
