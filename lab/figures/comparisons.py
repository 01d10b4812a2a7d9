"""Figures that compare several runs. Each function returns a new figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from inference.figures.drawing import (
    BESIDE_TEXT,
    label_axes,
    legend_beside,
    new_figure,
    styles,
    text_width,
)

__all__ = [
    "grouped_boxes",
    "grouped_curves",
    "grouped_means",
    "grouped_points",
    "guide_comparison",
    "run_curves",
    "score_panels",
]


def guide_comparison(
    bounds: Mapping[str, Mapping[int, float]], noise: Mapping[str, tuple[float, float]]
) -> Figure:
    """Each guide's bound by number of draws, and each estimator's noise and time.

    :param bounds: for each guide, the bound in nats per datum by number of draws.
    :param noise: for each estimator, milliseconds per step and the variance of the gradient.

    Example:
        >>> from lab.figures import guide_comparison
        >>> bounds = {"VaDE": {1: -90.0, 10: -89.0}, "marginal": {1: -89.5, 10: -88.8}}
        >>> noise = {"VaDE": (1.2, 3.0), "marginal": (1.0, 2.0)}
        >>> len(guide_comparison(bounds, noise).axes)
        2
    """
    _check_some(bounds, noise)
    figure, axes = new_figure(10, 3.8, 1, 2)
    left, right = axes.flat
    for style, (name, curve) in zip(styles(), bounds.items(), strict=False):
        left.plot(list(curve), list(curve.values()), markersize=4, linewidth=1, label=name, **style)
    left.set(xscale="log")
    label_axes(left, "draws", "importance-weighted bound, nats per datum")
    left.legend(fontsize=7, frameon=False)
    for style, (name, (milliseconds, variance)) in zip(styles(), noise.items(), strict=False):
        right.plot(milliseconds, variance, markersize=6, linestyle="none", label=name, **style)
    right.set(xscale="log", yscale="log")
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    right.margins(0.15)
    label_axes(right, "milliseconds a gradient", "variance of the gradient (trace)")
    right.legend(fontsize=7, frameon=False)
    for ax in (left, right):
        ax.tick_params(labelsize=7, which="both")
    return figure


def grouped_boxes(
    values: Mapping[str, Mapping[Any, Sequence[float]]], xlabel: str, ylabel: str
) -> Figure:
    """Box plots side by side, one group for each setting, with every value drawn as a point.

    :param values: by the items compared, then by setting; the settings of the first item are the
        groups.

    Example:
        >>> from lab.figures import grouped_boxes
        >>> values = {"NVAE": {10: [0.9, 0.8], 20: [0.9, 1.0]}, "VAE": {10: [0.5], 20: [0.7]}}
        >>> grouped_boxes(values, "labels", "accuracy").axes[0].get_xlabel()
        'labels'
    """
    settings = _settings(values)
    entries = max(1, min(len(values), int(7 / (BESIDE_TEXT + text_width(values, 7)))))
    figure, axes = new_figure(7, 3.2 + 0.15 * ceil(len(values) / entries), 1, 1)
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


def grouped_means(
    values: Mapping[str, Mapping[Any, Sequence[float]]], xlabel: str, ylabel: str
) -> Figure:
    """Means with sample standard deviations, one line for each item compared; for few values per
    setting.

    :param values: by the items compared, then by setting.

    Example:
        >>> from lab.figures import grouped_means
        >>> values = {"NVAE": {10: [0.9, 0.8], 20: [0.9, 1.0]}, "VAE": {10: [0.5], 20: [0.7]}}
        >>> grouped_means(values, "labels", "accuracy").axes[0].get_ylabel()
        'accuracy'
    """
    settings = _settings(values)
    figure, axes = new_figure(4.6, 3.2, 1, 1)
    ax = axes.flat[0]
    for i, (style, (name, groups)) in enumerate(zip(styles(), values.items(), strict=False)):
        at = np.arange(len(settings)) + 0.06 * (i - (len(values) - 1) / 2)
        means = [np.mean(groups[setting]) for setting in settings]
        errors = [
            np.std(groups[setting], ddof=1) if len(groups[setting]) > 1 else 0.0
            for setting in settings
        ]
        ax.errorbar(at, means, errors, **style, markersize=4, linewidth=1, capsize=3, label=name)
    ax.set_xticks(range(len(settings)), [str(setting) for setting in settings])
    label_axes(ax, xlabel, ylabel)
    ax.legend(fontsize=7, frameon=False)
    return figure


def grouped_points(
    points: Mapping[Any, tuple[Sequence[float], Sequence[float]]], xlabel: str, ylabel: str
) -> Figure:
    """Points, one panel for each group, with the least-squares line and Pearson's correlation.

    :param points: x and y values of each group.

    Example:
        >>> from lab.figures import grouped_points
        >>> points = {"digits": ([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])}
        >>> grouped_points(points, "ELBO", "accuracy").axes[0].get_title()
        'digits: r = 1.00'
    """
    _check_some(points)
    figure, axes = new_figure(2.4 * len(points), 2.5, 1, len(points))
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

    Example:
        >>> from lab.figures import grouped_curves
        >>> curves = {"digits": {"lr=0.1": ([1, 2], [0.5, 0.7]), "lr=0.01": ([1, 2], [0.4, 0.8])}}
        >>> grouped_curves(curves, "epoch", "accuracy").axes[0].get_title()
        'digits'
    """
    _check_some(curves)
    figure, axes = new_figure(3 * len(curves), 2.8, 1, len(curves))
    for ax, (name, lines) in zip(axes.flat, curves.items(), strict=True):
        ax.sharey(axes.flat[0])
        ax.xaxis.set_major_locator(MaxNLocator(4))
        for style, (setting, (x, y)) in zip(styles(), lines.items(), strict=False):
            ax.plot(x, y, color=style["color"], linewidth=1.2, label=str(setting))
        ax.set_title(name, fontsize=8)
        label_axes(ax, xlabel, ylabel if ax is axes.flat[0] else "")
    legend_beside(figure, axes.flat[-1])
    return figure


