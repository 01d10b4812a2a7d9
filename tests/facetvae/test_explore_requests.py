"""The explorer's server answers any request, with bounded work, and never with a 500."""

from __future__ import annotations

import copy
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from facetvae.explorer.explorer import Explorer
from guides import FacetGuide
from inference import SVIRunner
from tests.catalogue import BUILDERS, two_facets
from tests.facetvae.test_explore import N, explorer_of, served

pytest.importorskip("dash", reason="needs facetvae[explore]")
from facetvae.explorer import page as explore_page
from facetvae.explorer import requests as explore_requests
from facetvae.explorer import views as explore_views

PLACE = "http://127.0.0.1:8050"
UPDATE = "/_dash-update-component"
ANSWERS = {200, 204, 400, 413}


# Requests as a browser sends them


def control(name: Any, what: str, value: Any) -> dict[str, Any]:
    return {"id": name, "property": what, "value": value}


VIEW = control("view", "value", "Clusters")
FACET = control("facet", "value", "digit")
ROW_A, ROW_B = control("input-A", "value", 3), control("input-B", "value", 5)
SHOWN = [f"{view}.hidden" for view in explore_page.VIEWS]
SHOWN += ["inputs.hidden", "facets.hidden", "heading.children", "lead.children"]
SHOWN += ["slot-B.hidden"]


def ask(output: str, inputs: list[Any], state: list[Any] | None = None) -> dict[str, Any]:
    """A request for outputs, as Dash names them, by the first of the inputs."""
    words = output.strip(".").split("...") if output.startswith("..") else [output]
    outputs = [dict(zip(("id", "property"), word.split("."), strict=True)) for word in words]
    first = inputs[0][0] if isinstance(inputs[0], list) else inputs[0]
    name = first["id"]
    if isinstance(name, dict):
        name = json.dumps(name, separators=(",", ":"), sort_keys=True)
    return {
        "output": output,
        "outputs": outputs if output.startswith("..") else outputs[0],
        "inputs": inputs,
        "state": state or [],
        "changedPropIds": [f"{name}.{first['property']}"],
    }


def view(name: str) -> dict[str, Any]:
    return VIEW | {"value": name}


def drawn(choices: Any = (1, 0), temperature: Any = 1.0, clicks: Any = None) -> dict[str, Any]:
    sent = [
        view("Samples"),
        control("choices", "value", list(choices) if isinstance(choices, tuple) else choices),
        control("temperature", "value", temperature),
        control("held", "value", "held"),
        ROW_A,
        control("anew", "n_clicks", clicks),
    ]
    return ask("drawn.children", sent, [FACET])


def moved(values: dict[Any, Any], facet: Any = "digit", row: Any = 3) -> dict[str, Any]:
    sliders = [control({"place": j, "type": "latent"}, "value", z) for j, z in values.items()]
    beside = [FACET | {"value": facet}, ROW_A | {"value": row}]
    return ask("..moved.src...moved-says.children..", [sliders], beside)


def swapped(first: Any = 0, second: Any = 1) -> dict[str, Any]:
    sent = [view("Swaps"), FACET, ROW_A | {"value": first}, ROW_B | {"value": second}]
    return ask("Swaps.children", sent)


def chosen() -> dict[str, Any]:
    thumbnails = [control({"row": j, "type": "thumbnail"}, "n_clicks", 1) for j in range(4)]
    return ask("..input-A.value...input-B.value..", [thumbnails], [ROW_A])


def valid() -> list[dict[str, Any]]:
    """A request for each of the page's callbacks."""
    held = control("held", "value", "drawn")
    back = control("back", "n_clicks", None)
    of_facet = "..choices.options...choices.value...choose-clusters.hidden.."
    return [
        ask(f"..{'...'.join(SHOWN)}..", [VIEW, FACET, held]),
        ask("told.children", [VIEW, FACET]),
        ask("Training.children", [view("Training")]),
        ask("thumbnails.children", [control("others", "n_clicks", 2)]),
        ask("picture-A.src", [ROW_A]),
        ask("picture-B.src", [ROW_B]),
        ask("sliders.children", [view("Latents"), FACET, ROW_A, back]),
        ask(of_facet, [FACET]),
        chosen(),
        swapped(),
        moved({0: 0.1, 2: -0.3}),
        drawn(),
    ]


