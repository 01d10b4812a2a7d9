"""A facet's description as a page to read, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.markdown import plain, table

# Most categories of a column that are told of a cluster: those that differ most from the others.
MOST_LEVELS = 2


def markdown(told: Mapping[str, Any]) -> str:
    """The page of :meth:`~facetvae.describing.FacetDescription.as_dict`."""
    clusters = told["clusters"]
    lines = [f"# {plain(told['facet'])}: {len(clusters)} clusters of {told['rows']} rows", ""]
    lines += [certainty_text(told), ""]
    heads = ["cluster", "rows", "share", "probability", "typical rows"]
    lines.append(table(heads, [_cluster_cells(each) for each in clusters]))
    percent = f"{100 * told['confidence']:g} %"
    if told["columns"]:
        lines += ["", f"## Columns, by how much the clusters explain (intervals: {percent})", ""]
        lines.append(_columns(told["columns"], clusters))
        if told["columns_left_out"]:
            lines += ["", f"{told['columns_left_out']} further columns are explained less."]
    if told["metadata"]:
        lines += ["", f"## Columns that the model has not seen (intervals: {percent})", ""]
        lines.append(_columns(told["metadata"], clusters))
    return "\n".join(lines) + "\n"


def certainty_text(told: Mapping[str, Any]) -> str:
    """How sure and how stable a description's clusters are, in sentences."""
    certainty, said = told["certainty"], []
    if certainty["mean"] is not None:
        said.append(
            f"The most probable cluster has a probability of {certainty['mean']:.2f} on average, "
            f"and less than 0.8 in {100 * certainty['unsure']:.0f} % of the rows."
        )
    if told["left_out"]:
        said.append(f"{told['left_out']} rows belong to no cluster.")
    if told["stability"] is not None:
        said.append(
            f"Other starts find the facet with an adjusted Rand index of {told['stability']:.2f}."
        )
    return " ".join(said)


def _cluster_cells(each: Mapping[str, Any]) -> list[str]:
    return [
        str(each["cluster"]),
        str(each["size"]),
        f"{100 * each['share']:.0f} %",
        f"{each['certainty']:.2f}",
        ", ".join(map(str, each["exemplars"])),
    ]


def _columns(columns: Sequence[Mapping[str, Any]], clusters: Sequence[Mapping[str, Any]]) -> str:
    heads = [
        "column",
        "explained",
        "interval",
        *(f"cluster {each['cluster']}" for each in clusters),
    ]
    return table(heads, [_column_cells(each) for each in columns])


def _column_cells(column: Mapping[str, Any]) -> list[str]:
    name = f"{column['column']}"
    if column.get("adjusted_mutual_information") is not None:
        name += f" (AMI {column['adjusted_mutual_information']:.2f})"
    explained = "-" if column["effect"] is None else f"{100 * column['effect']:.0f} %"
    between = column["interval"]
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
        return _categories(column["shares"], cluster["shares"])
    if column["kind"] == "counts":
        return number_text(cluster["mean"]) + _bracketed("x", cluster["ratio"], cluster["interval"])
    difference = cluster["difference"]
    sign = "" if difference is None or difference < 0 else "+"
    return number_text(cluster["mean"]) + _bracketed(sign, difference, cluster["interval"])


def _categories(overall: Mapping[str, float], shares: Mapping[str, float]) -> str:
    """The categories whose share is furthest from that among all rows."""
    order = sorted(shares, key=lambda level: -abs(shares[level] - overall[level]))
    said = (
        f"{level} {100 * shares[level]:.0f} % (of all {100 * overall[level]:.0f} %)"
        for level in order[:MOST_LEVELS]
    )
    return ", ".join(said)


def _bracketed(sign: str, value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return ""
    within = (
        "" if interval is None else f", {number_text(interval[0])} to {number_text(interval[1])}"
    )
    return f" ({sign}{number_text(value)}{within})"


def number_text(value: float | None) -> str:
    """A number with three digits, or more if it has more before the point."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"
