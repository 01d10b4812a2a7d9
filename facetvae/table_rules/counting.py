"""How many facets a table of real numbers has, before any training.

1. Principal components, in two numbers: those that exceed chance (parallel analysis, Horn, 1965);
   and all of a narrow table, of a wide one those that exceed chance once the earlier components are
   removed (Dobriban and Owen, 2019), so that strong labellings do not hide weak ones. The number in
   which more facets are found counts.
2. Independent coordinates of these (FastICA), each pair turned to the angle at which both are
   farthest from normal, since FastICA's fixed point can be a saddle.
3. Coordinates that depend on each other are one group. Dependence is measured between sines and
   cosines of them (characteristic functions: Eriksson and Koivunen, 2003). Unlike mutual
   information it is coarse, and so forgives the share of one source that ICA leaves in another.
4. A group is a facet if its density has two hills or more (:mod:`~facetvae.table_rules.merging`),
   and the data of two of its clusters are not unimodal along the line that separates these best
   (dip test, Hartigan and Hartigan, 1985). Heavy tails and bounded supports have one hill. ICA
   finds directions with an error, which fills valleys: once there is a facet, other groups of two
   hills or more are tested again, turned as in 7.
5. If the clusters of a facet are all combinations of two independent groupings
   (:func:`~facetvae.table_rules.grids.grid_of`), and each of the two has its clusters in directions
   of its own, it is two facets. ICA misses these where one grouping's centres have no axes, as six
   at equal distances in five dimensions.
6. Clusters of neighbouring data are counted, too (:func:`~inference.neighbor_clusters`). They tell
   every combination of all labellings, however curved. Where there is only one, there is no facet
   without a deep valley: if few rows have many combinations, neighbours cannot tell these.
7. The coordinates of a facet are turned so that they separate its clusters best (linear
   discriminant analysis and a mixture by turns), and the others are what is left.
8. If there are several, but no group of coordinates is a facet, or the facets' clusters combined
   are fewer than half of them, the components that exceed chance are one facet: few rows may show a
   grouping there that no single group of coordinates does, and curved ones need all.
"""

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
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from facetvae.table_rules.chance import (
    NARROW,
    components_beyond_chance,
    principal_dimensions,
    rank,
)
from facetvae.table_rules.dip import dip_p_value
from facetvae.table_rules.grids import grid_of
from facetvae.table_rules.merging import ClusterCount, MergeTree, merge_tree
from facetvae.table_rules.rows import some_rows, thinned
from facetvae.table_rules.sources import (
    dependent_groups,
    farthest_from_normal,
    independent_sources,
)
from facetvae.table_rules.subspaces import Subspaces
from facetvae.table_rules.threads import on_one_thread

#: From rows ``[n, D]`` and a seed to the cluster of each row ``[n]``, by a graph of neighbours.
ClusterNeighbors = Callable[[np.ndarray, int], np.ndarray]

# Most rows whose neighbours are looked for, and that tell whether bounded values are columns.
MAX_ROWS, FEW_ROWS = 2000, 1000
# Starts of ICA: a rotation that has not come apart makes one group of two.
STARTS = 3
# Information that facets share, in nats, from which on they are one: two, which may be labellings
# that depend on each other, and three beyond what each two of them share. The three ways to halve
# four clusters share 0.69, and 0.29 if each is wrong in one row of twenty; independent labellings
# of drawn tables share up to 0.03 in twos and 0.09 in threes.
JOINT, JOINT_THREE = 0.35, 0.2
# Probability of a facet that is not there, over all groups of a table.
LEVEL = 0.05
# Two clusters are tested if the density between them is below this share of the lower hill's; what
# bounded supports show at random is less deep, and where the two do not touch, the line between
# them has a gap in which others lie.
DEEP = 0.5
# How often a facet's coordinates are turned towards its clusters; the share of the average variance
# that is added to each within clusters; and of the separation, below which a direction has none.
TURNS, SHRINKAGE, WEAK = 3, 0.02, 0.05
# The same where neighbours tell no clusters: bounded supports show 0.36 and more.
CLEAR = 1 / 3
# Least variance of a standardised column's noise.
LEAST_NOISE = 1e-3
# Clusters of neighbours for each combination of the facets' clusters, up to which clusters lie in
# subspaces. Drawn tables have at most 1, of three kinds (one of 70 has 1.5, of whose three
# labellings one was found); 450 to 1,797 digits have 0.7 to 12, mostly 1.4 and more.
BEYOND = 1.25
# Share of each facet's information that neighbours' clusters have if they divide its clusters.
# Digits have 0.64 and more (one of nine draws 0.31); where neighbours tell another labelling, 0.
DIVIDES = 0.5
# Fewest rows of a cluster whose dip is tested, and of a table whose neighbours are.
FEWEST, FEWEST_NEIGHBORS = 5, 30


