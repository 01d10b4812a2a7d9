"""What a facet is about: its clusters, the columns that tell them apart, and how sure that is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from facetvae.describing.columns import Categories, Column, columns_of, named_columns
from inference.markdown import plain, table
from ppl_models.given.arrays import plain_array
from ppl_models.given.checks import check_count, check_kind, number

__all__ = ["FacetClusters", "FacetDescription", "describe_clusters"]

#: A row whose largest probability is below this is not sure.
SURE = 0.8
# Most categories of a column that are told of a cluster: those that differ most from the others.
MOST_LEVELS = 2


@dataclass(frozen=True)
class FacetClusters:
    """What a model says of N rows, for one facet.

    :ivar facet: its name.
    :ivar probabilities: of each cluster ``[N, K]``.
    :ivar typicality: how typical each row is of each cluster ``[N, K]``, higher for more typical,
        such as log p(c, z) at the mean of z; by default the probabilities.
    :ivar left_out: rows that belong to no cluster ``[N]``; by default none.
    :ivar stability: the facet's stability over several starts, if it is known.
    """

    facet: str
    probabilities: np.ndarray
    typicality: np.ndarray | None = None
    left_out: np.ndarray | None = None
    stability: float | None = None

    @property
    def group(self) -> np.ndarray:
        """The most probable cluster of each row ``[N]``; -1 for none."""
        found = np.asarray(self.probabilities).argmax(1)
        return found if self.left_out is None else np.where(self.left_out, -1, found)

    @property
    def certainty(self) -> np.ndarray:
        """The largest probability of each row ``[N]``."""
        return np.asarray(self.probabilities).max(1)

    def typical(self, cluster: int) -> np.ndarray:
        """The rows of a cluster, the most typical first: those that surely belong to it, in order
        of their typicality, and then the others.
        """
        rows = np.flatnonzero(self.group == cluster)
        scores = self.probabilities if self.typicality is None else self.typicality
        order = np.lexsort((-np.asarray(scores)[rows, cluster], self.certainty[rows] < SURE))
        return rows[order]


@dataclass(frozen=True)
class FacetDescription:
    """What a facet is about, in Python's own types: see :func:`describe_clusters`.

    ``str`` and :meth:`to_markdown` give a page to read, :meth:`as_dict` everything, for JSON.

    :ivar facet: its name.
    :ivar rows: number of rows.
    :ivar left_out: number of rows that belong to no cluster.
    :ivar confidence: level of all intervals.
    :ivar clusters: for each cluster with rows ``cluster`` (its number), ``size``, ``share`` of
        the rows that belong to any, ``certainty`` (mean of the largest probability), ``exemplars``
        (numbers of its most typical rows, the most typical first, no two of the same values) and,
        for data without named columns, ``mean`` and ``mean_of_others``, that of the other clusters'
        rows.
    :ivar columns: the columns that the clusters explain most of, the most first.
    :ivar columns_left_out: number of further columns.
    :ivar metadata: the same of each column that the model has not seen, all of them.
    :ivar certainty: ``mean`` of the largest probability, and ``unsure``, the share of rows where it
        is below ``SURE``.
    :ivar stability: adjusted Rand index with other starts; ``None`` if there was one start.
    """

    facet: str
    rows: int
    left_out: int
    confidence: float
    clusters: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    columns_left_out: int
    metadata: list[dict[str, Any]]
    certainty: dict[str, Any]
    stability: float | None

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON holds it; a copy."""
        return {each.name: copy.deepcopy(getattr(self, each.name)) for each in fields(self)}

    def to_markdown(self) -> str:
        """A page to read."""
        heads = ["cluster", "rows", "share", "probability", "typical rows"]
        clusters = [
            [
                str(each["cluster"]),
                str(each["size"]),
                f"{100 * each['share']:.0f} %",
                f"{each['certainty']:.2f}",
                ", ".join(map(str, each["exemplars"])),
            ]
            for each in self.clusters
        ]
        lines = [f"# {plain(self.facet)}: {len(self.clusters)} clusters of {self.rows} rows", ""]
        lines += [self.certainty_text(), "", table(heads, clusters)]
        explained = "Columns, by how much the clusters explain"
        lines += _columns_table(explained, self.columns, self)
        if self.columns_left_out:
            lines += ["", f"{self.columns_left_out} further columns are explained less."]
        lines += _columns_table("Columns that the model has not seen", self.metadata, self)
        return "\n".join(lines) + "\n"

    def certainty_text(self) -> str:
        """How sure and how stable the clusters are, in sentences."""
        certainty, said = self.certainty, []
        if certainty["mean"] is not None:
            said.append(
                f"The most probable cluster has a probability of {certainty['mean']:.2f} on "
                f"average, and less than 0.8 in {100 * certainty['unsure']:.0f} % of the rows."
            )
        if self.left_out:
            said.append(f"{self.left_out} rows belong to no cluster.")
        if self.stability is not None:
            said.append(
                f"Other starts find the facet with an adjusted Rand index of {self.stability:.2f}."
            )
        return " ".join(said)

    def __str__(self) -> str:
        return self.to_markdown()


