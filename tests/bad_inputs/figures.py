"""Figures."""

from __future__ import annotations

from typing import Any

from facetvae.describing.figure import columns_figure, describe_figure
from facetvae.explorer.explorer import Explorer
from inference.figures.facets import (
    cluster_gallery,
    cluster_samples,
    facet_draws,
    facet_overview,
    facet_swaps,
    save_figures,
)
from inference.figures.training import training_curves
from tests.bad_inputs.shared import (
    COUNT,
    LABEL,
    NAN,
    X,
    at,
    described,
    explorer,
    guide,
    runner,
    vae,
)

SHAPE = (2, 3)


def saved(of: Any, **options: Any) -> Any:
    return lambda folder: save_figures(folder, of(), X, **options)


FIGURES = {
    "cluster_gallery": [
        ("shape: image", lambda: cluster_gallery(guide(), X, "digit"), "drawn as images of shape"),
        ("type: guide", lambda: cluster_gallery(runner(), X, "digit", SHAPE), "must be a guide"),
        (
            "type: image",
            lambda: cluster_gallery(guide(), X, "digit", 6),
            "image_shape must be a sequence of integers, such as .28, 28., got 6",
        ),
        (
            "misfit: facet",
            lambda: cluster_gallery(vae(), X, "layer_1", SHAPE),
            "has no clusters to draw",
        ),
        (
            "range: max_clusters",
            lambda: cluster_gallery(guide(), X, "digit", SHAPE, max_clusters=0),
            f"max_clusters {COUNT}, got 0",
        ),
    ],
    "facet_overview": [
        ("range: rows", lambda: facet_overview(guide(), X, SHAPE, rows=0), f"rows {COUNT}, got 0"),
        ("misfit: model", lambda: facet_overview(vae(), X, SHAPE), "has no inferred clusters"),
    ],
    "cluster_samples": [
        (
            "nan: temperature",
            lambda: cluster_samples(guide(), X, "digit", SHAPE, temperature=NAN),
            "at least 0, got nan",
        )
    ],
    "facet_draws": [
        ("unknown: facet", lambda: facet_draws(guide(), X, "hue", SHAPE), "unknown facet 'hue'"),
        ("shape: x", lambda: facet_draws(guide(), X[0, 0], "digit", SHAPE), "x has shape .1., but"),
        (
            "type: columns",
            lambda: facet_draws(guide(), X, "digit", SHAPE, columns=2.5),
            f"columns {COUNT}",
        ),
    ],
    "Explorer": [
        ("type: guide", lambda: Explorer(runner(), X), "guide must be a guide"),
        ("shape: x", lambda: Explorer(guide(), X[:, 1:]), "x has shape|must have shape|x_shape"),
        ("unknown: given", lambda: Explorer(guide(), X, {"group": LABEL}), "besides x, got group"),
        ("shape: labels", lambda: Explorer(guide(), X, labels={"u": [1]}), "label 'u' has shape"),
        ("shape: image", lambda: Explorer(guide(), X, image_shape=(2, 2)), "be drawn as images"),
        ("range: image", lambda: Explorer(guide(), X, image_shape=(-2, -3)), "each of image_shape"),
        (
            "misfit: names of columns",
            lambda: Explorer(guide(), X, columns=["a", "a"]),
            "columns must be 6 names that differ, .* got 1 in 2",
        ),
    ],
    "Explorer.about": [
        ("misfit: no clusters", lambda: Explorer(vae(), X).about("layer_1"), "has no clusters:")
    ],
    "Explorer.swaps": [
        ("unknown: facet", lambda: explorer().swaps("hue", 0, 1), "unknown facet 'hue'"),
        ("range: row", lambda: explorer().swaps("digit", 0, len(X)), "there are the inputs 0 to"),
    ],
    "Explorer.axes": [
        ("range: row", lambda: explorer().axes("digit", -1), "there are the inputs 0 to")
    ],
    "Explorer.moved": [
        ("type: row", lambda: explorer().moved("digit", 1.5, {}), "there are the inputs 0 to"),
        ("range: latent", lambda: explorer().moved("digit", 0, {2: 0.0}), "0 to 1, got 2"),
        ("nan: value", lambda: explorer().moved("digit", 0, {0: NAN}), "0 to 1, got 0 at nan"),
        ("huge: value", lambda: explorer().moved("digit", 0, {0: 1e308}), "got 0 at 1e.308"),
    ],
    "Explorer.samples": [
        ("range: cluster", lambda: explorer().samples("digit", 4), "choice must be one of"),
        ("range: n", lambda: explorer().samples("digit", 0, 0), f"n {COUNT}, got 0"),
        ("range: seed", lambda: explorer().samples("digit", 0, seed=-1), "seed must be an integer"),
        (
            "range: held",
            lambda: explorer().samples("digit", 0, held=len(X)),
            "there are the inputs 0 to",
        ),
    ],
    "facet_swaps": [
        ("shape: one datum", lambda: facet_swaps(guide(), X[:1], "digit", SHAPE), "needs two data"),
        ("range: pairs", lambda: facet_swaps(guide(), X, "digit", SHAPE, -1), f"pairs {COUNT}"),
    ],
    "describe_figure": [
        ("type: description", lambda: describe_figure(guide()), "must be a FacetDescription"),
        ("range: columns", lambda: describe_figure(described(), 0), f"columns {COUNT}, got 0"),
        (
            "empty: one cluster",
            lambda: describe_figure(described(K=1)),
            "'kind' has 1 clusters with rows: there is nothing to tell apart",
        ),
    ],
    "columns_figure": [
        ("empty: descriptions", lambda: columns_figure([]), "one of each facet is needed"),
        ("type: descriptions", lambda: columns_figure(described()), "one of each facet is needed"),
        ("type: of a facet", lambda: columns_figure([guide()]), "must be FacetDescriptions"),
        ("range: columns", lambda: columns_figure([described()], 0), f"columns {COUNT}, got 0"),
    ],
    "training_curves": [
        ("empty: history", lambda: training_curves([], ["digit"]), "the history is empty: fit")
    ],
    "save_figures": [
        ("type: guide", at("figures", saved(runner)), "guide must be a guide"),
        ("shape: image", at("figures", saved(guide)), "cannot be drawn as images"),
        (
            "file: in the way",
            at("config.json", saved(guide, image_shape=SHAPE)),
            "config.json",
            FileExistsError,
        ),
    ],
}
