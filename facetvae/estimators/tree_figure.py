"""A figure of how the components of a facet's mixture merge into clusters."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import dendrogram

from facetvae.table_rules.merging import VALLEY, MergeTree
from inference.figures.drawing import label_axes, new_figure
from ppl_models.given.checks import check_kind

# Links below the line that separates clusters, and those above it.
WITHIN, BETWEEN = "#1f77b4", "#7f7f7f"


def merge_tree_figure(trees: Mapping[str, MergeTree]) -> Figure:
    """One tree for each facet, such as those of ``MultiFacetClustering.merge_trees_``.

    The leaves are the components that BIC chose, with their shares of the data. Two branches meet
    at the depth of the valley between them: 0 if the density has none, 1 if it falls to 0 there.
    Those that meet below the dashed line are one cluster.

    :param trees: by facet.
    :raises ValueError: if there is no tree.

    Example:
        >>> import numpy as np
        >>> from facetvae.table_rules.merging import merge_tree
        >>> from facetvae.estimators.tree_figure import merge_tree_figure
        >>> rng = np.random.default_rng(0)
        >>> z = np.concatenate([rng.normal(at, 1, (200, 2)) for at in (0, 8)])
        >>> len(merge_tree_figure({"facet_0": merge_tree(z, seed=0)}).axes)
        1
    """
    if not trees:
        raise ValueError(
            "there is no tree: numbers of clusters were given, or come from BIC or neighbours"
        )
    for name, tree in trees.items():
        check_kind(f"the tree of {name!r}", tree, MergeTree, "a MergeTree")
    figure, axes = new_figure(1 + 3 * len(trees), 3, 1, len(trees))
    for ax, (name, tree) in zip(axes.flat, trees.items(), strict=True):
        _draw(ax, tree)
        ax.set_title(f"{name}: {tree.hills} clusters", fontsize=9)
        label_axes(ax, "components, in % of the data", "depth of the valley")
    return figure


def _draw(ax: Axes, tree: MergeTree) -> None:
    shares = [f"{100 * weight:.0f}" for weight in tree.mixture.weights_]
    line = 1 - VALLEY
    ax.set_ylim(0, 1.05)
    ax.axhline(line, color="black", linestyle="--", linewidth=0.8)
    if len(shares) == 1:
        ax.set_xticks([0], shares)
        return
    links = tree.linkage()
    color = [WITHIN if depth < line else BETWEEN for depth in links[:, 2]]
    dendrogram(links, ax=ax, labels=shares, link_color_func=lambda i: color[i - len(shares)])
    ax.set_ylim(0, 1.05)
