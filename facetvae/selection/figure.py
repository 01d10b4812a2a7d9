"""A figure of candidates compared on held-out data. The function returns a new figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from facetvae.selection.candidates import Selection
from inference.figures.drawing import label_axes, new_figure, styles
from ppl_models.checks import check_kind

__all__ = ["selection_overview"]


def selection_overview(selection: Selection) -> Figure:
    """All measures of each candidate, one row each, with the smallest on top and the chosen one
    shaded.

    From left to right: held-out ELBO minus the best one's, with its standard error; agreement of
    seeds, clusters in use and mutual information of each facet, as means over seeds with sample
    deviations. Open markers show the effective number of clusters. Each facet has one colour; a
    candidate with fewer facets uses the colours of the last, deepest ones.

    :raises ValueError: if ``selection`` is not a :class:`~facetvae.selection.Selection`.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from facetvae.selection import select_model
        >>> from facetvae.selection.figure import selection_overview
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> x, net = np.random.default_rng(0).random((20, 6)), SharedMLP((8,))
        >>> models = {f"K = {k}": VaDE((6,), GaussianMixture(k, 2), network=net) for k in (2, 3)}
        >>> fitted = {name: [VaDEGuide(model)] for name, model in models.items()}
        >>> len(selection_overview(select_model(fitted, x, num_draws=5)).axes)
        4
    """
    check_kind("selection", selection, Selection, "a Selection, of facetvae.selection.select_model")
    names, chosen = list(selection.runs), list(selection.runs).index(selection.chosen)
    figure, axes = new_figure(11, 0.9 + 0.3 * len(names), 1, 4)
    most = max(len(runs[0].partitions) for runs in selection.runs.values())
    looks = list(islice(styles(), most))  # by a facet's place, counted from the last one
    first, seeds, in_use, information = axes.flat
    _differences(first, selection)
    _facets(seeds, {name: selection.stability(name) for name in names}, looks)
    for filled, what in ((True, "in_use"), (False, "effective")):
        _facets(in_use, {name: selection.by_facet(name, what) for name in names}, looks, filled)
    known = {name: selection.by_facet(name, "mutual_information") for name in names}
    _facets(information, known, looks)
    label_axes(seeds, "agreement of seeds (ARI)", "")
    label_axes(in_use, "clusters in use (open: effective number)", "")
    label_axes(information, "I(x; c), nats", "")
    for ax in axes.flat:
        ax.axhspan(chosen - 0.5, chosen + 0.5, color="tab:orange", alpha=0.2, linewidth=0)
        ax.set_yticks(range(len(names)), names if ax is first else [""] * len(names))
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        ax.set_axisbelow(True)
    if len(looks) > 1:
        facets = ["deepest facet", *(f"{place} above it" for place in range(1, len(looks)))]
        lines = [Line2D([], [], linestyle="none", markersize=4, **look) for look in looks]
        place: dict[str, Any] = {"loc": "outside upper right", "ncols": len(looks)}
        figure.legend(lines, facets, fontsize=7, frameon=False, **place)
    return figure


def _differences(ax: Axes, selection: Selection) -> None:
    values, errors = np.array(list(selection.differences.values())).T
    rows = range(len(values))
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.errorbar(values, rows, xerr=errors, fmt="o", color="0.2", markersize=4, capsize=2.5)
    low, high = ax.get_xlim()
    # Room for the numbers, as one poor candidate hides the others' differences.
    ax.set_xlim(low, high + 0.45 * (high - low))
    place = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
    for row in rows:
        ax.text(0.99, row, f"{values[row]:.2f} ({errors[row]:.2f})", **place, fontsize=7)
    label_axes(ax, "held-out ELBO less the best, nats per datum", "")


def _facets(
    ax: Axes,
    table: Mapping[str, Mapping[str, tuple[float, float]]],
    looks: Sequence[Mapping[str, Any]],
    filled: bool = True,
) -> None:
    """Draw each candidate's facets, side by side within its row."""
    for row, facets in enumerate(table.values()):
        for place, (mean, deviation) in enumerate(list(facets.values())[::-1]):
            y = row + 0.22 * ((len(facets) - 1) / 2 - place)
            face = looks[place]["color"] if filled else "white"
            error = deviation if filled and np.isfinite(deviation) else None
            look = {**looks[place], "markerfacecolor": face, "markersize": 4}
            ax.errorbar(mean, y, xerr=error, **look, capsize=2, linewidth=1)
    ax.set_xlim(left=min(0, ax.get_xlim()[0]))
