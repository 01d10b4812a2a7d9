"""A figure of what a facet is about. The function returns a new figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from facetvae.describing import FacetDescription
from facetvae.describing.description import number_text
from inference.figures.drawing import label_axes, new_figure, styles
from ppl_models.given.checks import check_count, check_kind

__all__ = ["describe_figure"]

# Categories of a column that have a panel, at most.
MOST_LEVELS = 8


def describe_figure(description: FacetDescription, columns: int = 4) -> Figure:
    """How much the clusters explain of each column, and what the first columns hold in each.

    At the left, the share of each column that the clusters explain, with its interval; columns
    that the model has not seen have open markers. Then a panel for each of the first columns:
    means of each cluster with the interval of its difference from the other rows (numbers), or
    shares of each category (categories). Black lines are all rows together.

    :param columns: panels, at most, beside that of the explained shares.
    :raises ValueError: if ``description`` is no description, or its clusters explain nothing,
        because there is only one.

    Example:
        >>> import numpy as np
        >>> from facetvae.describing import FacetClusters, describe_clusters
        >>> from facetvae.describing.figure import describe_figure
        >>> group = np.arange(60) % 2
        >>> X = np.random.default_rng(0).normal(size=(60, 3)) + group[:, None]
        >>> found = FacetClusters("kind", np.eye(2)[group])
        >>> figure = describe_figure(describe_clusters(found, X), columns=2)
        >>> [ax.get_title() for ax in figure.axes]
        ['explained by kind', 'x2', 'x1']
    """
    check_kind("description", description, FacetDescription, "a FacetDescription, of describe")
    check_count("columns", columns)
    told = [each for each in description.columns if each["effect"] is not None]
    beside = [each for each in description.metadata if each["effect"] is not None]
    if not told and not beside:
        raise ValueError(
            f"{description.facet!r} has {len(description.clusters)} clusters with rows: there is "
            "nothing to tell apart"
        )
    panels = told[:columns] + beside[: max(0, columns - len(told))]
    lines = max(6, len(told) + len(beside), len(description.clusters))
    figure, axes = new_figure(3.2 + 2.3 * len(panels), 1.4 + 0.22 * lines, 1, 1 + len(panels))
    first, *others = axes.flat
    _explained(first, [*told, *beside], len(told), description.facet)
    for ax, each in zip(others, panels, strict=True):
        (_categories if each["kind"] == "categories" else _means)(ax, each)
        ax.set_title(_shortened(each["column"]), fontsize=9)
    return figure


def _explained(ax: Axes, columns: Sequence[Mapping[str, Any]], seen: int, facet: str) -> None:
    """Shares explained, one column a line, from top to bottom; ``seen`` of them by the model."""
    for row, each in enumerate(columns):
        face = "0.2" if row < seen else "white"
        ax.plot(each["interval"], [row, row], color="0.2", linewidth=1)
        ax.plot([each["effect"]], [row], "o", color="0.2", markerfacecolor=face, markersize=4)
    _name_rows(ax, [_shortened(each["column"]) for each in columns])
    ax.set_xlim(-0.02, 1.02)
    if 0 < seen < len(columns):
        ax.axhline(seen - 0.5, color="0.8", linewidth=0.8)
    unseen = ", open: not seen by the model" if seen < len(columns) else ""
    label_axes(ax, f"share explained{unseen}", "")
    ax.set_title(f"explained by {facet}", fontsize=9)


def _means(ax: Axes, column: Mapping[str, Any]) -> None:
    """Means, each with the interval of its difference from the other rows about it."""
    for row, each, look in _of_clusters(column):
        if each["mean"] is None:
            continue
        if each["interval"] is not None:
            ends = each["mean"] - each["difference"] + np.array(each["interval"])
            ax.plot(ends, [row, row], color=look["color"], linewidth=1.4)
        ax.plot([each["mean"]], [row], markersize=5, **look)
    ax.axvline(column["mean"], color="black", linewidth=0.8)
    _name_rows(ax, [f"cluster {each['cluster']}" for each in column["clusters"]])
    label_axes(ax, f"mean (line: {number_text(column['mean'])})", "")


def _categories(ax: Axes, column: Mapping[str, Any]) -> None:
    """Shares of each category in each cluster."""
    shares = column["shares"]
    levels = sorted(shares, key=lambda level: -shares[level])[:MOST_LEVELS]
    for place, level in enumerate(levels):
        ax.plot(2 * [place], [0, shares[level]], color="black", linewidth=0.8)
        ax.plot([place], [shares[level]], color="black", marker="_", markersize=14)
    for row, each, look in _of_clusters(column):
        if not each["observed"]:
            continue
        step = 0.6 * ((row + 0.5) / len(column["clusters"]) - 0.5)
        for place, level in enumerate(levels):
            ends = each["intervals"][level]
            ax.plot(2 * [place + step], ends, color=look["color"], linewidth=1.2)
            ax.plot([place + step], [each["shares"][level]], markersize=4, **look)
    ax.set_xticks(range(len(levels)), [_shortened(level) for level in levels])
    if len(levels) * max(map(len, levels)) >= 20:
        ax.tick_params(axis="x", rotation=45)
        for text in ax.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
    ax.set_ylim(-0.03, 1.03)
    label_axes(ax, "", "share of the cluster")


def _of_clusters(column: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any], dict[str, Any]]]:
    """Each cluster's row, entry and look."""
    looks = styles()
    return [
        (row, each, {**next(looks), "linestyle": "none"})
        for row, each in enumerate(column["clusters"])
    ]


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)


def _shortened(name: str, most: int = 18) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
