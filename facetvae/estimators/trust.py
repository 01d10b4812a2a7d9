"""Whether facets are to be relied on: fits to halves of the rows, and to shuffled columns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.covariance import LedoitWolf
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import train_test_split

from facetvae.estimators.counts import shuffled_columns
from facetvae.estimators.gaps import fitted_fill
from facetvae.table_rules.rows import has_missing
from inference.markdown import table
from ppl_models.given.checks import check_size
from ppl_models.given.frames import is_frame, native_columns, replaced


@dataclass(frozen=True)
class Trust:
    """What speaks for a fit's facets, and what against it, from fits to halves of the rows.

    :ivar found_again: for each facet, by name, the adjusted Rand indices of fits to two halves: of
        their facets that are most like it, for all rows; empty if it has one cluster.
    :ivar by_chance: the same of halves whose columns are shuffled, each by itself; empty if no
        facet there has two clusters. A column with clusters of its own has them there, too.
    :ivar bounds: nats per row of the halves that fits have not seen, by what is fitted: a lower
        bound of ``"this model"``, of ``"linear maps"`` if its networks are trained, and of
        ``"shuffled columns"`` (this model, without what ties columns); the log-density of
        ``"one normal"``, where columns are real numbers.
    """

    found_again: dict[str, list[float]]
    by_chance: list[float]
    bounds: dict[str, list[float]]

    def to_markdown(self) -> str:
        """Two tables to read: means, and least and largest of the halves."""
        by_chance = {"shuffled columns": self.by_chance} if self.by_chance else {}
        found, bounds = self.found_again | by_chance, self.bounds
        lines = [
            table(["facet", "found again (ARI)", "least", "most"], _rows(found, 2)),
            "" if by_chance else "\nIn shuffled columns no facet has two clusters.\n",
            table(["nats per row of other halves", "mean", "least", "most"], _rows(bounds, 1)),
        ]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.to_markdown()


def _rows(values: dict[str, list[float]], digits: int) -> list[list[str]]:
    ends = (np.mean, np.min, np.max)
    return [
        [name, *(f"{end(of):.{digits}f}" if of else "one cluster" for end in ends)]
        for name, of in values.items()
    ]


def trusted(estimator: Any, X: Any, repeats: int) -> Trust:
    """See :meth:`~facetvae.estimators.MultiFacetClustering.trust`."""
    check_size("repeats", repeats)
    found = Trust({name: [] for name in estimator.facet_names_}, [], {})
    facets = estimator.predict(X).T
    for seed in range(repeats):
        halves = train_test_split(X, test_size=0.5, random_state=seed)
        fits = [_fit(estimator, half, seed) for half in halves]
        told = [fit.predict(X) for fit in fits]
        each = zip(found.found_again.values(), facets, estimator.n_clusters_, strict=True)
        for indices, facet, number in each:
            if number > 1:
                indices.append(_index(*(_most_alike(facet, own) for own in told)))
        bounds = {"this model": _bound(fits, halves)}
        of_columns = fits[0].encoding_.of_columns and estimator._architecture is None
        simple = {"network": "linear"} if of_columns else {}
        if simple and any(fit.settings_["model"].startswith("deep") for fit in fits):
            linear = [_fit(estimator, half, seed, **simple) for half in halves]
            bounds["linear maps"] = _bound(linear, halves)
        if fits[0].encoding_.of_real_columns:
            bounds["one normal"] = _one_normal(fits[0], *halves)
        shuffled = [_shuffled(half, seed) for half in halves]
        by_chance = [_fit(estimator, half, seed, **simple) for half in shuffled]
        first, second = (fit.predict(X) for fit in by_chance)
        for facet, number in zip(first.T, by_chance[0].n_clusters_, strict=True):
            if number > 1:
                found.by_chance.append(_index(facet, _most_alike(facet, second)))
        bounds["shuffled columns"] = _bound(by_chance, shuffled)
        for name, bound in bounds.items():
            found.bounds.setdefault(name, []).append(bound)
    return found


def _fit(estimator: Any, X: Any, seed: int, **options: Any) -> Any:
    again = clone(estimator).set_params(random_state=seed, n_init=1, verbose=False, **options)
    with warnings.catch_warnings():  # of what the first fit has told, or of what is expected
        warnings.simplefilter("ignore", UserWarning)
        return again.fit(X)


def _index(facet: np.ndarray, other: np.ndarray) -> float:
    """Adjusted Rand index; two facets of one cluster have nothing in common."""
    alone = min(len(np.unique(each)) for each in (facet, other)) < 2
    return 0.0 if alone else float(adjusted_rand_score(facet, other))


def _most_alike(facet: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The facet of ``[N, J]`` that is most like clusters ``[N]``."""
    return max(others.T, key=lambda other: _index(facet, other))


def _bound(fits: Sequence[Any], halves: Sequence[Any]) -> float:
    """The mean ELBO of each half's rows under the fit to the other."""
    return float(np.mean([fit.score(X) for fit, X in zip(fits, halves[::-1], strict=True)]))


def _one_normal(fitted: Any, first: Any, second: Any) -> float:
    """Mean log-density, in nats per row, of the second rows under a normal fitted to the first."""
    (own, other), outliers = map(fitted.encode, (first, second)), fitted.outliers_
    if has_missing(own) or has_missing(other):
        density = fitted_fill(own[~outliers]).log_prob(torch.as_tensor(other).double()).mean()
    else:
        density = LedoitWolf().fit(own[~outliers]).score(other)
    volume = fitted.encoding_.log_volume(fitted._later_data(second)).mean()
    return float(density - volume)


def _shuffled(X: Any, seed: int) -> Any:
    """The rows with each column in an order of its own."""
    rng = np.random.default_rng(seed)
    if is_frame(X):
        columns = (nw.from_native(each, series_only=True) for _, each in native_columns(X))
        drawn = (each[rng.permutation(len(each)).tolist()].to_native() for each in columns)
        return replaced(X, {i: getattr(each, "array", each) for i, each in enumerate(drawn)})
    return shuffled_columns(X, rng).tocsr() if issparse(X) else rng.permuted(np.asarray(X), axis=0)