# Forged requests

NESTED: Any = 0
for _ in range(50):
    NESTED = [NESTED]
POISON = [
    None, True, -1, 0.5, 3, 10**30, 1e308, float("nan"), float("inf"), "inf", "", "x" * 20_000,
    "\ud800", "__proto__", "digit", [], {}, NESTED, {"place": 0, "type": "latent"},
    list(range(20_000)),
]  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each part of a request."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield (*path, key)
        yield from nodes(value[key], (*path, key))


def forged(chance: random.Random) -> dict[str, Any]:
    """A request with one or two parts replaced, removed or doubled."""
    body = copy.deepcopy(chance.choice(valid()))
    for _ in range(chance.randint(1, 2)):
        *path, last = chance.choice(list(nodes(body)))
        owner = body
        for key in path:
            owner = owner[key]
        how = chance.random()
        if how < 0.7:
            owner[last] = copy.deepcopy(chance.choice(POISON))
        elif how < 0.85:
            del owner[last]
        elif isinstance(owner, list):
            owner.append(copy.deepcopy(owner[last]))
        else:
            owner["more"] = owner[last]
    return body


RAW = [
    b"", b"{", b"[" * 100_000, b'{"output": ' * 20_000, b"null", b"[]", b'"x"', b"\xff\xfe",
    b"1" * 6000,
]  # fmt: skip
HUGE = b'{"output": "' + b"x" * explore_requests.MAX_BYTES + b'"}'


@pytest.fixture(scope="module")
def send() -> Callable[[Any], Any]:
    """Sends one request to the page of a small model, without a network."""
    client = page_of(explorer_of(two_facets()))
    return lambda body: client(body if isinstance(body, bytes) else json.dumps(body).encode())


def page_of(explorer: Explorer) -> Callable[[bytes], Any]:
    app = explore_page.build_app(explorer, [{"epoch": 1, "elbo": 0.0, "objective": 0.0}], "run", {})
    client = app.server.test_client()
    return lambda data: client.post(
        UPDATE, base_url=PLACE, data=data, content_type="application/json"
    )


@pytest.mark.parametrize("body", valid(), ids=lambda body: body["output"][:30])
def test_what_the_page_sends_is_answered(body: Any, send: Callable[[Any], Any]) -> None:
    assert send(body).status_code == 200


def test_every_callback_is_tried_and_every_property_that_the_page_sends_is_validated() -> None:
    explorer = explorer_of(two_facets())
    app = explore_page.build_app(explorer, [], "run", {})
    assert {body["output"] for body in valid()} == set(app.callback_map)
    specs = [each for call in app.callback_map.values() for each in call["inputs"] + call["state"]]
    ids = [
        (json.loads(each["id"])["type"] if each["id"][0] == "{" else each["id"], each["property"])
        for each in specs
    ]
    validated = explore_requests.fields(explorer, list(explore_page.VIEWS))
    assert {f"{name}.{what}" for name, what in ids} == set(validated)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (swapped(first=-1), "input-A.value must be the number of an input, from 0 to 11"),
        (moved({0: float("nan")}), "latent.value must be a finite number, got nan"),
        (moved({99: 0.0}), "latent place was expected"),
        (moved({0: 0.0}, facet="hue"), "facet.value must be one of style, digit, got 'hue'"),
        (drawn(choices=list(range(20_000))), "choices.value must be a list of at most"),
        (drawn(temperature=1e308), "temperature.value must be a number from 0 to 1.5"),
        (drawn(clicks=10**30), "anew.n_clicks must be a number of clicks"),
        (swapped() | {"output": "nothing.children"}, "unknown output 'nothing.children'"),
        (swapped() | {"outputs": {"id": "drawn", "property": "children"}}, "outputs must list"),
        (swapped() | {"inputs": []}, "inputs must be a list of 4 properties"),
        (swapped() | {"changedPropIds": ["view.id"]}, "changedPropIds must be a list"),
        (b"[" * 100_000, "a request must be a JSON object"),
    ],
    ids=str,
)
def test_a_forged_request_gets_a_sentence(body: Any, says: str, send: Callable[[Any], Any]) -> None:
    answer = send(body)
    assert answer.status_code == 400
    assert says in answer.text
    assert answer.text.count("\n") == 1
    assert len(answer.text) < 400


