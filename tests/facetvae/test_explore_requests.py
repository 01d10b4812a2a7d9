"""The explorer's server answers every request of its page, for every model, and goes on after
others.
"""

from __future__ import annotations

import copy
import json
import random
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
from tests.catalog import EACH, two_facets

pytest.importorskip("dash", reason="needs facetvae[explore]")
from facetvae.explorer import page as explore_page
from facetvae.explorer import views as explore_views
from tests.facetvae.test_explore import N, explorer_of, served

PLACE = "http://127.0.0.1:8050"
UPDATE = "/_dash-update-component"


# Requests as a browser sends them


def control(name: Any, what: str, value: Any) -> dict[str, Any]:
    return {"id": name, "property": what, "value": value}


VIEW = control("view", "value", "Clusters")
FACET = control("facet", "value", "digit")
ROW_A, ROW_B = control("input-A", "value", 3), control("input-B", "value", 5)
SHOWN = [f"{view}.hidden" for view in explore_page.VIEWS]
SHOWN += ["inputs.hidden", "slot-B.hidden", "heading.children", "lead.children"]


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


def drawn(choices: Any = (1, 0), clicks: Any = None) -> dict[str, Any]:
    sent = [
        view("Samples"),
        control("choices", "value", list(choices) if isinstance(choices, tuple) else choices),
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
    thumbnails = [control({"place": j, "type": "thumbnail"}, "n_clicks", 1) for j in range(4)]
    return ask("..input-A.value...input-B.value..", [thumbnails], [ROW_A])


def valid() -> list[dict[str, Any]]:
    """A request for each of the page's callbacks."""
    held = control("held", "value", "drawn")
    of_facet = "..choices.options...choices.value...choose-clusters.hidden.."
    return [
        ask(f"..{'...'.join(SHOWN)}..", [VIEW, FACET, held]),
        ask("told.children", [VIEW, FACET]),
        ask("picture-A.src", [ROW_A]),
        ask("picture-B.src", [ROW_B]),
        ask("sliders.children", [view("Latents"), FACET, ROW_A]),
        ask(of_facet, [FACET]),
        chosen(),
        swapped(),
        moved({0: 0.1, 2: -0.3}),
        drawn(),
    ]


# Requests that the page does not send

OTHERS = [
    b"", b"{", b"[" * 100_000, b"null", b"[]", swapped() | {"output": "nothing.children"},
    swapped(first=-1), swapped(first=10**30), moved({0: float("nan")}), moved({0: "inf"}),
    moved({99: 0.0}), moved({0: 0.0}, facet="hue"), moved({0: 0.0}, row=N), drawn(clicks=10**30),
    drawn(choices=list(range(20_000))), swapped() | {"inputs": []},
]  # fmt: skip
HUGE = b'{"output": "' + b"x" * explore_page.MAX_BYTES + b'"}'


@pytest.fixture(scope="module")
def send() -> Callable[[Any], Any]:
    """Sends one request to the page of a small model, without a network."""
    client = page_of(explorer_of(two_facets()))

    return lambda body: client(as_bytes(body))


def as_bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def page_of(explorer: Explorer) -> Callable[[bytes], Any]:
    app = explore_page.build_app(explorer, "run", {})
    client = app.server.test_client()
    return lambda data: client.post(
        UPDATE, base_url=PLACE, data=data, content_type="application/json"
    )


@pytest.mark.parametrize("body", valid(), ids=lambda body: body["output"][:30])
def test_what_the_page_sends_is_answered(body: Any, send: Callable[[Any], Any]) -> None:
    assert send(body).status_code == 200


def test_every_callback_of_the_page_is_tried() -> None:
    app = explore_page.build_app(explorer_of(two_facets()), "run", {})
    assert {body["output"] for body in valid()} == set(app.callback_map)


def test_a_large_request_is_not_read(send: Callable[[Any], Any]) -> None:
    assert send(HUGE).status_code == 413


def plausible(explorer: Explorer, chance: random.Random) -> dict[str, Any]:
    """A request of values that are each allowed, whether or not they fit one another."""
    values = {
        "view.value": list(explore_page.VIEWS),
        "facet.value": explorer.facets,
        "input-A.value": [None, 0, N - 1],
        "input-B.value": [None, 0, N - 1],
        "choices.value": [[], *map(explorer.choices, explorer.facets)],
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


@pytest.mark.parametrize("build", EACH, ids=lambda build: build.__name__)
def test_values_that_do_not_fit_one_another_get_no_server_error(
    build: Callable[[], FacetGuide],
) -> None:
    explorer, chance = explorer_of(build()), random.Random(2)
    post = page_of(explorer)
    for _ in range(25):
        body = plausible(explorer, chance)
        answer = post(json.dumps(body).encode())
        assert answer.status_code == 200, body


def test_values_beyond_a_slider_count_as_its_end() -> None:
    explorer = explorer_of(two_facets())
    axis = explorer.axes("digit", 3)[0]
    far, end = (
        explore_views.moved_picture(explorer, "digit", 3, {axis.index: value})
        for value in (1e308, axis.high)
    )
    assert far == end


def test_sliders_of_another_facet_are_said_on_the_page(send: Callable[[Any], Any]) -> None:
    assert explorer_of(two_facets()).model.prior("style").dim < 3
    answer = send(moved({2: 0.0}, facet="style"))
    assert answer.status_code == 200
    assert "These sliders are not those of style" in answer.text


# The real server, by many at once


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, guide = tmp_path_factory.mktemp("served"), two_facets()
    run = SVIRunner(guide.model, guide).save(folder / "run")
    np.save(folder / "x.npy", np.random.default_rng(0).random((N, *guide.model.x_shape)))
    with served(run, "--data", str(folder / "x.npy")) as found:
        yield found.rstrip("/")


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
        bodies = [*chance.sample(valid(), 4), *chance.sample(OTHERS, 4)]
        chance.shuffle(bodies)
        return [status(address, as_bytes(body)) for body in bodies]

    with ThreadPoolExecutor(20) as pool:
        counts = Counter(code for codes in pool.map(client, range(20)) for code in codes)
    assert counts[200] >= 80
