"""Training curves: objective, ELBO, KL terms and mutual information over epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from inference.figures.drawing import label_axes, new_figure


def training_curves(history: Sequence[Mapping[str, Any]], facets: Sequence[str]) -> Figure:
    """Objective and ELBO, each facet's KL terms, and its mutual information with x, over epochs.

    :param history: the history of a runner, or of several runners one after the other.
    :raises ValueError: if the history is empty.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SVIRunner, SharedMLP, VaDEGuide
        >>> from inference.figures import training_curves
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> figure = training_curves(runner.fit(x, epochs=2, progress=False).history, ["layer_1"])
        >>> figure.axes[0].get_ylabel()
        'nats per datum'
    """
    if not history:
        raise ValueError("the history is empty: fit first, and give runner.history")
    epochs, last = _running_epochs(history), history[-1]
    negated = [-record["objective"] for record in history]
    series = {"nats per datum": {"objective (negated)": negated, "ELBO": _column(history, "elbo")}}
    for label, names in {
        "KL, nats per datum": {f"{s}, {f}": f"kl_{s}_{f}" for f in facets for s in "zc"},
        "I(x; c), nats": {f: f"mutual_information_{f}" for f in facets},
    }.items():
        series[label] = {line: _column(history, n) for line, n in names.items() if n in last}
    figure, axes = new_figure(10, 3.2, 3)
    point = "o" if len(epochs) == 1 else None  # a line of one epoch cannot be seen
    for ax, (label, lines) in zip(axes.flat, series.items(), strict=True):
        for name, values in lines.items():
            ax.plot(epochs, values, label=name, linewidth=1.2, marker=point)
        label_axes(ax, "epoch", label)
        if lines:
            ax.legend(fontsize=7, frameon=False)
    axes.flat[0].set_ylim(elbo_range(history))
    return figure


def elbo_range(history: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Limits of an axis for the ELBO, without the lowest values of the first steps."""
    elbo = np.array(_column(history, "elbo"), float)
    finite = elbo[np.isfinite(elbo)]  # a step that is skipped leaves a record without one
    if not len(finite):
        return 0.0, 1.0
    spread = np.ptp(finite) or 1.0  # an axis has a length, also of a single epoch
    return float(np.quantile(finite, 0.1) - 0.05 * spread), float(finite.max() + 0.1 * spread)


def _column(history: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record.get(name, float("nan")) for record in history]


def _running_epochs(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Epochs, counted on where one run's history follows another's."""
    epochs, offset, last = [], 0, 0
    for record in history:
        if record["epoch"] <= last:
            offset += last
        last = record["epoch"]
        epochs.append(offset + last)
    return epochs
