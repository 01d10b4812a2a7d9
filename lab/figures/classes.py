"""Figures of class latents and shared latents (N-VAE, Fig. 1 to 11). Each function returns a new
figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from guides.base import FacetGuide
from inference.figures.drawing import (
    image_rows,
    label_axes,
    legend_beside,
    new_figure,
    styles,
    text_width,
)
from inference.randomness import seeded
from ppl_models.modes import evaluating

# Latents are varied within three standard deviations of their prior, as in the paper's figures.
REACH = 3.0
# Images of a row along a latent, draws of a class, and most points of a scatter plot.
STEPS, DRAWS, MOST = 9, 10, 3000


def class_traversals(
    guide: FacetGuide, dimension: int | Sequence[int], image_shape: tuple[int, ...]
) -> Figure:
    """One latent of each class's own block from -3 to 3, all others at 0: one class per row (Fig.
    1, 6).

    :param guide: the guide of an :class:`~ppl_models.nvae.NVAE`.
    :param dimension: index of the latent within its block, for all classes or one for each.
    """
    images = traversed(guide, class_latents(guide, dimension))
    title = f"a latent of each class's own, from {-REACH:g} to {REACH:g}"
    return _class_rows(images, image_shape, title)


def shared_traversals(guide: FacetGuide, dimension: int, image_shape: tuple[int, ...]) -> Figure:
    """One shared latent from -3 to 3, all others at 0: one class per row (Fig. 2, 7, 8).

    :param guide: the guide of an :class:`~ppl_models.nvae.NVAE`.
    :param dimension: index of the shared latent.
    """
    images = traversed(guide, shared_latents(guide, dimension))
    title = f"shared latent {dimension + 1}, from {-REACH:g} to {REACH:g}"
    return _class_rows(images, image_shape, title)


def class_latents(guide: FacetGuide, dimension: int | Sequence[int]) -> dict[str, torch.Tensor]:
    """The latents of :func:`class_traversals`, ``[L, STEPS, d]`` by facet."""
    z, blocks = _zeros(guide), guide.model.blocks
    own = z["class"].view(blocks.num_components, STEPS, blocks.num_components, blocks.block_dim)
    for k, each in enumerate(np.broadcast_to(dimension, blocks.num_components).tolist()):
        own[k, :, k, each] = torch.linspace(-REACH, REACH, STEPS)
    return z


def shared_latents(guide: FacetGuide, dimension: int) -> dict[str, torch.Tensor]:
    """The latents of :func:`shared_traversals`, ``[L, STEPS, d]`` by facet."""
    z = _zeros(guide)
    z["shared"][..., dimension] = torch.linspace(-REACH, REACH, STEPS)
    return z


@torch.no_grad()
def traversed(guide: FacetGuide, z: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Means of p(x given y, z) for latents ``[L, STEPS, d]``, one class per row: ``[L, STEPS,
    *x_shape]``.
    """
    label = torch.arange(guide.model.num_classes)[:, None].expand(-1, STEPS)
    with evaluating(guide):
        return guide.model.decode(z, label=label).mean.cpu().numpy()


def class_samples(guide: FacetGuide, image_shape: tuple[int, ...], scale: float) -> Figure:
    """Draws of every class, one class per row, with latents from Normal(0, scale) (Fig. 11).

    :param guide: the guide of a model whose decoder reads the class: :class:`~ppl_models.nvae.NVAE`
        or :class:`~ppl_models.ivae.CVAE`.
    :param scale: standard deviation of the latents; above 1 they are more extreme than the prior's.
    """
    model = guide.model
    with seeded(0, model.gates.device):
        label = torch.arange(model.num_classes).repeat_interleave(DRAWS)
        made = model.generate(len(label), temperature=scale, label=label).cpu().numpy()
    images = made.reshape(-1, DRAWS, *made.shape[1:])
    title = f"samples of each class, latents with standard deviation {scale:g}"
    return _class_rows(images, image_shape, title)


