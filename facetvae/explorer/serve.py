"""The explorer's page, served to this machine alone; it loads nothing from a network."""

from __future__ import annotations

import logging
import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from werkzeug.serving import BaseWSGIServer, make_server

from facetvae.explorer.data import Opened, Refused
from facetvae.explorer.page import build_app

__all__ = ["address_of", "serve", "serving"]

HOST = "127.0.0.1"


@contextmanager
def serving(opened: Opened, port: int) -> Iterator[BaseWSGIServer]:
    """A server of the page, which listens, and answers once it is told to, or ``Refused``."""
    runner, explorer = opened.runner, opened.explorer
    facts = {
        "Model": type(runner.model).__name__,
        "Guide": type(runner.guide).__name__,
        "Data": f"{opened.data}, {len(explorer.x):,} of {opened.count:,}",
        "Trained": f"{runner.epoch} epochs, {runner.step:,} steps",
    }
    app = build_app(explorer, opened.title, facts)
    # A line for each request says nothing to the user.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((HOST, port))
        except OSError as error:
            raise Refused(
                f"port {port} cannot be used ({error.strerror}): give another --port, or 0 for any"
            ) from None
        place.listen()
        port = place.getsockname()[1]
        server = make_server(HOST, port, app.server, threaded=True, fd=place.fileno())
        try:
            yield server
        finally:
            server.server_close()


def address_of(server: BaseWSGIServer) -> str:
    return f"http://{HOST}:{server.server_address[1]}/"


def serve(opened: Opened, port: int, browser: bool = True) -> None:
    """Serve the page until Ctrl-C."""
    with serving(opened, port) as server:
        print(f"{address_of(server)} shows {opened.title}; Ctrl-C ends it", flush=True)
        if browser:
            webbrowser.open(address_of(server))
        with suppress(KeyboardInterrupt):
            server.serve_forever()
