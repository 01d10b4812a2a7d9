"""Figures of content and style (ML-VAE, Fig. 4 to 6). Each function returns a new figure."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from guides.grouped import GroupedGuide
from inference.figures.drawing import image_rows, pixels
from inference.randomness import seeded
from ppl_models.modes import evaluating

# Images of a row that are made, and members of a group beside them.
STEPS, MEMBERS = 8, 4


def style_swaps(
    guide: GroupedGuide,
    style_x: ArrayLike,
    content_x: ArrayLike,
    content_group: ArrayLike,
    image_shape: tuple[int, ...],
) -> Figure:
    """All combinations of styles (rows) and contents (columns) (Fig. 4).

    The first column shows the data that the styles come from; the first row shows one member of
    each group that the contents come from.

    :param style_x: data ``[R, *x_shape]``.
    :param content_x: data ``[M, *x_shape]``; every group's evidence is accumulated.
    :param content_group: their groups, ``[M]``.
    """
    style_x, content_x, group = (
        np.asarray(style_x),
        np.asarray(content_x),
        np.asarray(content_group),
    )
    first = np.unique(group, return_index=True)[1]
    styles = guide.embed(style_x, group=np.arange(len(style_x)))["style"]
    contents = guide.embed(content_x, group=group)["content"][first]
    blank = np.full_like(style_x[:1], 255 if style_x.dtype == np.uint8 else 1)
    rows = {"contents of": np.concatenate([blank, content_x[first]])}
    for i, style in enumerate(styles):
        made = _decoded(guide, contents, np.repeat(style[None], len(contents), 0))
        rows[f"style {i + 1}"] = np.concatenate([pixels(style_x[i : i + 1]), made])
    title = "rows keep the style, columns the content"
    return image_rows(rows, image_shape, len(first) + 1, title, "", [1])


def latent_interpolation(
    guide: GroupedGuide, pair: ArrayLike, image_shape: tuple[int, ...]
) -> Figure:
    """From one datum (top left) to another (bottom right): the content varies along rows, the style
    along columns (Fig. 5b).

    :param pair: data ``[2, *x_shape]``.
    """
    z = guide.embed(pair, group=np.arange(2))
    t = np.linspace(0, 1, STEPS)[:, None]
    content, style = (z[name][0] + t * (z[name][1] - z[name][0]) for name in ("content", "style"))
    rows = {
        f"style {i + 1}": _decoded(guide, content, np.repeat(s[None], STEPS, 0))
        for i, s in enumerate(style)
    }
    title = "content from left to right, style from top to bottom"
    return image_rows(rows, image_shape, STEPS, title, "")


def group_generations(
    guide: GroupedGuide, x: ArrayLike, group: ArrayLike, image_shape: tuple[int, ...]
) -> Figure:
    """Some members of each group, then draws with its content and styles from the prior (Fig. 5a).

    :param x: data ``[M, *x_shape]``; every group's evidence is accumulated.
    :param group: ``[M]``.
    """
    x, group = np.asarray(x), np.asarray(group)
    contents = guide.embed(x, group=group)["content"]
    with seeded(0, guide.model.gates.device):
        styles = guide.model.prior("style").sample(STEPS).cpu().numpy()
    rows = {}
    for g in np.unique(group):
        own = np.flatnonzero(group == g)
        made = _decoded(guide, np.repeat(contents[own[:1]], STEPS, 0), styles)
        shown = pixels(x[np.resize(own, MEMBERS)])
        rows[f"group {g}"] = np.concatenate([shown, made])
    title = f"{MEMBERS} members, then drawn in their likeness"
    return image_rows(rows, image_shape, MEMBERS + STEPS, title, "", [MEMBERS])


def evidence_reconstructions(
    guide: GroupedGuide, x: ArrayLike, image_shape: tuple[int, ...]
) -> Figure:
    """Members of one group, reconstructed from each member's evidence alone and from that of all
    (Fig. 6a).

    :param x: data ``[M, *x_shape]`` of one group.
    """
    x = np.atleast_1d(x)
    rows = {
        "data": pixels(x),
        "alone": guide.reconstruct(x, group=np.arange(len(x))),
        "with evidence": guide.reconstruct(x, group=np.zeros(len(x), int)),
    }
    title = "one group, without and with accumulated evidence"
    return image_rows(rows, image_shape, len(x), title, "")


def _decoded(guide: GroupedGuide, content: np.ndarray, style: np.ndarray) -> np.ndarray:
    with evaluating(guide), torch.no_grad():
        z = {"content": torch.as_tensor(content), "style": torch.as_tensor(style)}
        return guide.model.decode(z).mean.cpu().numpy()
