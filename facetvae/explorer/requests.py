"""What the explorer's page accepts: every request is validated here, before anything is computed.

A browser sends what the page's controls hold. Anything else gets a 400 and a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from reprlib import repr as shortened
from typing import Any

from dash import Dash
from dash.exceptions import DependencyException
from flask import Response, abort, request

from facetvae.explorer.explorer import Explorer
from ppl_models.given.checks import is_index, number

# The largest request, in bytes; the page's own have a few thousand.
MAX_BYTES = 256 * 1024
MAX_CLICKS = 1_000_000
SLOTS, HELD = ("A", "B"), ("drawn", "held")
UPDATE = "/_dash-update-component"

# The values that each property can have, in words and as a test.
Allowed = Mapping[str, tuple[str, Callable[[Any], bool]]]


def allowed_values(explorer: Explorer, views: Sequence[str]) -> Allowed:
    """What each property that the page sends can be, and the places in the ids of controls of which
    there are many.
    """
    rows = len(explorer.x)
    deepest = max(explorer.model.prior(facet).dim for facet in explorer.facets)
    most = max(len(explorer.choices(facet)) for facet in explorer.facets)
    row = f"from 0 to {rows - 1}, or empty", lambda value: value is None or is_index(value, rows)
    clicks = (
        f"a number of clicks, at most {MAX_CLICKS}, or empty",
        lambda value: value is None or is_index(value, MAX_CLICKS + 1),
    )
    choices = (
        f"a list of at most {most} choices",
        lambda value: (
            isinstance(value, list)
            and len(value) <= most
            and all(is_index(each, most) for each in value)
        ),
    )
    return {
        "view.value": one_of(views),
        "facet.value": one_of(explorer.facets),
        **{f"input-{letter}.value": row for letter in SLOTS},
        "choices.value": choices,
        "held.value": one_of(HELD),
        **{f"{name}.n_clicks": clicks for name in ("anew", "thumbnail")},
        "thumbnail.place": (f"from 0 to {rows - 1}", lambda value: is_index(value, rows)),
        "latent.place": (f"from 0 to {deepest - 1}", lambda value: is_index(value, deepest)),
        "latent.value": ("a finite number", lambda value: isfinite(number(value))),
    }


def one_of(values: Sequence[str]) -> tuple[str, Callable[[Any], bool]]:
    words = f"one of {', '.join(values)}"
    return words, lambda value: isinstance(value, str) and value in values


def check_request(body: Any, callbacks: Mapping[str, Any], allowed: Allowed) -> None:
    """Compare a request with the callback that it names.

    :param callbacks: the page's, as Dash lists them.
    :raises ValueError: if the page sends no such request.
    """
    try:
        call = callbacks[body["output"]]
        values = [
            each
            for kind in ("inputs", "state")
            for spec, entry in zip(call[kind], as_list(body.get(kind, [])), strict=True)
            for each in sent(spec["id"], spec["property"], entry)
        ]
        changed = set(as_list(body.get("changedPropIds", [])))
        fits = changed <= {name for name, _, _ in values}
        fits = fits and joined(body["outputs"]) == body["output"]
    except (AttributeError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError("the page sends no such request")
    for _, what, value in values:
        words, test = allowed[what]
        if not test(value):
            raise ValueError(f"{what} must be {words}, got {shortened(value)}")


def sent(control: str, what: str, entry: Any) -> Iterator[tuple[str, str, Any]]:
    """What an entry holds of a property: its name as Dash writes it, its name in the table of
    allowed values, and its value.
    """
    if not control.startswith("{"):
        if (entry["id"], entry["property"]) != (control, what):
            raise ValueError("another control")
        yield f"{control}.{what}", f"{control}.{what}", entry.get("value")
        return
    kind = json.loads(control)["type"]
    for each in as_list(entry):  # a control for each place
        place = each["id"]["place"]
        if (each["id"], each["property"]) != ({"place": place, "type": kind}, what):
            raise ValueError("another control")
        name = f"{json.dumps(each['id'], separators=(',', ':'), sort_keys=True)}.{what}"
        yield name, f"{kind}.place", place
        yield name, f"{kind}.{what}", each.get("value")


def as_list(value: Any) -> list[Any]:
    """:raises TypeError: if it is none."""
    if not isinstance(value, list):
        raise TypeError
    return value


def joined(outputs: Any) -> str:
    """The outputs that a request lists, as Dash names them."""
    listed = outputs if isinstance(outputs, list) else [outputs]
    words = [f"{each['id']}.{each['property']}" for each in listed]
    return f"..{'...'.join(words)}.." if isinstance(outputs, list) else words[0]


def validate_requests(app: Dash, explorer: Explorer, views: Sequence[str]) -> None:
    """Refuse each request that the page does not send, and each that is too large."""
    app.server.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    allowed = allowed_values(explorer, views)

    @app.server.before_request
    def validate() -> None:
        if request.path == UPDATE and request.method == "POST":
            try:
                check_request(request.get_json(silent=True), app.callback_map, allowed)
            except (ValueError, RecursionError) as error:  # nested too deeply
                abort(Response(f"{error}\n", 400, mimetype="text/plain"))

    @app.server.errorhandler(DependencyException)
    def unknown_file(error: DependencyException) -> Response:
        return Response("unknown file\n", 404, mimetype="text/plain")
