"""The explorer's page: its layout, and which question each click asks of an ``Explorer``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from flask import Response, abort, request

from facetvae.explorer.explorer import Explorer
from facetvae.explorer.views import (
    SLOTS,
    clusters_view,
    moved_picture,
    png,
    sample_rows,
    slider_list,
    swap_table,
)

# The views by name, as the rail lists them, and what each says of itself.
VIEWS = {
    "Clusters": "The most typical data of each cluster, the surest first, and what tells the "
    "clusters apart. Intervals (95 %) describe: clusters were found in such data.",
    "Swaps": "Two inputs, and what can be made of them: the facet is taken from one of them, all "
    "else from one of them. The last two inputs that were clicked are A and B.",
    "Latents": "Start from input A and move its latents one by one; the other facets stay.",
    "Samples": "Draws from the prior of one facet, cluster by cluster.",
}
SHOWN_CHOICES, THUMBNAILS = 10, 60
# The largest request, in bytes; the page's own have a few thousand.
MAX_BYTES = 256 * 1024


def build_app(explorer: Explorer, title: str, facts: Mapping[str, str]) -> Dash:
    """The page of a run of this name, with ``facts`` on it; it serves all that it needs itself."""
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
    answer_menus(app, explorer)
    answer_inputs(app, explorer)
    answer_views_of_inputs(app, explorer)
    keep_to_itself(app)
    app.server.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    return app


def keep_to_itself(app: Dash) -> None:
    """Browsers are to ask nothing of other places; other names of this machine are refused."""
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


def layout(explorer: Explorer, title: str, facts: Mapping[str, str]) -> html.Div:
    facets = dcc.RadioItems(explorer.facets, explorer.facets[-1], id="facet", className="menu")
    known = [each for name, fact in facts.items() for each in (html.Dt(name), html.Dd(fact))]
    rail = [
        html.P("FacetVAE explorer", className="mark"),
        html.H1(title),
        html.Dl(known),
        html.H2("View"),
        dcc.RadioItems(list(VIEWS), "Clusters", id="view", className="menu"),
        html.H2("Facet"),
        facets,
    ]
    picture = html.Img(id="moved", className="large", alt="decoded")
    latents = [
        html.Figure([picture, html.Figcaption(id="moved-says")]),
        html.Div(id="sliders", className="sliders"),
    ]
    body = [
        html.Header([html.H2(id="heading"), html.P(id="lead")]),
        inputs(explorer),
        html.Section(dcc.Loading(html.Div(id="told"), type="dot"), id="Clusters"),
        html.Section(id="Swaps"),
        html.Section(latents, id="Latents", className="side-by-side"),
        html.Section([samples_controls(), html.Div(id="drawn")], id="Samples"),
    ]
    return html.Div([html.Aside(rail, className="rail"), html.Main(body)], className="page")


def inputs(explorer: Explorer) -> html.Section:
    """Inputs that swaps, latents and samples start from: a click makes A, which becomes B."""
    last = len(explorer.x) - 1
    slots = [
        html.Div(
            [
                html.Span(letter, className="letter"),
                html.Img(id=f"picture-{letter}", className="slot-picture", alt=f"input {letter}"),
                dcc.Input(
                    min(j, last), type="number", id=f"input-{letter}", min=0, max=last, step=1
                ),
            ],
            id=f"slot-{letter}",
            className="slot",
        )
        for j, letter in enumerate(SLOTS)
    ]
    thumbnails = [
        html.Button(
            html.Img(src=png(picture), alt=f"input {row}"),
            id={"type": "thumbnail", "place": row},
            title=f"{row}",
        )
        for row, picture in enumerate(explorer.pictures(explorer.x[:THUMBNAILS]))
    ]
    sides = html.Div(slots, className="slots"), html.Div(thumbnails, className="thumbnails")
    return html.Section(sides, id="inputs")


def samples_controls() -> html.Div:
    says = {"drawn": "other facets drawn", "held": "other facets held as in A"}
    others = [{"label": each, "value": value} for value, each in says.items()]
    chips = dcc.Checklist([], [], id="choices", className="chips", inline=True)
    controls = [
        html.Div([html.Span("Clusters, or labels"), chips], id="choose-clusters"),
        dcc.RadioItems(others, "drawn", id="held", className="pair"),
        html.Button("Draw anew", id="anew", className="quiet"),
    ]
    return html.Div(controls, className="controls")


def answer_menus(app: Dash, explorer: Explorer) -> None:
    """What is shown of a facet: a view, and the inputs that it needs."""

    @app.callback(
        [Output(view, "hidden") for view in VIEWS],
        Output("inputs", "hidden"),
        Output("slot-B", "hidden"),
        Output("heading", "children"),
        Output("lead", "children"),
        Input("view", "value"),
        Input("facet", "value"),
        Input("held", "value"),
    )
    def show(view: str, facet: str, held: str) -> tuple[Any, ...]:
        needed = view in ("Swaps", "Latents") or (view == "Samples" and held == "held")
        heading = [facet, html.Small(view.lower())]
        hidden = [each != view for each in VIEWS]
        return (*hidden, not needed, view != "Swaps", heading, VIEWS[view])

    described = cache(explorer.about)

    @app.callback(Output("told", "children"), Input("view", "value"), Input("facet", "value"))
    def clusters(view: str, facet: str) -> Any:
        return clusters_view(explorer, facet, described) if view == "Clusters" else no_update


def answer_inputs(app: Dash, explorer: Explorer) -> None:
    """Choosing inputs, and the choices of a facet's draws."""

    @app.callback(
        Output("input-A", "value"),
        Output("input-B", "value"),
        Input({"type": "thumbnail", "place": ALL}, "n_clicks"),
        State("input-A", "value"),
        prevent_initial_call=True,
    )
    def choose(clicks: list[int | None], before: int | None) -> tuple[Any, Any]:
        if not ctx.triggered_id:
            return no_update, no_update
        return ctx.triggered_id["place"], before

    for letter in SLOTS:

        @app.callback(Output(f"picture-{letter}", "src"), Input(f"input-{letter}", "value"))
        def picture(row: int | None) -> Any:
            return png(explorer.pictures(explorer.x[[row]])[0]) if row is not None else no_update

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


def answer_views_of_inputs(app: Dash, explorer: Explorer) -> None:
    """Swaps of two inputs, latents of one, and draws, which may hold one."""
    view, facet, row = (Input(name, "value") for name in ("view", "facet", "input-A"))

    @app.callback(Output("Swaps", "children"), view, facet, row, Input("input-B", "value"))
    def swaps(view: str, facet: str, first: int | None, second: int | None) -> Any:
        return swap_table(explorer, facet, first, second) if view == "Swaps" else no_update

    @app.callback(Output("sliders", "children"), view, facet, row)
    def sliders(view: str, facet: str, row: int | None) -> Any:
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

    @app.callback(
        Output("drawn", "children"),
        view,
        Input("choices", "value"),
        Input("held", "value"),
        row,
        Input("anew", "n_clicks"),
        State("facet", "value"),
    )
    def drawn(
        view: str, chosen: Any, held: str, row: int | None, clicks: int | None, facet: str
    ) -> Any:
        if view != "Samples":
            return no_update
        kept = row if held == "held" else None
        return sample_rows(explorer, facet, sorted(set(chosen)), kept, clicks or 0)
