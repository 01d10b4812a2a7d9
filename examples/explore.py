"""Look around in a finished run: a page on this machine, opened in a browser.

    python -m examples.explore runs/quickstart
    python -m examples.explore runs/mfcvae --data-root DATA
    python -m examples.explore runs/mine --data X.npy --label classes.npy --columns names.txt

Cluster galleries, what tells a facet's clusters apart, what each facet knows, facets swapped
between two inputs, sliders along latents, samples of clusters, and the run's history. The run's
data set is found by its name, and its test split is shown; a run on your own data needs --data.
The page is served to this machine alone and loads nothing from a network. Needs facetvae[explore].
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import urllib.request
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.format import open_memmap

from examples import quickstart
from examples.common import reader, write_json
from examples.datasets import DATASETS, digits, load
from guides.tables import TableGuide
from inference import SVIRunner
from inference.exploring.explorer import Explorer
from ppl_models import CVAE, IVAE, FacetModel
from ppl_models.checks import check_count, check_device, check_seed, is_index

if TYPE_CHECKING:
    from dash import Dash
    from werkzeug.serving import BaseWSGIServer

HOST = "127.0.0.1"

# How far above a run's folder the description may lie that names its data: examples of many runs
# have one for all.
LEVELS_UP = 2


# Text of others is repeated up to this length, and this many characters of names are read.
LONGEST, LARGEST_NAMES = 200, 1_000_000


class Refused(Exception):
    """What cannot be explored, and why, in a line."""


@dataclass(frozen=True)
class Shown:
    """Data that are shown, what is known of them and how one is drawn."""

    name: str
    x: np.ndarray
    labels: dict[str, np.ndarray]
    image_shape: tuple[int, ...] | None


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.explore",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    port = reader("port", int, check_port)
    parser.add_argument(
        "run", type=Path, nargs="?", help="folder of a run, as SVIRunner.save writes it"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE.npy",
        help="data of your own, in place of the run's data set",
    )
    parser.add_argument(
        "--label", metavar="NAME|FILE.npy", help="what a model takes as label=, and known beside it"
    )
    parser.add_argument(
        "--group",
        metavar="NAME|FILE.npy",
        help="what a model takes as group= (default: one for each)",
    )
    parser.add_argument(
        "--columns",
        type=Path,
        metavar="FILE.txt",
        help="names of the columns of your data, one a line",
    )
    parser.add_argument(
        "--image-shape",
        type=reader("image-shape", int, check_count),
        nargs="+",
        metavar="N",
        help="[channels] height width of your data",
    )
    parser.add_argument(
        "--rows",
        type=reader("rows", int, check_count),
        default=3000,
        help="shown, at most (default: 3000)",
    )
    parser.add_argument(
        "--port",
        type=port,
        default=8050,
        help="to serve at; 0 for any that is free (default: 8050)",
    )
    parser.add_argument("--no-browser", action="store_true", help="open none")
    parser.add_argument(
        "--smoke", action="store_true", help="train a tiny run, answer one request for it, and end"
    )
    parser.add_argument(
        "--data-root", type=Path, help="where data sets are (default: $FACETVAE_DATA, else ./data)"
    )
    parser.add_argument(
        "--seed",
        type=reader("seed", int, check_seed),
        default=0,
        help="of rows and probes (default: 0)",
    )
    parser.add_argument(
        "--device", type=reader("device", str, check_device), default="cpu", help="default: cpu"
    )
    args = parser.parse_args(argv)
    if (args.run is None) != args.smoke:
        parser.error("give the folder of a run, or --smoke, which makes its own")
    return args


def check_port(name: str, value: Any) -> int:
    """:raises ValueError: if there is no such port."""
    if not is_index(value, 2**16):
        raise ValueError(f"{name} must be from 0 to 65535, got {value}")
    return value


# The run and its data


def load_run(folder: Path, device: str) -> SVIRunner:
    """:raises Refused: if there is no run in the folder that can be loaded."""
    if not os.path.isdir(folder):
        raise Refused(
            f"there is no folder {shortened(str(folder))}: give one that a run was saved in"
        )
    try:
        return SVIRunner.load(folder, device=device)
    except (OSError, ValueError, ImportError) as error:
        raise Refused(one_line(error)) from None


def shown_data(args: argparse.Namespace, x_shape: tuple[int, ...]) -> Shown:
    """The data to show: the user's own, or the test split of the data set that the run names.

    :raises Refused: if they are not found, or not of the model's shape.
    """
    shown = own_data(args) if args.data is not None else named_data(args.run, args.data_root)
    if (
        shown.x.shape[1:] != x_shape
        and shown.x.ndim > 1
        and np.prod(shown.x.shape[1:]) == np.prod(x_shape)
    ):
        shown = Shown(shown.name, shown.x.reshape(-1, *x_shape), shown.labels, shown.image_shape)
    if not len(shown.x) or shown.x.shape[1:] != x_shape:
        raise Refused(
            f"data of shape {shown.x.shape} are not the run's, which is of {x_shape} a datum: "
            "give its own (--data)"
        )
    return shown


def own_data(args: argparse.Namespace) -> Shown:
    shape = None if args.image_shape is None else tuple(args.image_shape)
    return Shown(args.data.name, read_array(args.data), {}, shape)


def read_array(path: Path) -> np.ndarray:
    """An array in its file, whose numbers are read when they are used; never code.

    :raises Refused: if there is none, or it is a single number.
    """
    if not os.path.isfile(path):
        raise Refused(f"there is no file {shortened(str(path))}: give one that numpy.save wrote")
    try:
        with np.errstate(all="raise"):
            array = open_memmap(path, mode="r")
    except Exception as error:  # NumPy's reader has many kinds for damaged headers
        raise Refused(
            f"{path} cannot be read as an array that numpy.save wrote: {one_line(error)}"
        ) from None
    if array.ndim == 0:
        raise Refused(f"{path} holds a single number: an array with an entry per datum is needed")
    return array


def read_names(path: Path | None) -> list[str] | None:
    """The lines of a file, each a name.

    :raises Refused: if there is no such file, or it is not text.
    """
    if path is None:
        return None
    if not os.path.isfile(path):
        raise Refused(f"there is no file {shortened(str(path))}: give one with a name a line")
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(LARGEST_NAMES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read as text: {one_line(error)}") from None
    return [line.strip() for line in lines if line.strip()]


def named_data(folder: Path, root: Path | None) -> Shown:
    name = data_name(folder)
    known = name.removesuffix("-drawn")
    if known not in DATASETS:
        raise Refused(
            f"the run's data are {shortened(name)}, which cannot be loaded by name: give them as "
            "--data FILE.npy"
        )
    try:
        data = load(known, root)
    except (OSError, ValueError, ImportError) as error:
        raise Refused(one_line(error)) from None
    if data.name != name:
        raise Refused(f"the run's data are {name!r}, and {data.name!r} was found: see --data-root")
    return Shown(name, data.test, data.test_labels, data.image_shape)


def data_name(folder: Path) -> str:
    """What a run's description, in its folder or in that of its example, says of its data.

    :raises Refused: if there is none, or it says nothing.
    """
    for place in [folder.resolve(), *folder.resolve().parents[:LEVELS_UP]]:
        if (place / "run.json").is_file():
            try:
                return str(json.loads((place / "run.json").read_text())["data"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                raise Refused(
                    f"{place / 'run.json'} does not say which data the run is on: give --data "
                    "FILE.npy"
                ) from None
    raise Refused(
        f"{folder} does not say which data the run is on (no run.json): give --data FILE.npy"
    )


def explorer_of(runner: SVIRunner, shown: Shown, args: argparse.Namespace) -> Explorer:
    """Some rows of the data, with what the model takes beside them.

    :raises Refused: if something does not fit.
    """
    labels, given = dict(shown.labels), {}
    for name in ("label", "group"):
        if (asked := getattr(args, name)) is None:
            continue
        if asked not in labels and not os.path.isfile(asked):
            raise Refused(
                f"--{name} {shortened(asked)}: there is no such file, and the labels of the data "
                f"are {list(labels)}"
            )
        values = labels[asked] if asked in labels else read_array(Path(asked))
        if len(values) != len(shown.x):
            raise Refused(f"--{name} has {len(values)} entries, and there are {len(shown.x)} data")
        given[name] = values
        if asked not in labels and values.ndim == 1 and values.dtype.kind in "iu":
            labels[name] = values
    if "label" not in given and (label := label_of(runner.model, labels)) is not None:
        given["label"] = label
    if isinstance(runner.guide, TableGuide) and len(runner.guide.group_of_row) == len(shown.x):
        given = {"group": runner.guide.group_of_row.cpu().numpy(), "row": np.arange(len(shown.x))}
        args.rows = len(shown.x)  # a table has a row for each
    rows = np.random.default_rng(args.seed).permutation(len(shown.x))[: args.rows]
    taken = {
        name: np.asarray(each[rows])
        for name, each in given.items()
        if name in (*runner.guide.takes, "row")
    }
    known = {name: np.asarray(each[rows]) for name, each in labels.items()}
    try:
        return Explorer(
            runner.guide,
            np.asarray(shown.x[rows]),
            taken,
            known,
            shown.image_shape,
            args.seed,
            read_names(args.columns),
        )
    except ValueError as error:
        raise Refused(one_line(error)) from None


def label_of(model: FacetModel, labels: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The first label with as many values as a model was built for that cannot do without one, if
    there is any.
    """
    if not isinstance(model, IVAE | CVAE):
        return None
    fitting = (each for each in labels.values() if each.max() + 1 == model.num_label_features)
    return next(fitting, None)


