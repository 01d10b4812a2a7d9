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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from facetvae.explorer.data import Asked, Refused, explorer_of, load_run, shown_data
from ppl_models.given.checks import check_count, check_device, check_seed, is_index

__all__ = ["main"]


def main(argv: list[str] | None = None, **asked: Any) -> None:
    """Run a command.

    :param asked: further arguments of :class:`~facetvae.explorer.data.Asked`, such as
        ``datasets``.
    :raises SystemExit: if it is refused, with status 2.
    """
    args = vars(parser().parse_args(argv))
    do = args.pop("do")
    try:
        do(**args) if do is demo else do(args, **asked)
    except Refused as error:
        print(f"facetvae: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def demo(out: Path, seed: int) -> None:
    """Two groupings of scikit-learn's handwritten digits, found without labels."""
    from sklearn.metrics import normalized_mutual_info_score

    from facetvae.datasets import digits
    from facetvae.estimators import MultiFacetClustering

    data = digits()
    images = data.train.reshape(-1, *data.image_shape)
    found = MultiFacetClustering(facets=("style", "digit"), random_state=seed, verbose=1)
    found.fit(images)
    found.runner_.save(out)
    (out / "run.json").write_text(json.dumps({"data": data.name}))
    digit = data.train_labels["digit"]
    for name, clusters in zip(found.facet_names_, found.labels_.T, strict=True):
        score = normalized_mutual_info_score(digit, clusters)
        print(f"{name}: normalized mutual information of its clusters with the digit: {score:.2f}")
    print(f"look at it: facetvae explore {out}")


def explore(args: dict[str, Any], **asked: Any) -> None:
    """Serve the explorer's page until Ctrl-C."""
    from facetvae.explorer.serve import serve

    port, browser = args.pop("port"), not args.pop("no_browser")
    serve(Asked(**args, **asked), port, browser)


def describe(args: dict[str, Any], **asked: Any) -> None:
    """Print what each facet with clusters is about."""
    wanted = Asked(**args, **asked)
    runner = load_run(wanted.run, wanted.device)
    explorer = explorer_of(runner, shown_data(wanted, runner.model.x_shape), wanted)
    for facet in explorer.facets:
        try:
            print(explorer.about(facet).to_markdown())
        except ValueError as error:
            print(f"# {facet}\n\n{error}\n")


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
        seed = reader("seed", int, check_seed)
        one.add_argument("--seed", type=seed, default=0, help="of what is random (default: 0)")
        (_add_out if do is demo else _add_data)(one)
        if do is explore:
            port = reader("port", int, check_port)
            one.add_argument("--port", type=port, default=8050, help="0: any (default: 8050)")
            one.add_argument("--no-browser", action="store_true", help="do not open a browser")
    return whole


def _add_out(one: argparse.ArgumentParser) -> None:
    one.add_argument("--out", type=Path, default=Path("runs/demo"), help="default: runs/demo")


def _add_data(one: argparse.ArgumentParser) -> None:
    """The flags that :class:`~facetvae.explorer.data.Asked` describes."""
    one.add_argument("run", type=Path, help="folder of a run, as SVIRunner.save writes it")
    flags: Mapping[str, dict[str, Any]] = {
        "data": {"type": Path, "metavar": "FILE.npy", "help": "your own data"},
        "label": {"metavar": "NAME|FILE.npy", "help": "what the model takes as label="},
        "group": {"metavar": "NAME|FILE.npy", "help": "as group= (default: one for each row)"},
        "columns": {"type": Path, "metavar": "FILE.txt", "help": "names of columns, one a line"},
        "image-shape": {
            "type": reader("image-shape", int, check_count),
            "nargs": "+",
            "metavar": "N",
            "help": "[channels] height width of your data",
        },
        "rows": {"type": reader("rows", int, check_count), "default": 3000, "help": "most rows"},
        "data-root": {"type": Path, "help": "where data sets are (default: $FACETVAE_DATA)"},
        "device": {"type": reader("device", str, check_device), "default": "cpu"},
    }
    for name, options in flags.items():
        one.add_argument(f"--{name}", **options)


def reader(name: str, kind: type, check: Callable[[str, Any], Any]) -> Callable[[str], Any]:
    """What argparse reads a flag with: its value as ``kind``, if it passes ``check``."""

    def read(text: str) -> Any:
        value = kind(text)
        try:
            check(name, value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return value

    read.__name__ = kind.__name__  # which argparse names where the text is none of that kind
    return read


def check_port(name: str, value: Any) -> int:
    """:raises ValueError: if there is no such port."""
    if not is_index(value, 2**16):
        raise ValueError(f"{name} must be from 0 to 65535, got {value}")
    return value