def describe_clusters(
    found: FacetClusters,
    X: Any,
    metadata: Any = None,
    *,
    exemplars: int = 5,
    columns: int = 20,
    confidence: float = 0.95,
    kinds: Mapping[str, str] | None = None,
) -> FacetDescription:
    r"""Describe a facet's clusters in the words of the data's columns.

    An entry of ``columns`` or ``metadata`` has the column's name as ``column``, its ``kind``
    (``"numbers"``, ``"counts"``, ``"categories"``), ``observed`` and ``missing`` rows, ``effect``
    (the share of it that the clusters explain, less what chance explains on average, in [0, 1])
    with its ``interval``, ``beyond_chance`` (whether that interval excludes 0), ``measure`` and
    ``raw``, the measure as it is in these rows: eta squared, or Cramer's V. ``effect`` is ``None``
    where there are fewer than two groups.

    - Numbers have ``mean`` and ``deviation``, and for each cluster ``mean`` and ``difference`` from
      the mean of all other rows with Welch's ``interval``, in the column's units.
    - Counts have the ``ratio`` of the cluster's mean count to that of all other rows.
    - Categories have ``shares``, and for each cluster ``shares`` with Wilson's ``intervals``.
      Metadata of categories also have ``adjusted_mutual_information``, ``adjusted_rand`` and the
      contingency ``table`` by category and cluster.

    Clusters were found in the very columns that they are compared in, so that they differ there
    even in data without any groups: the intervals describe the clusters and test nothing. Of
    rows that the model was not fitted to they say how far the differences are found again, and of
    ``metadata``, which it has not seen, whether clusters go with them. They are intervals of one
    column each: at 95 %, of 40 columns without any relation one is ``beyond_chance`` on average.

    :param found: what the model says of the rows.
    :param X: the rows, in the units to describe them in: a data frame, a mapping of names to
        columns, or an array ``[N, ...]``, whose entries are numbers.
    :param metadata: further columns of the same rows, as a data frame or mapping; labels as
        strings, since numbers are compared as numbers. Frames and series have the index of ``X``,
        in its order; what has no index goes by place.
    :param exemplars: most rows to name of each cluster.
    :param columns: most columns to describe.
    :param confidence: of all intervals.
    :param kinds: kinds of some columns by name; others follow their values.
    :raises ValueError: if lengths or indexes differ, there are no rows, or a column is not
        understood.

    Example:
        >>> import numpy as np
        >>> from facetvae.describing import FacetClusters, describe_clusters
        >>> group = np.arange(60) % 2
        >>> found = FacetClusters("kind", np.eye(2)[group])
        >>> X = {"size": group + np.random.default_rng(0).normal(0, 0.1, 60)}
        >>> told = describe_clusters(found, X, {"town": np.array(["Oslo", "Bath"])[group]})
        >>> told.columns[0]["column"], round(told.columns[0]["clusters"][1]["difference"], 1)
        ('size', 1.0)
        >>> told.metadata[0]["adjusted_rand"]
        1.0
    """
    check_count("exemplars", exemplars)
    check_count("columns", columns)
    if not 0 < number(confidence) < 1:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.95, got {confidence!r}")
    n = _checked(found)
    own, beside = columns_of("X", X, kinds), _metadata(metadata)
    if not own:
        raise ValueError("X has no columns: give the rows with those to describe clusters in")
    for what, each in [("X", each) for each in own] + [("metadata", each) for each in beside]:
        if len(each.values) != n:
            raise ValueError(
                f"column {each.name!r} of {what} has {len(each.values)} rows, but the clusters are "
                f"of {n}"
            )
    _check_order(X, metadata)
    group = found.group
    ranked = sorted(
        ((_explained(each, group, confidence), each) for each in own),
        key=lambda pair: 1.0 if pair[0]["effect"] is None else -pair[0]["effect"],
    )
    rows = [row.tobytes() for row in np.stack([each.values for each in own], 1)]
    stability = np.nan if found.stability is None else float(found.stability)
    means = _means(plain_array(X, "X"), group) if named_columns(X) is None else {}
    return FacetDescription(
        facet=found.facet,
        rows=n,
        left_out=int((group < 0).sum()),
        confidence=float(confidence),
        clusters=[_cluster(found, k, rows, exemplars) | means.get(k, {}) for k in _in_use(group)],
        columns=[told | _by_cluster(each, group, confidence) for told, each in ranked[:columns]],
        columns_left_out=max(0, len(own) - columns),
        metadata=[_beside(each, group, confidence) for each in beside],
        certainty=_certainty(found.certainty[group >= 0]),
        stability=None if np.isnan(stability) else stability,
    )