def shortened(text: str) -> str:
    short = Repr()
    short.maxstring = LONGEST
    return short.repr(text)


def one_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip() if str(error) else type(error).__name__


# Serving


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


def make_page(args: argparse.Namespace) -> Dash:
    """The page's application.

    :raises Refused: if the run or its data cannot be shown.
    """
    try:
        from examples.explore_page import build_app
    except ImportError as error:
        raise Refused(f"the page takes {error.name}: pip install 'facetvae[explore]'") from None
    runner = load_run(args.run, args.device)
    shown = shown_data(args, runner.model.x_shape)
    explorer = explorer_of(runner, shown, args)
    facts = {
        "Model": type(runner.model).__name__,
        "Guide": type(runner.guide).__name__,
        "Data": f"{shown.name}, {len(explorer.x):,} of {len(shown.x):,}",
        "Trained": f"{runner.epoch} epochs, {runner.step:,} steps",
    }
    return build_app(explorer, runner.history, args.run.resolve().name, facts)


@contextmanager
def serving(args: argparse.Namespace) -> Iterator[BaseWSGIServer]:
    """A server of the page, which listens, and answers once it is told to.

    :raises Refused: as :func:`make_page` and :func:`bound`.
    """
    with bound(args.port) as place:
        app = make_page(args)
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


def smoke(args: argparse.Namespace) -> None:
    """Train a tiny run in a folder that is removed again, answer one request for its page, and
    end.
    """
    with tempfile.TemporaryDirectory() as folder:
        args.run, args.port = Path(folder) / "quickstart", 0
        runner = quickstart.train(
            digits(), quickstart.SMOKE, args.seed, args.device, progress=False
        )
        runner.save(args.run)
        write_json(args.run / "run.json", {"data": "digits"})
        with serving(args) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with urllib.request.urlopen(address_of(server), timeout=30) as answer:
                print(f"{address_of(server)} answered: {answer.status}")
            server.shutdown()


def explore(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    with serving(args) as server:
        print(f"{address_of(server)} shows {args.run}; Ctrl-C ends it", flush=True)
        if not args.no_browser:
            webbrowser.open(address_of(server))
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    try:
        (smoke if args.smoke else explore)(args)
    except Refused as error:
        print(f"explore: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
