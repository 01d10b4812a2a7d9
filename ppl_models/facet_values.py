"""What is given for the clusters of some facets: by the facets' names, or in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ppl_models.arrays import as_labels, as_numbers
from ppl_models.plain import with_unknown


def cluster_labels(name: str, values: Any, n: int, facets: Mapping[str, int]) -> Tensor:
    """Known clusters, a column a facet: integers ``[n, J]``, -1 where unknown.

    :param name: the keyword, for messages.
    :param values: integers ``[n]`` by facet, or columns ``[n, J]``; of one facet, ``[n]``.
    :param facets: the number of clusters of each facet that may be known.
    :raises ValueError: if they do not fit.
    """
    columns = values if isinstance(values, Mapping) else with_unknown(values, name)
    given = _by_facet(name, columns, dict.fromkeys(facets, 1), "clusters")
    return torch.stack(
        [
            as_labels(f"{name} of {facet!r}", _flat(given[facet]), n, number, unknown=True).cpu()
            if facet in given
            else torch.full((n,), -1)
            for facet, number in facets.items()
        ],
        1,
    )


def neighbor_counts(
    name: str, values: Any, n: int, facets: Mapping[str, int], like: Tensor
) -> Tensor:
    """How many neighbours are in each cluster, the facets' side by side: ``[n, K + ...]``.

    :param name: the keyword, for messages.
    :param values: numbers ``[n, K]`` by facet, or side by side.
    :param facets: the number of clusters K of each facet that has neighbours.
    :param like: whose dtype and device the result has.
    :raises ValueError: if they do not fit, are negative or infinite.
    """
    given = _by_facet(name, values, facets, "a NeighborMixture")
    counts = []
    for facet, number in facets.items():
        each = as_numbers(given[facet], name) if facet in given else torch.zeros(n, number)
        if tuple(each.shape) != (n, number):
            raise ValueError(
                f"{name} of {facet!r} has shape {list(each.shape)}, but numbers for {n} data and "
                f"{number} clusters are needed: [{n}, {number}]"
            )
        if not (each >= 0).all() or each.isinf().any():
            raise ValueError(
                f"{name} of {facet!r} holds numbers that no count can be: they must be finite and "
                "at least 0"
            )
        counts.append(each.to(like))
    return torch.cat(counts, -1)


def _by_facet(name: str, values: Any, sizes: Mapping[str, int], what: str) -> dict[str, Any]:
    """Values by facet.

    :param sizes: the number of columns of each facet.
    :param what: the facets have, for messages.
    """
    if not sizes:
        raise ValueError(f"{name} is for facets with {what}, but this model has none")
    if isinstance(values, Mapping):
        if unknown := [facet for facet in values if facet not in sizes]:
            raise ValueError(
                f"{name} is given for {unknown[0]!r}, but the facets with {what} are {list(sizes)}"
            )
        return dict(values)
    columns, needed = as_numbers(values, name), sum(sizes.values())
    if len(sizes) == 1:
        return dict.fromkeys(sizes, columns)
    if columns.ndim != 2 or columns.shape[1] != needed:
        raise ValueError(
            f"{name} has shape {list(columns.shape)}, but this model has {len(sizes)} facets with "
            f"{what}: give them by facet, such as {name}={{{list(sizes)[-1]!r}: ...}}, or in "
            f"{needed} columns, the facets' side by side"
        )
    return dict(zip(sizes, columns.split(list(sizes.values()), 1), strict=True))


def _flat(values: Any) -> Any:
    """A single column as a row of values."""
    return values[:, 0] if getattr(values, "ndim", 1) == 2 and values.shape[1] == 1 else values