def _checked(found: FacetClusters) -> int:
    """The number of rows.

    :raises ValueError: if the arrays are of other shapes, or empty.
    """
    check_kind("found", found, FacetClusters, "FacetClusters(facet, probabilities)")
    shape = np.shape(found.probabilities)
    if len(shape) != 2 or not all(shape):
        raise ValueError(f"probabilities must be [N, K], of at least one row, got shape {shape}")
    for name, needed in (("typicality", shape), ("left_out", shape[:1])):
        value = getattr(found, name)
        if value is not None and np.shape(value) != needed:
            raise ValueError(f"{name} must have shape {needed}, got {np.shape(value)}")
    return shape[0]


def _metadata(given: Any) -> list[Column]:
    if given is None:
        return []
    if named_columns(given) is None:
        raise ValueError(
            "metadata must be a data frame, or columns by name, such as {'town': towns}, got "
            f"{type(given).__name__}"
        )
    return columns_of("metadata", given)


def _check_order(X: Any, metadata: Any) -> None:
    """Check that frames and series have one index: what has none goes by place.

    :raises ValueError: if two have different ones.
    """
    indexed = [
        (what, each.index)
        for what, given in (("X", X), ("metadata", metadata))
        for what, each in (
            [(f"{what}[{name!r}]", column) for name, column in given.items()]
            if isinstance(given, Mapping)
            else [(what, given)]
        )
        if hasattr(getattr(each, "index", None), "equals")
    ]
    for what, index in indexed[1:]:
        first, ours = indexed[0]
        if not ours.equals(index):
            raise ValueError(
                f"{what} has other rows than {first}, or has them in another order: give "
                f"{what}.loc[{first}.index], or {what}.set_axis({first}.index) if they are the "
                "same by place"
            )


def _in_use(group: np.ndarray) -> list[int]:
    return np.unique(group[group >= 0]).tolist()


def _explained(column: Column, group: np.ndarray, confidence: float) -> dict[str, Any]:
    """How much the clusters explain of a column."""
    effect = column.effect(group, confidence)
    observed = int((column.observed & (group >= 0)).sum())
    return {
        "column": column.name,
        "kind": column.kind,
        "observed": observed,
        "missing": int((group >= 0).sum()) - observed,
        "effect": None if effect is None else effect.share,
        "interval": None if effect is None else list(effect.interval),
        "beyond_chance": None if effect is None else effect.beyond_chance,
        "measure": None if effect is None else effect.measure,
        "raw": None if effect is None else effect.raw,
        **column.overall(group >= 0),
    }


def _by_cluster(column: Column, group: np.ndarray, confidence: float) -> dict[str, Any]:
    among = group >= 0
    return {
        "clusters": [
            {"cluster": k, **column.of_group(group == k, among & (group != k), confidence)}
            for k in _in_use(group)
        ]
    }


