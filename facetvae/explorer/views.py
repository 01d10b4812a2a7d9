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
from facetvae.describing.description import told_of
from facetvae.explorer.explorer import Explorer
from facetvae.explorer.requests import MAX_CHOICES, SLOTS
from inference.figures.training import training_curves

# Pictures in a row, and rows of draws where nothing is chosen.
GALLERY_COLUMNS, SAMPLE_COLUMNS, SAMPLE_ROWS = 7, 20, 8
# Columns that are told of, and clusters of which each column is told.
TOLD_COLUMNS, TOLD_CLUSTERS = 12, 12


def as_url(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def png(picture: np.ndarray) -> str:
    """A picture as a data URL."""
    kept = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(kept, "PNG", compress_level=1)
    return as_url(kept.getvalue())


def strip(pictures: np.ndarray, columns: int) -> html.Img:
    """Pictures ``[n, H, W]`` or ``[n, H, W, 3]`` in a row of ``columns``, a line of ground between
    them.
    """
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


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def tile_size(explorer: Explorer) -> dict[str, str]:
    """Height and width of a small picture on the page, as the style sheet's variables."""
    height, width = explorer.pictures(explorer.x[:1]).shape[1:3]
    tall = 36 if explorer.pictures.shape else 40
    return {
        "--tile-height": f"{tall}px",
        "--tile-width": f"{min(96, max(24, round(tall * width / height)))}px",
    }


@told
def clusters_view(
    explorer: Explorer, facet: str, described: Callable[[str, int], FacetDescription]
) -> html.Div:
    """A facet's clusters with their typical data, and what they explain: of the data's columns,
    unless these are pixels, and of the known labels.
    """
    found = described(facet, GALLERY_COLUMNS)
    parts = [note(found.certainty_text()), gallery(explorer, found)]
    if explorer.pictures.shape is None or explorer.columns is not None:
        parts += columns_table("What the clusters explain of each column", found.columns)
    if found.metadata:
        parts += columns_table("What the clusters explain of the known labels", found.metadata)
    return html.Div(parts, className="about")


def gallery(explorer: Explorer, found: FacetDescription) -> html.Div:
    """Each cluster's mean, if the data's entries have no names, and its typical data."""
    means, rows = mean_pictures(explorer, found), []
    for place in np.argsort([-each["certainty"] for each in found.clusters], kind="stable"):
        each = found.clusters[place]
        says = f"{each['size']:,} data, {100 * each['certainty']:.0f} % sure"
        told_of_it = [html.Strong(f"{each['cluster']}"), html.Span(says)]
        caption = html.Div(told_of_it, className="caption")
        typical = strip(explorer.pictures(explorer.x[each["exemplars"]]), GALLERY_COLUMNS)
        mean = [strip(means[[place]], 1)] if len(means) else []
        rows.append(html.Div([caption, *mean, typical], className="row"))
    return html.Div(rows, className="gallery")


def mean_pictures(explorer: Explorer, found: FacetDescription) -> np.ndarray:
    """A picture of the mean of each cluster; none if the entries of a datum have names."""
    means = [each["mean"] for each in found.clusters if "mean" in each]
    x = np.array(means, float).reshape(-1, *explorer.x.shape[1:])
    return explorer.pictures(x / 255 if explorer.x.dtype == np.uint8 else x) if means else x


def columns_table(title: str, columns: Sequence[Mapping[str, Any]]) -> list[Any]:
    """How much the clusters explain of each column, with its interval, and what it is in each."""
    clusters = [each["cluster"] for each in columns[0]["clusters"][:TOLD_CLUSTERS]]
    heads = ["Column", "Explained", "", *(f"Cluster {k}" for k in clusters)]
    lines = [html.Tr(column_cells(each)) for each in columns[:TOLD_COLUMNS]]
    top = html.Thead(html.Tr([html.Th(head) for head in heads]))
    return [html.H3(title), html.Table([top, html.Tbody(lines)], className="known")]


def column_cells(column: Mapping[str, Any]) -> list[Any]:
    cells = [html.Td(told_of(column, each)) for each in column["clusters"][:TOLD_CLUSTERS]]
    if column["effect"] is None:
        return [html.Th(column["column"]), html.Td("nothing to tell apart"), html.Td(), *cells]
    low, high = column["interval"]
    fill = html.Div(className="fill", style={"width": f"{100 * column['effect']:.1f}%"})
    within = {"left": f"{100 * low:.1f}%", "width": f"{100 * (high - low):.1f}%"}
    bar = html.Div([fill, html.Div(className="within", style=within)], className="bar")
    return [html.Th(column["column"]), html.Td(bar), html.Td(percent(column["effect"])), *cells]


def training_view(history: Sequence[Mapping[str, Any]], facets: Sequence[str]) -> Any:
    if not history:
        return note("The run has no history: it was saved before it was fitted.")
    kept = io.BytesIO()
    training_curves(history, facets).savefig(kept, format="png", dpi=200, transparent=True)
    return html.Img(src=as_url(kept.getvalue()), className="curves", alt="training curves")


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
    return [note(says)] * (len(axes) < dim) + [
        html.Div(
            [
                html.Span(f"{axis.index + 1}", className="place"),
                dcc.Slider(
                    axis.low,
                    axis.high,
                    (axis.high - axis.low) / 100,
                    value=axis.value,
                    marks=None,
                    id={"type": "latent", "place": axis.index},
                    updatemode="drag",
                    allow_direct_input=False,
                    included=False,
                ),
            ],
            className="latent",
        )
        for axis in axes
    ]


def moved_picture(
    explorer: Explorer, facet: str, row: int, values: Mapping[int, float]
) -> tuple[str, str]:
    """The picture of a moved datum, and its cluster; values beyond their sliders count as the
    sliders' ends.

    :raises ValueError: if the facet has no such latents, or the row does not exist.
    """
    axes = {axis.index: axis for axis in explorer.axes(facet, row)}
    if not values.keys() <= axes.keys():
        raise ValueError(f"These sliders are not those of {facet}: choose the facet again.")
    within = {j: min(max(each, axes[j].low), axes[j].high) for j, each in values.items()}
    found = explorer.moved(facet, row, within)
    picture = png(explorer.pictures(found.datum[None])[0])
    if found.cluster is None:
        return picture, ""
    return picture, f"cluster {found.cluster}, {percent(found.probability or 0)}"


@told
def sample_rows(
    explorer: Explorer,
    facet: str,
    chosen: Sequence[int],
    temperature: float,
    held: int | None,
    seed: int,
) -> html.Div:
    if explorer.choices(facet) and not chosen:
        return html.Div(note("Choose a cluster."))
    if len(chosen) > MAX_CHOICES:
        return html.Div(note(f"Choose at most {MAX_CHOICES} at once, of {len(chosen)}."))
    rows: list[html.Div] = []
    choices: Sequence[int | None] = chosen or [None] * SAMPLE_ROWS
    for choice in choices:
        # Each row has draws of its own, the same again whatever else is chosen.
        own = 1000 * seed + (len(rows) if choice is None else choice)
        data = explorer.samples(facet, choice, SAMPLE_COLUMNS, temperature, held, own)
        caption = [html.Div(html.Strong(f"{choice}"), className="caption short")]
        image = strip(explorer.pictures(data), SAMPLE_COLUMNS)
        rows.append(html.Div([*(caption if chosen else []), image], className="row"))
    return html.Div(rows, className="drawn")
