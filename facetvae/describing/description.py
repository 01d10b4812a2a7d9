"""What a facet is about: its clusters, the columns that tell them apart, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from facetvae.describing.columns import Categories, Column, check_order, columns_of, named_columns
from facetvae.describing.effects import CONFIDENCE, Effect
from inference.markdown import plain, table
from ppl_models.given.checks import check_count, check_kind

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
        """The rows of a cluster, the most typical first; those that are not sure come last."""
        rows = np.flatnonzero(self.group == cluster)
        scores = self.probabilities if self.typicality is None else self.typicality
        return rows[np.lexsort((-np.asarray(scores)[rows, cluster], self.certainty[rows] < SURE))]


@dataclass(frozen=True)
class FacetDescription:
    """What a facet is about, in Python's own types: see :func:`describe_clusters`.

    ``str`` and :meth:`to_markdown` give a page to read, :meth:`as_dict` everything, for JSON.

    :ivar facet: its name.
    :ivar rows: number of rows.
    :ivar left_out: number of rows that belong to no cluster.
    :ivar clusters: for each cluster with rows ``cluster`` (its number), ``size``, ``share`` of
        the rows that belong to any, ``certainty`` (mean of the largest probability), ``exemplars``
        (numbers of its most typical rows, the most typical first, no two of the same values).
    :ivar columns: the columns that the clusters explain most of, the most first.
    :ivar columns_left_out: number of further columns.
    :ivar metadata: the same of each column that the model has not seen, all of them.
    :ivar certainty: ``mean`` of the largest probability, and its share below ``SURE``, ``unsure``.
    :ivar stability: adjusted Rand index with other starts; ``None`` if there was one start.
    """

    facet: str
    rows: int
    left_out: int
    clusters: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    columns_left_out: int
    metadata: list[dict[str, Any]]
    certainty: dict[str, Any]
    stability: float | None

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON holds it; a copy."""
        return asdict(self)

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
        level = f"(intervals: {100 * CONFIDENCE:g} %)"
        if self.columns:
            title = f"## Columns, by how much the clusters explain {level}"
            lines += ["", title, "", columns_table(self.columns)]
        if self.columns_left_out:
            lines += ["", f"{self.columns_left_out} further columns are explained less."]
        if self.metadata:
            title = f"## Columns that the model has not seen {level}"
            lines += ["", title, "", columns_table(self.metadata)]
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
    kinds: Mapping[str, str] | None = None,
) -> FacetDescription:
    r"""Describe a facet's clusters in the words of the data's columns.

    An entry of ``columns`` or ``metadata`` has the column's name as ``column``, its ``kind``
    (``"numbers"``, ``"categories"``), ``observed`` and ``missing`` rows, ``effect`` (the share of
    it that the clusters explain, less what chance explains on average, in [0, 1]) with its
    ``interval``, and ``beyond_chance`` (whether that interval excludes 0). ``effect`` is ``None``
    where there are fewer than two groups.

    - Numbers have ``mean`` and ``deviation``, and for each cluster ``mean`` and ``difference`` from
      the mean of all other rows with Welch's ``interval``, in the column's units.
    - Categories have ``shares``, and for each cluster ``shares`` with Wilson's ``intervals``.
      Metadata of categories also have ``adjusted_rand`` and a ``table`` by category and cluster.

    Clusters differ in the columns that they were found in even if there are no groups: there the
    intervals describe and test nothing. Of new rows they say how far the differences are found
    again, and of ``metadata``, which the model has not seen, whether clusters go with them. They
    are of one column each, at 95 %: of 40 unrelated columns one is ``beyond_chance`` on average.

    :param found: what the model says of the rows.
    :param X: the rows, in the units to describe them in: a data frame, a mapping of names to
        columns, or an array ``[N, ...]``, whose entries are numbers.
    :param metadata: further columns of the same rows, as a data frame or mapping; labels as
        strings, since numbers are compared as numbers. Frames and series have the index of ``X``,
        in its order; what has no index goes by place.
    :param exemplars: most rows to name of each cluster.
    :param columns: most columns to describe.
    :param kinds: kinds of some columns by name; others follow their values.
    :raises ValueError: if lengths or indexes differ, there are no rows, or a column is unreadable.

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
    check_order(X=X, metadata=metadata)
    group = found.group
    ranked = sorted(
        ((each, each.effect(group)) for each in own),
        key=lambda pair: 1.0 if pair[1] is None else -pair[1].share,
    )
    rows = [row.tobytes() for row in np.stack([each.values for each in own], 1)]
    certainty: dict[str, Any] = {"mean": None, "unsure": None}
    if len(largest := found.certainty[group >= 0]):
        certainty = {"mean": float(largest.mean()), "unsure": float((largest < SURE).mean())}
    stability = np.nan if found.stability is None else float(found.stability)
    return FacetDescription(
        facet=found.facet,
        rows=n,
        left_out=int((group < 0).sum()),
        clusters=[_cluster(found, k, rows, exemplars) for k in _in_use(group)],
        columns=[_told(each, effect, group) for each, effect in ranked[:columns]],
        columns_left_out=max(0, len(own) - columns),
        metadata=[_beside(each, group) for each in beside],
        certainty=certainty,
        stability=None if np.isnan(stability) else stability,
    )


def _checked(found: FacetClusters) -> int:
    """The number of rows; an error if the arrays are of other shapes, or empty."""
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


def _in_use(group: np.ndarray) -> list[int]:
    return np.unique(group[group >= 0]).tolist()


def _told(column: Column, effect: Effect | None, group: np.ndarray) -> dict[str, Any]:
    """What the clusters explain of a column, and what it holds in each."""
    among = group >= 0
    observed = int((column.observed & among).sum())
    return {
        "column": column.name,
        "kind": column.kind,
        "observed": observed,
        "missing": int(among.sum()) - observed,
        "effect": None if effect is None else effect.share,
        "interval": None if effect is None else list(effect.interval),
        "beyond_chance": None if effect is None else effect.beyond_chance,
        **column.overall(among),
        "clusters": [
            {"cluster": k, **column.of_group(group == k, among & (group != k))}
            for k in _in_use(group)
        ],
    }


def _beside(column: Column, group: np.ndarray) -> dict[str, Any]:
    """A column that the model has not seen."""
    told = _told(column, column.effect(group), group)
    if not isinstance(column, Categories):
        return told
    rows = column.observed & (group >= 0)
    alike = adjusted_rand_score(column.values[rows], group[rows])
    by_level = column.table(group)[:, _in_use(group)].tolist()
    return told | {
        "adjusted_rand": float(alike) if rows.any() else None,  # of no rows it would be 1
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


def columns_table(columns: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown: what clusters explain of each column, and what it holds in each."""
    clusters = [f"cluster {each['cluster']}" for each in columns[0]["clusters"]]
    heads = ["column", "explained", "interval", *clusters]
    return table(heads, [_column_cells(each) for each in columns])


