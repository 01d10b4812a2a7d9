"""Groupings that are sets of columns: in each a mixture, whose clusters have a distribution of each
column's own kind, and in which columns are independent. CrossCat samples such views of the columns
(Mansinghka et al., 2016); here they are sought by expectation-maximization and BIC.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy.linalg import helmert
from scipy.sparse.csgraph import connected_components
from scipy.special import softmax
from scipy.stats import chi2, norm, rankdata
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from facetvae.table_rules.dip import dip_between
from facetvae.table_rules.grids import JOINT, grid_of, shared_information
from facetvae.table_rules.known import allowed, starts_of, sureness
from facetvae.table_rules.merging import fitted_mixture, on_one_thread
from facetvae.table_rules.normals import conditional_means, covariance_of, log_normal
from facetvae.table_rules.repeated import Recoding, codes_told, numbers_told
from facetvae.table_rules.rows import some_rows

# Most columns and rows in which views are looked for.
MAX_COLUMNS, MAX_ROWS = 64, 2000
# Parts of equal size by which numbers are cut, and the probability that some two of a table's
# columns seem to depend on each other by chance.
BINS, LEVEL = 5, 0.01
# Most clusters of a view, how many pictures or curves have, and most of a column by itself; how
# many numbers without a gain end the search, and starts of each.
MOST, MANY_KINDS, MOST_ALONE, PATIENCE, STARTS = 20, 8, 3, 2, 2
# Passes over the rows, and the gain in nats a row that ends them; how often columns change places.
PASSES, ENOUGH, ROUNDS, REFITS = 100, 1e-4, 5, 2
# Nats a row below another view from which on one is not fitted further.
SLACK = 0.1
# Rows at a column's own frequencies that are added to each cluster; of numbers, half of one at the
# column's variance. And the least share of that variance within a cluster.
PRIOR, LEAST = 1.0, 1e-3
# p-value of a dip between clusters that are apart.
APART = 0.05
# The variance of a constant column.
SMALL = 1e-12


@dataclass(frozen=True)
class Statistics:
    """Values ``[N, D]``, NaN where missing, as each column's sufficient statistics side by side:
    of numbers whether they are there, they and their squares, and of categories indicators.

    :ivar levels: of each column the number of its categories, which are codes; 0 for numbers.
    """

    values: np.ndarray
    levels: np.ndarray

    @cached_property
    def numbers(self) -> np.ndarray:
        return np.flatnonzero(self.levels == 0)

    @cached_property
    def codes(self) -> np.ndarray:
        return np.flatnonzero(self.levels)

    @cached_property
    def features(self) -> np.ndarray:
        """``[N, F]``."""
        there, x = ~np.isnan(own := self.values[:, self.numbers]), np.nan_to_num(own)
        return np.concatenate([there, x, x**2, *map(self._indicators, self.codes)], 1)

    @cached_property
    def owner(self) -> np.ndarray:
        """The column of each feature ``[F]``."""
        return np.concatenate(
            [np.tile(self.numbers, 3), self.codes.repeat(self.levels[self.codes])]
        )

    @cached_property
    def cost(self) -> np.ndarray:
        """What BIC takes for a column's parameters in one cluster ``[D]``, in nats."""
        return np.log(len(self.values)) / 2 * np.where(self.levels, self.levels - 1, 2)

    @cached_property
    def alone(self) -> np.ndarray:
        """BIC, as a log-density, of each column by itself ``[D]``."""
        return self.expected(np.ones((len(self.values), 1))) - self.cost

    @cached_property
    def unit(self) -> np.ndarray:
        """The numbers, each column with mean 0 and variance 1 ``[N, m]``."""
        own = self.values[:, self.numbers]
        return (own - np.nanmean(own, 0)) / np.maximum(np.nanstd(own, 0), SMALL)

    @cached_property
    def covariance(self) -> np.ndarray:
        """Of :attr:`unit`, as one normal has it ``[m, m]``."""
        return covariance_of(self.unit)

    def coefficients(self, r: np.ndarray) -> np.ndarray:
        """Of the features in each column's log-density, ``[F, K]``, in clusters with the
        responsibilities ``r`` ``[N, K]``.
        """
        sums, whole, m = self.features.T @ r, self.features.sum(0)[:, None], 3 * len(self.numbers)
        normal = _normal(*(each[:m].reshape(3, m // 3, each.shape[1]) for each in (sums, whole)))
        smoothed = sums[m:] + PRIOR * self._shares(whole[m:] + 1)
        return np.concatenate([normal.reshape(m, r.shape[1]), np.log(self._shares(smoothed))])

    def _shares(self, sums: np.ndarray) -> np.ndarray:
        """Of each category in its column ``[F, K]``."""
        levels = self.levels[self.codes]
        return sums / np.add.reduceat(sums, np.cumsum(levels) - levels).repeat(levels, 0)

    def expected(self, r: np.ndarray) -> np.ndarray:
        """The log-density of each column, summed over rows by responsibilities: ``[D]``."""
        each = ((self.features.T @ r) * self.coefficients(r)).sum(1)
        return np.bincount(self.owner, each, len(self.levels))

    def standardized(self, columns: np.ndarray) -> np.ndarray:
        """Numbers by which rows of one cluster are near each other ``[N, G]``."""
        parts = []
        for d in columns:
            if self.levels[d]:
                own = self._indicators(d)
                share = own.mean(0).clip(1 / len(own))
                parts.append((own - share) / np.sqrt(share * max(1, self.levels[d] - 1)))
            else:
                own = self.values[:, [d]]
                parts.append(np.nan_to_num((own - np.nanmean(own)) / (np.nanstd(own) or 1)))
        return np.concatenate(parts, 1)

    def cut(self, d: int) -> np.ndarray:
        """A column as indicators of its categories, or of parts of its numbers: fifths, the outer
        ones in two, for small clusters; of two such tails one row has both by chance.
        """
        if self.levels[d]:
            return self._indicators(d)
        own = self.values[:, d]
        tail = min(1 / BINS, len(own) ** -0.5)
        cuts = [tail, *np.linspace(0, 1, BINS + 1)[1:-1], 1 - tail]
        at = np.unique(np.nanquantile(own, cuts))
        part = np.where(np.isnan(own), -1, np.searchsorted(at, own))
        return part[:, None] == np.arange(len(at) + 1)

    def _indicators(self, d: int) -> np.ndarray:
        return (self.values[:, [d]] == np.arange(self.levels[d])).astype(float)


def _normal(sums: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """From sums of 1, x and x squared ``[3, m, K]`` in each cluster, and in all rows: of a normal's
    log-density the constant, and the coefficients of x and its square.
    """
    loc = whole[1] / whole[0].clip(1)
    variance = (whole[2] / whole[0].clip(1) - loc**2).clip(SMALL)
    mean = (sums[1] + LEAST * loc) / (sums[0] + LEAST)
    within = (sums[2] - 2 * mean * sums[1] + mean**2 * sums[0]).clip(0)
    spread = ((within + PRIOR / 2 * variance) / (sums[0] + PRIOR)).clip(LEAST * variance)
    constant = -(np.log(2 * np.pi * spread) + mean**2 / spread) / 2
    return np.stack([constant, mean / spread, -1 / (2 * spread)])


@dataclass(frozen=True)
class ColumnView:
    """A mixture in some columns.

    :ivar fitted: the rows that it was fitted to.
    :ivar columns: their numbers.
    :ivar fit: BIC, as a log-density.
    :ivar r: responsibilities for the rows it was fitted to ``[N, M]``.
    :ivar part: the cluster of each of the M components; by default each is one.
    :ivar covariance: of its numbers within components ``[m, m]``; by default columns are
        independent within these, and have variances of their own in each.
    """

    fitted: Statistics
    columns: np.ndarray
    fit: float
    r: np.ndarray
    part: np.ndarray | None = None
    covariance: np.ndarray | None = None

    def __str__(self) -> str:
        grid = "" if self.part is None else " of a grid"
        return f"{self.num_clusters} clusters{grid} in {len(self.columns)} columns"

    @property
    def num_clusters(self) -> int:
        return self.r.shape[1] if self.part is None else int(self.part.max()) + 1

    @property
    def gains(self) -> np.ndarray:
        """By how much BIC, as a log-density, prefers its clusters in each column ``[D]``."""
        fitted = self.fitted
        return fitted.expected(self.r) - self.num_clusters * fitted.cost - fitted.alone

    def responsibilities(self, rows: Statistics) -> np.ndarray:
        """p(c given x) ``[N, K]``."""
        r = softmax(self.log_joint(rows), 1)
        return r if self.part is None else r @ np.eye(self.num_clusters)[self.part]

    def told(self, k: int, seed: int = 0) -> ColumnView:
        """With ``k`` clusters: the likeliest of a few mixtures, from k-means."""
        z = self.fitted.standardized(self.columns)
        starts = (_clusters_of(z, k, seed + i) for i in range(STARTS))
        found = (_mixture(_started(self.fitted, self.columns, own, k)) for own in starts)
        return max(found, key=lambda view: view.fit)

    def known(self, rows: Statistics, label: np.ndarray, k: int) -> ColumnView:
        """With ``k`` clusters, which some of these rows are known to be in, in columns that tell
        them apart.

        :param label: their numbers ``[N]``, -1 where unknown.
        """
        there = label >= 0
        few = Statistics(rows.values[there], rows.levels)
        view = ColumnView(few, self.columns, 0.0, np.eye(k)[label[there]])
        for _ in range(ROUNDS):
            own = np.flatnonzero(view.gains > 0)
            own = own if len(own) else self.columns
            if view.fitted is rows and np.array_equal(own, view.columns):
                break
            z, mask = rows.standardized(own), allowed(label, k)
            starts = starts_of(z, label, _clusters_of(z, k), k)
            found = [_mixture(_started(rows, own, start, k), mask) for start in starts]
            view = max(found, key=lambda each: sureness(each.responsibilities(rows), label))
        return view

    def log_joint(self, rows: Statistics) -> np.ndarray:
        """log p(x, component) of rows' values in its columns ``[N, M]``."""
        own = np.isin(self.fitted.owner, self.columns)
        weights = (self.r.sum(0) + PRIOR) / (self.r + PRIOR / len(self.r)).sum()
        if self.covariance is None:
            return rows.features[:, own] @ self.fitted.coefficients(self.r)[own] + np.log(weights)
        own[: 3 * len(self.fitted.numbers)] = False
        codes = rows.features[:, own] @ self.fitted.coefficients(self.r)[own] + np.log(weights)
        return codes + log_normal(self.residuals(rows), self.covariance).T

    def residuals(self, rows: Statistics) -> np.ndarray:
        """Of rows' numbers in its columns, from each component's means ``[M, N, m]``."""
        own, m = np.isin(self.fitted.numbers, self.columns), len(self.fitted.numbers)
        _, linear, square = self.fitted.coefficients(self.r)[: 3 * m].reshape(3, m, -1)[:, own]
        return rows.values[:, self.numbers] + (linear / (2 * square)).T[:, None]

    @property
    def cost(self) -> float:
        """What BIC takes for its parameters, in nats."""
        (n, k), m = self.r.shape, len(self.numbers)
        each = float(self.fitted.cost[self.columns].sum())
        shared = 0 if self.covariance is None else m * (m + 1) / 2 - k * m
        return k * each + (k - 1 + shared) * np.log(n) / 2

    @property
    def numbers(self) -> np.ndarray:
        """Those of its columns that are numbers."""
        return np.intersect1d(self.columns, self.fitted.numbers)


@dataclass(frozen=True)
class SubspaceView:
    """Clusters in a subspace of some numbers, beside views of other columns.

    :ivar fitted: the rows that it was fitted to.
    :ivar columns: the numbers of these columns.
    :ivar loc: their means ``[D]``.
    :ivar covariance: ``[D, D]``, by which gaps are filled.
    :ivar maps: to the subspace's coordinates ``[d, D]``.
    :ivar mixture: in these (scikit-learn's).
    :ivar part: the cluster of each of its components.
    """

    fitted: Statistics
    columns: np.ndarray
    loc: np.ndarray
    covariance: np.ndarray
    maps: np.ndarray
    mixture: GaussianMixture
    part: np.ndarray

    def __str__(self) -> str:
        return f"{self.num_clusters} clusters in a subspace of {len(self.columns)} columns"

    @property
    def num_clusters(self) -> int:
        return int(self.part.max()) + 1

    def told(self, k: int) -> SubspaceView:
        """With ``k`` clusters."""
        mixture = fitted_mixture(self._coordinates(self.fitted), k, "full", 0)
        return replace(self, mixture=mixture, part=np.arange(k))

    def known(self, rows: Statistics, label: np.ndarray, k: int) -> SubspaceView:
        """With ``k`` clusters, numbered as some of these rows' ``label`` ``[N]`` has them."""
        z = self._coordinates(rows)
        found = []
        for start in starts_of(z, label, _clusters_of(z, k), k):
            r = np.eye(k)[start] + LEAST  # some may be empty
            means = r.T @ z / r.sum(0)[:, None]
            found.append(GaussianMixture(k, means_init=means, random_state=0).fit(z))
        mixture = max(found, key=lambda each: sureness(each.predict_proba(z), label))
        return replace(self, mixture=mixture, part=np.arange(k))

    def responsibilities(self, rows: Statistics) -> np.ndarray:
        """p(c given x) ``[N, K]``."""
        members = np.eye(self.num_clusters)[self.part]
        return self.mixture.predict_proba(self._coordinates(rows)) @ members

    def _coordinates(self, rows: Statistics) -> np.ndarray:
        apart = rows.values[:, self.columns] - self.loc
        return conditional_means(apart, self.covariance) @ self.maps.T


@dataclass(frozen=True)
class ColumnViews:
    """The views of a table that have clusters, the one that gains most last.

    :ivar views: each a :class:`ColumnView`, or a :class:`SubspaceView` in the place of such.
    :ivar statistics: of the rows that they were fitted to.
    :ivar recoding: how columns are read; their numbers are of what it gives.
    :ivar curved: further ones whose columns lie on a curve, which are no facets.
    """

    views: Sequence[Any]
    statistics: Statistics
    recoding: Recoding
    curved: Sequence[ColumnView] = ()

    @property
    def number(self) -> int:
        return len(self.views)

    @property
    def are_many(self) -> bool:
        """Whether a view has so many clusters as pictures of things have (digits 8 to 12)."""
        return any(view.num_clusters >= MANY_KINDS for view in self.views)

    def offers(self, number: int | None) -> bool:
        """Whether there are so many views; for ``None``, whether there are any."""
        return self.number >= (number or 1)

    @property
    def dim(self) -> int:
        """Of all views' probabilities of clusters together."""
        return sum(contrasts_of(view.num_clusters) for view in self.views)

    @property
    def evidence(self) -> str:
        """What was found, in words."""
        return f"mixtures in sets of columns, by BIC: {', '.join(map(str, self.views))}"

    @property
    def of_codes(self) -> list[ColumnView]:
        """The views that hold codes."""
        return [view for view in self.views if np.isin(view.columns, self.statistics.codes).any()]

    @property
    def of_numbers(self) -> list[ColumnView]:
        """The others."""
        codes = self.statistics.codes
        return [view for view in self.views if not np.isin(view.columns, codes).any()]

    @property
    def free_numbers(self) -> np.ndarray:
        """The numbers that vary and that no view with codes has."""
        varying = np.nan_to_num(self.statistics.unit).any(0)
        return np.setdiff1d(self.statistics.numbers[varying], _all_columns(self.of_codes))

    def log_density(self) -> np.ndarray:
        """Of the fitted rows' free numbers ``[N]``, in nats, less BIC's cost."""
        fitted, views = self.statistics, list({id(v.r): v for v in self.of_numbers}.values())
        views.extend(self.curved)
        left = np.setdiff1d(self.free_numbers, _all_columns(views))
        one = np.ones((len(fitted.values), 1))
        views.append(_correlated(ColumnView(fitted, left, float(fitted.alone[left].sum()), one)))
        joint = [np.logaddexp.reduce(view.log_joint(fitted), 1) for view in views]
        cost = sum(own.sum() - view.fit for own, view in zip(joint, views, strict=True))
        return np.sum(joint, 0) - cost / len(fitted.values)

    def only(self, places: Sequence[int], numbers: Sequence[int | None]) -> ColumnViews:
        """The views at these places, in this order, with as many clusters as are given."""
        asked = zip((self.views[i] for i in places), numbers, strict=True)
        views = [v if k in (None, v.num_clusters) else v.told(k) for v, k in asked]
        return replace(self, views=views)

    def known(self, place: int, values: np.ndarray, label: np.ndarray, k: int) -> ColumnViews:
        """With the view at this place in agreement with clusters that are known.

        :param values: of rows ``[N, D]``, with the clusters ``label`` ``[N]``, -1 where unknown.
        """
        rows, views = self._rows(values), list(self.views)
        views[place] = views[place].known(rows, label, k)
        return replace(self, views=views)

    def responsibilities(self, values: np.ndarray) -> list[np.ndarray]:
        """p(c given x) of each view ``[N, K]``, for values ``[N, D]``."""
        rows = self._rows(values)
        return [view.responsibilities(rows) for view in self.views]

    def _rows(self, values: np.ndarray) -> Statistics:
        return Statistics(self.recoding(values), self.recoding.levels)


def _all_columns(views: Sequence[ColumnView]) -> np.ndarray:
    return np.concatenate([np.zeros(0, int), *(view.columns for view in views)])


def contrasts_of(num_clusters: int) -> int:
    """How many contrasts there are; a single cluster has one, which is constant."""
    return max(1, num_clusters - 1)


def contrasts(r: np.ndarray) -> np.ndarray:
    """Probabilities ``[N, K]`` as coordinates of the simplex that they lie in ``[N, K - 1]``."""
    return r @ helmert(r.shape[1]).T if r.shape[1] > 1 else np.zeros_like(r)


@on_one_thread
def column_views(values: np.ndarray, levels: Sequence[int], seed: int = 0) -> ColumnViews:
    """The sets of columns that show a grouping each; none if columns do not depend on each other.

    :param values: ``[N, D]``: numbers, and codes of categories; NaN where missing.
    :param levels: of each column the number of its categories, 0 for numbers.
    """
    rows = some_rows(values, most=MAX_ROWS)
    unseen = np.isnan(rows).all(0)  # in these rows: as a constant
    rows = np.where(unseen, 0.0, rows)
    recoding = Recoding.of(rows, np.asarray(levels))
    fitted = Statistics(recoding(rows), recoding.levels)
    if len(levels) > MAX_COLUMNS:
        return ColumnViews([], fitted, recoding)
    told = fitted.numbers[numbers_told(fitted.covariance)].tolist()
    told += codes_told(fitted.values, fitted.levels, told)
    if told:
        is_told = np.isin(np.arange(len(fitted.levels)), told)
        fitted = Statistics(np.where(is_told, 0.0, fitted.values), fitted.levels)
    dependence, tied = _dependence(fitted)
    _, part = connected_components(tied, directed=False)
    groups = [np.flatnonzero(part == p) for p in np.unique(part)]
    found = [view for own in groups for view in _divided(fitted, own, dependence, seed)]
    views = [v for v in _exchanged(fitted, found, seed) if v.fit > _apart(v, seed)]
    views.sort(key=lambda view: view.fit - fitted.alone[view.columns].sum())
    bent = [_is_curved(view, alone=len(views) == 1) for view in views]
    curved = [view for view, own in zip(views, bent, strict=True) if own]
    clear = [view for view, own in zip(views, bent, strict=True) if not own]
    views = [part for view in clear for part in _grid(view, seed)]
    return ColumnViews(views, fitted, recoding, curved)


def _is_curved(view: ColumnView, alone: bool) -> bool:
    """Whether numbers lie on a curve, of which more and more clusters are likelier: if hardly any
    cluster is apart from the one that it overlaps most, by a dip; or no other view is there.
    """
    K = view.num_clusters
    if K < MANY_KINDS or len(view.numbers) < len(view.columns):
        return False
    if alone or K == MOST:
        return True
    z, label = view.fitted.standardized(view.columns), view.r.argmax(1)
    nearest = (_overlap(view) - 2 * np.eye(K)).argmax(1)
    pairs = [np.isin(label, [k, near]) for k, near in enumerate(nearest)]
    apart = [dip_between(z[own], label[own] == k) < APART for k, own in enumerate(pairs)]
    return sum(apart) < K / 2


def _grid(view: ColumnView, seed: int) -> list[ColumnView]:
    """Two groupings of a view whose clusters are all their combinations; or the view."""
    z = view.fitted.standardized(view.columns)
    weights = view.r / view.r.sum(0)
    centers = weights.T @ z
    within = np.einsum("nk,nd->d", view.r, z**2) / len(z) - view.r.mean(0) @ centers**2
    grid = grid_of(centers / np.sqrt(within.clip(LEAST)), seed)
    if grid is None or shared_information([each[view.r.argmax(1)] for each in grid]) > JOINT:
        return [view]
    return [replace(view, part=part) for part in grid]


def _dependence(fitted: Statistics) -> tuple[np.ndarray, np.ndarray]:
    """How many deviations the G statistic of each two columns is above its mean by chance, and
    which depend on each other beyond chance.
    """
    cuts = [fitted.cut(d).astype(float) for d in range(len(fitted.levels))]
    above, tied = np.zeros((len(cuts),) * 2), np.zeros((len(cuts),) * 2, bool)
    level = LEVEL / max(1, len(cuts) * (len(cuts) - 1) / 2)
    for a, b in combinations(range(len(cuts)), 2):
        table = cuts[a].T @ cuts[b]
        table = table[table.any(1)][:, table.any(0)]
        chance = np.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1)
        there, free = table > 0, max(1, (table.shape[0] - 1) * (table.shape[1] - 1))
        statistic = 2 * (table[there] * np.log(table[there] / chance[there])).sum()
        above[a, b] = above[b, a] = (statistic - free) / np.sqrt(2 * free)
        tied[a, b] = chi2.sf(statistic, free) < level
    return above, tied


def _apart(view: ColumnView, seed: int) -> float:
    """BIC, as a log-density, of a view's columns each with clusters of its own, of which those of
    more than two values depend on each other as normal ones do: neither tails nor factors are signs
    of shared clusters. Between two values any dependence is such.
    """
    fitted, own = view.fitted, view.columns
    alone = fitted.alone.copy()
    for d in view.numbers:
        alone[d] = _view(fitted, np.array([d]), seed, MOST_ALONE).fit
    copula = _gain_of_one_copula(fitted.values[:, own[fitted.levels[own] != 2]])
    return float(alone[own].sum() + copula)


def _gain_of_one_copula(x: np.ndarray) -> float:
    """What BIC, as a log-density, gains if columns ``[N, m]``, NaN where missing, depend on each
    other as jointly normal ones do, whatever the distribution of each; categories by their codes.
    """
    if x.shape[1] < 2:
        return 0.0
    ranks = rankdata(x, axis=0, nan_policy="omit")
    scores = norm.ppf((ranks - 0.5) / (~np.isnan(x)).sum(0))
    covariance = covariance_of(scores)
    gain = log_normal(scores, covariance) - log_normal(scores, np.diag(np.diag(covariance)))
    return max(0.0, float(gain.sum() - np.log(len(x)) * x.shape[1] * (x.shape[1] - 1) / 4))


def _divided(
    fitted: Statistics, columns: np.ndarray, dependence: np.ndarray, seed: int
) -> list[ColumnView]:
    """One view of these columns, or those of two parts that BIC prefers; none without clusters."""
    if len(columns) < 2:
        return []
    whole = _view(fitted, columns, seed)
    between = dependence[np.ix_(columns, columns)].clip(0)
    # By the sparsest cut (normalized, by its second eigenvector).
    scale = 1 / np.sqrt(between.sum(1).clip(1e-9))
    first = np.linalg.eigh(between * np.outer(scale, scale))[1][:, -2] > 0
    halves = [columns[first], columns[~first]]
    if min(map(len, halves)) > 1:
        parts = [_view(fitted, half, seed) for half in halves]
        if sum(part.fit for part in parts) > whole.fit:
            return [view for half in halves for view in _divided(fitted, half, dependence, seed)]
    return [whole] if whole.num_clusters > 1 else []


def _exchanged(fitted: Statistics, views: list[ColumnView], seed: int) -> list[ColumnView]:
    """Columns go to the view, or to none, in which they gain most, and views are fitted anew."""
    for _ in range(ROUNDS):
        best = np.argmax([np.zeros(len(fitted.levels)), *(view.gains for view in views)], 0)
        chosen = [np.flatnonzero(best == i) for i in range(1, len(views) + 1)]
        if all(np.array_equal(v.columns, own) for v, own in zip(views, chosen, strict=True)):
            break
        views = [
            v if np.array_equal(v.columns, own) else _view(fitted, own, seed)
            for v, own in zip(views, chosen, strict=True)
            if len(own) > 1
        ]
        views = [view for view in views if view.num_clusters > 1]
    return views


def _view(fitted: Statistics, columns: np.ndarray, seed: int, most: int = MOST) -> ColumnView:
    """With the number of clusters that BIC prefers, within which numbers may be correlated; so one
    cluster may be. The search ends once clusters that gain as much as the last one would not get
    there.
    """
    n = len(fitted.values)
    one = ColumnView(fitted, columns, fitted.alone[columns].sum(), np.ones((n, 1)))
    best = last = _correlated(one)
    for k in range(2, min(most, n) + 1):
        found = _correlated(one.told(k, seed), best.fit)
        best = max(best, found, key=lambda view: view.fit)
        hopeless = found.fit + (most - k) * (found.fit - last.fit) < best.fit
        if k - best.num_clusters >= PATIENCE and (best.num_clusters > 1 or hopeless):
            break
        last = found
    while best.num_clusters > 2 and (fewer := _joined(best)).fit > best.fit:
        best = fewer  # k-means may have divided one cluster, and may join two with fewer
    return best


def _joined(view: ColumnView) -> ColumnView:
    """With the two clusters that overlap most as one."""
    shared = np.triu(_overlap(view), 1)
    first, second = np.unravel_index(shared.argmax(), shared.shape)
    r = np.delete(view.r, second, 1)
    r[:, first] += view.r[:, second]
    return _mixture(replace(view, r=r))


def _overlap(view: ColumnView) -> np.ndarray:
    """Of each two clusters, as a share of the smaller one ``[K, K]``."""
    rows = view.r.sum(0)
    return view.r.T @ view.r / np.minimum(rows[:, None], rows).clip(SMALL)


def _clusters_of(z: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """By k-means ``[N]``."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # of equal rows
        return KMeans(k, n_init=1, max_iter=10, random_state=seed).fit_predict(z)


def _correlated(view: ColumnView, least: float = -np.inf) -> ColumnView:
    """The view, or, if BIC prefers it, one with numbers that are correlated within clusters; or, of
    numbers alone, within a single one, since clusters come near any density of such.

    :param least: what is far below it is not fitted further.
    """
    m = len(view.numbers)
    if m < 2 or (view.num_clusters > 1 and m == len(view.columns)):
        return view
    other = _mixture(replace(view, covariance=_within(view)), passes=1)
    if view.num_clusters > 1 and other.fit > least - SLACK * len(view.r):
        for _ in range(REFITS):
            other = _mixture(replace(other, covariance=_within(other)))
    return max(view, other, key=lambda each: each.fit)


def _within(view: ColumnView) -> np.ndarray:
    """Of a view's numbers within clusters, by one draw of these ``[m, m]``."""
    u = np.random.default_rng(0).random((len(view.r), 1))
    drawn = np.minimum((view.r.cumsum(1) < u).sum(1), view.r.shape[1] - 1)
    left = view.residuals(view.fitted)[drawn, np.arange(len(drawn))]
    scale = np.sqrt(np.nanmean(left**2, 0)).clip(SMALL)
    return covariance_of(left / scale) * np.outer(scale, scale)


def _mixture(view: ColumnView, mask: np.ndarray | float = 0.0, passes: int = PASSES) -> ColumnView:
    """By expectation-maximization from a view's responsibilities.

    :param mask: of clusters that rows are known not to be in ``-inf``, ``[N, K]``.
    """
    n, last = len(view.r), -np.inf
    for _ in range(passes):
        joint = view.log_joint(view.fitted) + mask
        total = np.logaddexp.reduce(joint, 1)
        view = replace(view, r=np.exp(joint - total[:, None]))
        if total.sum() - last < ENOUGH * n:
            break
        last = total.sum()
    return replace(view, fit=float(total.sum() - view.cost))


def _started(fitted: Statistics, columns: np.ndarray, start: np.ndarray, k: int) -> ColumnView:
    """Near clusters ``[N]``."""
    return ColumnView(fitted, columns, 0.0, 0.9 * np.eye(k)[start] + 0.1 / k)
