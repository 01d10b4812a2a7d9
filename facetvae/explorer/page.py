"""The explorer's page: its layout, and which question each click asks of an ``Explorer``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from flask import Response, abort, request

from facetvae.explorer.explorer import Explorer
from facetvae.explorer.requests import (
    HELD,
    MAX_TEMPERATURE,
    SLOTS,
    THUMBNAILS,
    validate_requests,
)
from facetvae.explorer.views import (
    clusters_view,
    moved_picture,
    png,
    sample_rows,
    slider_list,
    swap_table,
    tile_size,
    training_view,
)

# The views by name, as the rail lists them, and what each says of itself.
VIEWS = {
    "Clusters": "The most typical data of each cluster, the surest first, and what tells the "
    "clusters apart. The line in each bar is a 95 % interval. It describes: clusters were found in "
    "such data.",
    "Swaps": "Two inputs, and what can be made of them: the facet is taken from one of them, all "
    "else from one of them. The last two inputs that were clicked are A and B.",
    "Latents": "Start from input A and move its latents one by one; the other facets stay.",
    "Samples": "Draws from the prior of one facet, cluster by cluster.",
    "Training": "The run's history. ELBO and KL in nats per datum, every weight at 1.",
}
WITH_INPUTS = ("Swaps", "Latents", "Samples")
SHOWN_CHOICES = 10


def build_app(
    explorer: Explorer, history: Sequence[Mapping[str, Any]], title: str, facts: Mapping[str, str]
) -> Dash:
    """The page as an application that serves all it needs itself.

    :param history: of the run.
    :param title: the run's name.
    :param facts: what is said of the run beside its name.
    """
    app = Dash(
        __name__,
        title=f"{title} - FacetVAE",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
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
    validate_requests(app, explorer, list(VIEWS))
    return app


def keep_to_itself(app: Dash) -> None:
    """Browsers are told to ask nothing of any other place, and other sites' names for this machine
    are refused.
    """
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
        response.headers["Content-Security-Policy"] = "; ".join(
            f"{name} {value}" for name, value in policy.items()
        )
        response.headers["Referrer-Policy"] = "no-referrer"
        return response


def radio(name: str, options: Sequence[Any], value: Any, className: str) -> dcc.RadioItems:
    return dcc.RadioItems(options, value, id=name, className=className)


def layout(explorer: Explorer, title: str, facts: Mapping[str, str]) -> html.Div:
    deepest = explorer.facets[-1]
    facets = [html.H2("Facet"), radio("facet", explorer.facets, deepest, "menu")]
    known = [each for name, fact in facts.items() for each in (html.Dt(name), html.Dd(fact))]
    rail = html.Aside(
        [
            html.P("FacetVAE explorer", className="mark"),
            html.H1(title),
            html.Dl(known),
            html.H2("View"),
            radio("view", list(VIEWS), "Clusters", "menu"),
            html.Div(facets, id="facets"),
        ],
        className="rail",
    )
    body = html.Main(
        [
            html.Header([html.H2(id="heading"), html.P(id="lead")]),
            inputs(explorer),
            html.Section(dcc.Loading(html.Div(id="told"), type="dot"), id="Clusters"),
            html.Section(id="Swaps"),
            latents(),
            samples(),
            html.Section(id="Training"),
        ]
    )
    return html.Div([rail, body], className="page", style=tile_size(explorer))


def inputs(explorer: Explorer) -> html.Section:
    """Where inputs are chosen that swaps, latents and samples start from: a click makes A, and what
    was A becomes B.
    """
    last, slots = len(explorer.x) - 1, []
    for j, letter in enumerate(SLOTS):
        place: dict[str, Any] = {"min": 0, "max": last, "step": 1, "value": min(j, last)}
        slot = [
            html.Span(letter, className="letter"),
            html.Img(id=f"picture-{letter}", className="slot-picture", alt=f"input {letter}"),
            dcc.Input(id=f"input-{letter}", type="number", **place),
        ]
        slots.append(html.Div(slot, id=f"slot-{letter}", className="slot"))
    others = html.Button("Other inputs", id="others", className="quiet")
    side = html.Div([*slots, others], className="slots")
    return html.Section([side, html.Div(id="thumbnails", className="thumbnails")], id="inputs")


def latents() -> html.Section:
    picture = html.Img(id="moved", className="large", alt="decoded")
    shown = [
        html.Figure([picture, html.Figcaption(id="moved-says")]),
        html.Button("Back to the input", id="back", className="quiet"),
    ]
    sliders = html.Div(id="sliders", className="sliders")
    parts = [html.Div(shown, className="shown"), sliders]
    return html.Section(parts, id="Latents", className="side-by-side")


def samples() -> html.Section:
    says = ("other facets drawn", "other facets held as in A")
    others = [{"label": each, "value": value} for value, each in zip(HELD, says, strict=True)]
    chips = dcc.Checklist([], [], id="choices", className="chips", inline=True)
    slider = dcc.Slider(
        0,
        MAX_TEMPERATURE,
        0.05,
        value=1,
        marks={0: "0", 0.5: "0.5", 1: "1", 1.5: "1.5"},
        id="temperature",
        allow_direct_input=False,
    )
    controls = [
        html.Div([html.Span("Clusters, or labels"), chips], id="choose-clusters"),
        html.Div([html.Span("Temperature"), slider], className="control"),
        radio("held", others, "drawn", "pair"),
        html.Button("Draw anew", id="anew", className="quiet"),
    ]
    drawn = html.Div(id="drawn")
    return html.Section([html.Div(controls, className="controls"), drawn], id="Samples")


# What clicks ask


def once(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Each answer is computed once, also if several browsers ask for it at the same time."""
    lock, known = Lock(), cache(ask)

    def answer(*args: Any) -> Any:
        with lock:
            return known(*args)

    return answer


