"""Facets that add up: rows are sums of a vector for each facet, by its cluster, and normal noise
(factorial learning: Ghahramani, *Factorial learning and the EM algorithm*, 1995).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, zip_longest
from math import prod
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import entropy, multivariate_t, norm
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from facetvae.table_rules.grids import grid_of, shared_information
from facetvae.table_rules.known import allowed, labeled_first, shared_with, starts_of, sureness
from facetvae.table_rules.merging import on_one_thread
from facetvae.table_rules.rows import some_rows
from facetvae.table_rules.skewness import fitted_powers
from facetvae.table_rules.subspaces import Subspaces, independent_sources

# Most rows, and rows times combinations of clusters, that are looked at; the least of the former.
MAX_ROWS, MOST_WORK, LEAST_ROWS = 5000, 10_000_000, 1000
# Most facets whose number is known, and unknown.
MOST_FACETS, FACETS = 3, 2
# Most clusters of the first facet and of each further one; fewest rows for each.
MOST, MOST_FURTHER, FEWEST = 12, 8, 15
# Clusters of a first facet beside which others show where more are combinations of both.
FEW = 6
# Mean adjusted Rand index between fits from which on clusters are stable, and by which others are
# steadier; pairs of halves, and starts, that are compared; fits of k-means in each.
STABLE, STEADIER, HALVES, STARTS, FITS = 0.75, 0.02, 5, 5, 10
# Rows for each column by which clusters' covariances are drawn to what they have in common: where
# these may differ, and where they are one.
OWN, ONE = 2.0, np.inf
# Degrees of freedom of heavy tails; the last are hardly any.
TAILS = (3, 5, 10, 30, 1000)
# Share of what a second facet explains that is to be alike in all clusters of the first.
ALIKE = 0.75
# Largest share of the smaller entropy that two facets may have in common.
SHARED = 0.15
# Share of the rows' variance that is added to the noise's; a row's certainty in its first cluster.
LEAST_NOISE, CERTAIN = 1e-6, 0.9
# Steps of EM, and the gain in nats per row that ends them.
STEPS, CONVERGED = 100, 1e-3
# Standard errors by which a facet makes rows likelier, less its parameters.
LIKELIER = 4.0


@dataclass(frozen=True)
class FacetSum:
    """A mixture whose components are all combinations of the facets' clusters.

    :ivar loc: ``[D]``.
    :ivar means: of each facet's clusters ``[K_j, D]``, with mean 0 over the rows.
    :ivar weights: of each facet's clusters ``[K_j]``.
    :ivar covariance: of the noise ``[D, D]``.
    """

    loc: np.ndarray
    means: list[np.ndarray]
    weights: list[np.ndarray]
    covariance: np.ndarray

    @property
    def numbers(self) -> list[int]:
        return list(map(len, self.weights))

    @property
    def whitening(self) -> np.ndarray:
        """``[D, D]``, by which the noise of rows gets the covariance 1."""
        return np.linalg.cholesky(np.linalg.inv(self.covariance))

    def log_joint(self, x: np.ndarray) -> np.ndarray:
        """log p(x, all clusters) of rows ``[N, D]``: ``[N, K_1, ..., K_J]``, in nats."""
        root = self.whitening
        rows, means = (x - self.loc) @ root, _cells(self.means) @ root
        apart = (rows**2).sum(1)[:, None] + (means**2).sum(1) - 2 * rows @ means.T
        volume = np.log(np.diag(root)).sum() - len(root) / 2 * np.log(2 * np.pi)
        prior = _cells([np.log(weights)[:, None] for weights in self.weights])[:, 0]
        return (volume + prior - apart / 2).reshape(-1, *self.numbers)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Of rows ``[N, D]``: ``[N]``, in nats."""
        return _posterior(self.log_joint(x))[1]

    @property
    def free(self) -> float:
        """How many parameters it has."""
        D, clusters = len(self.loc), sum(self.numbers) - len(self.numbers)
        return clusters * (D + 1) + D * (D + 3) / 2

    def bic(self, x: np.ndarray) -> float:
        """Of rows ``[N, D]``; the lower the better."""
        return float(self.free * np.log(len(x)) - 2 * self.log_density(x).sum())

    def responsibilities(self, x: np.ndarray) -> list[np.ndarray]:
        """p(cluster given x) of each facet ``[N, K_j]``."""
        return _of_each(_posterior(self.log_joint(x))[0])

    def labels(self, x: np.ndarray) -> list[np.ndarray]:
        """The most probable cluster of each facet ``[N]``."""
        return [r.argmax(1) for r in self.responsibilities(x)]

    def divided_by(self, unit: np.ndarray) -> FacetSum:
        """The same for rows in other units: those here are rows times ``unit`` ``[D]``."""
        means, covariance = [m / unit for m in self.means], self.covariance / np.outer(unit, unit)
        return FacetSum(self.loc / unit, means, self.weights, covariance)

    def reordered(self, order: Sequence[int]) -> FacetSum:
        means, weights = [self.means[j] for j in order], [self.weights[j] for j in order]
        return FacetSum(self.loc, means, weights, self.covariance)

    @property
    def subspaces(self) -> Subspaces:
        """Of each facet the coordinates that its clusters' means span, and of what they leave
        those in which the noise is independent of theirs.
        """
        root = self.whitening
        turned = [m @ root for m in self.means]
        spans = [_spanned(m, len(root) // len(turned)) for m in turned]
        own = np.linalg.pinv(np.concatenate(spans)).T
        rest = np.linalg.svd(own, full_matrices=True)[2][len(own) :]
        maps = np.split(own, np.cumsum([len(s) for s in spans])[:-1])
        return Subspaces(self.loc, [m @ root.T for m in [*maps, *([rest] if len(rest) else [])]])


def _spanned(means: np.ndarray, most: int) -> np.ndarray:
    """The directions, at most so many, in which means ``[K, D]`` differ: ``[d, D]``."""
    return np.linalg.svd(means, full_matrices=False)[2][: max(1, min(len(means) - 1, most))]


def _cells(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Sums of one row of each part, for all combinations ``[K_1 ... K_J, D]``."""
    total = parts[0]
    for part in parts[1:]:
        total = (total[:, None] + part).reshape(-1, part.shape[1])
    return total


def _posterior(log_joint: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of clusters, and log p(x) ``[N]``, from log p(x, clusters)
    ``[N, K_1, ..., K_J]``.
    """
    clusters = tuple(range(1, log_joint.ndim))
    most = log_joint.max(clusters, keepdims=True)
    q = np.exp(log_joint - most)
    total = q.sum(clusters, keepdims=True)
    return q / total, (most + np.log(total)).ravel()


def _of_each(q: np.ndarray) -> list[np.ndarray]:
    """Of each facet, from the posterior of all clusters ``[N, K_1, ..., K_J]``."""
    J = q.ndim - 1
    return [q.sum(tuple(a for a in range(1, J + 1) if a != j + 1)) for j in range(J)]


def _maximized(x: np.ndarray, q: np.ndarray) -> FacetSum:
    """The likeliest sum for clusters of these probabilities: a linear regression on them."""
    each, (N, D) = _of_each(q), x.shape
    loc = x.mean(0)
    centered, design = x - loc, np.concatenate(each, 1)
    ends = np.cumsum([r.shape[1] for r in each])[:-1]
    # Products of two facets' clusters need their joint posterior: which clusters does each
    # combination consist of?
    grids = np.indices(q.shape[1:]).reshape(len(each), -1)
    ones = np.concatenate([np.eye(r.shape[1])[g] for r, g in zip(each, grids, strict=True)], 1)
    gram = (ones * q.reshape(N, -1).sum(0)[:, None]).T @ ones
    back = np.linalg.lstsq(gram, design.T @ centered, rcond=None)[0]
    left = centered.T @ centered - back.T @ gram @ back
    covariance = left / N + LEAST_NOISE * centered.var(0).mean() * np.eye(D)
    counts = np.split(np.diag(gram), ends)
    weights = [(c + 1) / (c + 1).sum() for c in counts]
    means = [m - c @ m / N for c, m in zip(counts, np.split(back, ends), strict=True)]
    return FacetSum(loc, means, weights, (covariance + covariance.T) / 2)


def _fitted(
    x: np.ndarray, labels: Sequence[np.ndarray], numbers: Sequence[int], mask: Any = 0.0
) -> FacetSum:
    """By EM, from clusters ``[N]`` of each facet.

    :param mask: ``-inf`` for combinations of clusters that rows are known not to be in
        ``[N, K_1, ..., K_J]``.
    """
    q, last = _of_clusters(labels, numbers, CERTAIN), -np.inf
    for _ in range(STEPS):
        found = _maximized(x, q)
        q, log_density = _posterior(found.log_joint(x) + mask)
        if (value := log_density.mean()) - last < CONVERGED:
            break
        last = value
    return found


def _of_clusters(labels: Any, numbers: Sequence[int], certain: float = 1.0) -> np.ndarray:
    """Probabilities of all combinations of clusters ``[N, K_1, ..., K_J]``, from those of each
    facet ``[N]``.
    """
    q = np.ones((len(labels[0]), 1))
    for label, k in zip(labels, numbers, strict=True):
        r = (1 - certain) / k + certain * np.eye(k)[label]
        q = (q[:, :, None] * r[:, None]).reshape(len(q), -1)
    return q.reshape(len(q), *numbers)


def _sum_of(x: np.ndarray, *labels: np.ndarray, wanted: Iterable[int | None] = ()) -> FacetSum:
    """The likeliest for clusters ``[N]``, of numbers that may be larger than those that occur."""
    each = zip_longest(labels, wanted)
    return _maximized(x, _of_clusters(labels, [k or 1 + int(own.max()) for own, k in each]))


def _clusters_beside(
    x: np.ndarray, means: Sequence[np.ndarray], k: int, seed: int, fits: int = FITS
) -> np.ndarray:
    """Of k-means, in what the directions of other facets' means leave of rows ``[N, D]``."""
    left = x - x.mean(0)
    for other in means:
        spanned = _spanned(other, x.shape[1])
        left = left - left @ spanned.T @ spanned
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # of equal rows
        return KMeans(k, n_init=fits, random_state=seed).fit(left).labels_


def _starts(x: np.ndarray, k: int, seed: int, before: FacetSum | None = None) -> list[FacetSum]:
    """A facet of ``k`` clusters, from several in what those before leave."""
    means = before.means if before else []
    beside = (_clusters_beside(x, means, k, seed + i) for i in range(STARTS))
    return [_with(x, before, k, label) for label in beside]


def _with(
    x: np.ndarray, found: FacetSum | None, k: int, label: np.ndarray, place: int = MOST_FACETS
) -> FacetSum:
    """With one facet more, or with another in the place of one, from its clusters ``[N]``."""
    labels, numbers = (found.labels(x), found.numbers) if found else ([], [])
    own = slice(place, place + 1)  # beyond the last: one more
    labels[own], numbers[own] = [label], [k]
    return _fitted(x, labels, numbers)


def _likeliest(sums: Sequence[FacetSum], x: np.ndarray) -> FacetSum:
    return max(sums, key=lambda each: each.log_density(x).mean())


def enough(x: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """Rows of ``x``, fewer if there are many combinations of clusters."""
    return some_rows(x, most=_most_rows(numbers))


def _most_rows(numbers: Sequence[int]) -> int:
    return min(MAX_ROWS, max(LEAST_ROWS, MOST_WORK // prod(numbers)))


@on_one_thread
def facets_that_add_up(
    x: np.ndarray, numbers: Sequence[int | None] | None = None, seed: int = 0
) -> FacetSum | None:
    """Facets whose clusters add up; ``None`` if there are none, or too few rows.

    The first facet is a mixture of normals with one covariance, or with one each, by which makes
    new rows likelier; its number of clusters has the lowest BIC. Two clusters in what those with a
    covariance each leave tell whether that is a facet, which moves rows alike in all of them. If
    not, and with one covariance, further ones are looked for in what the first facet leaves, and in
    what fewer clusters and more do: these may be combinations of two facets, and those consist of
    parts that are no facet. Each gets the number of clusters that is wanted, beside the others, in
    the order that is likeliest; if none is given, the first facet that is found is the last.

    :param x: ``[N, D]``, in proportions that k-means can see.
    :param numbers: of each facet's clusters, ``None`` where it is to be found; ``None`` for at most
        two facets.
    """
    wanted = list(numbers or [None] * FACETS)
    rows = enough(x, [max(MOST, k or 0) for k in wanted])
    least = [k or 1 for k in wanted]
    looked_at = min(len(rows), MOST_WORK // prod(least))
    if looked_at < FEWEST * max(4, *least) or not (rows.std(0) > 0).all():
        return None
    # All numbers: of a grid of clusters BIC has several minima.
    each = range(1, 1 + min(MOST, len(rows) // (2 * FEWEST)))
    tied, free = ([_mixture(rows, k, seed, drawn) for k in each] for drawn in (ONE, OWN))
    alike, own = (min(fits, key=lambda fit: fit.bic) for fits in (tied, free))
    each_own = own.aic < alike.aic  # which makes new rows likelier
    first = own if each_own else alike
    label, surely = first.label, numbers is None
    if not (clear := _shows_clusters(rows, first, seed)) and surely:
        return None
    found = _sum_of(rows, label)
    grid = grid_of(found.means[0] @ found.whitening, seed) if len(wanted) > 1 else None
    grids, how = [], (len(wanted), seed, surely)
    if grid is not None:  # clusters that are all combinations of two groupings may be two facets
        parts = [part[label] for part in grid]
        grids.append(_fitted(rows, parts, [1 + part.max() for part in parts]))
    if each_own and clear and grids:
        found = _filled(rows, _beside(rows, grids, *how), *how)
        return _in_likeliest_order(rows, found, wanted, seed)
    some = dict.fromkeys([alike, tied[min(FEW, len(tied)) - 1], tied[-1]])
    bases = {each: _fitted(rows, [each.label], [1 + each.label.max()]) for each in some}
    if each_own and clear:
        return _in_own_noise(rows, own, bases[tied[-1]], wanted, seed, surely)
    found = _beside(rows, [*bases.values(), *grids], *how)
    found = _filled(rows, found if len(found.numbers) > 1 else bases[alike], *how)
    others = zip(found.means[1:], found.labels(rows)[1:], strict=True)
    left = rows - sum(means[own] for means, own in others)
    stable = _stable(left, found.numbers[0], seed)
    found = _resized(rows, found, [stable, *found.numbers[1:]], seed)
    return _in_likeliest_order(rows, found, wanted, seed)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Clusters ``[N]`` of normals with so many parameters, and the rows' log-density ``[N]``."""

    label: np.ndarray
    free: float
    log_density: np.ndarray

    @property
    def bic(self) -> float:
        return float(self.free * np.log(len(self.label)) - 2 * self.log_density.sum())

    @property
    def aic(self) -> float:
        return float(2 * (self.free - self.log_density.sum()))


def _mixture(x: np.ndarray, k: int, seed: int, drawn: float) -> Mixture:
    """The likeliest of a few, of ``k`` normals whose covariances are drawn to what they have in
    common as by further rows, so many for each column: a cluster's own rows say little of all pairs
    of columns (as in regularized discriminant analysis; Friedman, 1989).
    """
    # The best of several fits of k-means would be the same start each time.
    starts = [_clusters_beside(x, [], k, seed + i, fits=1) for i in range(STARTS)]
    fits = [_drawn_together(x, label, k, drawn * x.shape[1]) for label in starts]
    return max(fits, key=lambda fit: fit.log_density.sum())


def _drawn_together(x: np.ndarray, label: np.ndarray, k: int, further: float) -> Mixture:
    """By EM, from clusters ``[N]``."""
    (N, D), r, last = x.shape, np.eye(k)[label], -np.inf
    least = LEAST_NOISE * x.var(0).mean() * np.eye(D)
    for _ in range(STEPS):
        rows = r.sum(0)
        apart = x - (r.T @ x / rows.clip(1)[:, None])[:, None]  # [K, N, D]
        own = (apart * r.T[:, :, None]).transpose(0, 2, 1) @ apart
        share = (1 / (rows + further))[:, None, None]
        each = share * own + (1 - share * rows[:, None, None]) * own.sum(0) / N
        root = np.linalg.cholesky(np.linalg.inv(each + least))
        volume = np.log(np.diagonal(root, 0, 1, 2)).sum(1) - D / 2 * np.log(2 * np.pi)
        prior = np.log((rows + 1) / (N + k))
        r, log_density = _posterior(prior + volume - ((apart @ root) ** 2).sum(2).T / 2)
        if (value := log_density.mean()) - last < CONVERGED:
            break
        last = value
    covariances = k if further < np.inf else 1
    free = k * (D + 1) - 1 + covariances * D * (D + 1) / 2
    return Mixture(np.unique(r.argmax(1), return_inverse=True)[1], free, log_density)


def _shows_clusters(x: np.ndarray, fit: Mixture, seed: int) -> bool:
    """Whether a mixture makes rows ``[N, D]`` likelier than forms without clusters do: heavy tails,
    of one normal if they are least so (multivariate t), and skewed variables that are independent
    (ICA, and Yeo and Johnson's powers).
    """
    (n, D), covariance = x.shape, np.cov(x.T, bias=True)
    form = {"loc": x.mean(0), "allow_singular": True}
    tails = (multivariate_t(shape=covariance * (1 - 2 / df), df=df, **form) for df in TAILS)
    sources, maps, _ = independent_sources(x, D, seed)
    powers = fitted_powers(sources)
    each = norm.logpdf(powers.apply(sources)) + powers.log_slope(sources)
    without = [(own.logpdf(x), D * (D + 3) / 2 + 1) for own in tails]
    without.append((each.sum(1) + np.linalg.slogdet(maps)[1], D * (D + 2)))
    price = fit.free * np.log(n) / 2
    return bool(fit.label.any()) and all(
        _is_likelier(fit.log_density - own, price - free * np.log(n) / 2) for own, free in without
    )


def _in_own_noise(
    x: np.ndarray,
    own: Mixture,
    fine: FacetSum,
    wanted: Sequence[int | None],
    seed: int,
    surely: bool,
) -> FacetSum:
    """Facets beside one whose clusters have each a noise of their own: what two clusters of the
    other explain tells whether these are alike in all clusters of the first, or parts of some.
    """
    fits = {k: _mixture(x, k, seed, OWN) if k else own for k in wanted}
    best = min(fits, key=lambda k: fits[k].bic)
    place = max(j for j, k in enumerate(wanted) if k == best)
    first = fits[best].label
    rest = [k for j, k in enumerate(wanted) if j != place]
    left = x - _sum_of(x, first).means[0][first]
    if not rest:
        others = []
    elif len(rest) == 1 and share_alike(x, first, _clusters_in(left, 2, seed)) > ALIKE:
        there = not surely or _are_two(left, seed)
        others = [_clusters_in(left, rest[0], seed)] if there else []
    else:
        how = len(wanted), seed, surely
        found = _beside(x, [fine], *how)
        if len(found.numbers) < len(wanted):
            found = _beside(x, [_sum_of(x, first)], *how)
        found = _filled(x, found, *how)
        others = _in_likeliest_order(x, found, [None, *rest], seed, fixed=1).labels(x)[1:]
    labels = [*others[:place], first, *others[place:]]
    return _sum_of(x, *labels, wanted=wanted if len(labels) == len(wanted) else ())


def _in_likeliest_order(
    x: np.ndarray, found: FacetSum, wanted: Sequence[int | None], seed: int, fixed: int = 0
) -> FacetSum:
    """With the numbers of clusters that are wanted; in the order found if these leave it open, the
    last first.
    """
    sums: dict[tuple[int, ...], FacetSum] = {}
    for free in permutations(reversed(range(fixed, len(found.numbers)))):
        order = [*range(fixed), *free]
        asked = tuple(wanted[j] or k for j, k in zip(order, found.numbers, strict=True))
        if asked not in sums:
            sums[asked] = _resized(x, found, asked, seed).reordered(np.argsort(order).tolist())
    return _likeliest(list(sums.values()), x)


def _clusters_in(left: np.ndarray, k: int | None, seed: int) -> np.ndarray:
    """So many, or the largest number that halves of the rows agree on as well as on any."""
    k = k or _stable(left, MOST_FURTHER, seed)
    label = _likeliest(_starts(left, k, seed), left).labels(left)[0]
    return np.unique(label, return_inverse=True)[1]


def _are_two(left: np.ndarray, seed: int) -> bool:
    """Whether two clusters make rows ``[N, D]`` likelier than one does."""
    one = _sum_of(left, np.zeros(len(left), int))
    two = _likeliest(_starts(left, 2, seed), left)
    gain = two.log_density(left) - one.log_density(left)
    return _is_likelier(gain, two.free - one.free)


def share_alike(x: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Of the variance of rows ``[N, D]`` that clusters ``second`` ``[N]`` explain beside ``first``
    ``[N]``: the share that is the same in all of these, without interactions, less what chance
    explains, as in a two-way analysis of variance; from 0 to 1.
    """
    cells = np.unique(np.stack([first, second]), axis=1, return_inverse=True)[1].ravel()
    designs = [[first], [first, second], [cells]]
    left = [len(x) * np.trace(_sum_of(x, *own).covariance) for own in designs]
    free = [1 + sum(label.max() for label in own) for own in designs]
    noise = left[2] / (len(x) - free[2])
    alike, rest = (-np.diff(left) - np.diff(free) * noise).clip(0)
    return float(alike / (alike + rest)) if alike else 0.0


@on_one_thread
def agreeing(
    x: np.ndarray,
    found: FacetSum,
    known: Mapping[int, np.ndarray],
    numbers: Sequence[int | None],
    seed: int = 0,
) -> FacetSum:
    """Facets that add up, some of which are to agree with known clusters: from those that were
    found, or from a linear rule for the known ones, by which tells these more surely.

    :param x: ``[N, D]``, in proportions that k-means can see.
    :param known: of some facets, by place, clusters ``[N]``, -1 where unknown.
    :param numbers: of each facet's clusters, ``None`` where those stay that it has, or are known.
    """
    labels, free = list(known.values()), [j for j in range(len(numbers)) if j not in known]
    classes = [numbers[j] or int(label.max()) + 1 for j, label in known.items()]
    asked = [*classes, *(numbers[j] for j in free)]
    told = [[shared_with(label, own) for own in found.labels(x)] for label in labels]
    first = linear_sum_assignment(-np.array(told))[1].tolist()
    found = found.reordered([*first, *(j for j in range(len(numbers)) if j not in first)])
    wanted = [k or own for k, own in zip(asked, found.numbers, strict=True)]
    rows = labeled_first(labels, _most_rows(wanted), seed)
    x, labels = x[rows], [label[rows] for label in labels]
    clusters = _resized(x, found, wanted, seed).labels(x)
    each = zip(labels, clusters, wanted, strict=False)
    starts = zip(*(starts_of(x, *own) for own in each), strict=False)
    mask = sum(
        np.expand_dims(allowed(label, wanted[j]), [a + 1 for a in range(len(wanted)) if a != j])
        for j, label in enumerate(labels)
    )
    sums = [_fitted(x, [*own, *clusters[len(labels) :]], wanted, mask) for own in starts]
    best = max(sums, key=lambda each: sum(map(sureness, each.responsibilities(x), labels)))
    return best.reordered(np.argsort([*known, *free]).tolist())


def _beside(
    x: np.ndarray, bases: Sequence[FacetSum], number: int, seed: int, surely: bool
) -> FacetSum:
    """With so many facets, or as many as can be, each of them independent and, if surely, likelier
    than without it beside any base; of all bases the one with the lowest BIC in the end.
    """
    each = []
    for found in bases:
        alike = [own for own in bases if len(own.numbers) == len(found.numbers)]
        before = min(alike, key=lambda own: own.bic(x))
        while len(found.numbers) < number and (more := _further(x, found, seed)):
            gain = more.log_density(x) - before.log_density(x)
            price = (more.free - before.free) * np.log(len(x)) / 2
            if surely and not _is_likelier(gain, price):
                break
            found = before = more
        each.append(found)
    return max(each, key=lambda own: (len(own.numbers), -own.bic(x)))


def _filled(x: np.ndarray, found: FacetSum, number: int, seed: int, surely: bool) -> FacetSum:
    """With any two clusters for each facet that is missing, unless there need not be so many."""
    while not surely and len(found.numbers) < number:
        found = _likeliest(_starts(x, 2, seed, found), x)
    return found


def _resized(x: np.ndarray, found: FacetSum, numbers: Sequence[int], seed: int) -> FacetSum:
    """With so many clusters of each facet: those it has are joined, or others looked for."""
    for place, (own, k) in enumerate(zip(found.numbers, numbers, strict=True)):
        if k > own:
            others = [means for j, means in enumerate(found.means) if j != place]
            found = _with(x, found, k, _clusters_beside(x, others, k, seed), place)
        elif k < own:
            joined = KMeans(k, n_init=FITS, random_state=seed)
            joined.fit(found.means[place] @ found.whitening, sample_weight=found.weights[place])
            found = _with(x, found, k, joined.labels_[found.labels(x)[place]], place)
    return found


def _stable(x: np.ndarray, most: int, seed: int) -> int:
    """The largest number of clusters that hardly any other is steadier than in halves."""
    agreement = {k: fmean(_between_halves(x, k, seed)) for k in range(2, most + 1)}
    best = max(agreement.values(), default=0.0)
    return max((k for k, value in agreement.items() if value >= best - STEADIER), default=1)


def _between_halves(x: np.ndarray, k: int, seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    for i in range(HALVES):
        halves = np.array_split(rng.permutation(len(x)), 2)
        starts = [_clusters_beside(x[half], [], k, i) for half in halves]
        fits = [_fitted(x[a], [own], [k]) for a, own in zip(halves, starts, strict=True)]
        yield adjusted_rand_score(*(fit.labels(x)[0] for fit in fits))


def _further(x: np.ndarray, found: FacetSum, seed: int) -> FacetSum | None:
    """With one facet more; ``None`` if the three likeliest starts agree on no clusters that are
    independent.
    """
    best = []
    for k in range(2, min(MOST_FURTHER, len(x) // (2 * FEWEST)) + 1):
        sums = sorted(_starts(x, k, seed, found), key=lambda each: each.log_density(x).mean())
        first, *next_two = (each.labels(x) for each in sums[:-4:-1])
        agreement = fmean(adjusted_rand_score(first[-1], other[-1]) for other in next_two)
        if agreement >= STABLE and _shared(first) <= SHARED:
            best.append(sums[-1])
    return min(best, key=lambda each: each.bic(x), default=None)


def _shared(labels: Sequence[np.ndarray]) -> float:
    """The most that two facets have in common, as a share of the smaller entropy."""
    most = 0.0
    for pair in combinations(labels, 2):
        least = min(entropy(np.bincount(label)) for label in pair)
        most = max(most, shared_information(pair) / least if least else 0.0)
    return most


def _is_likelier(gain: np.ndarray, price: float) -> bool:
    """Whether what rows' log-densities gain ``[N]`` is beyond chance more than a price, in nats:
    the number of parameters (Akaike), or, of the best of many, this by half of log N (BIC).
    """
    return bool(gain.sum() - price > LIKELIER * gain.std() * np.sqrt(len(gain)))
