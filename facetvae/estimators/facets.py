"""What users give of facets: names, numbers of clusters, known labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from facetvae.describing.columns import named_columns
from facetvae.table_rules import counting
from inference.initialization.neighbors import neighbor_clusters
from ppl_models.given.checks import check_size
from ppl_models.given.frames import is_frame
from ppl_models.given.labels import as_labels

# Name of the latent without clusters that describes what the facets leave of the data.
REST = "rest"
# A facet is a level of a network: more are a mistake.
MOST_FACETS = 1000


def facet_names(facets: int | Sequence[str] | np.ndarray) -> list[str]:
    """Names of the facets, shallow to deep."""
    if isinstance(facets, np.ndarray) and facets.ndim:
        facets = facets.tolist()
    if isinstance(facets, str):  # a name alone, which reads as a sequence of letters
        names = []
    elif isinstance(facets, Sequence) and all(isinstance(name, str) for name in facets):
        names = list(facets)
    else:
        number = check_size("facets", facets)
        if number > MOST_FACETS:
            raise ValueError(f"facets must be at most {MOST_FACETS}, got {number}")
        names = [f"facet_{j}" for j in range(number)]
    if not names or len(set(names)) < len(names) or not all(map(str.isidentifier, names)):
        raise ValueError(
            "facets must be a number, or names that differ and are valid in Python, such as "
            f"('style', 'digit'), got {facets!r}"
        )
    if REST in names:
        raise ValueError(
            f"a facet cannot be called {REST!r}, as what facets leave of the data is: give it "
            "another name"
        )
    return names


def facet_index(names: Sequence[str], facet: str | int) -> int:
    """:raises ValueError: if the facet is unknown."""
    if facet in names:
        return list(names).index(str(facet))
    numbers = range(-len(names), len(names))
    if isinstance(facet, int | np.integer) and not isinstance(facet, bool) and facet in numbers:
        return int(facet) % len(names)
    raise ValueError(f"unknown facet {facet!r}: there are {list(names)}, or their numbers")


def for_each(names: Sequence[str], option: str, value: Any) -> dict[str, Any]:
    """The option's value for each facet, ``None`` if it was not given."""
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
    each = list(value) if several else [value] * len(names)
    if len(each) != len(names):
        raise ValueError(
            f"{option} must be one number, or one for each of the {len(names)} facets, got "
            f"{value!r}"
        )
    return {
        n: None if v is None else check_size(f"{option} of {n!r}", v)
        for n, v in zip(names, each, strict=True)
    }


def at_least(label: np.ndarray, facet: str, number: int | None) -> int:
    """A facet's number of clusters, no less than that of its labels ``[N]``, its default."""
    there, classes = np.unique(label[label >= 0]), int(label.max()) + 1
    if number is None and (len(there) < classes or classes == 1):
        what = "of 0 alone" if classes == 1 else f"up to {classes - 1}, but not of all below"
        raise ValueError(
            f"facet {facet!r} has labels {what}: clusters are numbered from 0, as "
            "np.unique(labels, return_inverse=True)[1] numbers them; if there are some without "
            "labels, give n_clusters"
        )
    if number is not None and number < classes:
        raise ValueError(
            f"facet {facet!r} has labels up to {classes - 1}, but n_clusters={number}: give "
            f"{classes}"
        )
    return number or classes


def check_enough(
    most: int, n: int, numbers: Mapping[str, int | None], purpose: str = "training"
) -> None:
    """:raises ValueError: if there are more clusters than data used, ``most`` of ``n``."""
    for name, number in numbers.items():
        if number is not None and number > most:
            raise ValueError(
                f"facet {name!r} cannot have {number} clusters: only {most} of {n} data are used "
                f"for {purpose}; give fewer clusters"
            )


def labeled_rows(known: Mapping[str, np.ndarray], n: int) -> np.ndarray:
    """Which rows ``[n]`` have a known cluster in some facet."""
    return np.any([np.zeros(n, bool), *(label >= 0 for label in known.values())], axis=0)


def only_rows(known: Mapping[str, np.ndarray], outlying: np.ndarray) -> np.ndarray:
    """Which outlying rows ``[N]`` have a label that others have not."""
    kept = np.zeros(len(outlying), bool)
    for label in known.values():
        alone = np.setdiff1d(label[outlying], label[~outlying])
        kept |= outlying & np.isin(label, alone[alone >= 0])
    return kept


def known_labels(labels: Any, names: Sequence[str], n: int) -> dict[str, np.ndarray]:
    """Known clusters, by name of the facets that have any."""
    if labels is None:
        return {}
    if is_frame(labels):
        labels = named_columns(labels)
    if not isinstance(labels, Mapping):
        if len(names) > 1:
            raise ValueError(
                f"there are {len(names)} facets: give labels by name, such as {{{names[-1]!r}: "
                f"labels}}"
            )
        labels = {names[0]: labels}
    if unknown := [name for name in labels if name not in names]:
        raise ValueError(f"labels are given for {unknown[0]!r}, but the facets are {list(names)}")
    largest = np.iinfo(np.int32).max
    for name, each in labels.items():
        if len(shape := np.shape(each)) == 1 and shape[0] != n:
            raise ValueError(
                f"labels of {name!r} has shape {list(shape)}, but there are {n} samples: give one "
                "class per sample; a search or cross-validation cuts a data frame into its parts, "
                "but no mapping: give pandas.DataFrame(labels)"
            )
    checked = {
        name: as_labels(f"labels of {name!r}", each, n, largest, unknown=True).numpy()
        for name, each in labels.items()
    }
    return {name: label for name, label in checked.items() if (label >= 0).any()}


# The rules for tables, with the graph's clusters.
number_of_facets = partial(counting.number_of_facets, neighbor_clusters)
clusters_in_subspaces = partial(counting.clusters_in_subspaces, neighbor_clusters)
