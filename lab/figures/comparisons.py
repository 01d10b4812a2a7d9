"""Figures that compare several runs. Each function returns a new figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from inference.figures.drawing import (
    BESIDE_TEXT,
    label_axes,
    legend_beside,
    new_figure,
    styles,
    text_width,
)


def grouped_boxes(
    values: Mapping[str, Mapping[Any, Sequence[float]]], xlabel: str, ylabel: str
) -> Figure:
    """Box plots side by side, one group for each setting, with every value drawn as a point.

    :param values: by the items compared, then by setting; the settings of the first item are the
        groups.
    """
    settings = list(next(iter(values.values())))
    entries = max(1, min(len(values), int(7 / (BESIDE_TEXT + text_width(values, 7)))))
    figure, axes = new_figure(7, 3.2 + 0.15 * ceil(len(values) / entries), 1)
    ax = axes.flat[0]
    width = 0.8 / len(values)
    for i, (style, (name, groups)) in enumerate(zip(styles(), values.items(), strict=False)):
        at = np.arange(len(settings)) + (i - (len(values) - 1) / 2) * width
        color = style["color"]
        ax.boxplot(
            [groups[setting] for setting in settings],
            positions=at,
            widths=0.7 * width,
            patch_artist=True,
            boxprops={"facecolor": color, "alpha": 0.35, "edgecolor": color},
            medianprops={"color": color, "linewidth": 2},
            whiskerprops={"color": color},
            capprops={"color": color},
            showfliers=False,
            label=name,
        )
        for x, setting in zip(at, settings, strict=True):
            ax.plot(
                np.full(len(groups[setting]), x), groups[setting], ".", color=color, markersize=3
            )
    ax.set_xticks(range(len(settings)), [str(setting) for setting in settings])
    label_axes(ax, xlabel, ylabel)
    ax.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=entries)
    return figure


def grouped_points(
    points: Mapping[Any, tuple[Sequence[float], Sequence[float]]], xlabel: str, ylabel: str
) -> Figure:
    """Points, one panel for each group, with the least-squares line and Pearson's correlation.

    :param points: x and y values of each group.
    """
    figure, axes = new_figure(2.4 * len(points), 2.5, len(points))
    for ax, style, (group, (x, y)) in zip(axes.flat, styles(), points.items(), strict=False):
        ax.plot(x, y, "o", color=style["color"], markersize=4)
        slope, intercept = np.polyfit(x, y, 1)
        ends = np.array([min(x), max(x)])
        ax.plot(ends, slope * ends + intercept, color=style["color"], linewidth=1)
        ax.set_title(f"{group}: r = {np.corrcoef(x, y)[0, 1]:.2f}", fontsize=8)
        label_axes(ax, xlabel, ylabel if ax is axes.flat[0] else "")
    return figure


def grouped_curves(
    curves: Mapping[str, Mapping[Any, tuple[Sequence[float], Sequence[float]]]],
    xlabel: str,
    ylabel: str,
) -> Figure:
    """Curves, one panel for each item compared and one line for each setting.

    :param curves: x and y values by the items compared, then by setting.
    """
    figure, axes = new_figure(3 * len(curves), 2.8, len(curves))
    for ax, (name, lines) in zip(axes.flat, curves.items(), strict=True):
        ax.sharey(axes.flat[0])
        ax.xaxis.set_major_locator(MaxNLocator(4))
        for style, (setting, (x, y)) in zip(styles(), lines.items(), strict=False):
            ax.plot(x, y, color=style["color"], linewidth=1.2, label=str(setting))
        ax.set_title(name, fontsize=8)
        label_axes(ax, xlabel, ylabel if ax is axes.flat[0] else "")
    legend_beside(figure, axes.flat[-1])
    return figure


def paired_changes(gains: Mapping[str, Mapping[str, Sequence[float]]], xlabel: str) -> Figure:
    """What each change gives: mean with two standard errors over paired runs, a row for each, one
    panel for each measure. Beyond 3 the scale is logarithmic.

    :param gains: of each run, by measure, then by change.
    """
    changes = list(next(iter(gains.values())))
    figure, axes = new_figure(2.4 * len(gains) + 1.2, 0.24 * len(changes) + 0.9, len(gains))
    at = np.arange(len(changes))[::-1]
    for ax, style, (measure, by_change) in zip(axes.flat, styles(), gains.items(), strict=False):
        values = [np.asarray(by_change[change]) for change in changes]
        errors = [2 * each.std(ddof=1) / len(each) ** 0.5 for each in values]
        means, color = [each.mean() for each in values], style["color"]
        ax.errorbar(means, at, xerr=errors, fmt="o", color=color, markersize=3, linewidth=1)
        ax.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        ax.set_xscale("symlog", linthresh=3, linscale=1.5)
        low, high = ax.get_xlim()
        low, high = ax.set_xlim(min(low, -1), max(high, 1))
        ticks = [t for t in (-30, -10, -3, -1, 0, 1, 3, 10, 30) if low <= t <= high]
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()
        ax.set_yticks(at, changes if ax is axes.flat[0] else [""] * len(changes), fontsize=7)
        ax.set_title(measure, fontsize=8)
        label_axes(ax, xlabel, "")
    return figure