def _beside(column: Column, group: np.ndarray, confidence: float) -> dict[str, Any]:
    """A column that the model has not seen."""
    told = _explained(column, group, confidence) | _by_cluster(column, group, confidence)
    if not isinstance(column, Categories):
        return told
    rows = column.observed & (group >= 0)
    codes, clusters = column.values[rows], group[rows]
    by_level = column.table(group)[:, _in_use(group)].tolist()
    scores = adjusted_mutual_info_score, adjusted_rand_score
    # Of no rows both would be 1.
    shared, alike = (float(score(codes, clusters)) if rows.any() else None for score in scores)
    return told | {
        "adjusted_mutual_information": shared,
        "adjusted_rand": alike,
        "table": dict(zip(column.levels, by_level, strict=True)),
    }


def _cluster(
    found: FacetClusters, cluster: int, rows: Sequence[bytes], exemplars: int
) -> dict[str, Any]:
    group = found.group
    ours = group == cluster
    distinct: dict[bytes, int] = {}
    for i in found.typical(cluster).tolist():
        distinct.setdefault(rows[i], i)
    return {
        "cluster": cluster,
        "size": int(ours.sum()),
        "share": float(ours.sum() / (group >= 0).sum()),
        "certainty": float(found.certainty[ours].mean()),
        "exemplars": list(distinct.values())[:exemplars],
    }


def _means(X: np.ndarray, group: np.ndarray) -> dict[int, dict[str, list[Any]]]:
    """Means ``[...]`` of each cluster's rows and of the other clusters', of what is observed."""
    sums: dict[int, np.ndarray] = {}
    seen: dict[int, np.ndarray] = {}
    for k in _in_use(group):
        ours = X[group == k].astype(float)
        sums[k], seen[k] = np.nansum(ours, 0), (~np.isnan(ours)).sum(0)

    def mean(of: Sequence[int]) -> list[Any]:
        total, number = (sum((each[k] for k in of), np.zeros(X.shape[1:])) for each in (sums, seen))
        told = (total / np.maximum(1, number)).astype(object)
        told[number == 0] = None
        return told.tolist()

    return {k: {"mean": mean([k]), "mean_of_others": mean([*sums.keys() - {k}])} for k in sums}


def _certainty(largest: np.ndarray) -> dict[str, Any]:
    if not len(largest):
        return {"mean": None, "unsure": None}
    return {"mean": float(largest.mean()), "unsure": float((largest < SURE).mean())}


# As a page to read


def _columns_table(
    title: str, columns: Sequence[Mapping[str, Any]], description: FacetDescription
) -> list[str]:
    if not columns:
        return []
    clusters = [f"cluster {each['cluster']}" for each in description.clusters]
    title = f"## {title} (intervals: {100 * description.confidence:g} %)"
    heads = ["column", "explained", "interval", *clusters]
    return ["", title, "", table(heads, [_column_cells(each) for each in columns])]


def _column_cells(column: Mapping[str, Any]) -> list[str]:
    name, between = f"{column['column']}", column["interval"]
    if column.get("adjusted_mutual_information") is not None:
        name += f" (AMI {column['adjusted_mutual_information']:.2f})"
    explained = "-" if column["effect"] is None else f"{100 * column['effect']:.0f} %"
    interval = "-" if between is None else f"{100 * between[0]:.0f} to {100 * between[1]:.0f} %"
    return [name, explained, interval, *(told_of(column, each) for each in column["clusters"])]


def told_of(column: Mapping[str, Any], cluster: Mapping[str, Any]) -> str:
    """What a column says of a cluster, in a few words.

    :param column: an entry of a description's columns.
    :param cluster: an entry of its ``"clusters"``.
    """
    if not cluster["observed"]:
        return "not observed"
    if column["kind"] == "categories":
        overall, shares = column["shares"], cluster["shares"]
        order = sorted(shares, key=lambda level: -abs(shares[level] - overall[level]))
        return ", ".join(
            f"{level} {100 * shares[level]:.0f} % (of all {100 * overall[level]:.0f} %)"
            for level in order[:MOST_LEVELS]
        )
    counts = column["kind"] == "counts"
    value, interval = cluster["ratio" if counts else "difference"], cluster["interval"]
    if value is None:
        return number_text(cluster["mean"])
    sign = "x" if counts else "" if value < 0 else "+"
    within = "" if interval is None else f", {' to '.join(map(number_text, interval))}"
    return f"{number_text(cluster['mean'])} ({sign}{number_text(value)}{within})"


def number_text(value: float) -> str:
    """A number with three digits, or more if it has more before the point."""
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"
