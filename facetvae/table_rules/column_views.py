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
from scipy.special import logsumexp, softmax
from scipy.stats import chi2
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from facetvae.table_rules.grids import JOINT, grid_of, shared_information
from facetvae.table_rules.known import allowed, starts_of, sureness
from facetvae.table_rules.merging import fitted_mixture, on_one_thread
from facetvae.table_rules.normals import conditional_means, covariance_of, log_normal
from facetvae.table_rules.rows import some_rows

# Most columns and rows in which views are looked for.
MAX_COLUMNS, MAX_ROWS = 64, 2000
# Parts of equal size by which numbers are cut, and the probability that some two of a table's
# columns seem to depend on each other by chance.
BINS, LEVEL = 5, 0.01
# Most clusters of a view, how many pictures have, and most of a column by itself; how many numbers
# without a gain end the search, and starts of each.
MOST, MANY, MOST_ALONE, PATIENCE, STARTS = 12, 8, 3, 2, 2
# Passes over the rows, and the gain in nats a row that ends them; how often columns change places.
PASSES, ENOUGH, ROUNDS = 100, 1e-4, 5
# Rows at a column's own frequencies that are added to each cluster; of numbers, half of one at the
# column's variance. And the least share of that variance within a cluster.
PRIOR, LEAST = 1.0, 1e-3
# Share of a column's variance that others leave, below which they tell it.
TOLD = 0.01
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
        if not len(self.codes):
            return normal.reshape(m, r.shape[1])
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
        """A column as indicators of its categories, or of as many parts of its numbers."""
        if self.levels[d]:
            return self._indicators(d)
        own = self.values[:, d]
        at = np.unique(np.nanquantile(own, np.linspace(0, 1, BINS + 1)[1:-1]))
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
    """

    fitted: Statistics
    columns: np.ndarray
    fit: float
    r: np.ndarray
    part: np.ndarray | None = None

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

    def told(self, k: int) -> ColumnView:
        """With ``k`` clusters."""
        return self if k == self.num_clusters else _with_clusters(self, k)

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
            found = [_mixture(rows, own, np.eye(k)[start], mask) for start in starts]
            view = max(found, key=lambda each: sureness(each.responsibilities(rows), label))
        return view

    def log_joint(self, rows: Statistics) -> np.ndarray:
        """log p(x, component) of rows' values in its columns ``[N, M]``."""
        own = np.isin(self.fitted.owner, self.columns)
        weights = (self.r.sum(0) + PRIOR) / (self.r + PRIOR / len(self.r)).sum()
        return rows.features[:, own] @ self.fitted.coefficients(self.r)[own] + np.log(weights)


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
        if k == self.num_clusters:
            return self
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
    """

    views: Sequence[Any]
    statistics: Statistics

    @property
    def number(self) -> int:
        return len(self.views)

    @property
    def are_many(self) -> bool:
        """Whether a view has so many clusters as pictures of things have (digits 8 to 12)."""
        return any(view.num_clusters >= MANY for view in self.views)

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
        left = np.setdiff1d(self.free_numbers, _all_columns(views))
        one = np.ones((len(fitted.values), 1))
        views.append(ColumnView(fitted, left, float(fitted.alone[left].sum()), one))
        joint = [logsumexp(view.log_joint(fitted), 1) for view in views]
        cost = sum(own.sum() - view.fit for own, view in zip(joint, views, strict=True))
        return np.sum(joint, 0) - cost / len(fitted.values)

    def only(self, places: Sequence[int], numbers: Sequence[int | None]) -> ColumnViews:
        """The views at these places, in this order, with as many clusters as are given."""
        views = [
            self.views[i] if k is None else self.views[i].told(k)
            for i, k in zip(places, numbers, strict=True)
        ]
        return replace(self, views=views)

    def known(self, place: int, values: np.ndarray, label: np.ndarray, k: int) -> ColumnViews:
        """With the view at this place in agreement with clusters that are known.

        :param values: of rows ``[N, D]``, with the clusters ``label`` ``[N]``, -1 where unknown.
        """
        rows, views = Statistics(values, self.statistics.levels), list(self.views)
        views[place] = views[place].known(rows, label, k)
        return replace(self, views=views)

    def responsibilities(self, values: np.ndarray) -> list[np.ndarray]:
        """p(c given x) of each view ``[N, K]``, for values ``[N, D]``."""
        rows = Statistics(values, self.statistics.levels)
        return [view.responsibilities(rows) for view in self.views]


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
    fitted = Statistics(np.where(unseen, 0.0, rows), np.asarray(levels))
    if len(levels) > MAX_COLUMNS:
        return ColumnViews([], fitted)
    told = fitted.numbers[_told_by_others(fitted.covariance)]
    if len(told):
        is_told = np.isin(np.arange(len(levels)), told)
        fitted = Statistics(np.where(is_told, 0.0, fitted.values), fitted.levels)
    dependence, tied = _dependence(fitted)
    _, part = connected_components(tied, directed=False)
    groups = [np.flatnonzero(part == p) for p in np.unique(part)]
    found = [view for own in groups for view in _divided(fitted, own, dependence, seed)]
    views = [v for v in _exchanged(fitted, found, seed) if v.fit > _apart(fitted, v, seed)]
    views.sort(key=lambda view: view.fit - fitted.alone[view.columns].sum())
    return ColumnViews([part for view in views for part in _grid(fitted, view, seed)], fitted)


def _grid(fitted: Statistics, view: ColumnView, seed: int) -> list[ColumnView]:
    """Two groupings of a view whose clusters are all their combinations; or the view."""
    z = fitted.standardized(view.columns)
    weights = view.r / view.r.sum(0)
    centers = weights.T @ z
    within = np.einsum("nk,nd->d", view.r, z**2) / len(z) - view.r.mean(0) @ centers**2
    grid = grid_of(centers / np.sqrt(within.clip(LEAST)), seed)
    if grid is None or shared_information([each[view.r.argmax(1)] for each in grid]) > JOINT:
        return [view]
    return [replace(view, part=part) for part in grid]


def _told_by_others(covariance: np.ndarray) -> np.ndarray:
    """Which columns those before them tell, as copies and sums are told, or do not vary ``[m]``:
    what tells them is no grouping.
    """
    left, told = covariance.copy(), np.zeros(len(covariance), bool)
    for d in range(len(left)):
        told[d] = left[d, d] < TOLD
        if not told[d]:
            left -= np.outer(left[:, d], left[d]) / left[d, d]
    return told


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


def _apart(fitted: Statistics, view: ColumnView, seed: int) -> float:
    """BIC, as a log-density, of a view's columns each with clusters of its own: tails are no sign
    of clusters that columns share.
    """
    numbers = np.intersect1d(view.columns, fitted.numbers)
    alone = fitted.alone.copy()
    for d in numbers:
        alone[d] = _view(fitted, np.array([d]), seed, MOST_ALONE).fit
    return float(alone[view.columns].sum())


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
    """With the number of clusters that BIC prefers; one if it prefers numbers that are jointly
    normal. The search ends once clusters that gain as much as the last one would not get there.
    """
    n = len(fitted.values)
    one = ColumnView(fitted, columns, fitted.alone[columns].sum(), np.ones((n, 1)))
    normal, fits, best = one.fit + _gain_of_one_normal(fitted, columns), [one.fit], one
    for k in range(2, min(most, n) + 1):
        best = max(best, _with_clusters(one, k, seed), key=lambda view: view.fit)
        fits.append(best.fit)
        hopeless = best.fit + (most - k) * (fits[-1] - fits[-2]) < normal
        if k - best.num_clusters >= PATIENCE or hopeless:
            break
    return best if best.fit > normal else replace(one, fit=max(one.fit, normal))


def _with_clusters(view: ColumnView, k: int, seed: int = 0) -> ColumnView:
    """The likeliest of a few mixtures of ``k`` clusters in a view's columns, from k-means."""
    z, found = view.fitted.standardized(view.columns), []
    for i in range(STARTS):
        start = _clusters_of(z, k, seed + i)
        found.append(_mixture(view.fitted, view.columns, np.eye(k)[start]))
    return max(found, key=lambda view: view.fit)


