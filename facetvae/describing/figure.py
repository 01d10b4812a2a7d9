"""Figures of what facets are about. Each function returns a new figure."""

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

__all__ = ["columns_figure", "describe_figure"]

# Categories of a column that have a panel, at most.
MOST_LEVELS = 8


def describe_figure(description: FacetDescription, columns: int = 4) -> Figure:
    """How much the clusters explain of each column, and what the first columns hold in each.

    At the left, the share of each column that the clusters explain, with its interval; columns
    that the model has not seen have open markers. Then a panel for each of the first columns:
    means of each cluster with the interval of its difference from the other rows (numbers), or
    shares of each category (categories). Black lines are all rows together.

    :param columns: panels, at most, beside that of the explained shares.
    :raises ValueError: if ``description`` is none, or has a single cluster, which explains nothing.

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
    figure, axes = new_figure(3.2 + 2.3 * len(panels), 1.4 + 0.22 * lines, 1 + len(panels))
    first, *others = axes.flat
    _explained(first, [*told, *beside], len(told), description.facet)
    for ax, each in zip(others, panels, strict=True):
        (_categories if each["kind"] == "categories" else _means)(ax, each)
        ax.set_title(_shortened(each["column"]), fontsize=9)
    return figure


def columns_figure(descriptions: Sequence[FacetDescription], columns: int = 30) -> Figure:
    """Which columns belong to which facet: a map of columns by facets.

    A cell has the share of the column, in percent, that the facet's clusters explain, with its
    interval; it is empty where that is within chance. Columns stand with the facet that explains
    most of them, the most first; at the end those that none explains.

    :param descriptions: of the same rows, a sequence with one for each facet;
        ``describe(..., columns=...)`` says of how many columns.
    :param columns: lines, at most; those that are explained least are left out.
    :raises ValueError: if ``descriptions`` holds none, or something else, or no column is told.

    Example:
        >>> import numpy as np
        >>> from facetvae.describing import FacetClusters, describe_clusters
        >>> from facetvae.describing.figure import columns_figure
        >>> a, b = np.arange(60) % 2, np.arange(60) // 30
        >>> X = np.random.default_rng(0).normal(size=(60, 3)) + 3 * np.stack([a, b, a], 1)
        >>> of = {"first": a, "second": b}
        >>> told = [describe_clusters(FacetClusters(k, np.eye(2)[g]), X) for k, g in of.items()]
        >>> figure = columns_figure(told)
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['x2', 'x0', 'x1']
    """
    check_count("columns", columns)
    if not isinstance(descriptions, Sequence) or not len(descriptions):
        raise ValueError("descriptions: a sequence with one of each facet is needed")
    for each in descriptions:
        check_kind("descriptions", each, FacetDescription, "FacetDescriptions, of describe")
    entries = [
        {each["column"]: each for each in of.columns if each["effect"] is not None}
        for of in descriptions
    ]
    names = list(dict.fromkeys(name for of in entries for name in of))
    if not names:
        raise ValueError("descriptions: no facet has two clusters whose columns can be told apart")
    none = {"effect": 0.0, "beyond_chance": False}
    cells = [[of.get(name, none) for of in entries] for name in names]
    share = np.array([[each["beyond_chance"] * each["effect"] for each in row] for row in cells])
    kept = np.argsort(-share.max(1), kind="stable")[:columns]
    facet = np.where(share.any(1), share.argmax(1), len(entries))
    kept = kept[np.argsort(facet[kept], kind="stable")]
    figure, axes = new_figure(2.4 + 1.5 * len(descriptions), 0.9 + 0.24 * len(kept), 1)
    ax = axes.flat[0]
    ax.imshow(share[kept], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(share[kept] > 0):
        each = cells[kept[row]][column]
        low, high = (100 * end for end in each["interval"])
        text = f"{100 * each['effect']:.0f} ({low:.0f} to {high:.0f})"
        dark = each["effect"] > 0.6
        ax.text(column, row, text, ha="center", va="center", fontsize=7, color="w" if dark else "k")
    ax.set_xticks(range(len(descriptions)), [_shortened(of.facet) for of in descriptions])
    ax.set_yticks(range(len(kept)), [_shortened(names[i]) for i in kept])
    ax.tick_params(length=0)
    label_axes(ax, "% of the column explained by the facet", "")
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
