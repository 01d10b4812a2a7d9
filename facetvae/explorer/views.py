"""What the explorer's page shows: answers of an ``Explorer`` as pieces of a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import product
from typing import Any

import numpy as np
from dash import dcc, html
from PIL import Image
from plotly.graph_objects import Scatter
from plotly.subplots import make_subplots

from facetvae.describing import FacetDescription
from facetvae.describing.text import certainty_text, told_of
from facetvae.explorer.explorer import MAX_SWAPPED, PROBED_ROWS, Explorer, Knowledge
from facetvae.explorer.requests import MAX_CHOICES
from inference.figures.training import elbo_range, training_series

GALLERY_COLUMNS, SAMPLE_COLUMNS, SAMPLE_ROWS = 10, 20, 8
# Columns that are told of, and clusters of which each column is told.
ABOUT_COLUMNS, ABOUT_CLUSTERS = 12, 12
# Scores of clusters, and how the table is headed.
SCORES = {
    "accuracy": "Clusters, majority",
    "accuracy_hungarian": "one to one",
    "nmi": "NMI",
    "ari": "ARI",
}
COLOURS = ("#1f5e66", "#c4693d", "#6a5d8f", "#8a9a3b", "#b04a66", "#4a82b0", "#7d6b52", "#3c8a5d")
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def png(picture: np.ndarray) -> str:
    """A picture as a data URL."""
    kept = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(kept, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def strip(pictures: np.ndarray, columns: int) -> str:
    """Pictures ``[n, H, W]`` or ``[n, H, W, 3]`` in a row of ``columns``, a line of ground between
    them.
    """
    width = pictures.shape[2] + 1
    row = np.full((pictures.shape[1], columns * width, *pictures.shape[3:]), 255, np.uint8)
    for j, picture in enumerate(pictures[:columns]):
        row[:, j * width : (j + 1) * width - 1] = picture
    return png(row)


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
def gallery(explorer: Explorer, facet: str) -> html.Div:
    rows = [
        html.Div(
            [
                html.Div(
                    [
                        html.Strong(f"{each.number}"),
                        html.Span(f"{each.count} data, {100 * each.certainty:.0f} % sure"),
                    ],
                    className="caption",
                ),
                html.Img(
                    src=strip(explorer.pictures(explorer.x[each.rows]), GALLERY_COLUMNS),
                    className="strip",
                ),
            ],
            className="row",
        )
        for each in explorer.clusters(facet, GALLERY_COLUMNS)
    ]
    return html.Div(rows, className="gallery")


@told
def about_view(
    explorer: Explorer, facet: str, described: Callable[[str], FacetDescription]
) -> html.Div:
    """What a facet's clusters are, in the columns of the data or in mean pictures."""
    found = described(facet)
    parts = [note(certainty_text(found.as_dict())), about_clusters(explorer, found)]
    if explorer.pictures.shape is None or explorer.columns is not None:
        parts += about_columns("What the clusters explain of each column", found.columns)
    if found.metadata:
        parts += about_columns("And of the known labels", found.metadata)
    return html.Div(parts, className="about")


def about_clusters(explorer: Explorer, found: FacetDescription) -> html.Table:
    """Each cluster's size, its mean if the data's entries have no names, and typical data."""
    means = explorer.mean_pictures(found)
    heads = ["Cluster", "Data", "Share", *(["Mean"] if len(means) else []), "Typical"]
    lines = []
    for place, each in enumerate(found.clusters):
        mean = [html.Td(html.Img(src=png(means[place]), className="strip"))] if len(means) else []
        typical = strip(explorer.pictures(explorer.x[each["exemplars"]]), len(each["exemplars"]))
        numbers = ", ".join(map(str, each["exemplars"]))
        cells = [html.Td(f"{each['size']:,}"), html.Td(percent(each["share"])), *mean]
        cells.append(html.Td(html.Img(src=typical, className="strip", title=numbers)))
        lines.append(html.Tr([html.Th(each["cluster"]), *cells]))
    return table_of(heads, lines)


def about_columns(title: str, columns: Sequence[Mapping[str, Any]]) -> list[Any]:
    """How much the clusters explain of each column, with its interval, and what it is in each."""
    shown = columns[:ABOUT_COLUMNS]
    clusters = [each["cluster"] for each in columns[0]["clusters"][:ABOUT_CLUSTERS]]
    heads = ["Column", "Explained", "", *(f"Cluster {k}" for k in clusters)]
    return [html.H3(title), table_of(heads, [about_column(each) for each in shown])]


