"""A figure of candidates compared on held-out data. The function returns a new figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from facetvae.selection.candidates import Selection
from inference.figures.drawing import label_axes, new_figure, styles
from ppl_models.given.checks import check_kind

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
    names = list(selection.runs)
    figure, axes = new_figure(11, 0.9 + 0.3 * len(names), 1, 4)
    looks = _looks(selection)
    _differences(axes.flat[0], selection)
    what = [
        ("agreement of seeds (ARI)", [{name: selection.stability(name) for name in names}]),
        (
            "clusters in use (open: effective number)",
            [_by_facet(selection, each) for each in ("in_use", "effective")],
        ),
        ("I(x; c), nats", [_by_facet(selection, "mutual_information")]),
    ]
    for ax, (label, values) in zip(axes.flat[1:], what, strict=True):
        for table, filled in zip(values, (True, False), strict=False):
            _facets(ax, table, looks, filled)
        label_axes(ax, label, "")
    for ax in axes.flat:
        chosen = names.index(selection.chosen)
        ax.axhspan(chosen - 0.5, chosen + 0.5, color="tab:orange", alpha=0.2, linewidth=0)
        ax.set_yticks(range(len(names)), names if ax is axes.flat[0] else [""] * len(names))
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        ax.set_axisbelow(True)
    if len(looks) > 1:
        _legend(figure, looks)
    return figure


def _looks(selection: Selection) -> dict[int, dict[str, Any]]:
    """Colour and marker of each facet, by its position counted from the last one."""
    most = max(len(runs[0].partitions) for runs in selection.runs.values())
    return dict(zip(range(most), styles(), strict=False))


def _differences(ax: Axes, selection: Selection) -> None:
    values = np.array(list(selection.differences.values()))
    ax.axvline(0, color="0.6", linewidth=0.8)
    ax.errorbar(
        values[:, 0],
        range(len(values)),
        xerr=values[:, 1],
        fmt="o",
        color="0.2",
        markersize=4,
        capsize=2.5,
    )
    low, high = ax.get_xlim()
    ax.set_xlim(
        low, high + 0.45 * (high - low)
    )  # room for the numbers, as one poor candidate hides the others' differences
    for row, (difference, error) in enumerate(values):
        text = f"{difference:.2f} ({error:.2f})"
        ax.text(
            0.99, row, text, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=7
        )
    label_axes(ax, "held-out ELBO less the best, nats per datum", "")


def _by_facet(selection: Selection, what: str) -> dict[str, dict[str, tuple[float, float]]]:
    return {name: selection.by_facet(name, what) for name in selection.runs}


def _facets(
    ax: Axes,
    table: Mapping[str, Mapping[str, tuple[float, float]]],
    looks: Mapping[int, Mapping[str, Any]],
    filled: bool,
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


def _legend(figure: Figure, looks: Mapping[int, Mapping[str, Any]]) -> None:
    names = ["deepest facet", *(f"{place} above it" for place in range(1, len(looks)))]
    handles = [Line2D([], [], linestyle="none", markersize=4, **look) for look in looks.values()]
    figure.legend(
        handles, names, fontsize=7, frameon=False, loc="outside upper right", ncols=len(handles)
    )