@dataclass(frozen=True)
class SubspaceEvidence:
    """What one group of coordinates shows.

    :ivar columns: numbers of its coordinates.
    :ivar tree: its components and how they merge.
    :ivar p_value: the lowest of dip tests, each of two clusters along the direction that separates
        them; 1 if no valley is deep.
    :ivar is_facet: whether it has clusters, by both.
    """

    columns: np.ndarray
    tree: MergeTree
    p_value: float
    is_facet: bool

    def __str__(self) -> str:
        how = f"{self.tree.hills} hill(s) in {len(self.columns)} dimension(s), dip p "
        return how + f"{self.p_value:.2g}"


@dataclass(frozen=True)
class FacetCount:
    """The facets of a table.

    :ivar groups: evidence for each group of coordinates, the one with the clearest clusters last;
        none if nothing varies.
    :ivar loc: mean of the data ``[D]``.
    :ivar maps: from data less their mean to the coordinates ``[m, D]``.
    :ivar combined: number of clusters of neighbouring data, 1 if there are none.
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
        return [each for each in self.groups if each.is_facet]

    @property
    def number(self) -> int:
        return len(self.numbers)

    @property
    def numbers(self) -> list[int]:
        """Of clusters, one of each facet."""
        return [each.tree.hills for each in self.facets]

    @property
    def counts(self) -> list[ClusterCount]:
        """Clusters of each facet; of one facet with a single cluster, if there are none."""
        trees = [each.tree for each in self.facets]
        counted = [ClusterCount(tree.hills, tree.evidence, tree) for tree in trees]
        return counted or [ClusterCount(1, "no clusters beyond chance")]

    @property
    def subspaces(self) -> Subspaces:
        """Of the facets; of all coordinates together if there are none."""
        facets = self.facets
        return Subspaces(self.loc, [self.maps[f.columns] for f in facets] or [self.maps])

    @property
    def rest(self) -> np.ndarray:
        """Maps of the coordinates without clusters ``[d, D]``; none if no coordinate has any."""
        others = [each.columns for each in self._others] if self.number else []
        return self.maps[np.concatenate([np.zeros(0, int), *others])]

    def offers(self, number: int | None) -> bool:
        """Whether there are so many facets; for ``None``, whether anything varies."""
        return bool(self.groups) if number is None else number <= self.number

    def only(self, places: Sequence[int]) -> FacetCount:
        """The facets at these places, in this order; the others count as coordinates without
        clusters.
        """
        facets = self.facets
        left = [replace(each, is_facet=False) for i, each in enumerate(facets) if i not in places]
        return replace(self, groups=[*self._others, *left, *(facets[i] for i in places)])

    @property
    def in_subspaces(self) -> bool:
        """Whether the facets' clusters, combined, are as many as neighbours tell, or nearly. Of
        pictures of one thing each, such as digits, neighbours tell more.
        """
        return self.combined <= BEYOND * prod(self.numbers)

    @property
    def is_divided(self) -> bool:
        """Whether neighbours tell more clusters, and these divide those of every facet."""
        return self.number > 0 and not self.in_subspaces and self.shared >= DIVIDES

    @property
    def _others(self) -> list[SubspaceEvidence]:
        return [each for each in self.groups if not each.is_facet]

    @property
    def evidence(self) -> str:
        """Why, in words."""
        facets = self.facets
        graph = f"{self.combined} cluster(s) of neighbours"
        if not facets:
            return f"no clusters beyond chance; {graph}"
        others = len(self.groups) - len(facets)
        said = [f"{len(facets)} of {len(self.groups)} groups of coordinates have clusters"]
        said += [str(each) for each in facets]
        said += [f"{others} with one hill or no dip"] * (others > 0)
        return "; ".join([*said, graph])


def _clearness(group: SubspaceEvidence) -> float:
    """The gain in BIC would favour strong columns; the deepest valley does not."""
    return -float(group.tree.heights.min(initial=1.0))


@on_one_thread
def number_of_facets(
    x: np.ndarray, cluster_neighbors: ClusterNeighbors, seed: int = 0, dims: int | None = None
) -> FacetCount:
    """How many independent subspaces of a table have clusters; 0 and 1 are answers too.

    What it cannot tell: two labellings from one whose clusters form a grid along independent
    directions, such as four on a square.

    :param x: ``[N, D]``, standardised and complete.
    :param cluster_neighbors: finds clusters of neighbouring rows, from rows ``[n, D]`` and a seed,
        such as :func:`~inference.neighbor_clusters`.
    :param dims: principal components to look in; ``None`` for those that exceed chance.

    Example:
        >>> import numpy as np
        >>> from facetvae.table_rules.counting import number_of_facets
        >>> from inference import neighbor_clusters
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(2, size=(500, 2))
        >>> x = np.concatenate([6 * labels, np.zeros((500, 3))], 1) + rng.normal(size=(500, 5))
        >>> x = (x - x.mean(0)) / x.std(0)
        >>> number_of_facets(x, lambda rows, seed: neighbor_clusters(rows, seed=seed)).number
        2
    """
    most = min(NARROW if dims is None else dims, rank(x))
    if most < 1:
        return FacetCount([], x.mean(0), np.zeros((0, x.shape[1])))
    rows = thinned(x, MAX_ROWS)
    few = len(x) < FEWEST_NEIGHBORS
    neighbors = np.zeros(len(x), int) if few else cluster_neighbors(rows, seed)
    combined = len(np.unique(neighbors))
    dim, numbers = most, {most}
    if dims is None:
        dim = principal_dimensions(x, 1, most, seed)
        numbers = {dim, components_beyond_chance(x, seed)} - {0}
    # Few rows may show in few dimensions what is lost in more; weak labellings are the reverse.
    counts = [count for each in sorted(numbers, reverse=True) for count in _count_in(x, each, seed)]
    again = [_tested_again(count, x, seed, len(counts)) for count in counts]
    best, _ = max(zip(again, counts, strict=True), key=lambda two: [each.number for each in two])
    clear = min((each.tree.heights.min() for each in best.facets), default=1.0) < CLEAR
    if best.number and (clear if combined == 1 else combined <= 2 * prod(best.numbers)):
        best = _grids_split(best, x, seed)
        found = replace(_sharpened(best, x, seed), combined=combined)
    else:
        found = _count_whole(x, dim, combined, seed)
    return replace(found, shared=_least_share(found, x, neighbors))


def clusters_in_subspaces(
    x: np.ndarray, cluster_neighbors: ClusterNeighbors, seed: int = 0
) -> bool:
    """Whether bounded values ``[N, D]`` have their clusters in subspaces
    (:attr:`FacetCount.in_subspaces`).

    At most 1,000 rows are looked at; rows with gaps are not, nor is a table with few others.
    """
    some = some_rows(x)
    whole = some[~np.isnan(some).any(1)]
    if len(whole) < FEWEST_NEIGHBORS:
        return False
    scaler = StandardScaler().set_output(transform="default")
    rows = scaler.fit_transform(thinned(whole, FEW_ROWS).astype(float))
    return number_of_facets(rows, cluster_neighbors, seed).in_subspaces


def _count_in(x: np.ndarray, dim: int, seed: int) -> Iterator[FacetCount]:
    """The facets in so many principal components, for each number of groups that ICA ends with."""
    turns = {
        turn[0].max(): turn for turn in (_independent(x, dim, seed + i) for i in range(STARTS))
    }
    for group, sources, turned, loc in turns.values():
        groups = [np.flatnonzero(group == each) for each in range(group.max() + 1)]
        tests = len(groups) * len(turns)
        found = [_evidence(sources[:, columns], columns, seed, tests) for columns in groups]
        for columns in _joint(found, sources):
            found = [each for each in found if not np.isin(each.columns, columns).any()]
            found.append(_evidence(sources[:, columns], columns, seed, tests))
        yield FacetCount(sorted(found, key=_clearness), loc, turned)


def _tested_again(count: FacetCount, x: np.ndarray, seed: int, counts: int) -> FacetCount:
    """Groups that are no facet are, if they pass in the directions that separate their clusters."""
    if not count.number or all(each.is_facet for each in count.groups):
        return count
    before = (x - count.loc) @ count.maps.T
    u = (x - count.loc) @ _in_units_of_noise(count, x, seed).T
    level = LEVEL / (counts * len(count.groups))

    def tested(group: SubspaceEvidence) -> SubspaceEvidence:
        if group.is_facet or group.tree.hills < 2:
            return group
        clusters = group.tree.labels(before[:, group.columns], group.tree.hills)
        if np.bincount(clusters, minlength=group.tree.hills).min() < FEWEST:
            return group
        turn, tree = _discriminating(u, before, group, seed)
        p = min(_dips(u @ turn.T, tree), default=1.0)
        return replace(group, p_value=p, is_facet=p <= level)

    return replace(count, groups=[tested(each) for each in count.groups])


def _joint(groups: Sequence[SubspaceEvidence], sources: np.ndarray) -> list[np.ndarray]:
    """Columns of the groups whose clusters tell each other, in pairs, or in threes though not in
    pairs: together they are one. Four clusters at equal distances are such, along the axes of a
    cube of which they are every other corner.
    """
    split = [each for each in groups if len(each.tree.joins)]
    if not any(each.is_facet for each in split):
        return []
    labels = [each.tree.labels(sources[:, each.columns], max(2, each.tree.hills)) for each in split]
    tied = np.zeros((len(split),) * 2, bool)
    for two in combinations(range(len(split)), 2):
        tied[two] = _shared_information([labels[i] for i in two]) > JOINT
    for three in combinations(range(len(split)), 3):
        in_pairs = sum(
            _shared_information([labels[i] for i in two]) for two in combinations(three, 2)
        )
        if _shared_information([labels[i] for i in three]) - in_pairs > JOINT_THREE:
            tied[np.ix_(three, three)] = True
    number, group = connected_components(tied, directed=False)
    parts = [[split[i].columns for i in np.flatnonzero(group == each)] for each in range(number)]
    return [np.sort(np.concatenate(part)) for part in parts if len(part) > 1]


def _grids_split(count: FacetCount, x: np.ndarray, seed: int) -> FacetCount:
    """Facets whose clusters are a grid become two, and these again."""
    sources, maps, tests = (x - count.loc) @ count.maps.T, count.maps.copy(), len(count.groups)
    done: list[SubspaceEvidence] = []
    waiting = list(count.groups)
    while waiting:
        group = waiting.pop()
        own = group.columns
        parts, turn = _parts_of_grid(sources[:, own], group, seed, tests)
        maps[own], sources[:, own] = turn @ maps[own], sources[:, own] @ turn.T
        (waiting if len(parts) > 1 else done).extend(parts)
    return FacetCount(sorted(done, key=_clearness), count.loc, maps)


def _parts_of_grid(
    z: np.ndarray, facet: SubspaceEvidence, seed: int, tests: int
) -> tuple[list[SubspaceEvidence], np.ndarray]:
    """The two facets that a facet with coordinates ``z`` ``[N, d]`` consists of, with what these
    leave of it, and the turn of the coordinates ``[d, d]``; or the facet as it is.
    """
    K, d = facet.tree.hills, z.shape[1]
    whole = [facet], np.eye(d)
    label = facet.tree.labels(z, K)
    if not facet.is_facet or len(np.unique(label)) < K:
        return whole
    centres = np.stack([z[label == k].mean(0) for k in range(K)])
    grid = grid_of(centres @ _sphering(z - centres[label]), seed)
    if grid is None or _shared_information([part[label] for part in grid]) > JOINT:
        return whole
    turns = [_separating(z, part[label]) for part in grid]
    turns = [turn / (z @ turn.T).std(0)[:, None] for turn in turns]
    rest = null_space(np.concatenate(turns)).T
    turn = np.concatenate([*turns, rest])
    if len(turn) != d:  # some direction separates both
        return whole
    ends = np.cumsum([len(each) for each in turns])
    *own, left = np.split(np.arange(d), ends)
    parts = [_evidence(z @ turn[each].T, facet.columns[each], seed, tests) for each in own]
    if [each.tree.hills * each.is_facet for each in parts] != [each.max() + 1 for each in grid]:
        return whole
    if len(left):  # where the two interact; clusters there are no third grouping
        tree = merge_tree(z @ turn[left].T, seed)
        parts.append(SubspaceEvidence(facet.columns[left], tree, 1.0, is_facet=False))
    return parts, turn


def _sphering(left: np.ndarray) -> np.ndarray:
    """``[d, d]``, which makes the deviations within clusters 1."""
    within = left.T @ left / len(left)
    within += SHRINKAGE * np.trace(within) / len(within) * np.eye(len(within))
    return np.linalg.cholesky(np.linalg.inv(within))


def _separating(z: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Directions ``[m, d]`` of ``z`` ``[N, d]`` that separate clusters, of variance 1 within."""
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=SHRINKAGE)
    with warnings.catch_warnings():  # that a cluster of one row has no spread
        warnings.simplefilter("ignore", UserWarning)
        fitted = lda.fit(z, label)
    share = fitted.explained_variance_ratio_
    return fitted.scalings_.T[: len(share)][share > WEAK]