def _column_cells(column: Mapping[str, Any]) -> list[str]:
    name, between = f"{column['column']}", column["interval"]
    if column.get("adjusted_rand") is not None:
        name += f" (ARI {column['adjusted_rand']:.2f})"
    explained = "-" if column["effect"] is None else f"{100 * column['effect']:.0f} %"
    interval = "-" if between is None else f"{100 * between[0]:.0f} to {100 * between[1]:.0f} %"
    return [name, explained, interval, *(_said(column, each) for each in column["clusters"])]


def _said(column: Mapping[str, Any], cluster: Mapping[str, Any]) -> str:
    """What a column says of a cluster, in a few words."""
    if not cluster["observed"]:
        return "not observed"
    if column["kind"] == "categories":
        overall, shares = column["shares"], cluster["shares"]
        order = sorted(shares, key=lambda level: -abs(shares[level] - overall[level]))
        return ", ".join(
            f"{level} {100 * shares[level]:.0f} % (of all {100 * overall[level]:.0f} %)"
            for level in order[:MOST_LEVELS]
        )
    value, interval = cluster["difference"], cluster["interval"]
    if value is None:
        return number_text(cluster["mean"])
    sign = "" if value < 0 else "+"
    within = "" if interval is None else f", {' to '.join(map(number_text, interval))}"
    return f"{number_text(cluster['mean'])} ({sign}{number_text(value)}{within})"


def number_text(value: float) -> str:
    """A number with three digits, or more if it has more before the point."""
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"