def about_column(column: Mapping[str, Any]) -> html.Tr:
    cells = [html.Td(told_of(column, each)) for each in column["clusters"][:ABOUT_CLUSTERS]]
    if column["effect"] is None:
        return html.Tr(
            [html.Th(column["column"]), html.Td("nothing to tell apart"), html.Td(), *cells]
        )
    low, high = column["interval"]
    within = {"left": f"{100 * low:.1f}%", "width": f"{100 * (high - low):.1f}%"}
    bar = html.Div(
        [
            html.Div(className="fill", style={"width": f"{100 * column['effect']:.1f}%"}),
            html.Div(className="within", style=within),
        ],
        className="bar",
    )
    return html.Tr(
        [html.Th(column["column"]), html.Td(bar), html.Td(percent(column["effect"])), *cells]
    )


def table_of(heads: Sequence[str], lines: Sequence[html.Tr]) -> html.Table:
    top = html.Thead(html.Tr([html.Th(head) for head in heads]))
    return html.Table([top, html.Tbody(lines)], className="known")


@told
def knowledge_table(explorer: Explorer, measured: Callable[[str, str], Any]) -> Any:
    if not explorer.labels:
        return note("No label of these data is known, so there is nothing to measure against.")
    heads = ["Facet", "Label", "Read from the latents", "", "By chance", *SCORES.values()]
    lines = []
    for facet, label in product(explorer.facets, explorer.labels):
        try:
            cells = knowledge_cells(measured(facet, label))
        except ValueError as error:
            cells = [html.Td(str(error), colSpan=len(heads) - 2)]
        lines.append(html.Tr([html.Th(facet), html.Td(label), *cells]))
    table = table_of(heads, lines)
    rows = min(PROBED_ROWS, len(explorer.x))
    how = (
        f"Read by a classifier from draws of the latents: {rows:,} of the data, two thirds to "
        "train it, the rest to "
        "test it. The mark in each bar is chance: the commonest label. Clusters are scored on all "
        "data shown."
    )
    return [table, note(how)]


def knowledge_cells(found: Knowledge) -> list[html.Td]:
    """A bar with chance marked in it, and the numbers."""
    fill, tick = (
        {name: f"{100 * share:.1f}%"}
        for name, share in (("width", found.probe), ("left", found.chance))
    )
    bar = html.Div(
        [html.Div(className="fill", style=fill), html.Div(className="tick", style=tick)],
        className="bar",
    )
    cells = [html.Td(cell) for cell in (bar, percent(found.probe), percent(found.chance))]
    if not found.clustering:
        return [*cells, html.Td("no clusters are inferred", colSpan=len(SCORES))]
    scores = {name: found.clustering[name] for name in SCORES}
    return cells + [
        html.Td(percent(s) if name.startswith("accuracy") else f"{s:.2f}")
        for name, s in scores.items()
    ]


def curves(history: Sequence[Mapping[str, Any]], facets: Sequence[str]) -> Any:
    if not history:
        return note("The run has no history: it was saved before it was fitted.")
    epochs, series = training_series(history, facets)
    shown = {label: lines for label, lines in series.items() if lines}
    mode = "lines" if len(history) > 1 else "markers"
    figure = make_subplots(1, len(shown), horizontal_spacing=0.09)
    for column, (label, lines) in enumerate(shown.items(), start=1):
        for k, (name, values) in enumerate(lines.items()):
            line = {"color": COLOURS[k % len(COLOURS)], "width": 1.8}
            legend = "legend" if column == 1 else f"legend{column}"
            figure.add_trace(
                Scatter(x=epochs, y=values, name=name, mode=mode, line=line, legend=legend),
                row=1,
                col=column,
            )
        figure.update_yaxes(title_text=label, row=1, col=column)
        left = (column - 1) * (1 + 0.09) / len(shown)
        figure.update_layout(
            {legend: {"x": left, "y": 1.02, "yanchor": "bottom", "orientation": "v"}}
        )
    figure.update_xaxes(
        title_text="epoch",
        showgrid=False,
        linecolor="#d6d3cc",
        ticks="outside",
        tickcolor="#d6d3cc",
    )
    figure.update_yaxes(gridcolor="#ebe8e2", zeroline=False)
    low, high = elbo_range(history)
    if low < high:
        figure.update_yaxes(range=(low, high), row=1, col=1)
    plain = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
    }
    margin = {"l": 10, "r": 10, "t": 90, "b": 10}
    figure.update_layout(
        **plain, margin=margin, font={"family": FONT, "size": 12, "color": "#23282d"}, height=460
    )
    return dcc.Graph(figure=figure, config={"displayModeBar": False}, className="curves")


