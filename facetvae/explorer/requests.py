"""What the explorer's page accepts: every request is validated here, before anything is computed.

A browser sends what the page's controls hold. Anything else gets a 400 and a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from reprlib import repr as shortened
from typing import Any

from dash import Dash
from dash.exceptions import DependencyException
from flask import Response, abort, request

from facetvae.explorer.explorer import MAX_AXES, Explorer
from ppl_models.given.checks import is_index, number

# The largest request, in bytes; the page's own have a few thousand.
MAX_BYTES = 256 * 1024
# The most clicks of a button, choices drawn at once, and thumbnails shown.
MAX_CLICKS, MAX_CHOICES, THUMBNAILS = 1_000_000, 50, 45
MAX_TEMPERATURE = 1.5
SLOTS, HELD = ("A", "B"), ("drawn", "held")
UPDATE = "/_dash-update-component"
# Controls of which there are many, by the type in their ids: how many are shown at most.
MANY = {"thumbnail": THUMBNAILS, "latent": MAX_AXES}


@dataclass(frozen=True)
class Allowed:
    """The values that a property of a control can have, in words and as a test."""

    words: str
    test: Callable[[Any], bool]


def one_of(values: Sequence[str]) -> Allowed:
    words = f"one of {', '.join(values)}"
    return Allowed(words, lambda value: isinstance(value, str) and value in values)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(number(value))


def fields(explorer: Explorer, views: Sequence[str]) -> dict[str, Allowed]:
    """What each property that the page sends can be."""
    last = len(explorer.x) - 1
    row = Allowed(
        f"the number of an input, from 0 to {last}, or empty",
        lambda value: value is None or is_index(value, last + 1),
    )
    clicks = Allowed(
        f"a number of clicks, at most {MAX_CLICKS}, or empty",
        lambda value: value is None or is_index(value, MAX_CLICKS + 1),
    )
    most = max(len(explorer.choices(facet)) for facet in explorer.facets)
    return {
        "view.value": one_of(views),
        "facet.value": one_of(explorer.facets),
        "input-A.value": row,
        "input-B.value": row,
        "choices.value": Allowed(
            f"a list of at most {most} choices",
            lambda values: (
                isinstance(values, list)
                and len(values) <= most
                and all(is_index(value, most) for value in values)
            ),
        ),
        "temperature.value": Allowed(
            f"a number from 0 to {MAX_TEMPERATURE}",
            lambda value: is_number(value) and 0 <= value <= MAX_TEMPERATURE,
        ),
        "held.value": one_of(HELD),
        "thumbnail.n_clicks": clicks,
        "latent.value": Allowed("a finite number", is_number),
        **{f"{button}.n_clicks": clicks for button in ("others", "back", "anew")},
    }


@dataclass(frozen=True)
class Validator:
    """Compares a request with the callback that it names.

    :ivar callbacks: the page's callbacks, as Dash lists them.
    :ivar fields: what each property can be.
    :ivar ends: of the numbers in the ids of :data:`MANY`.
    """

    callbacks: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, Allowed]
    ends: Mapping[str, int]

    def check(self, body: Any) -> None:
        """:raises ValueError: if the page sends no such request."""
        if not isinstance(body, dict):
            raise ValueError("a request must be a JSON object")
        output = body.get("output")
        if not isinstance(output, str) or output not in self.callbacks:
            raise ValueError(f"unknown output {shortened(output)}")
        if joined(body.get("outputs")) != output:
            raise ValueError(f"outputs must list what {output!r} names")
        sent: list[str] = []
        for kind in ("inputs", "state"):
            expected, given = self.callbacks[output][kind], body.get(kind, [])
            if not isinstance(given, list) or len(given) != len(expected):
                raise ValueError(f"{kind} must be a list of {len(expected)} properties")
            for spec, entry in zip(expected, given, strict=True):
                sent += self._check_one(spec["id"], spec["property"], entry)
        changed = body.get("changedPropIds", [])
        if (
            not isinstance(changed, list)
            or len(changed) > len(sent)
            or any(each not in sent for each in changed)
        ):
            raise ValueError("changedPropIds must be a list of the properties that were sent")

    def _check_one(self, name: str, what: str, entry: Any) -> list[str]:
        """The properties that were sent: of one control, or of those with a number in their ids."""
        if not name.startswith("{"):
            if not is_of(entry, name, what):
                raise ValueError(f"{name}.{what} was expected, got {shortened(entry)}")
            self._check_value(f"{name}.{what}", entry)
            return [f"{name}.{what}"]
        (key,) = (pattern := json.loads(name)).keys() - {"type"}
        kind = pattern["type"]
        if not isinstance(entry, list) or len(entry) > MANY[kind]:
            raise ValueError(f"there are at most {MANY[kind]} of {kind}")
        sent = []
        for each in entry:
            own = each.get("id") if isinstance(each, dict) else None
            place = own.get(key) if isinstance(own, dict) else None
            if not is_index(place, self.ends[kind]) or not is_of(
                each, {key: place, "type": kind}, what
            ):
                raise ValueError(f"{kind} {key} was expected, got {shortened(each)}")
            self._check_value(f"{kind}.{what}", each)
            sent.append(f"{json.dumps(own, separators=(',', ':'), sort_keys=True)}.{what}")
        return sent

    def _check_value(self, name: str, entry: Mapping[str, Any]) -> None:
        allowed, value = self.fields[name], entry.get("value")
        if not allowed.test(value):
            raise ValueError(f"{name} must be {allowed.words}, got {shortened(value)}")


def is_of(entry: Any, name: Any, what: str) -> bool:
    """Whether a part of a request is of this property of this control."""
    return isinstance(entry, dict) and entry.get("id") == name and entry.get("property") == what


def joined(outputs: Any) -> str | None:
    """The outputs that a request lists as Dash names them, or ``None`` if it lists none."""
    listed = outputs if isinstance(outputs, list) else [outputs]
    if not all(isinstance(each, dict) for each in listed):
        return None
    words = [f"{each.get('id')}.{each.get('property')}" for each in listed]
    return f"..{'...'.join(words)}.." if isinstance(outputs, list) else words[0]


def body_of_request() -> Any:
    """The request's JSON, or ``None`` if it is none."""
    try:
        return request.get_json(silent=True)
    except RecursionError:  # nested too deeply
        return None


def validate_requests(app: Dash, explorer: Explorer, views: Sequence[str]) -> None:
    """Refuse each request that the page does not send, and each that is too large."""
    app.server.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    deepest = max(explorer.model.prior(facet).dim for facet in explorer.facets)
    ends = {"thumbnail": len(explorer.x), "latent": deepest}
    validator = Validator(app.callback_map, fields(explorer, views), ends)

    @app.server.before_request
    def validate() -> None:
        if request.path == UPDATE and request.method == "POST":
            try:
                validator.check(body_of_request())
            except ValueError as error:
                abort(Response(f"{error}\n", 400, mimetype="text/plain"))

    @app.server.errorhandler(DependencyException)
    def unknown_file(error: DependencyException) -> Response:
        return Response("unknown file\n", 404, mimetype="text/plain")
