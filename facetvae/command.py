"""The command line: try the library, and look at a saved run.

    facetvae demo                       # find two groupings of handwritten digits: runs/demo
    facetvae explore runs/demo          # a page in your browser
    facetvae describe runs/demo         # what each facet is about, as Markdown
    facetvae explore RUN --data X.npy --label classes.npy --columns names.txt

A run is a folder that ``SVIRunner.save`` has written. Its data set is found by its name, and its
test split is shown; a run on your own data needs --data. ``explore`` needs facetvae[explore].
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from facetvae.explorer.data import Opened

__all__ = ["main"]

# Seeds are below this: NumPy takes no others.
SEEDS = 2**32


def main(argv: list[str] | None = None) -> None:
    """Run a command.

    :raises SystemExit: if it is refused, with status 2.
    """
    args = vars(parser().parse_args(argv))
    from facetvae.explorer.data import Refused  # PyTorch is imported only where it is needed

    do = args.pop("do")
    try:
        do(**args)
    except Refused as error:
        print(f"facetvae: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def demo(out: Path, seed: int) -> None:
    """Two groupings of scikit-learn's handwritten digits, found without labels."""
    from sklearn.metrics import normalized_mutual_info_score

    from facetvae.datasets import digits
    from facetvae.estimators import MultiFacetClustering
    from facetvae.explorer.data import Refused

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"no run can be saved in {out}: {error.strerror}") from None
    data = digits()
    images = data.train.reshape(-1, *data.image_shape)
    found = MultiFacetClustering(facets=("style", "digit"), random_state=seed, verbose=True)
    found.fit(images)
    found.runner_.save(out)
    (out / "run.json").write_text(json.dumps({"data": data.name}))
    digit = data.train_labels["digit"]
    for name, clusters in zip(found.facet_names_, found.labels_.T, strict=True):
        score = normalized_mutual_info_score(digit, clusters)
        print(f"{name}: normalized mutual information of its clusters with the digit: {score:.2f}")
    print(f"look at it: facetvae explore {out}")


def explore(port: int, no_browser: bool, **asked: Any) -> None:
    """Serve the explorer's page until Ctrl-C."""
    from facetvae.explorer.data import Refused

    try:
        from facetvae.explorer.serve import serve
    except ImportError as error:
        raise Refused(f"the page takes {error.name}: pip install 'facetvae[explore]'") from None
    serve(opened(**asked), port, browser=not no_browser)


def describe(**asked: Any) -> None:
    """Print what each facet with clusters is about."""
    run = opened(**asked)
    for facet in run.explorer.facets:
        try:
            about = run.explorer.about(facet)
        except ValueError as error:
            print(f"# {facet}\n\n{error}\n")
            continue
        for cluster in about.clusters:
            cluster["exemplars"] = run.rows[cluster["exemplars"]].tolist()
        print(about.to_markdown())


def opened(**asked: Any) -> Opened:
    """A run and its data; whether these are strange is said."""
    from facetvae.explorer.data import open_run

    run = open_run(**asked)
    if run.doubt:
        print(f"facetvae: {run.doubt}", file=sys.stderr)
    return run


def parser() -> argparse.ArgumentParser:
    """The commands and their flags."""
    whole = argparse.ArgumentParser(
        "facetvae", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for do in (demo, explore, describe):
        one = commands.add_parser(
            do.__name__, help=do.__doc__, description=do.__doc__, allow_abbrev=False
        )
        one.set_defaults(do=do)
        seed = integer(0, SEEDS - 1)
        one.add_argument("--seed", type=seed, default=0, help="of what is random (default: 0)")
        if do is demo:
            runs = Path("runs/demo")
            one.add_argument("--out", type=Path, default=runs, help=f"default: {runs}")
            continue
        _add_data(one)
        if do is explore:
            port = integer(0, 2**16 - 1)
            one.add_argument("--port", type=port, default=8050, help="0: any (default: 8050)")
            one.add_argument("--no-browser", action="store_true", help="do not open a browser")
    return whole


def _add_data(one: argparse.ArgumentParser) -> None:
    """The flags that :func:`~facetvae.explorer.data.open_run` describes."""
    shape: dict[str, Any] = {"type": integer(1), "nargs": "+", "metavar": "N"}
    add = one.add_argument
    add("run", type=Path, help="folder of a run, as SVIRunner.save writes it")
    add("--data", type=Path, metavar="FILE.npy", help="your own data")
    add("--label", metavar="NAME|FILE.npy", help="what the model takes as label=")
    add("--columns", type=Path, metavar="FILE.txt", help="names of columns, one a line")
    add("--image-shape", **shape, help="[channels] height width of your data")
    add("--rows", type=integer(1), default=3000, help="most rows (default: 3000)")
    add("--data-root", type=Path, help="where data sets are (default: $FACETVAE_DATA)")
    add("--device", default="cpu", help="to compute on (default: cpu)")


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """What argparse reads a whole number with that is in this range."""

    def read(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            range_ = f"at least {low}" if high is None else f"from {low} to {high}"
            raise argparse.ArgumentTypeError(f"must be {range_}, got {value}")
        return value

    read.__name__ = "integer"  # which argparse names where the text is none
    return read
