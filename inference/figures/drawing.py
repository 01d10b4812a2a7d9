"""Helpers of all figures: grids of images, axes, colors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from math import ceil, prod
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from guides.base import FacetGuide, check_guide
from ppl_models.given.checks import check_count, check_counts

FONT: dict[str, Any] = {"fontsize": 8}
# Inches of a square image with its margin. Other images have the same area, up to such a ratio of
# their sides, beyond which their pixels are no squares: a line would be too thin for its label.
SQUARE, LONGEST = 0.48, 4.0
# Of a legend: entries of a column, and inches beside the text of an entry.
ENTRIES, BESIDE_TEXT = 16, 0.5


def label_axes(ax: Axes, xlabel: str, ylabel: str) -> None:
    """Label the axes, and apply the common style."""
    ax.set_xlabel(xlabel, **FONT)
    ax.set_ylabel(ylabel, **FONT)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)


def styles() -> Iterator[dict[str, Any]]:
    """Colors and markers that distinguish twenty lines."""
    pairs = colormaps["tab20"].colors  # type: ignore[attr-defined]
    colors = [*pairs[::2], *pairs[1::2]]
    return (
        {"color": c, "marker": m}
        for c, m in zip(cycle(colors), cycle("os^vDP*X<>dh"), strict=False)
    )


def text_width(texts: Iterable[str], fontsize: float) -> float:
    """Inches that the longest of these texts takes, about; 0 of none."""
    return max(map(len, texts), default=0) * 0.6 * fontsize / 72


def legend_beside(figure: Figure, ax: Axes, **options: Any) -> None:
    """A legend at the right of the axes, for which the figure gets wider."""
    names = ax.get_legend_handles_labels()[1]
    columns = ceil(len(names) / ENTRIES)
    wider = columns * (BESIDE_TEXT + text_width(names, fontsize=7))
    figure.set_figwidth(figure.get_figwidth() + wider)
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": columns}
    ax.legend(fontsize=7, frameon=False, **place, **options)


def row_size(shape: Sequence[int], columns: int) -> tuple[float, float]:
    """Inches of a row of so many images of this shape, width and height."""
    height, width = (side + 1 for side in shape[-2:])
    ratio = min(max(width / height, 1 / LONGEST), LONGEST)
    return columns * SQUARE * ratio**0.5, SQUARE / ratio**0.5


def new_figure(width: float, height: float, columns: int) -> tuple[Figure, np.ndarray]:
    """A figure of so many axes side by side."""
    # Not pyplot's figure: no global state, no window, nothing to close.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)


def image_rows(
    rows: Mapping[str, np.ndarray],
    shape: tuple[int, ...],
    columns: int,
    title: str,
    ylabel: str,
    lines: Sequence[int] = (),
) -> Figure:
    """Rows of images, each row labeled; more than 13 rows are split into blocks side by side: two,
    or as many as there are fifties.

    :param lines: columns before which a vertical line is drawn.
    """
    blocks = 1 if len(rows) <= 13 else max(2, ceil(len(rows) / 50))
    length = ceil(len(rows) / blocks)
    width, height = row_size(shape, columns)
    figure, axes = new_figure(
        max(blocks * (width + text_width(rows, 7) + 0.6), text_width([title], 9)),
        max(length * height + 0.7, text_width([ylabel], 8) + 0.4),
        blocks,
    )
    names = list(rows)
    for block, ax in enumerate(axes.flat):
        shown = names[block * length : (block + 1) * length]
        _draw_grid(ax, [_as_images(rows[name], shape) for name in shown], columns, lines)
        h = shape[-2] + 1
        ax.set_yticks([i * h + shape[-2] / 2 for i in range(len(shown))], shown, fontsize=7)
        ax.set_ylabel(ylabel if block == 0 else "", **FONT)
        ax.set_anchor("W")  # beside the labels, whose place the layout has found without images
    figure.suptitle(title, fontsize=9)
    return figure


def _draw_grid(ax: Axes, rows: list[np.ndarray], columns: int, lines: Sequence[int] = ()) -> None:
    channels = rows[0].shape[3:]
    height, width = rows[0].shape[1:3]
    canvas = np.ones((len(rows) * (height + 1) - 1, columns * (width + 1) - 1, *channels))
    for i, row in enumerate(rows):
        for j, image in enumerate(row[:columns]):
            top, left = i * (height + 1), j * (width + 1)
            canvas[top : top + height, left : left + width] = image
    whole, high = row_size((height, width), columns)
    aspect = (high / (height + 1)) / (whole / columns / (width + 1))  # 1 where pixels are square
    ax.imshow(canvas, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
    for j in lines:
        ax.axvline(j * (width + 1) - 1, color="tab:orange", linewidth=1.5)
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _as_images(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``[n, *x_shape]`` to ``[n, H, W]`` or ``[n, H, W, C]`` with values in [0, 1]."""
    images = pixels(x).reshape(-1, *shape).clip(0, 1)
    return images if len(shape) == 2 else np.moveaxis(images, 1, -1)


def pixels(x: np.ndarray) -> np.ndarray:
    """8-bit images as values in [0, 1], like a decoder's output."""
    return x / 255 if x.dtype == np.uint8 else x


def is_image(shape: Sequence[int]) -> bool:
    """Whether such a datum can be drawn: ``(H, W)``, or ``(C, H, W)`` with 1 or 3 channels."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def check_image_shape(image_shape: Any, x_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape to draw a datum in; an error if it is no image's of ``x_shape``'s entries."""
    shape = check_counts("image_shape", image_shape, "(28, 28)")
    if not is_image(shape) or prod(shape) != prod(x_shape):
        raise ValueError(
            f"data of shape {tuple(x_shape)} cannot be drawn as images of shape {shape}: "
            "give image_shape=(height, width) or (channels, height, width) with 1 or 3 channels"
        )
    return shape


def image_shape_of(
    guide: FacetGuide, image_shape: Sequence[int] | None, **counts: Any
) -> tuple[int, ...]:
    """The shape in which a datum of this guide's model is drawn; an error if it does not fit, or
    one of the ``counts``, of rows, columns and the like, is below 1.
    """
    check_guide(guide)
    for name, value in counts.items():
        check_count(name, value)
    x_shape = guide.model.x_shape
    return check_image_shape(x_shape if image_shape is None else image_shape, x_shape)