def test_forged_requests_get_no_server_error(send: Callable[[Any], Any]) -> None:
    chance, counts = random.Random(0), Counter[int]()
    for body in [*RAW, *(forged(chance) for _ in range(300))]:
        started = time.perf_counter()
        answer = send(body)
        counts[answer.status_code] += 1
        assert answer.status_code in ANSWERS, str(body)[:500]
        assert time.perf_counter() - started < 5, str(body)[:500]
    assert counts[400] > 200
    assert send(HUGE).status_code == 413, "it is not read"


def plausible(explorer: Explorer, chance: random.Random) -> dict[str, Any]:
    """A request of values that are each allowed, whether or not they fit one another."""
    values = {
        "view.value": list(explore_page.VIEWS),
        "facet.value": explorer.facets,
        "input-A.value": [None, 0, N - 1],
        "input-B.value": [None, 0, N - 1],
        "choices.value": [[], *map(explorer.choices, explorer.facets)],
        "temperature.value": [0, 0.3, 1.5],
        "held.value": ["drawn", "held"],
    }
    body = copy.deepcopy(chance.choice(valid()))
    for each in [*body["inputs"], *body["state"]]:
        if isinstance(each, dict):
            name = f"{each['id']}.{each['property']}"
            each["value"] = chance.choice(values.get(name, [None, 1, 1_000_000]))
        else:
            for member in each:
                member["value"] = chance.choice([0, 1, 1_000_000])
    return body


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_values_that_do_not_fit_one_another_get_no_server_error(
    build: Callable[[], FacetGuide],
) -> None:
    explorer, chance = explorer_of(build()), random.Random(2)
    post = page_of(explorer)
    for _ in range(25):
        body = plausible(explorer, chance)
        answer = post(json.dumps(body).encode())
        assert answer.status_code == 200 or "latent place was expected" in answer.text, body


def test_values_beyond_a_slider_count_as_its_end() -> None:
    explorer = explorer_of(two_facets())
    axis = explorer.axes("digit", 3)[0]
    far, end = (
        explore_views.moved_picture(explorer, "digit", 3, {axis.index: value})
        for value in (1e308, axis.high)
    )
    assert far == end


def test_what_the_page_cannot_show_is_said_there(send: Callable[[Any], Any]) -> None:
    explorer = explorer_of(two_facets())
    assert explorer.model.prior("style").dim < 3
    answer = send(moved({2: 0.0}, facet="style"))
    assert answer.status_code == 200
    assert "These sliders are not those of style" in answer.text
    rows = explore_views.sample_rows(explorer, "digit", range(51), 1.0, None, 0)
    assert "Choose at most 50 at once" in str(rows)


# The real server, by many at once


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, guide = tmp_path_factory.mktemp("served"), two_facets()
    run = SVIRunner(guide.model, guide).save(folder / "run")
    np.save(folder / "x.npy", np.random.default_rng(0).random((N, *guide.model.x_shape)))
    with served(run, "--data", str(folder / "x.npy")) as place:
        yield place.rstrip("/")


def status(address: str, data: bytes) -> int:
    headers = {"Content-Type": "application/json"}
    try:
        with urlopen(Request(address + UPDATE, data, headers), timeout=30) as answer:
            answer.read()
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


def test_twenty_clients_at_once(address: str) -> None:
    def client(seed: int) -> list[int]:
        chance = random.Random(seed)
        bodies = [*chance.sample(valid(), 4), *(forged(chance) for _ in range(6))]
        return [status(address, json.dumps(body).encode()) for body in bodies]

    started = time.perf_counter()
    with ThreadPoolExecutor(20) as pool:
        counts = Counter(code for codes in pool.map(client, range(20)) for code in codes)
    assert counts.keys() <= ANSWERS
    assert counts[200] >= 80
    assert time.perf_counter() - started < 20


def test_what_many_ask_at_once_is_measured_once() -> None:
    calls = []

    def measure(facet: str) -> str:
        calls.append(facet)
        time.sleep(0.05)
        return facet

    measured = explore_page.once(measure)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(measured, ["digit"] * 8)) == {"digit"}
    assert calls == ["digit"]