def _shared_information(labels: Sequence[np.ndarray]) -> float:
    """The sum of the labellings' entropies less that of their combination, in nats."""
    each = [np.unique(label, return_counts=True)[1] for label in labels]
    together = np.unique(np.stack(labels), axis=1, return_counts=True)[1]
    return float(sum(entropy(counts) for counts in each) - entropy(together))


def _sharpened(count: FacetCount, x: np.ndarray, seed: int) -> FacetCount:
    """Each facet's coordinates turned, and their number chosen, so that they separate its clusters
    best; the others are what is left.

    ICA does not look for clusters, and finds the directions of a few hundred rows with an error.
    """
    before, maps = (x - count.loc) @ count.maps.T, _in_units_of_noise(count, x, seed)
    u = (x - count.loc) @ maps.T
    facets = [(each, *_discriminating(u, before, each, seed)) for each in count.facets]
    turns = [turn for _, turn, _ in facets]
    rest = null_space(np.concatenate(turns)).T
    ends = np.cumsum([len(each) for each in (*turns, rest)])
    columns = np.split(np.arange(ends[-1]), ends[:-1])
    groups = [
        replace(each, columns=own, tree=tree)
        for (each, _, tree), own in zip(facets, columns, strict=False)
    ]
    if len(rest):
        left = merge_tree(u @ rest.T, seed)
        groups.append(SubspaceEvidence(columns[-1], left, 1.0, is_facet=False))
    turned = np.concatenate([*turns, rest]) @ maps
    return FacetCount(sorted(groups, key=_clearness), count.loc, turned)


