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


@dataclass(frozen=True)
class Allowed:
    """The values that a property of a control can have, in words and as a test."""

    words: str
    test: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        """:raises ValueError: if the control cannot have this value."""
        if not self.test(value):
            raise ValueError(f"{name} must be {self.words}, got {shortened(value)}")


@dataclass(frozen=True)
class Family:
    """Controls that differ in a number: the key of the number in their ids, its end, and how many
    there are at most.
    """

    key: str
    end: int
    most: int


def one_of(values: Sequence[str]) -> Allowed:
    words = f"one of {', '.join(values)}"
    return Allowed(words, lambda value: isinstance(value, str) and value in values)


def index_below(n: int, what: str) -> Allowed:
    """A number of one of ``n`` things, or nothing."""
    words = f"the number of {what}, from 0 to {n - 1}, or empty" if n else f"empty: there is {what}"
    return Allowed(words, lambda value: value is None or is_index(value, n))


def some_of(test: Callable[[Any], bool], most: int, what: str) -> Allowed:
    def check(values: Any) -> bool:
        return isinstance(values, list) and len(values) <= most and all(map(test, values))

    return Allowed(f"a list of at most {most} {what}", check)


def between(low: float, high: float) -> Allowed:
    return Allowed(
        f"a number from {low} to {high}", lambda value: is_number(value) and low <= value <= high
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(number(value))


def fields(explorer: Explorer, views: Sequence[str]) -> dict[str, Allowed]:
    """What each property that the page sends can be."""
    row = index_below(len(explorer.x), "an input")
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
        "slot.value": one_of(SLOTS),
        "swapped.value": some_of(
            one_of(explorer.parts).test, len(explorer.parts), "of the swapped parts"
        ),
        "label.value": index_below(explorer.num_classes, "a label"),
        "choices.value": some_of(lambda value: is_index(value, most), most, "choices"),
        "temperature.value": between(0, MAX_TEMPERATURE),
        "held.value": one_of(HELD),
        "thumbnail.n_clicks": clicks,
        "latent.value": Allowed("a finite number", is_number),
        **{f"{button}.n_clicks": clicks for button in ("measure", "others", "back", "anew")},
    }


def families(explorer: Explorer) -> dict[str, Family]:
    """Controls of which there are many, by the type in their ids."""
    deepest = max(explorer.model.prior(facet).dim for facet in explorer.facets)
    return {
        "thumbnail": Family("row", len(explorer.x), THUMBNAILS),
        "latent": Family("place", deepest, MAX_AXES),
    }


@dataclass(frozen=True)
class Validator:
    """Compares a request with the callback that it names.

    :ivar callbacks: the page's callbacks, as Dash lists them.
    """

    callbacks: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, Allowed]
    families: Mapping[str, Family]

    def check(self, body: Any) -> None:
        """:raises ValueError: if the page sends no such request."""
        if not isinstance(body, dict):
            raise ValueError("a request must be a JSON object")
        output = body.get("output")
        if not isinstance(output, str) or output not in self.callbacks:
            raise ValueError(f"unknown output {shortened(output)}")
        if joined(body.get("outputs")) != output:
            raise ValueError(f"outputs must list what {output!r} names")
        sent = []
        for kind in ("inputs", "state"):
            sent += self._check_all(kind, self.callbacks[output][kind], body.get(kind, []))
        changed = body.get("changedPropIds", [])
        if (
            not isinstance(changed, list)
            or len(changed) > len(sent)
            or any(each not in sent for each in changed)
        ):
            raise ValueError("changedPropIds must be a list of the properties that were sent")

    def _check_all(self, kind: str, expected: Sequence[Any], given: Any) -> list[str]:
        """The names of the properties that were sent."""
        if not isinstance(given, list) or len(given) != len(expected):
            raise ValueError(f"{kind} must be a list of {len(expected)} properties")
        names = []
        for spec, entry in zip(expected, given, strict=True):
            if spec["id"].startswith("{"):
                names += self._check_family(spec, entry)
            else:
                names.append(self._check_one(spec, entry))
        return names

    def _check_one(self, spec: Mapping[str, str], entry: Any) -> str:
        name = f"{spec['id']}.{spec['property']}"
        if not names(entry, spec["id"], spec["property"]):
            raise ValueError(f"{name} was expected, got {shortened(entry)}")
        self.fields[name].check(name, entry.get("value"))
        return name

    def _check_family(self, spec: Mapping[str, str], entries: Any) -> list[str]:
        kind = json.loads(spec["id"])["type"]
        family = self.families[kind]
        if not isinstance(entries, list) or len(entries) > family.most:
            raise ValueError(f"there are at most {family.most} of {kind}")
        return [self._check_member(kind, spec["property"], entry) for entry in entries]

    def _check_member(self, kind: str, what: str, entry: Any) -> str:
        family = self.families[kind]
        own = entry.get("id") if isinstance(entry, dict) else None
        place = own.get(family.key) if isinstance(own, dict) else None
        own_id = {family.key: place, "type": kind}
        if not is_index(place, family.end) or not names(entry, own_id, what):
            raise ValueError(f"{kind} {family.key} was expected, got {shortened(entry)}")
        self.fields[f"{kind}.{what}"].check(kind, entry.get("value"))
        return f"{json.dumps(own_id, separators=(',', ':'), sort_keys=True)}.{what}"


def names(entry: Any, name: Any, what: str) -> bool:
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
    validator = Validator(app.callback_map, fields(explorer, views), families(explorer))

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