@told
def swap_table(
    explorer: Explorer, first: int | None, second: int | None, parts: Sequence[str] | None = None
) -> html.Div:
    parts = explorer.parts[:MAX_SWAPPED] if parts is None else in_order(explorer, parts)
    _, data = explorer.swaps(*whole(explorer, first, second), parts)
    half = max(1, len(parts) // 2)
    left, over = parts[:half], parts[half:]
    pictures = [png(picture) for picture in explorer.pictures(data)]
    columns = 2 ** len(over)
    heads = [html.Th(of_letters(over, k, columns)) for k in range(columns)] if over else []
    rows = []
    for i in range(2 ** len(left)):
        cells = [
            html.Td(html.Img(src=each, className="swap"))
            for each in pictures[i * columns : (i + 1) * columns]
        ]
        rows.append(html.Tr([html.Th(of_letters(left, i, 2 ** len(left))), *cells]))
    size = {"--swap-height": f"{min(170, 480 // len(rows))}px"}
    table = html.Table(
        [html.Thead(html.Tr([html.Th(), *heads])), html.Tbody(rows)], className="swaps", style=size
    )
    if len(explorer.parts) > 1:
        return html.Div(table)
    return html.Div(
        [
            table,
            note(
                f"{parts[0]} is all that is decoded: these are reconstructions, with nothing to "
                "swap."
            ),
        ]
    )


def in_order(explorer: Explorer, parts: Sequence[str]) -> list[str]:
    """The parts that were chosen, shallow to deep, in whichever order they were."""
    return [part for part in explorer.parts if part in parts]


def of_letters(parts: Sequence[str], number: int, count: int) -> list[Any]:
    """Which input each part is of, in the order of combinations: the last part changes first."""
    letters = f"{number:0{count.bit_length() - 1}b}".replace("0", "A").replace("1", "B")
    return [
        html.Span([part, html.Span(letter, className=f"letter {letter}")], className="source")
        for part, letter in zip(parts, letters, strict=True)
    ]


def whole(explorer: Explorer, *rows: int | None) -> list[int]:
    """Refuse what does not fit.

    :raises ValueError: if a field for the number of an input is empty, or holds another
        number.
    """
    if None in rows:
        raise ValueError(f"Choose an input, or give its number, from 0 to {len(explorer.x) - 1}.")
    return [row for row in rows if row is not None]


@told
def slider_list(explorer: Explorer, facet: str, row: int | None, label: int | None) -> list[Any]:
    (row,) = whole(explorer, row)
    axes = explorer.axes(facet, row, label)
    dim = explorer.model.prior(facet).dim
    told_of = (
        []
        if len(axes) == dim
        else [note(f"{len(axes)} of the {dim} latents of {facet}: those that can tell most.")]
    )
    return told_of + [
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
    explorer: Explorer, facet: str, row: int, values: Mapping[int, float], label: int | None
) -> tuple[str, str]:
    """The picture of a moved datum, and its cluster; values beyond their sliders count as the
    sliders' ends.

    :raises ValueError: if the facet has no such latents, or the row or label does not exist.
    """
    ends = {axis.index: (axis.low, axis.high) for axis in explorer.axes(facet, row, label)}
    if not values.keys() <= ends.keys():
        raise ValueError(f"These sliders are not those of {facet}: choose the facet again.")
    found = explorer.moved(
        facet, row, {j: clipped(each, *ends[j]) for j, each in values.items()}, label
    )
    says = (
        ""
        if found.cluster is None
        else f"cluster {found.cluster}, {percent(found.probability or 0)}"
    )
    return png(explorer.pictures(found.datum[None])[0]), says


def clipped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


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
    rows = []
    for choice in chosen or [None] * SAMPLE_ROWS:
        # Each row has draws of its own, the same again whatever else is chosen.
        own = 1000 * seed + (len(rows) if choice is None else choice)
        data = explorer.samples(facet, choice, SAMPLE_COLUMNS, temperature, held, own)
        image = html.Img(src=strip(explorer.pictures(data), SAMPLE_COLUMNS), className="strip")
        caption = (
            []
            if choice is None
            else [html.Div(html.Strong(str(choice)), className="caption short")]
        )
        rows.append(html.Div([*caption, image], className="row"))
    return html.Div(rows, className="drawn")
