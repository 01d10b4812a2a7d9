"""What users give beside x, one entry a sample: classes, groups, known clusters, neighbors.

What does not fit is a ValueError, which names the keyword ``name`` and says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import torch
from narwhals.stable.v2.dependencies import is_into_series
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_models.given.arrays import array_of_tensor, as_numbers, gaps_in, is_masked, numbers_of


def as_labels(
    name: str, values: ArrayLike | Tensor, n: int, num_classes: int, unknown: bool = False
) -> Tensor:
    """Classes ``[n]``, integers from 0 to ``num_classes - 1``.

    :param unknown: whether classes may be unknown: -1, or a gap as of :func:`with_unknown`.
    """
    labels = as_integers(name, with_unknown(values, name) if unknown else values, n, "class")
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < (-1 if unknown else 0) or high >= num_classes:
        marked = ", or -1 where unknown" if unknown else ""
        raise ValueError(
            f"{name} has classes from {low} to {high}, but the model was built for 0 to "
            f"{num_classes - 1}{marked}"
        )
    return labels


def draw_labels(
    n: int, num_classes: int, device: torch.device, given: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The given classes of ``n`` samples, checked; drawn uniformly if not given."""
    beside = dict(given or {})
    label = beside.pop("label", None)
    if beside:
        raise ValueError(
            f"only label= can be given besides the latents, got {' and '.join(beside)}"
        )
    if label is None:
        return {"label": torch.randint(num_classes, (n,), device=device)}
    return {"label": as_labels("label", label, n, num_classes).to(device)}


def as_groups(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Groups ``[n]``, given as any integers and renumbered from 0."""
    return as_integers(name, values, n, "group").unique(return_inverse=True)[1]


def group_sizes(group: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Number of rows in each of B slots, for groups ``[B]`` numbered from 0: ``[B]``.

    There are as many slots as rows, so that no count has to be copied to the host.
    """
    ones = torch.ones(len(group), dtype=dtype, device=group.device)
    return torch.zeros_like(ones).index_add(0, group, ones)


def as_mask(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Booleans ``[n]``."""
    mask = as_numbers(values, name)
    if tuple(mask.shape) != (n,) or mask.dtype != torch.bool:
        raise ValueError(
            f"{name} must hold {n} booleans, one per sample, got {mask.dtype} {list(mask.shape)}"
        )
    return mask


def as_integers(name: str, values: ArrayLike | Tensor, n: int, what: str) -> Tensor:
    """Integers ``[n]``.

    :param what: what each integer stands for, for messages.
    """
    if is_masked(values):
        raise ValueError(f"{name} has masked entries: give one {what} for each sample")
    integers = as_numbers(values, name)
    if tuple(integers.shape) != (n,):
        raise ValueError(
            f"{name} has shape {list(integers.shape)}, but there are {n} samples: "
            f"give one {what} per sample"
        )
    if integers.is_floating_point() or integers.dtype == torch.bool:
        raise ValueError(
            f"{name} must hold integers, got {integers.dtype}: convert it if each value is a {what}"
        )
    if integers.dtype == torch.uint64 and (integers.long() < 0).any():
        raise ValueError(f"{name} holds integers beyond 2**63 - 1: renumber them")
    return integers.long()


def with_unknown(labels: Any, name: str) -> Any:
    """``labels``, with -1 instead of masked entries, ``pandas.NA``, and NaN among whole numbers,
    which is how pandas holds integers with gaps; in lists and arrays of objects also of None, and
    of either among strings.
    """
    if is_into_series(labels) and not hasattr(labels, "iloc"):  # of polars or PyArrow
        labels = nw.from_native(labels, series_only=True).to_list()
    if isinstance(labels, Tensor) and labels.is_floating_point():
        labels = array_of_tensor(labels, name)
    gaps = gaps_in(labels)
    if not gaps.any():
        return labels
    found = np.array(labels, dtype=object)
    found[gaps] = -1
    plain = numbers_of(found, name)
    if plain.dtype.kind != "f":
        return plain
    if all(isinstance(label, int) for label in found.tolist()):
        raise ValueError(
            f"{name} has integers beyond 2**63 - 1, which cannot stand beside unknown ones: "
            "renumber them"
        )
    whole = ((plain == np.rint(plain)) & (np.abs(plain) < 2.0**63)).all()
    return plain.astype(np.int64) if whole else labels


def cluster_labels(name: str, values: Any, n: int, facets: Mapping[str, int]) -> Tensor:
    """Known clusters, a column a facet: integers ``[n, J]``, -1 where unknown.

    :param values: integers ``[n]`` by facet, or columns ``[n, J]``; of one facet, ``[n]``.
    :param facets: the number of clusters of each facet that may be known.
    """
    columns = values if isinstance(values, Mapping) else with_unknown(values, name)
    given = _by_facet(name, columns, dict.fromkeys(facets, 1), "clusters")
    labels = dict.fromkeys(facets, torch.full((n,), -1))
    for facet, each in given.items():
        if getattr(each, "ndim", 1) == 2 and each.shape[1] == 1:
            each = each[:, 0]
        what = f"{name} of {facet!r}"
        labels[facet] = as_labels(what, each, n, facets[facet], unknown=True).cpu()
    return torch.stack(list(labels.values()), 1)


def neighbor_counts(
    name: str, values: Any, n: int, facets: Mapping[str, int], like: Tensor
) -> Tensor:
    """How many neighbors are in each cluster, the facets' side by side: ``[n, K + ...]``.

    :param values: numbers ``[n, K]`` by facet, or side by side.
    :param facets: the number of clusters K of each facet that has neighbors.
    :param like: whose dtype and device the result has.
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
    """Values by facet, which all have ``what``; ``sizes`` are their numbers of columns."""
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
