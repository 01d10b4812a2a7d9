"""How many facets a table of real numbers has, before any training (docs/decisions.md)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

import numpy as np
from scipy.linalg import null_space
from scipy.sparse.csgraph import connected_components
from scipy.stats import entropy
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from facetvae.table_rules.components import (
    NARROW,
    components_beyond_chance,
    noise_of,
    principal_dimensions,
    rank,
)
from facetvae.table_rules.dip import FEWEST, dip_between
from facetvae.table_rules.grids import JOINT, grid_of, shared_information
from facetvae.table_rules.merging import ClusterCount, MergeTree, merge_tree, on_one_thread
from facetvae.table_rules.rows import some_rows
from facetvae.table_rules.subspaces import Subspaces, dependent_groups, independent_sources, left_of

#: From rows ``[n, D]`` and a ``seed=`` to the cluster of each row ``[n]``, by a graph of neighbors.
ClusterNeighbors = Callable[..., np.ndarray]

# Most rows whose neighbors are looked for, and that tell whether bounded values are columns.
MAX_ROWS, FEW_ROWS = 2000, 1000
# Deviations of a column beyond which an entry counts as so far: a few of heavy tails would turn
# coordinates towards themselves.
FAR = 4.0
# Information that three facets share beyond what each two do, in nats, from which on they are one:
# three ways to halve four clusters share 0.69.
JOINT_THREE = 0.2
# Probability of a facet that is not there, over all groups of a table.
LEVEL = 0.05
# Two clusters are tested if the density between them is below this share of the lower mode's; and
# below which it is clear where neighbors tell none: bounded supports show 0.36 and more.
DEEP, CLEAR = 0.5, 1 / 3
# Share of the entropy of clusters in all components that clusters of neighbors tell.
TOLD = 0.5
# How often a facet's coordinates are turned towards its clusters; the share of the average variance
# that is added to each within clusters; and of the separation, below which a direction has none.
TURNS, SHRINKAGE, WEAK = 3, 0.02, 0.05
# Least variance of a standardized column's noise.
LEAST_NOISE = 1e-3
# Clusters of neighbors for each combination of the facets' clusters, up to which clusters lie in
# subspaces: simulated tables have at most 1, digits mostly 1.4 and more.
BEYOND = 1.25
# Share of each facet's information that neighbors' clusters have if they divide its clusters:
# digits have 0.64 and more.
DIVIDES = 0.5
# Rows for each dimension in which facets are looked for: of fewer, some direction has two modes.
ROWS_A_DIMENSION = 10
# Fewest rows of a table whose neighbors are looked for.
FEWEST_NEIGHBORS = 30


@dataclass(frozen=True)
class SubspaceEvidence:
    """What one group of coordinates shows.

    :ivar columns: numbers of its coordinates.
    :ivar tree: its components and how they merge.
    :ivar p_value: the lowest of dip tests, each of two clusters along the direction that separates
        them; 1 if no minimum of the density is deep.
    :ivar is_facet: whether it has clusters, by both.
    """

    columns: np.ndarray
    tree: MergeTree
    p_value: float
    is_facet: bool

    def __str__(self) -> str:
        modes, d = self.tree.modes, len(self.columns)
        return f"{modes} mode(s) in {d} dimension(s), dip p {self.p_value:.2g}"

    def labels(self, sources: np.ndarray, k: int | None = None) -> np.ndarray:
        """The cluster, of ``k`` or as many as there are modes, of each row of the coordinates of
        all groups ``[N, m]``.
        """
        return self.tree.labels(sources[:, self.columns], k or self.tree.modes)


@dataclass(frozen=True)
class FacetCount:
    """The facets of a table.

    :ivar groups: evidence for each group of coordinates, the one with the clearest clusters last;
        none if nothing varies.
    :ivar loc: mean of the data ``[D]``.
    :ivar maps: from data less their mean to the coordinates ``[m, D]``.
    :ivar combined: number of clusters of neighboring data, 1 if there are none.
    :ivar shared: the least share of a facet's information that these clusters have.
    """

    groups: Sequence[SubspaceEvidence]
    loc: np.ndarray
    maps: np.ndarray
    combined: int = 1
    shared: float = 1.0

    @property
    def facets(self) -> list[SubspaceEvidence]:
        """The groups with clusters."""
        return [group for group in self.groups if group.is_facet]

    @property
    def number(self) -> int:
        return len(self.facets)

    @property
    def numbers(self) -> list[int]:
        """Of clusters, one of each facet."""
        return [facet.tree.modes for facet in self.facets]

    @property
    def counts(self) -> list[ClusterCount]:
        """Clusters of each facet; of one facet with a single cluster, if there are none."""
        trees = [facet.tree for facet in self.facets]
        counted = [ClusterCount(tree.modes, tree.evidence, tree) for tree in trees]
        return counted or [ClusterCount(1, "no clusters beyond chance")]

    @property
    def subspaces(self) -> Subspaces:
        """Of the facets; of all coordinates together if there are none."""
        facets = self.facets
        return Subspaces(self.loc, [self.maps[f.columns] for f in facets] or [self.maps])

    @property
    def rest(self) -> np.ndarray:
        """Maps of the coordinates without clusters ``[d, D]``; none if no coordinate has any."""
        others = [group.columns for group in self._others] if self.number else []
        return self.maps[np.concatenate([np.zeros(0, int), *others])]

    def offers(self, number: int | None) -> bool:
        """Whether there are so many facets; for ``None``, whether anything varies."""
        return bool(self.groups) if number is None else number <= self.number

    def only(self, places: Sequence[int]) -> FacetCount:
        """The facets at these places, in this order; the others count as coordinates without
        clusters.
        """
        facets = self.facets
        left = [replace(f, is_facet=False) for i, f in enumerate(facets) if i not in places]
        return replace(self, groups=[*self._others, *left, *(facets[i] for i in places)])

    @property
    def in_subspaces(self) -> bool:
        """Whether the facets' clusters, combined, are as many as neighbors tell, or nearly. Of
        pictures of one thing each, such as digits, neighbors tell more.
        """
        return self.combined <= BEYOND * prod(self.numbers)

    @property
    def is_divided(self) -> bool:
        """Whether neighbors tell more clusters, and these divide those of every facet."""
        return self.number > 0 and not self.in_subspaces and self.shared >= DIVIDES

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Of rows ``[N, D]`` under the groups' mixtures, and one normal of what the coordinates
        leave, of any covariance or of noise that is each column's, fitted to these rows: ``[N]``,
        in nats, less BIC's cost of the parameters.
        """
        (n, D), m, z = x.shape, len(self.maps), (x - self.loc) @ self.maps.T
        left = left_of(x, np.column_stack([z, np.ones(n)]))
        noise = np.sqrt(np.maximum(left.var(0), LEAST_NOISE))
        cost, free = np.log(n) / (2 * n), D - m
        normal = max(
            self._left(x, z, np.ones(D), False) - cost * free * (free + 1) / 2,
            self._left(x, z, noise, True) - cost * D,
            key=np.sum,
        )
        each = [g.tree.mixture.score_samples(z[:, g.columns]) for g in self.groups]
        spent = m * D + D + sum(group.tree.mixture._n_parameters() for group in self.groups)
        return np.sum([normal, *each], 0) - cost * spent

    def _left(self, x: np.ndarray, z: np.ndarray, unit: np.ndarray, alike: bool) -> np.ndarray:
        """Log-density of what coordinates ``z`` leave of rows in units of each column, and of the
        map to both ``[N]``.
        """
        back = np.linalg.lstsq(z - z.mean(0), (x - x.mean(0)) / unit, rcond=None)[0].T
        rest = np.linalg.qr(back, mode="complete")[0][:, len(self.maps) :].T / unit
        left = left_of(x @ rest.T, np.column_stack([z, np.ones(len(z))]))
        covariance = left.T @ left / len(x) + LEAST_NOISE * np.eye(len(rest))
        if alike:
            covariance = np.eye(len(rest)) * np.trace(covariance) / max(len(rest), 1)
        distance = (left * np.linalg.solve(covariance, left.T).T).sum(1)
        normal = distance + np.linalg.slogdet(2 * np.pi * covariance)[1]
        return np.linalg.slogdet(np.concatenate([self.maps, rest]))[1] - normal / 2

    @property
    def _others(self) -> list[SubspaceEvidence]:
        return [group for group in self.groups if not group.is_facet]

    @property
    def evidence(self) -> str:
        """Why, in words."""
        facets, others = self.facets, len(self._others)
        graph = f"{self.combined} cluster(s) of neighbors"
        if not facets:
            return f"no clusters beyond chance; {graph}"
        parts = [f"{len(facets)} of {len(self.groups)} groups of coordinates have clusters"]
        parts += [str(facet) for facet in facets]
        parts += [f"{others} with one mode or no dip"] * (others > 0)
        return "; ".join([*parts, graph])


