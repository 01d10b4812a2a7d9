"""What the explorer's page shows: answers of an ``Explorer`` as pieces of a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
from dash import dcc, html
from PIL import Image

from facetvae.describing import FacetDescription
from facetvae.describing.description import columns_table
from facetvae.explorer.explorer import Axis, Explorer

# The inputs that a click chooses.
SLOTS = ("A", "B")
# Pictures in a row, and rows of draws where nothing is chosen.
GALLERY_COLUMNS, SAMPLE_COLUMNS, SAMPLE_ROWS = 7, 20, 8


def png(picture: np.ndarray) -> str:
    """A picture as a data URL."""
    kept = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(kept, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def strip(pictures: np.ndarray, columns: int) -> html.Img:
    """Pictures ``[n, H, W]`` or ``[n, H, W, 3]`` in a row of ``columns``, with lines between."""
    width = pictures.shape[2] + 1
    row = np.full((pictures.shape[1], columns * width, *pictures.shape[3:]), 255, np.uint8)
    for j, picture in enumerate(pictures[:columns]):
        row[:, j * width : (j + 1) * width - 1] = picture
    return html.Img(src=png(row), className="strip")


def note(text: str) -> html.P:
    return html.P(text, className="note")


def told(view: Callable[..., Any]) -> Callable[..., Any]:
    """A view that shows a sentence where its question makes no sense."""

    @wraps(view)
    def answer(*args: Any) -> Any:
        try:
            return view(*args)
        except ValueError as error:
            return note(str(error))

    return answer


@told
def clusters_view(
    explorer: Explorer, facet: str, described: Callable[[str, int], FacetDescription]
) -> html.Div:
    """A facet's clusters with their typical data, and what they explain: of the data's columns,
    unless these are pixels, and of the known labels.
    """
    found = described(facet, GALLERY_COLUMNS)
    parts = [note(found.certainty_text()), gallery(explorer, found)]
    columns = explorer.pictures.shape is None or explorer.columns is not None
    for what, known in (("column", found.columns * columns), ("known label", found.metadata)):
        if known:
            title = html.H3(f"What the clusters explain of each {what}")
            parts += [title, dcc.Markdown(columns_table(known), className="known")]
    return html.Div(parts)


def gallery(explorer: Explorer, found: FacetDescription) -> html.Div:
    """Each cluster's typical data, the surest cluster first."""
    rows = []
    for each in sorted(found.clusters, key=lambda each: -each["certainty"]):
        says = f"{each['size']:,} data, {100 * each['certainty']:.0f} % sure"
        told_of_it = [html.Strong(f"{each['cluster']}"), html.Span(says)]
        caption = html.Div(told_of_it, className="caption")
        typical = strip(explorer.pictures(explorer.x[each["exemplars"]]), GALLERY_COLUMNS)
        rows.append(html.Div([caption, typical], className="row"))
    return html.Div(rows, className="gallery")


@told
def swap_table(explorer: Explorer, facet: str, first: int | None, second: int | None) -> html.Div:
    """A facet of input A or B by row, and all else of A or B by column."""
    data = explorer.swaps(facet, *whole(explorer, first, second))
    others = [each for each in (*explorer.facets, *explorer.model.decodes) if each != facet]
    rest = others[0] if len(others) == 1 else "all else"
    heads = [html.Th(source(rest, letter)) for letter in SLOTS] if others else []
    rows = []
    for letter, row in zip(SLOTS, data if others else data[:, :1], strict=True):
        pictures = [html.Img(src=png(each), className="swap") for each in explorer.pictures(row)]
        rows.append(html.Tr([html.Th(source(facet, letter)), *map(html.Td, pictures)]))
    top = html.Thead(html.Tr([html.Th(), *heads]))
    table = html.Table([top, html.Tbody(rows)], className="swaps")
    says = f"{facet} is all that is decoded: these are reconstructions, with nothing to swap."
    return html.Div([table] if others else [table, note(says)])


def source(part: str, letter: str) -> html.Span:
    """Which input a part is of."""
    return html.Span([part, html.Span(letter, className=f"letter {letter}")], className="source")


def whole(explorer: Explorer, *rows: int | None) -> list[int]:
    """:raises ValueError: if a field for the number of an input is empty."""
    if None in rows:
        raise ValueError(f"Choose an input, or give its number, from 0 to {len(explorer.x) - 1}.")
    return [row for row in rows if row is not None]


@told
def slider_list(explorer: Explorer, facet: str, row: int | None) -> list[Any]:
    axes = explorer.axes(facet, *whole(explorer, row))
    dim = explorer.model.prior(facet).dim
    says = f"{len(axes)} of the {dim} latents of {facet}: those that can tell most."
    said = [note(says)] if len(axes) < dim else []
    return said + [
        html.Div([f"{axis.index + 1}", slider(axis)], className="latent") for axis in axes
    ]


def slider(axis: Axis) -> dcc.Slider:
    return dcc.Slider(
        axis.low,
        axis.high,
        (axis.high - axis.low) / 100,
        value=axis.value,
        marks=None,
        id={"type": "latent", "place": axis.index},
        updatemode="drag",
        allow_direct_input=False,
        included=False,
    )


def moved_picture(
    explorer: Explorer, facet: str, row: int, values: Mapping[int, float]
) -> tuple[str, str]:
    """The picture of a moved datum, and its cluster; values end where their sliders do.

    :raises ValueError: if the facet has no such latents, or the row does not exist.
    """
    axes = {axis.index: axis for axis in explorer.axes(facet, row)}
    if not values.keys() <= axes.keys():
        raise ValueError(f"These sliders are not those of {facet}: choose the facet again.")
    within = {j: min(max(each, axes[j].low), axes[j].high) for j, each in values.items()}
    datum, proba = explorer.moved(facet, row, within)
    says = "" if proba is None else f"cluster {proba.argmax()}, {100 * proba.max():.1f} %"
    return png(explorer.pictures(datum[None])[0]), says


@told
def sample_rows(
    explorer: Explorer, facet: str, chosen: Sequence[int], held: int | None, seed: int
) -> html.Div:
    if explorer.choices(facet) and not chosen:
        return html.Div(note("Choose a cluster."))
    rows: list[html.Div] = []
    choices: Sequence[int | None] = chosen or [None] * SAMPLE_ROWS
    for choice in choices:
        # Each row has draws of its own, the same again whatever else is chosen.
        own = 1000 * seed + (len(rows) if choice is None else choice)
        data = explorer.samples(facet, choice, SAMPLE_COLUMNS, held, own)
        caption = [html.Div(html.Strong(f"{choice}"), className="caption short")]
        image = strip(explorer.pictures(data), SAMPLE_COLUMNS)
        rows.append(html.Div([*(caption if chosen else []), image], className="row"))
    return html.Div(rows, className="drawn")
