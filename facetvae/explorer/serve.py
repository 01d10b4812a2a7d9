"""The explorer's page, served to this machine alone; it loads nothing from a network."""

from __future__ import annotations

import logging
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from facetvae.explorer.data import Asked, Refused, explorer_of, load_run, shown_data

if TYPE_CHECKING:
    from dash import Dash
    from werkzeug.serving import BaseWSGIServer

__all__ = ["address_of", "make_page", "serve", "serving"]

HOST = "127.0.0.1"


def bound(port: int) -> socket.socket:
    """A socket of this machine alone.

    :raises Refused: if the port is taken.
    """
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((HOST, port))
    except OSError as error:
        place.close()
        raise Refused(
            f"port {port} cannot be used ({error.strerror}): give another --port, or 0 for any"
        ) from None
    return place


def make_page(asked: Asked) -> Dash:
    """The page's application.

    :raises Refused: if the run or its data cannot be shown.
    """
    try:
        from facetvae.explorer.page import build_app
    except ImportError as error:
        raise Refused(f"the page takes {error.name}: pip install 'facetvae[explore]'") from None
    runner = load_run(asked.run, asked.device)
    shown = shown_data(asked, runner.model.x_shape)
    explorer = explorer_of(runner, shown, asked)
    facts = {
        "Model": type(runner.model).__name__,
        "Guide": type(runner.guide).__name__,
        "Data": f"{shown.name}, {len(explorer.x):,} of {len(shown.x):,}",
        "Trained": f"{runner.epoch} epochs, {runner.step:,} steps",
    }
    return build_app(explorer, runner.history, asked.run.resolve().name, facts)


@contextmanager
def serving(asked: Asked, port: int) -> Iterator[BaseWSGIServer]:
    """A server of the page, which listens, and answers once it is told to.

    :raises Refused: as :func:`make_page` and :func:`bound`.
    """
    with bound(port) as place:
        app = make_page(asked)
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(
            logging.ERROR
        )  # a line for each request says nothing to the user
        place.listen()
        server = make_server(
            HOST, place.getsockname()[1], app.server, threaded=True, fd=place.fileno()
        )
        try:
            yield server
        finally:
            server.server_close()


def address_of(server: BaseWSGIServer) -> str:
    return f"http://{HOST}:{server.server_address[1]}/"


def serve(asked: Asked, port: int, browser: bool = True) -> None:
    """Serve the page until Ctrl-C."""
    with serving(asked, port) as server:
        print(f"{address_of(server)} shows {asked.run}; Ctrl-C ends it", flush=True)
        if browser:
            webbrowser.open(address_of(server))
        with suppress(KeyboardInterrupt):
            server.serve_forever()
