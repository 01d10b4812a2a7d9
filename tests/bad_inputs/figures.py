"""Figures."""

from __future__ import annotations

import numpy as np
import torch

from facetvae.describing.figure import describe_figure
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
from lab.figures.classes import (
    class_latents,
    class_samples,
    class_traversals,
    kl_by_class,
    kl_of_blocks,
    latent_scatter,
    shared_latents,
    shared_traversals,
    traversed,
)
from lab.figures.comparisons import (
    grouped_boxes,
    grouped_curves,
    grouped_means,
    grouped_points,
    guide_comparison,
    run_curves,
    score_panels,
)
from lab.figures.groups import (
    evidence_reconstructions,
    group_generations,
    latent_interpolation,
    style_swaps,
)
from tests.bad_inputs.shared import (
    COUNT,
    LABEL,
    NAN,
    Row,
    X,
    Z,
    described,
    explorer,
    guide,
    holed,
    mlvae,
    nvae,
    of,
    runner,
    vae,
)

SHAPE = (2, 3)
KL = np.ones((5, 4))

FIGURES = [
    *of(
        "score_panels",
        ("empty: panels", lambda: score_panels({}), "there is nothing to draw"),
    ),
    *of(
        "cluster_gallery",
        (
            "shape: image",
            lambda: cluster_gallery(guide(), X, "digit"),
            "cannot be drawn as images of shape",
        ),
        (
            "unknown: facet",
            lambda: cluster_gallery(guide(), X, "hue", SHAPE),
            "unknown facet 'hue'",
        ),
        (
            "type: guide",
            lambda: cluster_gallery(runner(), X, "digit", SHAPE),
            "guide must be a guide",
        ),
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
    ),
    *of(
        "facet_overview",
        ("range: rows", lambda: facet_overview(guide(), X, SHAPE, rows=0), f"rows {COUNT}, got 0"),
        (
            "misfit: model",
            lambda: facet_overview(vae(), X, SHAPE),
            "has no inferred clusters",
        ),
    ),
    *of(
        "cluster_samples",
        (
            "range: columns",
            lambda: cluster_samples(guide(), X, "digit", SHAPE, 0),
            f"columns {COUNT}, got 0",
        ),
        (
            "nan: temperature",
            lambda: cluster_samples(guide(), X, "digit", SHAPE, temperature=NAN),
            "at least 0, got nan",
        ),
    ),
    *of(
        "facet_draws",
        ("unknown: facet", lambda: facet_draws(guide(), X, "hue", SHAPE), "unknown facet 'hue'"),
        (
            "shape: x",
            lambda: facet_draws(guide(), np.float64(1), "digit", SHAPE),
            r"x has shape \[1\], but",
        ),
        (
            "type: columns",
            lambda: facet_draws(guide(), X, "digit", SHAPE, columns=2.5),
            f"columns {COUNT}",
        ),
    ),
    *of(
        "Explorer",
        ("type: guide", lambda: Explorer(runner(), X), "guide must be a guide"),
        ("shape: x", lambda: Explorer(guide(), X[:, 1:]), "x has shape|must have shape|x_shape"),
        (
            "unknown: given",
            lambda: Explorer(guide(), X, {"group": LABEL}),
            "if known, besides x, got group",
        ),
        (
            "shape: labels",
            lambda: Explorer(guide(), X, labels={"u": [1, 2]}),
            "label 'u' has shape",
        ),
        (
            "shape: image_shape",
            lambda: Explorer(guide(), X, image_shape=(2, 2)),
            "cannot be drawn as images",
        ),
    ),
    *of(
        "Explorer.about",
        ("unknown: facet", lambda: explorer().about("hue"), "unknown facet 'hue'"),
        (
            "misfit: no clusters",
            lambda: Explorer(vae(), X).about("layer_1"),
            "layer_1 has no clusters: its prior is",
        ),
        (
            "misfit: names of columns",
            lambda: Explorer(guide(), X, columns=["a", "a"]),
            "columns must be 6 names that differ, .* got 1 in 2",
        ),
    ),
    *of(
        "Explorer.swaps",
        ("range: row", lambda: explorer().swaps("digit", 0, len(X)), "there are the inputs 0 to"),
    ),
    *of(
        "Explorer.axes",
        ("unknown: facet", lambda: explorer().axes("hue", 0), "unknown facet 'hue'"),
        ("range: row", lambda: explorer().axes("digit", -1), "there are the inputs 0 to"),
    ),
    *of(
        "Explorer.moved",
        ("unknown: facet", lambda: explorer().moved("hue", 0, {}), "unknown facet 'hue'"),
        ("range: row", lambda: explorer().moved("digit", 1.5, {}), "there are the inputs 0 to"),
        (
            "range: latent",
            lambda: explorer().moved("digit", 0, {2: 0.0}),
            "has the latents 0 to 1, got 2",
        ),
        (
            "nan: value",
            lambda: explorer().moved("digit", 0, {0: NAN}),
            "has the latents 0 to 1, got 0 at nan",
        ),
    ),
    *of(
        "Explorer.samples",
        ("unknown: facet", lambda: explorer().samples("hue"), "unknown facet 'hue'"),
        ("range: cluster", lambda: explorer().samples("digit", 4), "choice must be one of"),
        ("range: n", lambda: explorer().samples("digit", 0, 0), f"n {COUNT}, got 0"),
        (
            "range: held",
            lambda: explorer().samples("digit", 0, held=len(X)),
            "there are the inputs 0 to",
        ),
    ),
    *of(
        "facet_swaps",
        ("unknown: facet", lambda: facet_swaps(guide(), X, "hue", SHAPE), "unknown facet 'hue'"),
        (
            "shape: one datum",
            lambda: facet_swaps(guide(), X[:1], "digit", SHAPE),
            "a pair needs two data",
        ),
        (
            "range: pairs",
            lambda: facet_swaps(guide(), X, "digit", SHAPE, -1),
            f"pairs {COUNT}, got -1",
        ),
    ),
    *of(
        "describe_figure",
        ("type: description", lambda: describe_figure(guide()), "must be a FacetDescription"),
        ("range: columns", lambda: describe_figure(described(), 0), f"columns {COUNT}, got 0"),
        (
            "empty: one cluster",
            lambda: describe_figure(described(K=1)),
            "'kind' has 1 clusters with rows: there is nothing to tell apart",
        ),
    ),
    *of(
        "training_curves",
        (
            "empty: history",
            lambda: training_curves([], ["digit"]),
            "the history is empty: fit first",
        ),
    ),
    Row(
        "save_figures",
        "type: guide",
        lambda run: save_figures(run / "figures", runner(), X),
        "guide must be a guide",
    ),
    Row(
        "save_figures",
        "shape: image",
        lambda run: save_figures(run / "figures", guide(), X),
        "cannot be drawn as images",
    ),
    Row(
        "save_figures",
        "file: in the way",
        lambda run: save_figures(run / "config.json", guide(), X, image_shape=SHAPE),
        "config.json",
        FileExistsError,
    ),
    *of(
        "class_traversals",
        ("range: dimension", lambda: class_traversals(nvae(), 2, SHAPE), r"one of \(0, 1\), got 2"),
        (
            "misfit: model",
            lambda: class_traversals(guide(), 0, SHAPE),
            "MFCVAE has no latents of classes",
        ),
    ),
    *of(
        "class_latents",
        (
            "shape: dimension",
            lambda: class_latents(nvae(), [0, 1], 3),
            r"each of 3 classes, got \[0, 1\]",
        ),
        ("range: columns", lambda: class_latents(nvae(), 0, 0), f"columns {COUNT}, got 0"),
    ),
    *of(
        "shared_latents",
        ("range: dimension", lambda: shared_latents(nvae(), -1, 3), r"one of \(0, 1\), got -1"),
    ),
    *of(
        "shared_traversals",
        ("type: guide", lambda: shared_traversals(nvae().model, 0, SHAPE), "guide must be a guide"),
    ),
    *of(
        "traversed",
        (
            "shape: z",
            lambda: traversed(
                nvae(), {"shared": torch.zeros(3, 2, 1), "class": torch.zeros(3, 2, 6)}
            ),
            r"facet 'shared' has shape \[3, 2, 1\]",
        ),
    ),
    *of(
        "class_samples",
        (
            "misfit: model",
            lambda: class_samples(guide(), SHAPE),
            "MFCVAE's decoder reads no class",
        ),
        (
            "range: scale",
            lambda: class_samples(nvae(), SHAPE, scale=-1),
            "must be at least 0, got -1",
        ),
    ),
    *of(
        "kl_by_class",
        ("shape: label", lambda: kl_by_class(KL, [0, 1], 2), r"got shapes \(5, 4\) and \(2,\)"),
        (
            "misfit: blocks",
            lambda: kl_by_class(KL, LABEL, 3),
            "4 latents, which cannot be split into blocks of block_dim=3",
        ),
        ("nan: kl", lambda: kl_by_class(KL * NAN, LABEL, 2), "kl holds NaN"),
    ),
    *of(
        "kl_of_blocks",
        ("empty: kl", lambda: kl_of_blocks({}), "kl is empty"),
    ),
    *of(
        "latent_scatter",
        ("shape: label", lambda: latent_scatter(Z, LABEL), r"got shapes \(8, 2\) and \(5,\)"),
        ("empty: z", lambda: latent_scatter(Z[:0], []), r"got shapes \(0, 2\) and \(0,\)"),
        ("range: rows", lambda: latent_scatter(X, LABEL, rows=0), f"rows {COUNT}, got 0"),
    ),
    *of(
        "grouped_boxes",
        ("empty: values", lambda: grouped_boxes({}, "", ""), "there is nothing to draw"),
        (
            "missing: setting",
            lambda: grouped_boxes({"a": {1: [0]}, "b": {}}, "", ""),
            "'b' has no values for 1",
        ),
    ),
    *of(
        "grouped_means",
        ("empty: values", lambda: grouped_means({"a": {}}, "", ""), "there is nothing to draw"),
    ),
    *of(
        "grouped_points",
        ("empty: points", lambda: grouped_points({}, "", ""), "there is nothing to draw"),
    ),
    *of(
        "run_curves",
        ("empty: runs", lambda: run_curves({}, "", ""), "there is nothing to draw"),
        ("empty: run", lambda: run_curves({"a": [{1: 2.0}, {}]}, "", ""), "there is nothing to"),
    ),
    *of(
        "grouped_curves",
        ("empty: curves", lambda: grouped_curves({}, "", ""), "there is nothing to draw"),
    ),
    *of(
        "guide_comparison",
        ("empty: bounds", lambda: guide_comparison({}, {}), "there is nothing to draw"),
    ),
    *of(
        "style_swaps",
        ("type: guide", lambda: style_swaps(guide(), X, X, LABEL, SHAPE), "must be a GroupedGuide"),
        (
            "shape: group",
            lambda: style_swaps(mlvae(), X, X, LABEL[:3], SHAPE),
            r"group has shape \[3\]",
        ),
    ),
    *of(
        "latent_interpolation",
        (
            "shape: pair",
            lambda: latent_interpolation(mlvae(), X, SHAPE),
            r"pair must hold two data, .* \(5, 6\)",
        ),
        ("range: steps", lambda: latent_interpolation(mlvae(), X[:2], SHAPE, 0), f"steps {COUNT}"),
    ),
    *of(
        "group_generations",
        (
            "range: draws",
            lambda: group_generations(mlvae(), X, LABEL, SHAPE, draws=0),
            f"draws {COUNT}",
        ),
        (
            "type: group",
            lambda: group_generations(mlvae(), X, list("aabbc"), SHAPE),
            "group must hold numb",
        ),
    ),
    *of(
        "evidence_reconstructions",
        ("nan: x", lambda: evidence_reconstructions(mlvae(), holed(NAN), SHAPE), "NaN or infinite"),
        ("type: guide", lambda: evidence_reconstructions(nvae(), X), "must be a GroupedGuide"),
    ),
]
