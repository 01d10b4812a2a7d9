"""Several clusterings of the same data."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import one_hot

from facetvae.describing import FacetClusters, FacetDescription, describe_clusters
from facetvae.describing.columns import check_order, kinds_of
from facetvae.estimators.arrays import Reader, View
from facetvae.estimators.base import FacetEstimator, drawn_seed, restore_on_error
from facetvae.estimators.defaults import default_dims, default_network
from facetvae.estimators.embeddings import EmbeddingView
from facetvae.estimators.encoding import BOUNDED, FEWEST_PIXELS
from facetvae.estimators.facets import (
    at_least,
    check_enough,
    clusters_in_subspaces,
    facet_index,
    facet_names,
    for_each,
    known_labels,
    labeled_rows,
    only_rows,
)
from facetvae.estimators.posteriors import (
    AtCenters,
    ImprovedInGaps,
    Reads,
    by_size,
    log_joints,
    most_probable,
    probabilities,
    renumber,
    rows_with_gaps,
)
from facetvae.estimators.reading import reader_for
from facetvae.estimators.starts import Start, likeliest, part_of_rows, stability, unstable
from facetvae.estimators.strategies import (
    CountedStrategy,
    FitStrategy,
    Labels,
    LadderStrategy,
    Numbers,
    SubspaceStrategy,
    SumStrategy,
    ViewStrategy,
    are_pictures,
    facets_found,
    numbered,
    sums_found,
    views_found,
)
from facetvae.estimators.training import check_trained
from facetvae.estimators.trust import Trust, trusted
from facetvae.table_rules.column_views import MAX_COLUMNS, ColumnViews
from facetvae.table_rules.components import principal_dimensions, rank
from facetvae.table_rules.counting import FacetCount
from facetvae.table_rules.outliers import Outliers, has_all_variance
from facetvae.table_rules.rows import MANY, Arranged, in_parts, some_rows, without_copies
from guides import FacetGuide
from inference.randomness import derive_seed, seeded
from ppl_models import Likelihood
from ppl_models.given.checks import check_kind, check_one_of, check_size, is_index
from ppl_models.modes import evaluating
from ppl_models.turns import exclusive
from ppl_models.warn import warn

# Share of the data that is held out to stop the last phase early, and fewest and most such data.
HELD_OUT, FEWEST_HELD_OUT, MOST_HELD_OUT = 0.1, 20, 10_000
# Facets of data in which they are not counted.
FACETS = 2
# Optimizer steps of each phase: the deepest facet alone, each further facet, all with their
# mixtures; and with subspaces, of networks that are not set to them, and of all.
STEPS, SUBSPACE_STEPS = (1000, 3000, 1500), (600, 3000)
# Numbers of a datum beyond which steps, which take longer, are fewer, and the least share of them.
ENTRIES, LEAST_SHARE = 28 * 28, 0.2
# Share of the rows beyond which a fit warns that they are left out, and what can be done.
MOST_LEFT_OUT = 0.1
LOOK_AT_THEM = (
    "look at them; give NaN for codes of missing values such as -999, and if they are rows as any, "
    "give labels= for some, or a likelihood=, with which no row is left out"
)
FIT_ANEW = "fit anew, with old rows beside them if these still count"
# Entries of rows with gaps in training data up to which such rows are improved.
MOST_IMPROVED = 200_000
# Whether networks of tables are trained, by what a user calls them.
HOW_DEEP: dict[Any, Any] = {"linear": False, "deep": True}
# Names of the facets, None where they are to be counted.
Names = Sequence[str] | None


@dataclass(kw_only=True, eq=False, repr=False)
class MultiFacetClustering(TransformerMixin, FacetEstimator):
    """Several clusterings of the same data at once, one for each facet
    (:class:`~ppl_models.mfcvae.MFCVAE`).

    Settings that are not given are chosen from the data and stored in ``settings_``: the page
    :doc:`/decisions` says which, and how. Missing entries (NaN) are
    left out of the likelihood. Beside ``X`` a fit holds one copy of the data, in float32.

    :param facets: how many, or their names, from shallow to deep. ``None`` for as many as are found
        in columns of real numbers, unless ``n_latents`` is given; other data get two.
    :param n_clusters: one number for all facets, or one for each; ``None`` to choose from the data.
    :param n_latents: length of each facet's latent vector, in the same form. In columns of real
        numbers only the sum counts, and facets are not looked for by their clusters.
    :param n_init: number of starts; those after the first are fitted to six tenths of the rows.
        The one with the best ELBO of held-out data is kept; the others tell how stable it is.
    :param mark_outliers: whether outlying rows of columns of real numbers get the cluster -1, in
        ``labels_`` and from ``predict``. They are left out of the fit in any case.
    :param columns: likelihoods of some columns of a data frame, by name, such as ``{"income":
        ppl_models.LogNormal()}``; the others follow their dtypes. ``{}`` gives a likelihood to each
        column of a frame of numbers, too.
    :param likelihood: such as ``ppl_models.Normal(0.3)``; the data are then used unchanged (8-bit
        values are divided by 255), and facets are faded in by depth.
    :param network: of tables ``"linear"`` or ``"deep"``: whether it stays the linear maps that it
        begins as, or is trained; by default where that pays. Or an architecture with a rung for
        each facet, which are then faded in by depth: ``ppl_models.MLPLadder((200, 400))``.
    :param epochs: passes over the data, all phases together, of which each has one at least. The
        last phase ends once a tenth of the data, held out if that is 20 or more, says so.
    :param batch_size: by default about a twentieth of the data, between 16 and 512.
    :param learning_rate: Adam's learning rate; with subspaces the last phase has a third or less.
    :param random_state: for networks, draws and shuffling.
    :param device: where to train, such as ``"cuda"``.
    :param verbose: whether to print the chosen settings, and each phase with its progress.

    :ivar facet_names_: names of the facets, shallow to deep.
    :ivar labels_: clusters of the training data ``[N, J]``, in each facet numbered from the largest
        to the smallest, without the empty ones; in a facet with known labels, by these labels.
    :ivar outliers_: which rows of the training data ``[N]`` were left out of the fit.
    :ivar stability_: for each facet, the mean over the other starts of the best adjusted Rand index
        with one of their facets ``[J]``; NaN if ``n_init=1``.
    :ivar n_clusters_: the number of clusters of each facet, which are the first components of its
        mixture in ``runner_.model``; others have no row.
    :ivar merge_trees_: by facet whose number of clusters was found in a subspace, how its
        components merge (:class:`~facetvae.table_rules.merging.MergeTree`).

    Example:
        >>> import numpy as np
        >>> from facetvae.estimators import MultiFacetClustering
        >>> X = np.random.default_rng(0).normal(size=(60, 4))
        >>> found = MultiFacetClustering(("style", "digit"), n_clusters=3, epochs=4, random_state=0)
        >>> found.fit(X).labels_.shape  # a clustering for each facet
        (60, 2)
    """

    outliers_: np.ndarray = field(init=False)
    usual_: Outliers | None = field(init=False)
    _leaves_rows_out = True

    facets: int | Sequence[str] | None = field(default=None, kw_only=False)
    n_clusters: int | Sequence[int | None] | None = None
    n_latents: int | Sequence[int | None] | None = None
    n_init: int = 1
    mark_outliers: bool = False
    columns: Mapping[str, Likelihood] | None = None

    @exclusive()
    @restore_on_error
    def fit(self, X: Any, y: Any = None, *, labels: Any = None) -> MultiFacetClustering:
        """Find the clusterings.

        :param X: ``[N, D]``, array, data frame or memory map, or images ``[N, H, W]``, ``[N, C, H,
            W]``; NaN where missing.
        :param y: not used.
        :param labels: known clusters: for each facet that has any, by name, integers ``[N]`` from
            0, -1 where unknown, as a mapping or, which a search or cross-validation cuts into its
            parts, a data frame; with a single facet, the integers alone. They become the numbers
            of these clusters, which are all if ``n_clusters`` does not say that there are more.
        :raises ValueError: before training, if an argument does not fit, or data are too few.
        :raises FloatingPointError: if training diverges.
        """
        names = None if self.facets is None else facet_names(self.facets)
        check_size("n_init", self.n_init)
        check_kind("mark_outliers", self.mark_outliers, (bool, np.bool_), "True or False")
        if isinstance(self.network, str):
            check_one_of("network", self.network, HOW_DEEP)
        self._say("reads the data")
        check_order(X=X, labels=labels)
        x = self._newly_encoded(self._newly_checked(X))
        if names is not None:
            known_labels(labels, names, len(x))  # refuses labels before anything is computed
        # 8-bit data are the user's, whose rows must not change places.
        rows = Arranged(x.copy() if x.dtype == np.uint8 else x)
        (usual,) = rows.first(np.flatnonzero(~self.outliers_))
        self._say("looks for facets")
        columns = self.encoding_.of_columns and isinstance(usual, np.ndarray)
        strategy = self._strategy(without_copies(usual) if columns else usual, names)
        self._say(f"finds {', '.join(strategy.names)}: {strategy.found_as}")
        known = known_labels(labels, strategy.names, len(x))
        self.outliers_ &= ~only_rows(known, self.outliers_)
        _warn_of_outliers(self.outliers_, "all others", LOOK_AT_THEM)
        numbers = for_each(strategy.names, "n_clusters", self.n_clusters)
        for name, label in known.items():
            numbers[name] = at_least(label, name, numbers[name])
        kept, held_out = self._split(known, strategy.chosen.seed)
        labels = {name: label[kept] for name, label in known.items()}
        check_enough(len(kept), len(x), numbers)
        seeds = (derive_seed(strategy.chosen.seed, i) for i in range(1, self.n_init))
        further = [part_of_rows(len(kept), labels, seed) for seed in seeds]
        for some in further:
            check_enough(len(some), len(x), numbers, "a further start (n_init)")
        part, *held = rows.first(kept, *(() if held_out is None else (held_out,)))
        others, x = held[0] if held else None, rows.x
        starts = [self._start(strategy, part, others, numbers, labels)]
        for i, some in enumerate(further, 1):
            theirs = {name: label[some] for name, label in labels.items()}
            again = strategy.again(part[some], i)
            starts.append(self._start(again, part[some], others, numbers, theirs))
        best = likeliest(starts, part if others is None else others)
        self._keep(best)
        check_trained(best.runner.guide, x, self.learning_rate)
        self.runner_ = best.runner
        self._state_later("refined", self._gains_by_steps(x))
        if len(x) > MANY:
            gc.collect()  # frames of what torch imported meanwhile would keep x after this call
        found = self._number_clusters(x, known)
        others_found = [self._reading(start.runner.guide) for start in starts if start is not best]
        self.stability_ = stability(found, others_found, x)
        self._state_later("unstable", unstable(self.facet_names_, self.stability_))
        self.labels_ = rows.back(found)
        self.labels_[self.outliers_ & self.mark_outliers] = -1
        return self

    @exclusive()
    def partial_fit(self, X: Any, y: Any = None, *, epochs: int = 1) -> MultiFacetClustering:
        """Train on with new data; facets and clusters keep their numbers, and none is added.

        The first call is ``fit``. Afterwards ``labels_`` and ``outliers_`` are those of ``X``, of
        which rows that lie far from all of the fit are left out. If training is interrupted these
        stay as they were, while the weights have moved.

        :param X: new data of the same shape; give old rows, too, if they still count.
        :param y: not used.
        :param epochs: passes over ``X``.
        :raises ValueError: before training, if an argument does not fit, or all rows lie far from
            those of the fit. If more than a tenth do, it warns.
        :raises FloatingPointError: if training diverges.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X)
        check_size("epochs", epochs)
        x = self.encode(X)
        outlying = self._outlying(x) | self.reader_.beyond(x)
        if outlying.all():
            raise ValueError(f"all {len(x)} rows of X lie far from those of the fit: {FIT_ANEW}")
        _warn_of_outliers(outlying, "those of the fit", FIT_ANEW)
        usual, size = x[~outlying], self.settings_["batch_size"]
        self.runner_.fit(usual, epochs, size, log_every=epochs, progress=False)
        check_trained(self.runner_.guide, usual, self.learning_rate)
        self.labels_, self.outliers_ = self._labels(x), outlying
        return self

    def _start(
        self, strategy: FitStrategy, x: Any, held_out: Any, numbers: Numbers, label: Labels
    ) -> Start:
        """One fit from the beginning to the end, by the simplest model that explains the data."""
        wanted = {name: numbers.get(name) for name in strategy.names}
        strategy = strategy.given(x, label, wanted)
        strategy = strategy.with_model(x, label, held_out is not None)
        self._say("trains networks, without mixtures")
        latents = strategy.latents(x, label)
        check_trained(latents, x, self.learning_rate)
        self._say("fits mixtures")
        counts = strategy.numbers(x, latents, wanted)
        K = {name: count.number for name, count in counts.items()}
        runner = strategy.mixtures(x, latents, K, label)
        self._say("trains all together")
        ended = strategy.together(runner, x, held_out, label)
        return Start(strategy, counts, runner, ended)

    def _keep(self, start: Start) -> None:
        """Store what was chosen in a start, and print it if asked to."""
        strategy, counts = start.strategy, start.counts
        self.facet_names_ = list(strategy.names)
        self.merge_trees_ = {name: count.tree for name, count in counts.items() if count.tree}
        self._state_settings(
            strategy.chosen,
            start=type(strategy).__name__,
            found=strategy.found_as,
            searched=min(MANY, int((~self.outliers_).sum())),
            outliers=int(self.outliers_.sum()),
            n_clusters={name: count.number for name, count in counts.items()},
            counted={name: count.why for name, count in counts.items()},
            n_latents={name: prior.dim for name, prior in start.runner.model.priors.items()},
            epochs=(*strategy.lengths.alone, strategy.lengths.together),
        )
        self._state_later("model", strategy.model)
        self._state_later("ended", start.ended)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable cluster of each facet ``[N, J]``; -1 of outlying rows to be marked."""
        return self._labels(self.encode(X))

    def _labels(self, x: np.ndarray) -> np.ndarray:
        clusters = most_probable(self._precise(), x, self.n_clusters_)
        clusters[self._to_mark(x)] = -1
        return clusters

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each cluster: ``[N, J, K]``, where K is the largest number of clusters of
        any facet; 0 for clusters that a facet does not have.
        """
        x = self.encode(X)
        return probabilities(self._precise(), self.n_clusters_, x)

    def transform(self, X: Any) -> np.ndarray:
        """Means of all facets' latents, side by side: ``[N, d_1 + ... + d_J]``."""
        return self._features(self._later_data(X), self.facet_names_)

    def export(self, path: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write :meth:`transform` and :meth:`predict_proba` as a program that runs without this
        library; see :func:`~inference.export_predictions`.

        It maps rows in the user's units, NaN where missing, to ``{facet: {"mean": [N, d],
        "probabilities": [N, K]}}``, with clusters numbered as in ``labels_``; of a data frame with
        mixed columns it takes codes ``[N, D]``, which ``about.json`` in the file explains. Rows are
        not checked, outliers not marked, and rows with gaps are read by the encoder alone.

        :param path: the file, which ends in ``.pt2``.
        :param dtype: what the networks compute in, ``torch.float32`` or ``torch.float64``; this
            class itself computes in float64.
        :raises ValueError: if the path has another ending or no folder, or ``dtype`` is neither.
        """
        check_is_fitted(self)
        numbers = map(np.arange, self.n_clusters_)
        clusters = dict(zip(self.runner_.model.mixtures, numbers, strict=True))
        self._export(path, dtype, clusters, {"columns": self.reader_.in_words()})

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`, whatever ``input_features`` are."""
        check_is_fitted(self)
        return self._feature_names(self.facet_names_)

    def sample(
        self,
        n_samples: int = 1,
        *,
        facet: str | int | None = None,
        cluster: int | None = None,
        noise: bool = True,
    ) -> tuple[Any, np.ndarray]:
        """Draw data in the user's units ``[n, ...]``, a data frame if the training data were one,
        and return them with their clusters ``[n, J]``.

        :param facet: the facet whose ``cluster`` is fixed, by its number in ``labels_``.
        :param noise: whether to draw from the likelihood, too; its mean gives clearer images.
        :raises ValueError: if the facet or cluster is unknown.
        """
        check_is_fitted(self)
        check_size("n_samples", n_samples)
        if (facet is None) != (cluster is None):
            got = f"facet={facet!r}, cluster={cluster!r}"
            raise ValueError(f"give facet and cluster together, or neither; got {got}")
        chosen = None if facet is None else facet_index(self.facet_names_, facet)
        if chosen is not None and not is_index(cluster, K := self.n_clusters_[chosen]):
            raise ValueError(f"facet {facet!r} has the clusters 0 to {K - 1}, got {cluster!r}")
        model, seed = self.runner_.model, drawn_seed(self.random_state)
        with seeded(seed, self.runner_.device), torch.no_grad(), evaluating(model):
            z, clusters = self._drawn_latents(n_samples, chosen, cluster)
            p = model.decode(z)
            x = p.sample() if noise else p.mean
        values = self.encoding_.decode(x.cpu().numpy())
        return self.reader_.returned(values), torch.stack(clusters, 1).cpu().numpy()

    def _drawn_latents(
        self, n: int, facet: int | None, cluster: int | None
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Latents by facet, and the clusters of each facet ``[n]``."""
        model, clusters = self.runner_.model, []
        free = {name: prior for name, prior in model.priors.items() if name not in model.mixtures}
        z = {name: prior.latent().sample((n,)) for name, prior in free.items()}
        for j, (name, prior) in enumerate(model.mixtures.items()):
            weights = prior.component().probs[: self.n_clusters_[j]]
            drawn = torch.multinomial(weights, n, replacement=True)
            if cluster is not None and j == facet:
                drawn = torch.full_like(drawn, cluster)
            clusters.append(drawn)
            one = one_hot(drawn, prior.num_components).to(weights)
            z[name] = prior.latent(one).sample()
        return z, clusters

    def describe(
        self, facet: str | int, X: Any, metadata: Any = None, **options: Any
    ) -> FacetDescription:
        """What a facet is about: each cluster's size and most typical rows, the columns that tell
        its clusters apart, in the user's units and with intervals, how sure and how stable it is.

        See :func:`~facetvae.describing.describe_clusters` for what it holds and means. Give the
        training data again, or better new rows: clusters differ in the columns that they were found
        in, so that on the training data intervals describe and do not test.

        :param facet: its name or number.
        :param X: rows, as for :meth:`predict`.
        :param metadata: further columns of the same rows, a data frame or a mapping of names to
            columns, to compare the clusters with.
        :param options: ``exemplars``, ``columns`` and ``kinds``, as there.
        :raises ValueError: if the facet is unknown, or rows or columns do not fit.

        Example:
            >>> import numpy as np
            >>> from facetvae.estimators import MultiFacetClustering
            >>> X = np.random.default_rng(0).normal(size=(60, 4))
            >>> found = MultiFacetClustering(("a", "b"), n_clusters=3, epochs=4, random_state=0)
            >>> about = found.fit(X).describe("b", X, {"half": np.arange(60) % 2})
            >>> sorted(column["column"] for column in about.columns), len(about.metadata)
            (['x0', 'x1', 'x2', 'x3'], 1)
        """
        check_is_fitted(self)
        j = facet_index(self.facet_names_, facet)
        rows = self._later_data(X)
        x = self.encoding_.encode(rows)
        guide, name = self._precise(), self.facet_names_[j]
        K = self.n_clusters_[j]
        log_joint = in_parts(lambda part: log_joints(guide, part)[name][:, :K], x)
        p, stability = softmax(log_joint, -1), self.stability_[j]
        clusters = FacetClusters(name, p, log_joint, self._to_mark(x), stability)
        shown = self.reader_.shown(X, rows, getattr(self, "feature_names_in_", None))
        kinds = kinds_of(self.runner_.model.likelihood) | dict(options.pop("kinds", None) or {})
        return describe_clusters(clusters, shown, metadata, kinds=kinds, **options)

    def trust(self, X: Any, *, repeats: int = 3) -> Trust:
        """What speaks for the facets: whether fits to two halves of the rows find them alike, and
        what such fits find in shuffled columns; and how likely the other half's rows are under
        these fits, beside simpler models.

        Facets that halves find no better than those of shuffled columns are not to be relied on,
        unless they are of one column, whose clusters are there in both. If one normal is likelier
        than the model, clusters describe what correlations explain.

        :param X: the training data, or other rows like them.
        :param repeats: how often halves are drawn; each takes four fits to half of the rows, or six
            where networks are trained.
        :raises ValueError: if ``X`` does not fit, or holds images or embeddings, not columns.

        Example:
            >>> from sklearn.datasets import make_blobs
            >>> from facetvae.estimators import MultiFacetClustering
            >>> X = make_blobs(200, centers=[[0, 0, 0], [9, 9, 9]], random_state=0)[0]
            >>> found = MultiFacetClustering(random_state=0).fit(X).trust(X, repeats=2)
            >>> found.found_again, found.bounds["this model"] > found.bounds["one normal"]
            ({'facet_0': [1.0, 1.0]}, True)
        """
        self._later_data(X)
        if self.encoding_.values == "embeddings" or len(self.encoding_.x_shape) > 1:
            raise ValueError(
                "trust is for columns, and shuffled ones of images or embeddings are none: give "
                "n_init=, and see stability_"
            )
        return trusted(self, X, repeats)

    def _reader(self, X: Any) -> Reader:
        return reader_for(X, self.columns, self.likelihood)

    def _newly_encoded(self, X: np.ndarray) -> np.ndarray:
        """Outlying rows are found, and have no say in how columns are scaled."""
        x = super()._newly_encoded(X)
        if self._shows_subspaces(x):
            self.reader_ = replace(self.reader_, as_columns=True)
            x = super()._newly_encoded(X)
        if self.mark_outliers and not self.encoding_.of_real_columns:
            read_as = "images" if x.ndim > 2 else repr(self.encoding_.values)
            raise ValueError(
                "mark_outliers=True is for tables of real numbers without a likelihood, and X is "
                f"read as {read_as}: leave it out"
            )
        self.usual_ = None  # of columns of real numbers alone
        self.outliers_ = self.reader_.beyond(x)
        if not self.encoding_.of_real_columns:
            return x
        self._say("looks for outlying rows")
        if (absurd := has_all_variance(X)).any():  # beside them all others are equal
            x = self.reader_.encoding(X, self.likelihood, ~absurd).encode(X)
        self.usual_ = Outliers(x)
        self.outliers_ = self._outlying(x)
        shared = self.usual_.shared(x, self.outliers_)
        self.outliers_[shared] = False
        if self.outliers_.any() or len(shared) or absurd.any():
            encoding = self.reader_.encoding(X, self.likelihood, ~self.outliers_)
            if encoding.values == "real":  # all rows get clusters
                self.encoding_ = replace(encoding, missing=self.encoding_.missing)
            del x  # before another is made
            x = self.encoding_.encode(X)
            self.usual_ = Outliers(x, np.flatnonzero(~self.outliers_), shared.tolist())
        return x

    def _shows_subspaces(self, x: np.ndarray) -> bool:
        """Whether rows of bounded values are columns: too few for images, or with their clusters in
        subspaces.
        """
        given = self._architecture is not None or self.likelihood is not None
        if given or x.ndim != 2 or self.encoding_.values not in BOUNDED:
            return False
        if x.shape[1] < FEWEST_PIXELS:
            return True
        self._say("looks for facets")
        return clusters_in_subspaces(x)

    def _outlying(self, x: np.ndarray) -> np.ndarray:
        """Rows ``[N]`` that lie far from those of the fit, which are not trained on."""
        return np.zeros(len(x), bool) if self.usual_ is None else self.usual_.among(x)

    def _to_mark(self, x: np.ndarray) -> np.ndarray:
        """Rows ``[N]`` that get the cluster -1: outlying ones, if they are to be marked."""
        return self._outlying(x) if self.mark_outliers else np.zeros(len(x), bool)

    def _strategy(self, x: np.ndarray, names: Names) -> FitStrategy:
        view = self.reader_.view(some_rows(x), self.encoding_)
        wanted = len(names) if names else None
        if self._are_answers(x):
            views = views_found(x, 0, view, None)
            if views.offers(wanted) and not views.are_many:
                return self._of_columns(views, x, names, view)
            if not views.views:
                warn(
                    "no column of X tells of another beyond chance: clusters of its rows may mean "
                    "nothing"
                )
        if not self.encoding_.of_columns or self._architecture is not None:
            if self.network == "linear":
                read_as = repr(self.encoding_.values)
                raise ValueError(f'network="linear" is for tables, and X is read as {read_as}')
            return self._ladder(x, names, view)
        if self.n_latents is None:
            found = facets_found(x, 0, view, self._say) if view.linear else None
            if found and not self.reader_.as_columns and are_pictures(found, x, view):
                return self._ladder(x, names, view, found)
            if self.encoding_.values in ("real", "columns"):  # the user's own, and no words
                views = views_found(x, 0, view, found)
                if views.offers(wanted):
                    return self._of_columns(views, x, names, view)
            asked = for_each(names, "n_clusters", self.n_clusters) if names else {}
            told = list(asked.values()) or None
            if isinstance(view, EmbeddingView) and (sums := sums_found(x, 0, view, told)):
                adding = partial(SumStrategy, found=sums)
                own = names or facet_names(len(sums.numbers))
                return self._subspaces(adding, x, own, x.shape[1], view, SUBSPACE_STEPS[1:])
            found = found or facets_found(x, 0, view, self._say)
            if found.offers(wanted):
                kind = partial(CountedStrategy, found=found, named=names is not None)
                return self._subspaces(kind, x, names or numbered(found), len(found.maps), view)
        return self._divided(x, names, view) or self._ladder(x, names, view)

    @property
    def _architecture(self) -> Any:
        return None if isinstance(self.network, str) else self.network

    def _are_answers(self, x: np.ndarray) -> bool:
        """Whether rows are zeros and ones, in what may be columns, and the rest is left open."""
        given = self._architecture is not None or self.n_latents is not None
        few = x.ndim == 2 and x.shape[1] <= MAX_COLUMNS
        return self.encoding_.values == "binary" and few and not given

    def _of_columns(
        self, views: ColumnViews, x: np.ndarray, names: Names, view: View
    ) -> SubspaceStrategy:
        columns = getattr(self, "feature_names_in_", np.arange(x.shape[1]))
        for curve in views.curved:
            own = columns[curve.columns[curve.columns < len(columns)]]
            warn(
                f"the columns {own.tolist()} of X depend on each other, but in no few clusters, as "
                "numbers along a curve do: they are in no facet; fit to them alone to look for many"
            )
        kind = partial(ViewStrategy, views=views, named=names is not None)
        names = names or facet_names(views.number)
        strategy = self._subspaces(kind, x, names, views.dim, view, SUBSPACE_STEPS)
        if not view.linear or self.encoding_.values == "binary":
            return strategy
        return strategy.with_noise(strategy.noise(some_rows(x)))

    def _divided(self, x: np.ndarray, names: Names, view: View) -> SubspaceStrategy | None:
        """Facets as subspaces; ``None`` if the data vary in too few dimensions."""
        names, dims = self._dims(x, names)
        if x.shape[1] < len(names):
            return None
        features, dim = view.numbers(some_rows(x)), sum(dims.values())
        if None in for_each(names, "n_latents", self.n_latents).values() and view.dims is None:
            dim = principal_dimensions(features, len(names), dim)
        if dim > rank(features):
            return None
        return self._subspaces(SubspaceStrategy, x, names, dim, view)

    def _ladder(
        self, x: np.ndarray, names: Names, view: View, counted: FacetCount | None = None
    ) -> LadderStrategy:
        (names, dims), shape = self._dims(x, names), x.shape[1:]
        network = self._architecture or default_network(shape, len(names))
        chosen = self._chosen(x, sum(dims.values()), network, view)
        share = min(1.0, max(LEAST_SHARE, ENTRIES / prod(shape)))
        alone, further, together = (round(share * steps) for steps in STEPS)
        lengths = chosen.lengths(len(x), (alone, *[further] * (len(names) - 1), together))
        return LadderStrategy(shape, names, chosen, lengths, dims, counted)

    def _dims(self, x: np.ndarray, names: Names) -> tuple[Sequence[str], dict[str, int]]:
        """Names of facets that are not counted, and the length of each one's latent."""
        names = facet_names(min(FACETS, prod(x.shape[1:]))) if names is None else names
        default = default_dims(x.shape[1:], len(names))
        asked = for_each(names, "n_latents", self.n_latents)
        return names, {name: default if d is None else d for name, d in asked.items()}

    def _subspaces(
        self,
        kind: Callable[..., SubspaceStrategy],
        x: np.ndarray,
        names: Sequence[str],
        dim: int,
        view: View,
        steps: Sequence[int] | None = None,
    ) -> Any:
        shape = x.shape[1:]
        chosen = replace(
            self._chosen(x, dim, self.reader_.network(shape), view),
            deep=HOW_DEEP.get(self.network, True if self.epochs else None),
        )
        steps = steps or (SUBSPACE_STEPS[1:] if view.linear else SUBSPACE_STEPS)
        return kind(shape, names, chosen, chosen.lengths(len(x), steps), dim, len(x))

    def _split(self, known: Labels, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows to train on, all with a label among them, and to hold out if there are enough."""
        rows = np.flatnonzero(~self.outliers_)
        free = rows[~labeled_rows(known, len(self.outliers_))[rows]]
        n = min(int(HELD_OUT * len(rows)), MOST_HELD_OUT)
        if n < FEWEST_HELD_OUT or len(free) < n:
            return rows, None
        held_out = np.sort(np.random.default_rng(seed).permutation(free)[:n])
        return np.setdiff1d(rows, held_out), held_out

    def _number_clusters(self, x: np.ndarray, known: Labels) -> np.ndarray:
        """Number the components from the largest; returns the clusters ``[N, J]``."""
        self._say("assigns rows to clusters")
        found = most_probable(self._precise(), x)
        self.n_clusters_, mixtures = [], self.runner_.model.mixtures.items()
        for (name, prior), component in zip(mixtures, found.T, strict=True):
            every = np.arange(prior.num_components)
            used = every if name in known else by_size(component)
            order = np.concatenate([used, np.setdiff1d(every, used)])
            renumber(self.runner_, prior, order)
            component[:] = order.argsort()[component]
            self.n_clusters_.append(len(used))
        return found

    def _gains_by_steps(self, x: np.ndarray) -> bool:
        """Whether rows have gaps, and few enough to take the time that improving them takes."""
        if self.settings_["start"] == ViewStrategy.__name__:  # whose clusters take gaps as they are
            return False
        gaps = self.encoding_.of_columns and bool(self.encoding_.missing)
        return gaps and len(rows_with_gaps(x)) * x[:1].size <= MOST_IMPROVED

    def _reading(self, guide: FacetGuide) -> Reads:
        """What rows are read by: the fitted guide, or one that improves what it finds."""
        if self.settings_["start"] == ViewStrategy.__name__:
            return AtCenters(guide)
        return ImprovedInGaps(guide) if self.settings_.get("refined") else guide

    def _precise(self) -> Reads:
        return self._reading(super()._precise())


def _warn_of_outliers(rows: np.ndarray, others: str, advice: str) -> None:
    """Warn if more than a tenth of the rows are left out."""
    if rows.mean() > MOST_LEFT_OUT:
        warn(
            f"{rows.sum()} of {len(rows)} rows of X lie far from {others}, and are not trained on "
            f"(outliers_ says which): {advice}"
        )