def _in_units_of_noise(count: FacetCount, x: np.ndarray, seed: int) -> np.ndarray:
    """Maps ``[m, D]`` to as many principal components, of variance 1, of columns divided by the
    deviation of their noise: what the coordinates leave of them.

    Principal components lose least if the noise of all columns is equal; standardised columns have
    most noise where they have least signal. Like factor analysis, this does not depend on units.
    """
    x, m = x - count.loc, len(count.maps)
    u = x @ count.maps.T
    left = x - u @ np.linalg.lstsq(u, x, rcond=None)[0]
    noise = np.sqrt(np.maximum((left**2).sum(0) / max(len(x) - m, 1), LEAST_NOISE))
    pca = PCA(m, random_state=seed).fit(x / noise)
    return pca.components_ / np.sqrt(pca.explained_variance_)[:, None] / noise


def _discriminating(
    u: np.ndarray, before: np.ndarray, facet: SubspaceEvidence, seed: int
) -> tuple[np.ndarray, MergeTree]:
    """Directions ``[d, m]`` of all coordinates that separate a facet's clusters, of unit length in
    standard deviations, and how the components in them merge.

    :param before: the coordinates that the facet was found in.
    """
    k, found = facet.tree.hills, before[:, facet.columns]
    label = facet.tree.labels(found, k)
    for _ in range(TURNS):
        turn = _separating(u, label)
        z = u @ turn.T
        means = np.stack([z[label == each].mean(0) for each in range(k)])
        mixture = GaussianMixture(k, covariance_type="tied", means_init=means, random_state=seed)
        try:
            label = mixture.fit(z).predict(z)
        except ValueError:  # clusters of equal rows have no spread
            break
        if len(np.unique(label)) < k:
            break
    turn = turn / (u @ turn.T).std(0)[:, None]
    tree = merge_tree(u @ turn.T, seed)
    if 1 < tree.hills <= k:  # further ones are tails, or what is left of another facet
        return turn, tree
    return np.linalg.lstsq(u, found, rcond=None)[0].T, facet.tree