def answer_views(app: Dash, explorer: Explorer, history: Sequence[Mapping[str, Any]]) -> None:
    """The views that need no inputs chosen."""

    @app.callback(
        [Output(view, "hidden") for view in VIEWS],
        Output("inputs", "hidden"),
        Output("facets", "hidden"),
        Output("heading", "children"),
        Output("lead", "children"),
        Output("slot-B", "hidden"),
        Input("view", "value"),
        Input("facet", "value"),
        Input("held", "value"),
    )
    def show(view: str, facet: str, held: str) -> tuple[Any, ...]:
        of_one = view != "Training"
        needed = view in WITH_INPUTS and (view != "Samples" or held == "held")
        heading = [facet, html.Small(view.lower())] if of_one else view
        return (
            *(each != view for each in VIEWS),
            not needed or explorer.refusal is not None,
            not of_one,
            heading,
            VIEWS[view],
            view != "Swaps",
        )

    described, trained = once(explorer.about), once(lambda: training_view(history, explorer.facets))

    @app.callback(Output("told", "children"), Input("view", "value"), Input("facet", "value"))
    def clusters(view: str, facet: str) -> Any:
        return clusters_view(explorer, facet, described) if view == "Clusters" else no_update

    @app.callback(Output("Training", "children"), Input("view", "value"))
    def training(view: str) -> Any:
        return trained() if view == "Training" else no_update


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
        Input({"type": "thumbnail", "row": ALL}, "n_clicks"),
        State("input-A", "value"),
        prevent_initial_call=True,
    )
    def choose(clicks: list[int | None], before: int | None) -> tuple[Any, Any]:
        if not any(clicks) or not ctx.triggered_id:  # thumbnails that have just been drawn
            return no_update, no_update
        return ctx.triggered_id["row"], before

    for letter in SLOTS:

        @app.callback(Output(f"picture-{letter}", "src"), Input(f"input-{letter}", "value"))
        def picture(row: int | None) -> Any:
            return png(explorer.pictures(explorer.x[[row]])[0]) if row is not None else no_update

    @app.callback(
        Output("Swaps", "children"),
        Input("view", "value"),
        Input("facet", "value"),
        Input("input-A", "value"),
        Input("input-B", "value"),
    )
    def swaps(view: str, facet: str, first: int | None, second: int | None) -> Any:
        return swap_table(explorer, facet, first, second) if view == "Swaps" else no_update


def answer_latents(app: Dash, explorer: Explorer) -> None:
    @app.callback(
        Output("sliders", "children"),
        Input("view", "value"),
        Input("facet", "value"),
        Input("input-A", "value"),
        Input("back", "n_clicks"),
    )
    def sliders(view: str, facet: str, row: int | None, clicks: Any) -> Any:
        return slider_list(explorer, facet, row) if view == "Latents" else no_update

    @app.callback(
        Output("moved", "src"),
        Output("moved-says", "children"),
        Input({"type": "latent", "place": ALL}, "value"),
        State("facet", "value"),
        State("input-A", "value"),
    )
    def moved(values: list[float], facet: str, row: int | None) -> Any:
        if not values or row is None:
            return no_update, no_update
        places = {each["id"]["place"]: each["value"] for each in ctx.inputs_list[0]}
        try:
            return moved_picture(explorer, facet, row, places)
        except ValueError as error:  # such as sliders of the facet that was shown before
            return no_update, str(error)


def answer_samples(app: Dash, explorer: Explorer) -> None:
    @app.callback(
        Output("choices", "options"),
        Output("choices", "value"),
        Output("choose-clusters", "hidden"),
        Input("facet", "value"),
    )
    def choices(facet: str) -> tuple[list[Any], list[int], bool]:
        there = explorer.choices(facet)
        options = [{"label": str(k), "value": k} for k in sorted(there)]
        return options, sorted(there[:SHOWN_CHOICES]), not there

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
        view: str, chosen: Any, t: float, held: str, row: int | None, clicks: Any, facet: str
    ) -> Any:
        if view != "Samples":
            return no_update
        kept = row if held == "held" else None
        return sample_rows(explorer, facet, sorted(set(chosen)), t, kept, clicks or 0)