def _by_clearness(groups: Sequence[SubspaceEvidence]) -> list[SubspaceEvidence]:
    """By the deepest minimum: the gain in BIC would favor strong columns."""
    return sorted(groups, key=lambda group: -group.tree.heights.min(initial=1.0))


@on_one_thread
def number_of_facets(
    cluster_neighbors: ClusterNeighbors,
    x: np.ndarray,
    seed: int = 0,
    dims: int | None = None,
    say: Callable[[str], None] = lambda sees: None,
) -> FacetCount:
    """How many independent subspaces of a table have clusters; 0 and 1 are answers too. Four
    clusters on a square are two labelings of two.

    :param cluster_neighbors: finds clusters of neighboring rows, from rows ``[n, D]`` and a seed,
        such as :func:`~inference.neighbor_clusters`.
    :param x: ``[N, D]``, standardized and complete.
    :param dims: principal components to look in; ``None`` for those that exceed chance.
    :param say: told what is seen before all is tested.
    """
    most = min(NARROW if dims is None else dims, rank(x), max(1, len(x) // ROWS_A_DIMENSION))
    if most < 1:
        return FacetCount([], x.mean(0), np.zeros((0, x.shape[1])))
    rows = some_rows(x, most=MAX_ROWS)
    few = len(x) < FEWEST_NEIGHBORS
    neighbors = np.zeros(len(x), int) if few else cluster_neighbors(rows, seed=seed)
    combined = len(np.unique(neighbors))
    dim, numbers = most, {most}
    near = x.clip(-FAR, FAR)
    if dims is None:
        dim = principal_dimensions(near, 1, most, seed)
        beyond = components_beyond_chance(near / noise_of(near), seed)
        numbers = {dim, min(most, beyond)} - {0}  # entries that count as nearer raise the rank
    # Few rows may show in few dimensions what is lost in more; weak labelings are the reverse.
    counts: list[FacetCount] = []
    for m in sorted(numbers, reverse=True):
        count = _count_in(near, m, seed)
        if count.number > max((c.number for c in counts), default=0):
            say(f"sees {', '.join(map(str, count.facets))}")
        counts.append(count)
    again = [_tested_again(count, near, seed, len(counts)) for count in counts]
    best, _ = max(zip(again, counts, strict=True), key=lambda two: [c.number for c in two])
    clear = min((facet.tree.heights.min() for facet in best.facets), default=1.0) < CLEAR
    if best.number and (clear if combined == 1 else combined <= 2 * prod(best.numbers)):
        best = _grids_split(best, near, seed)
        found = replace(_sharpened(best, near, seed), combined=combined)
    else:
        found = _count_whole(x, dim, neighbors, seed)
    return replace(found, shared=_least_share(found, x, neighbors))


def clusters_in_subspaces(cluster_neighbors: ClusterNeighbors, x: np.ndarray) -> bool:
    """Whether bounded values ``[N, D]`` have their clusters in subspaces
    (:attr:`FacetCount.in_subspaces`): 1,000 rows without gaps are looked at, if there are enough.
    """
    some = some_rows(x)
    whole = some[~np.isnan(some).any(1)]
    if len(whole) < FEWEST_NEIGHBORS:
        return False
    scaler = StandardScaler().set_output(transform="default")
    rows = scaler.fit_transform(some_rows(whole, most=FEW_ROWS).astype(float))
    return number_of_facets(cluster_neighbors, rows).in_subspaces


def _count_in(x: np.ndarray, dim: int, seed: int) -> FacetCount:
    """The facets in so many principal components."""
    sources, turned, loc = independent_sources(x, dim, seed)
    group = dependent_groups(sources)
    groups = [np.flatnonzero(group == g) for g in range(group.max() + 1)]
    found = [_evidence(sources[:, own], own, seed, len(groups)) for own in groups]
    for own in _joint(found, sources):
        found = [alone for alone in found if not np.isin(alone.columns, own).any()]
        found.append(_evidence(sources[:, own], own, seed, len(groups)))
    return FacetCount(_by_clearness(found), loc, turned)


def _tested_again(count: FacetCount, x: np.ndarray, seed: int, counts: int) -> FacetCount:
    """Groups that are no facet are, if they pass in the directions that separate their clusters."""
    if not count.number:
        return count
    u = (x - count.loc) @ count.maps.T
    level = LEVEL / (counts * len(count.groups))

    def tested(group: SubspaceEvidence) -> SubspaceEvidence:
        if group.is_facet or group.tree.modes < 2:
            return group
        if np.bincount(group.labels(u), minlength=group.tree.modes).min() < FEWEST:
            return group
        turn, tree = _discriminating(u, group, seed)
        p = min(_dips(u @ turn.T, tree), default=1.0)
        return replace(group, p_value=p, is_facet=p <= level)

    return replace(count, groups=[tested(group) for group in count.groups])


def _joint(groups: Sequence[SubspaceEvidence], sources: np.ndarray) -> list[np.ndarray]:
    """Columns of the groups whose clusters tell each other, in pairs or only in threes, as halves
    of four clusters at equal distances do: together they are one.
    """
    split = [group for group in groups if len(group.tree.joins)]
    if not any(group.is_facet for group in split):
        return []
    labels = [group.labels(sources, max(2, group.tree.modes)) for group in split]
    pairs = combinations(range(len(split)), 2)
    shared = {two: shared_information([labels[i] for i in two]) for two in pairs}
    tied = np.zeros((len(split),) * 2, bool)
    for two, information in shared.items():
        tied[two] = information > JOINT
    for three in combinations(range(len(split)), 3):
        in_pairs = sum(shared[two] for two in combinations(three, 2))
        if shared_information([labels[i] for i in three]) - in_pairs > JOINT_THREE:
            tied[np.ix_(three, three)] = True
    number, part = connected_components(tied, directed=False)
    parts = [np.flatnonzero(part == p) for p in range(number)]
    return [np.sort(np.concatenate([split[i].columns for i in p])) for p in parts if len(p) > 1]


def _grids_split(count: FacetCount, x: np.ndarray, seed: int) -> FacetCount:
    """Facets whose clusters are a grid become two, and these again."""
    sources, maps, tests = (x - count.loc) @ count.maps.T, count.maps.copy(), len(count.groups)
    done: list[SubspaceEvidence] = []
    waiting = list(count.groups)
    while waiting:
        group = waiting.pop()
        columns = group.columns
        parts, turn = _parts_of_grid(sources[:, columns], group, seed, tests)
        maps[columns], sources[:, columns] = turn @ maps[columns], sources[:, columns] @ turn.T
        (waiting if len(parts) > 1 else done).extend(parts)
    return FacetCount(_by_clearness(done), count.loc, maps)


def _parts_of_grid(
    z: np.ndarray, facet: SubspaceEvidence, seed: int, tests: int
) -> tuple[list[SubspaceEvidence], np.ndarray]:
    """The two facets of which one with coordinates ``z`` ``[N, d]`` consists, what these leave, and
    the turn of the coordinates ``[d, d]``; or the facet as it is.
    """
    K, d = facet.tree.modes, z.shape[1]
    whole = [facet], np.eye(d)
    label = facet.tree.labels(z, K)
    if not facet.is_facet or len(np.unique(label)) < K:
        return whole
    centers = np.stack([z[label == k].mean(0) for k in range(K)])
    grid = grid_of(centers @ _sphering(z - centers[label]), seed)
    if grid is None or shared_information([part[label] for part in grid]) > JOINT:
        return whole
    turns = [_in_deviations(_separating(z, part[label]), z) for part in grid]
    turn = np.concatenate([*turns, null_space(np.concatenate(turns)).T])
    if len(turn) != d:  # some direction separates both
        return whole
    *places, left = np.split(np.arange(d), np.cumsum(list(map(len, turns))))
    parts = [_evidence(z @ turn[own].T, facet.columns[own], seed, tests) for own in places]
    if [part.tree.modes * part.is_facet for part in parts] != [part.max() + 1 for part in grid]:
        return whole
    if len(left):  # where the two interact; clusters there are no third grouping
        parts.append(_left_over(z @ turn[left].T, facet.columns[left], seed))
    return parts, turn


def _in_deviations(turn: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Directions ``[m, d]`` along each of which ``z`` ``[N, d]`` has deviation 1."""
    return turn / (z @ turn.T).std(0)[:, None]


def _sphering(left: np.ndarray) -> np.ndarray:
    """``[d, d]``, which makes the deviations within clusters 1."""
    within = left.T @ left / len(left)
    within += SHRINKAGE * np.trace(within) / len(within) * np.eye(len(within))
    return np.linalg.cholesky(np.linalg.inv(within))


def _separating(z: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Directions ``[m, d]`` of ``z`` ``[N, d]`` that separate clusters, of variance 1 within."""
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=SHRINKAGE)
    # A cluster of one row has no spread.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        fitted = lda.fit(z, label)
    share = fitted.explained_variance_ratio_
    return fitted.scalings_.T[: len(share)][share > WEAK]


def _sharpened(count: FacetCount, x: np.ndarray, seed: int) -> FacetCount:
    """Each facet's coordinates turned, and their number chosen, so that they separate its clusters
    best, since ICA does not look for clusters; the others are what is left.
    """
    u = (x - count.loc) @ count.maps.T
    found = [_discriminating(u, facet, seed) for facet in count.facets]
    turns = [turn for turn, _ in found]
    rest = null_space(np.concatenate(turns)).T
    turn = np.concatenate([*turns, rest])
    *columns, left = np.split(np.arange(len(turn)), np.cumsum(list(map(len, turns))))
    groups = [
        replace(facet, columns=own, tree=tree)
        for facet, (_, tree), own in zip(count.facets, found, columns, strict=True)
    ]
    if len(left):
        groups.append(_left_over(u @ rest.T, left, seed))
    return FacetCount(_by_clearness(groups), count.loc, turn @ count.maps)


def _left_over(z: np.ndarray, columns: np.ndarray, seed: int) -> SubspaceEvidence:
    return SubspaceEvidence(columns, merge_tree(z, seed), 1.0, is_facet=False)


def _discriminating(
    u: np.ndarray, facet: SubspaceEvidence, seed: int
) -> tuple[np.ndarray, MergeTree]:
    """Directions ``[d, m]`` that separate a facet's clusters best, and how components merge."""
    k = facet.tree.modes
    label = facet.labels(u)
    for _ in range(TURNS):
        turn = _separating(u, label)
        z = u @ turn.T
        means = np.stack([z[label == own].mean(0) for own in range(k)])
        mixture = GaussianMixture(k, covariance_type="tied", means_init=means, random_state=seed)
        try:
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                label = mixture.fit(z).predict(z)  # equal rows do not converge
        except ValueError:  # clusters of such have no spread
            break
        if len(np.unique(label)) < k:
            break
    turn = _in_deviations(turn, u)
    tree = merge_tree(u @ turn.T, seed)
    if 1 < tree.modes <= k:  # further ones are tails, or what is left of another facet
        return turn, tree
    return np.eye(u.shape[1])[facet.columns], facet.tree


def _least_share(found: FacetCount, x: np.ndarray, neighbors: np.ndarray) -> float:
    """Of each facet's entropy, what the clusters of neighbors have in common with it; 1 if there
    are no facets.
    """
    z = (some_rows(x, most=MAX_ROWS) - found.loc) @ found.maps.T
    labels = (facet.labels(z) for facet in found.facets)
    each = ((shared_information([own, neighbors]), entropy(np.bincount(own))) for own in labels)
    return min((shared / h for shared, h in each if h), default=1.0)


def _count_whole(x: np.ndarray, dim: int, neighbors: np.ndarray, seed: int) -> FacetCount:
    """All principal components as one group, the first with variance 1: a facet if neighbors tell
    the same clusters, whether there is a dip between them or not.
    """
    pca = PCA(dim, random_state=seed).fit(x)
    maps = pca.components_ / np.sqrt(pca.explained_variance_[0])
    group = _evidence((x - pca.mean_) @ maps.T, np.arange(dim), seed, 1)
    divided = replace(group, is_facet=group.tree.modes > 1)
    found = FacetCount([divided], pca.mean_, maps, len(np.unique(neighbors)))
    if _least_share(found, x, neighbors) >= TOLD:
        return found
    return replace(found, groups=[replace(group, is_facet=False)])


def _evidence(z: np.ndarray, columns: np.ndarray, seed: int, groups: int) -> SubspaceEvidence:
    tree = merge_tree(z, seed)
    p = min(_dips(z, tree), default=1.0)
    return SubspaceEvidence(columns, tree, p, tree.modes > 1 and p <= LEVEL / groups)


def _dips(z: np.ndarray, tree: MergeTree) -> Iterator[float]:
    """p-values of the dips of each two clusters that a deep minimum separates, along the direction
    that does so best.
    """
    component = tree.mixture.predict(z)
    for k in range(2, 2 + int((tree.heights < DEEP).sum())):
        first, second = (np.isin(component, own) for own in tree.joined_at(k))
        rows = first | second
        yield dip_between(z[rows], first[rows])