def kl_by_class(kl: ArrayLike, label: ArrayLike, block_dim: int) -> Figure:
    """Mean KL of every latent of all blocks, one row for the data of each class (Fig. 10).

    :param kl: KL in nats, ``[N, L * block_dim]``.
    :param label: classes ``[N]``.
    :param block_dim: latents of a block.
    """
    kl, label = np.asarray(kl), np.asarray(label)
    classes, blocks = np.unique(label), range(kl.shape[1] // block_dim)
    table = np.stack([kl[label == k].mean(0) for k in classes])
    across, down = "latents, a block for each class", "class of the data"
    width = max(0.16 * table.shape[1], text_width([across], 8))
    height = max(0.2 * len(classes), text_width([down], 8))
    figure, axes = new_figure(1.5 + width, 1 + height, 1)
    ax = axes.flat[0]
    drawn = ax.imshow(table, aspect="auto", cmap="Blues", vmin=0)
    for edge in range(block_dim, table.shape[1], block_dim):
        ax.axvline(edge - 0.5, color="0.8", linewidth=0.6)
    ax.set_xticks(np.arange(0, table.shape[1], block_dim) + (block_dim - 1) / 2, map(str, blocks))
    ax.set_yticks(range(len(classes)), [str(k) for k in classes])
    label_axes(ax, across, down)
    bar = figure.colorbar(drawn, ax=ax)
    bar.set_label("KL, nats", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def kl_of_blocks(name: str, kl: Mapping[str, Sequence[float]]) -> Figure:
    """KL of each latent in descending order: shared latents, those of the right class, those of
    others (Fig. 5).

    :param name: the model's.
    :param kl: KL in nats, by kind of latent.
    """
    figure, axes = new_figure(2.9, 2.6, 1)
    ax, start = axes.flat[0], 0
    for style, (kind, values) in zip(styles(), kl.items(), strict=False):
        ax.bar(
            start + np.arange(len(values)),
            sorted(values, reverse=True),
            color=style["color"],
            label=kind,
        )
        start += len(values) + 1
    ax.set_title(name, fontsize=8)
    ax.set_xticks([])
    label_axes(ax, "latents", "KL, nats per datum")
    ax.legend(fontsize=7, frameon=False)
    return figure


def latent_scatter(z: ArrayLike, label: ArrayLike) -> Figure:
    """Posterior means of two latents, colored by class (Fig. 3).

    :param z: ``[N, d]``; the two latents with the largest variance are drawn.
    :param label: classes ``[N]``.
    """
    z, label = np.asarray(z), np.asarray(label)
    chosen = np.random.default_rng(0).permutation(len(z))[:MOST]
    first, second = np.argsort(-z.var(0))[:2] if z.shape[1] > 1 else (0, 0)
    figure, axes = new_figure(4.0, 3.8, 1)
    ax = axes.flat[0]
    for style, k in zip(styles(), np.unique(label), strict=False):
        own = chosen[label[chosen] == k]
        ax.plot(
            z[own, first], z[own, second], linestyle="none", markersize=2, label=str(k), **style
        )
    label_axes(ax, f"latent {first + 1}", f"latent {second + 1}")
    legend_beside(figure, ax, markerscale=3, title="class", title_fontsize=7)
    return figure


def _zeros(guide: FacetGuide) -> dict[str, torch.Tensor]:
    model = guide.model
    return {
        name: torch.zeros(model.num_classes, STEPS, prior.dim)
        for name, prior in model.priors.items()
    }


def _class_rows(images: np.ndarray, image_shape: tuple[int, ...], title: str) -> Figure:
    """Images ``[L, columns, *x_shape]``, one row for each class."""
    rows = dict(zip(map(str, range(len(images))), images, strict=True))
    return image_rows(rows, image_shape, images.shape[1], title, "class")
