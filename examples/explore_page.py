"""The explorer's page: its layout, and which question each click asks of an ``Explorer``."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from flask import Response, abort, request
from PIL import Image
from plotly.graph_objects import Figure, Scatter
from plotly.subplots import make_subplots

from inference.exploring import Explorer
from inference.figures import elbo_range, training_series

__all__ = ["VIEWS", "build_app"]

# The views by name, as the rail lists them, and what each says of itself.
VIEWS = {
    "Clusters": "The data that each cluster is surest of; the surest clusters come first.",
    "Knowledge": "How well each known label is read from a facet: by a classifier that sees its latents alone, and from "
    "its clusters.",
    "Swaps": "Two inputs, and all that can be made of them: each facet is taken from the one or from the other.",
    "Latents": "Start from input A and move its latents one by one; the other facets stay.",
    "Samples": "Draws from the prior of one facet, cluster by cluster.",
    "Training": "The run's history. ELBO and KL in nats per datum, every weight at 1.",
}
OF_ONE_FACET = ("Clusters", "Latents", "Samples")
WITH_INPUTS = ("Swaps", "Latents", "Samples")
THUMBNAILS, GALLERY_COLUMNS, SAMPLE_COLUMNS, SHOWN_CHOICES = 32, 10, 12, 8
COLOURS = ("#1f5e66", "#c4693d", "#6a5d8f", "#8a9a3b", "#b04a66", "#4a82b0", "#7d6b52", "#3c8a5d")
FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def build_app(explorer: Explorer, history: Sequence[Mapping[str, Any]], title: str, facts: Mapping[str, str]) -> Dash:
    """The page as an application that serves all it needs itself.

    :param history: of the run.
    :param title: the run's name.
    :param facts: what is said of the run beside its name.
    """
    app = Dash(
        __name__,
        title=f"{title} - FacetVAE",
        update_title=None,
        assets_folder=str(Path(__file__).parent / "explore_assets"),
        use_pages=False,
        serve_locally=True,
        enable_mcp=False,
        add_log_handler=False,
    )
    app.layout = lambda: layout(explorer, title, facts)
    answer_views(app, explorer, history)
    answer_inputs(app, explorer)
    answer_latents(app, explorer)
    answer_samples(app, explorer)
    keep_to_itself(app)
    return app


def keep_to_itself(app: Dash) -> None:
    """Browsers are told to ask nothing of any other place, and other sites' names for this machine are refused."""
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *app.csp_hashes()]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": "'self'",
        "frame-ancestors": "'none'",
        "form-action": "'none'",
        "base-uri": "'none'",
    }

    @app.server.before_request
    def refuse_other_names() -> None:
        if request.host.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            abort(403)

    @app.server.after_request
    def with_policy(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = "; ".join(f"{name} {value}" for name, value in policy.items())
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


# Pieces of the page


def png(picture: np.ndarray) -> str:
    """A picture as a data URL."""
    kept = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(kept, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def strip(pictures: np.ndarray, columns: int) -> str:
    """Pictures ``[n, H, W]`` or ``[n, H, W, 3]`` in a row of ``columns``, a line of ground between them."""
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


def radio(name: str, options: Sequence[Any], value: Any, className: str) -> dcc.RadioItems:
    return dcc.RadioItems(options, value, id=name, className=className, labelClassName="option")


def tile_size(explorer: Explorer) -> dict[str, str]:
    """Height and width of a small picture on the page, as the style sheet's variables."""
    height, width = explorer.pictures(explorer.x[:1]).shape[1:3]
    tall = 36 if explorer.pictures.shape else 40
    return {"--tile-height": f"{tall}px", "--tile-width": f"{min(96, max(24, round(tall * width / height)))}px"}


def layout(explorer: Explorer, title: str, facts: Mapping[str, str]) -> html.Div:
    first = explorer.facets[-1]  # the deepest
    rail = html.Aside(
        [
            html.P("FacetVAE explorer", className="mark"),
            html.H1(title),
            html.Dl([each for name, fact in facts.items() for each in (html.Dt(name), html.Dd(fact))]),
            html.H2("View"),
            radio("view", list(VIEWS), "Clusters", "menu"),
            html.Div([html.H2("Facet"), radio("facet", explorer.facets, first, "menu")], id="facets"),
        ],
        className="rail",
    )
    body = html.Main(
        [
            html.Header([html.H2(id="heading"), html.P(id="lead")]),
            inputs(explorer),
            html.Section(id="Clusters"),
            html.Section(
                [html.Button("Measure", id="measure"), dcc.Loading(html.Div(id="known"), type="dot")], id="Knowledge"
            ),
            html.Section(id="Swaps"),
            latents(explorer),
            samples(),
            html.Section(id="Training"),
        ]
    )
    return html.Div([rail, body], className="page", style=tile_size(explorer))


def inputs(explorer: Explorer) -> html.Section:
    """Where the two inputs are chosen that swaps, latents and samples start from."""
    last = len(explorer.x) - 1
    slots = [
        html.Div(
            [
                html.Span(letter, className="letter"),
                html.Img(id=f"picture-{letter}", className="slot-picture", alt=f"input {letter}"),
                dcc.Input(id=f"input-{letter}", type="number", min=0, max=last, step=1, value=min(j, last)),
            ],
            id=f"slot-{letter}",
            className="slot",
        )
        for j, letter in enumerate("AB")
    ]
    choose = html.Div(
        [html.Span("A click chooses", id="choosing"), radio("slot", ["A", "B"], "A", "pair")],
        id="choose",
        className="line",
    )
    others = html.Button("Other inputs", id="others", className="quiet")
    side = html.Div([*slots, choose, others], className="slots")
    return html.Section([side, html.Div(id="thumbnails", className="thumbnails")], id="inputs")


def latents(explorer: Explorer) -> html.Section:
    labels = [{"label": f"decoded as {k}", "value": k} for k in range(explorer.num_classes)]
    shown = html.Div(
        [
            html.Figure([html.Img(id="moved", className="large", alt="decoded"), html.Figcaption(id="moved-says")]),
            html.Button("Back to the input", id="back", className="quiet"),
            dcc.Dropdown(
                labels, id="label", placeholder="decoded as it is", className="narrow" if labels else "absent"
            ),
        ],
        className="shown",
    )
    return html.Section([shown, html.Div(id="sliders", className="sliders")], id="Latents", className="side-by-side")


def samples() -> html.Section:
    others = [
        {"label": "other facets drawn", "value": "drawn"},
        {"label": "other facets held as in A", "value": "held"},
    ]
    marks = {0: "0", 0.5: "0.5", 1: "1", 1.5: "1.5"}
    controls = html.Div(
        [
            html.Div([html.Span("Clusters"), dcc.Dropdown(id="choices", multi=True)], id="choose-clusters"),
            html.Div(
                [
                    html.Span("Temperature"),
                    dcc.Slider(0, 1.5, 0.05, value=1, marks=marks, id="temperature", allow_direct_input=False),
                ],
                className="control",
            ),
            radio("held", others, "drawn", "pair"),
            html.Button("Draw anew", id="anew", className="quiet"),
        ],
        className="controls",
    )
    return html.Section([controls, html.Div(id="drawn")], id="Samples")


# What clicks ask


def answer_views(app: Dash, explorer: Explorer, history: Sequence[Mapping[str, Any]]) -> None:
    """The views that need no inputs chosen."""

    @app.callback(
        [Output(view, "hidden") for view in VIEWS],
        Output("inputs", "hidden"),
        Output("facets", "hidden"),
        Output("heading", "children"),
        Output("lead", "children"),
        Output("slot-B", "hidden"),
        Output("choose", "hidden"),
        Input("view", "value"),
        Input("facet", "value"),
        Input("held", "value"),
    )
    def show(view: str, facet: str, held: str) -> tuple[Any, ...]:
        of_one, alone = view in OF_ONE_FACET, view != "Swaps"
        needed = view in WITH_INPUTS and explorer.refusal is None and (view != "Samples" or held == "held")
        heading = [facet, html.Small(view.lower())] if of_one else view
        return *[each != view for each in VIEWS], not needed, not of_one, heading, VIEWS[view], alone, alone

    @app.callback(Output("Clusters", "children"), Input("view", "value"), Input("facet", "value"))
    def clusters(view: str, facet: str) -> Any:
        return gallery(explorer, facet) if view == "Clusters" else no_update

    measured = cache(explorer.knowledge)

    @app.callback(Output("known", "children"), Input("measure", "n_clicks"), prevent_initial_call=True)
    def knowledge(clicks: int) -> Any:
        return knowledge_table(explorer, measured)

    @app.callback(Output("Training", "children"), Input("view", "value"))
    def training(view: str) -> Any:
        return curves(history, explorer.facets) if view == "Training" else no_update


@told
def gallery(explorer: Explorer, facet: str) -> html.Div:
    rows = [
        html.Div(
            [
                html.Div(
                    [html.Strong(f"{each.number}"), html.Span(f"{each.count} data, {100 * each.certainty:.0f} % sure")],
                    className="caption",
                ),
                html.Img(src=strip(explorer.pictures(explorer.x[each.rows]), GALLERY_COLUMNS), className="strip"),
            ],
            className="row",
        )
        for each in explorer.clusters(facet, GALLERY_COLUMNS)
    ]
    return html.Div(rows, className="gallery")


@told
def knowledge_table(explorer: Explorer, measured: Callable[[str, str], Any]) -> Any:
    if not explorer.labels:
        return note("No label of these data is known, so there is nothing to measure against.")
    scores = {"accuracy": "Clusters, majority", "accuracy_hungarian": "one to one", "nmi": "NMI", "ari": "ARI"}
    heads = ["Facet", "Label", "Read from the latents", "", "By chance", *scores.values()]
    lines = []
    for facet in explorer.facets:
        for label in explorer.labels:
            try:
                found = measured(facet, label)
            except ValueError as error:
                lines.append(html.Tr([html.Th(facet), html.Td(label), html.Td(str(error), colSpan=7)]))
                continue
            bar = html.Div(
                [
                    html.Div(className="fill", style={"width": percent(found.probe).replace(" ", "")}),
                    html.Div(className="tick", style={"left": percent(found.chance).replace(" ", "")}),
                ],
                className="bar",
            )
            of_clusters = [
                percent(found.clustering[name]) if name.startswith("accuracy") else f"{found.clustering[name]:.2f}"
                for name in scores
                if found.clustering
            ]
            cells = [
                label,
                bar,
                percent(found.probe),
                percent(found.chance),
                *(of_clusters or ["no clusters inferred"]),
            ]
            width = {} if of_clusters else {"colSpan": len(scores)}
            tds = [html.Td(cell) for cell in cells[:-1]] + [html.Td(cells[-1], **width)]
            lines.append(html.Tr([html.Th(facet), *tds]))
    return html.Table([html.Thead(html.Tr([html.Th(head) for head in heads])), html.Tbody(lines)], className="known")


def curves(history: Sequence[Mapping[str, Any]], facets: Sequence[str]) -> Any:
    if not history:
        return note("The run has no history: it was saved before it was fitted.")
    epochs, series = training_series(history, facets)
    shown = {label: lines for label, lines in series.items() if lines}
    figure = make_subplots(1, len(shown), horizontal_spacing=0.09)
    for column, (label, lines) in enumerate(shown.items(), start=1):
        for k, (name, values) in enumerate(lines.items()):
            line = {"color": COLOURS[k % len(COLOURS)], "width": 1.8}
            legend = "legend" if column == 1 else f"legend{column}"
            figure.add_trace(Scatter(x=epochs, y=values, name=name, line=line, legend=legend), row=1, col=column)
        figure.update_yaxes(title_text=label, row=1, col=column)
        left = (column - 1) * (1 + 0.09) / len(shown)
        figure.update_layout({legend: {"x": left, "y": 1.02, "yanchor": "bottom", "orientation": "v"}})
    figure.update_xaxes(title_text="epoch", showgrid=False, linecolor="#d6d3cc", ticks="outside", tickcolor="#d6d3cc")
    figure.update_yaxes(gridcolor="#ebe8e2", zeroline=False)
    figure.update_yaxes(range=elbo_range(history), row=1, col=1)
    plain = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "hovermode": "x unified"}
    margin = {"l": 10, "r": 10, "t": 90, "b": 10}
    figure.update_layout(**plain, margin=margin, font={"family": FONT, "size": 12, "color": "#23282d"}, height=460)
    return dcc.Graph(figure=figure, config={"displayModeBar": False}, className="curves")


def answer_inputs(app: Dash, explorer: Explorer) -> None:
    """Choosing inputs, and the views that combine two of them."""
    n = len(explorer.x)

    @app.callback(Output("thumbnails", "children"), Input("others", "n_clicks"))
    def thumbnails(clicks: int | None) -> list[Any]:
        rows = (np.arange(min(THUMBNAILS, n)) + THUMBNAILS * (clicks or 0)) % n
        return [
            html.Button(
                html.Img(src=png(picture), alt=f"input {row}"),
                id={"type": "thumbnail", "row": int(row)},
                title=f"{row}",
            )
            for row, picture in zip(rows, explorer.pictures(explorer.x[rows]), strict=True)
        ]

    @app.callback(
        Output("input-A", "value"),
        Output("input-B", "value"),
        Output("slot", "value"),
        Input({"type": "thumbnail", "row": ALL}, "n_clicks"),
        State("slot", "value"),
        State("view", "value"),
        prevent_initial_call=True,
    )
    def choose(clicks: list[int | None], slot: str, view: str) -> tuple[Any, Any, Any]:
        if not any(clicks):  # thumbnails that have just been drawn
            return no_update, no_update, no_update
        row = ctx.triggered_id["row"]
        if view != "Swaps":
            return row, no_update, no_update
        return (row, no_update, "B") if slot == "A" else (no_update, row, "A")

    for letter in "AB":

        @app.callback(Output(f"picture-{letter}", "src"), Input(f"input-{letter}", "value"))
        def picture(row: int | None) -> Any:
            return png(explorer.pictures(explorer.x[[row]])[0]) if row is not None else no_update

    @app.callback(
        Output("Swaps", "children"), Input("view", "value"), Input("input-A", "value"), Input("input-B", "value")
    )
    def swaps(view: str, first: int | None, second: int | None) -> Any:
        return swap_table(explorer, first, second) if view == "Swaps" else no_update


@told
def swap_table(explorer: Explorer, first: int | None, second: int | None) -> html.Div:
    _, data = explorer.swaps(*whole(explorer, first, second))
    parts = explorer.parts
    left, over = parts[: ceil(len(parts) / 2)], parts[ceil(len(parts) / 2) :]
    pictures = [png(picture) for picture in explorer.pictures(data)]
    columns = 2 ** len(over)
    heads = [html.Th(of_letters(over, k, columns)) for k in range(columns)] if over else []
    rows = []
    for i in range(2 ** len(left)):
        cells = [html.Td(html.Img(src=each, className="swap")) for each in pictures[i * columns : (i + 1) * columns]]
        rows.append(html.Tr([html.Th(of_letters(left, i, 2 ** len(left))), *cells]))
    table = html.Table([html.Thead(html.Tr([html.Th(), *heads])), html.Tbody(rows)], className="swaps")
    if len(parts) > 1:
        return html.Div(table)
    return html.Div(
        [table, note(f"{parts[0]} is all that is decoded: these are reconstructions, with nothing to swap.")]
    )


def of_letters(parts: Sequence[str], number: int, count: int) -> list[Any]:
    """Which input each part is of, in the order of combinations: the last part changes first."""
    letters = f"{number:0{count.bit_length() - 1}b}".replace("0", "A").replace("1", "B")
    return [
        html.Span([part, html.Span(letter, className=f"letter {letter}")], className="source")
        for part, letter in zip(parts, letters, strict=True)
    ]


def whole(explorer: Explorer, *rows: int | None) -> list[int]:
    """:raises ValueError: if a field for the number of an input is empty, or holds another number."""
    if None in rows:
        raise ValueError(f"Choose an input, or give its number, from 0 to {len(explorer.x) - 1}.")
    return [row for row in rows if row is not None]


def answer_latents(app: Dash, explorer: Explorer) -> None:
    @app.callback(
        Output("sliders", "children"),
        Input("view", "value"),
        Input("facet", "value"),
        Input("input-A", "value"),
        Input("label", "value"),
        Input("back", "n_clicks"),
    )
    def sliders(view: str, facet: str, row: int | None, label: int | None, clicks: int | None) -> Any:
        return slider_list(explorer, facet, row, label) if view == "Latents" else no_update

    @app.callback(
        Output("moved", "src"),
        Output("moved-says", "children"),
        Input({"type": "latent", "place": ALL}, "value"),
        State({"type": "latent", "place": ALL}, "id"),
        State("facet", "value"),
        State("input-A", "value"),
        State("label", "value"),
    )
    def moved(values: list[float], ids: list[dict], facet: str, row: int | None, label: int | None) -> Any:
        if not ids or row is None:
            return no_update, no_update
        places = {each["place"]: value for each, value in zip(ids, values, strict=True)}
        found = explorer.moved(facet, row, places, label)
        says = "" if found.cluster is None else f"cluster {found.cluster}, {percent(found.probability or 0)}"
        return png(explorer.pictures(found.datum[None])[0]), says


@told
def slider_list(explorer: Explorer, facet: str, row: int | None, label: int | None) -> list[Any]:
    (row,) = whole(explorer, row)
    axes = explorer.axes(facet, row, label)
    dim = explorer.model.prior(facet).dim
    told_of = (
        [] if len(axes) == dim else [note(f"{len(axes)} of the {dim} latents of {facet}: those that can tell most.")]
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
                    marks={axis.value: ""},
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


def answer_samples(app: Dash, explorer: Explorer) -> None:
    @app.callback(
        Output("choices", "options"),
        Output("choices", "value"),
        Output("choose-clusters", "hidden"),
        Input("facet", "value"),
    )
    def choices(facet: str) -> tuple[list[Any], list[int], bool]:
        there = explorer.choices(facet)
        return [{"label": str(k), "value": k} for k in sorted(there)], there[:SHOWN_CHOICES], not there

    @app.callback(
        Output("drawn", "children"),
        Input("view", "value"),
        Input("choices", "value"),
        Input("temperature", "value"),
        Input("held", "value"),
        Input("input-A", "value"),
        Input("anew", "n_clicks"),
        State("facet", "value"),
    )
    def drawn(
        view: str, chosen: list[int], t: float, held: str, row: int | None, clicks: int | None, facet: str
    ) -> Any:
        if view != "Samples":
            return no_update
        return sample_rows(explorer, facet, chosen, t, row if held == "held" else None, clicks or 0)


@told
def sample_rows(
    explorer: Explorer, facet: str, chosen: Sequence[int], temperature: float, held: int | None, seed: int
) -> html.Div:
    if explorer.choices(facet) and not chosen:
        return html.Div(note("Choose a cluster."))
    rows = []
    for choice in chosen or [None] * SHOWN_CHOICES:
        # Each row has draws of its own, the same again whatever else is chosen.
        own = 1000 * seed + (len(rows) if choice is None else choice)
        data = explorer.samples(facet, choice, SAMPLE_COLUMNS, temperature, held, own)
        image = html.Img(src=strip(explorer.pictures(data), SAMPLE_COLUMNS), className="strip")
        caption = [] if choice is None else [html.Div(html.Strong(str(choice)), className="caption short")]
        rows.append(html.Div([*caption, image], className="row"))
    return html.Div(rows, className="drawn")