def run_curves(
    runs: Mapping[str, Sequence[Mapping[Any, float]]], xlabel: str, ylabel: str
) -> Figure:
    """A value of several runs as it changes, one panel for each item compared: every run as a thin
    line, their mean, and a band of one sample deviation around it (MFCVAE, Fig. 10, 12, 18 to 20).

    Mean and band are drawn where all runs of the item have a value, the band where they are two or
    more.

    :param runs: by the items compared, for each run its values by x, such as the epoch.
    :raises ValueError: if there is no item, or one has no run or a run without values.

    Example:
        >>> from lab.figures import run_curves
        >>> runs = {"ladder": [{1: 0.5, 2: 0.7}, {1: 0.4, 2: 0.9}], "shared": [{1: 0.3, 2: 0.2}]}
        >>> [ax.get_title() for ax in run_curves(runs, "epoch", "accuracy").axes]
        ['ladder, 2 runs', 'shared, 1 run']
    """
    _check_some(runs)
    for each in runs.values():
        _check_some(dict(enumerate(each)), *each)
    figure, axes = new_figure(3.4 * len(runs), 2.8, 1, len(runs))
    for ax, (name, each) in zip(axes.flat, runs.items(), strict=True):
        ax.sharey(axes.flat[0])
        for run in each:
            ax.plot(list(run), list(run.values()), color="tab:blue", linewidth=0.5, alpha=0.6)
        at = [x for x in each[0] if all(x in run for run in each)]
        values = np.array([[run[x] for x in at] for run in each])
        mean = values.mean(0)
        ax.plot(at, mean, color="midnightblue", linewidth=1.6)
        if len(each) > 1:
            deviation = values.std(0, ddof=1)
            ax.fill_between(
                at, mean - deviation, mean + deviation, color="tab:blue", alpha=0.2, linewidth=0
            )
        ax.set_title(f"{name}, {len(each)} run{'s' if len(each) > 1 else ''}", fontsize=8)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        label_axes(ax, xlabel, ylabel if ax is axes.flat[0] else "")
    return figure


def score_panels(panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Figure:
    """Scores side by side, a panel for each and a row for each of what is compared, the first on
    top: every value as a point, and the mean with its sample deviation.

    :param panels: by score (the words at its axis), then by series, which has the same colour in
        every panel, then by what is compared; values may be missing.

    Example:
        >>> from lab.figures import score_panels
        >>> nmi = {"digit": {"diagonal": [0.7, 0.8], "full": [0.8, 0.8]}}
        >>> seconds = {"training": {"diagonal": [7.0, 7.2], "full": [8.0, 8.1]}}
        >>> len(score_panels({"NMI": nmi, "seconds": seconds}).axes)
        2
    """
    _check_some(panels, *panels.values())
    names = list(dict.fromkeys(n for panel in panels.values() for s in panel.values() for n in s))
    series = dict.fromkeys(each for panel in panels.values() for each in panel)
    looks = dict(zip(series, styles(), strict=False))
    width = 2.3 * len(panels) + max(0.6, text_width(names, 7))
    figure, axes = new_figure(width, 0.9 + 0.32 * len(names), 1, len(panels))
    for ax, (label, panel) in zip(axes.flat, panels.items(), strict=True):
        for place, (each, rows) in enumerate(panel.items()):
            shift = 0.3 * (place - (len(panel) - 1) / 2)
            _scores(ax, {names.index(n) + shift: rows[n] for n in rows}, each, looks[each])
        label_axes(ax, label, "")
        ax.set_yticks(range(len(names)), names if ax is axes.flat[0] else [""] * len(names))
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        ax.set_axisbelow(True)
        if len(panel) > 1:
            above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
            ax.legend(fontsize=7, frameon=False, ncols=len(panel), **above)
    return figure


def _scores(
    ax: Axes, rows: Mapping[float, Sequence[float]], label: str, look: Mapping[str, Any]
) -> None:
    """One series of a panel, by height."""
    found = {y: values for y, values in rows.items() if len(values)}
    for y, values in found.items():
        ax.plot(values, np.full(len(values), y), ".", color=look["color"], alpha=0.4, markersize=5)
    means = [np.mean(values) for values in found.values()]
    errors = [
        float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in found.values()
    ]
    options: dict[str, Any] = {"linestyle": "none", "markersize": 5, "linewidth": 1, "capsize": 3}
    ax.errorbar(means, list(found), xerr=errors, label=label, **options, **look)


def _check_some(*values: Mapping[Any, Any]) -> None:
    if not all(values):
        raise ValueError("there is nothing to draw: the values to compare are empty")


def _settings(values: Mapping[str, Mapping[Any, Sequence[float]]]) -> list[Any]:
    """The settings of the first item compared.

    :raises ValueError: if there is no item, or another item lacks a setting.
    """
    _check_some(values, next(iter(values.values()), {}))
    settings = list(next(iter(values.values())))
    for name, groups in values.items():
        for setting in settings:
            if not len(groups.get(setting, ())):
                raise ValueError(f"{name!r} has no values for {setting!r}, which others have")
    return settings