def _clusters_of(z: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """By k-means ``[N]``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of fewer distinct rows
        return KMeans(k, n_init=1, max_iter=10, random_state=seed).fit_predict(z)


def _gain_of_one_normal(fitted: Statistics, columns: np.ndarray) -> float:
    """What BIC, as a log-density, gains if a view's numbers are jointly normal."""
    own = np.isin(fitted.numbers, columns)
    d = int(own.sum())
    if d < 2:
        return 0.0
    covariance = fitted.covariance[np.ix_(own, own)]
    together = log_normal(fitted.unit[:, own], covariance)
    apart = log_normal(fitted.unit[:, own], np.diag(np.diag(covariance)))
    return float((together - apart).sum() - np.log(len(fitted.values)) * d * (d - 1) / 4)


def _mixture(
    fitted: Statistics, columns: np.ndarray, r: np.ndarray, mask: np.ndarray | float = 0.0
) -> ColumnView:
    """By expectation-maximization from responsibilities.

    :param mask: of clusters that rows are known not to be in ``-inf``, ``[N, K]``.
    """
    k, last = r.shape[1], -np.inf
    view = ColumnView(fitted, columns, 0.0, 0.9 * r + 0.1 / k)
    for _ in range(PASSES):
        joint = view.log_joint(fitted) + mask
        total = logsumexp(joint, 1)
        view = replace(view, r=np.exp(joint - total[:, None]))
        if total.sum() - last < ENOUGH * len(r):
            break
        last = total.sum()
    cost = k * fitted.cost[columns].sum() + (k - 1) * np.log(len(r)) / 2
    return replace(view, fit=float(total.sum() - cost))