def _independent(
    x: np.ndarray, dim: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates and the group of each ``[m]``: groups, sources, maps and the data's mean."""
    sources, turned, loc = independent_sources(x, dim, seed)
    sources, turned = farthest_from_normal(sources, turned)
    return dependent_groups(sources), sources, turned, loc


def _least_share(found: FacetCount, x: np.ndarray, neighbors: np.ndarray) -> float:
    """Of each facet's entropy, what the clusters of neighbours have in common with it; 1 if there
    are no facets.
    """
    z = (thinned(x, MAX_ROWS) - found.loc) @ found.maps.T
    labels = [each.tree.labels(z[:, each.columns], each.tree.hills) for each in found.facets]
    own = [entropy(np.bincount(label)) for label in labels]
    shares = [
        _shared_information([label, neighbors]) / h
        for label, h in zip(labels, own, strict=True)
        if h
    ]
    return min(shares, default=1.0)


def _count_whole(x: np.ndarray, dim: int, combined: int, seed: int) -> FacetCount:
    """All principal components as one group, the first with variance 1."""
    pca = PCA(dim, random_state=seed).fit(x)
    maps = pca.components_ / np.sqrt(pca.explained_variance_[0])
    group = _evidence((x - pca.mean_) @ maps.T, np.arange(dim), seed, 1)
    found = replace(group, is_facet=min(group.tree.hills, combined) > 1)
    return FacetCount([found], pca.mean_, maps, combined)


def _evidence(z: np.ndarray, columns: np.ndarray, seed: int, groups: int) -> SubspaceEvidence:
    tree = merge_tree(z, seed)
    p = min(_dips(z, tree), default=1.0)
    return SubspaceEvidence(columns, tree, p, tree.hills > 1 and p <= LEVEL / groups)


def _dips(z: np.ndarray, tree: MergeTree) -> Iterator[float]:
    """p-values of the dips of each two clusters that a deep valley separates, along the direction
    that does so best.
    """
    component = tree.mixture.predict(z)
    for k in range(2, 2 + int((tree.heights < DEEP).sum())):
        first, second = (np.isin(component, each) for each in tree.joined_at(k))
        if min(first.sum(), second.sum()) >= FEWEST:
            rows = first | second
            line = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-6)
            line.fit(z[rows], first[rows])
            yield dip_p_value(line.decision_function(z[rows]))
