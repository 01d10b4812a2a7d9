"""The protocols' data, flags and run folders."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from facetvae.datasets import fashion_mnist, mnist, some_rows
from inference import WarmUp
from lab.protocols import datasets as data
from lab.protocols import identifiability, mfcvae, vade
from lab.protocols.common import check_schedule, once, open_run_folder
from tests.bad_inputs.files import write
from tests.bad_inputs.shared import COUNT, HUGE, MANY, On, at, guide


def damaged_idx(run: Path) -> None:
    for split in ("train", "t10k"):
        for what in ("images-idx3", "labels-idx1"):
            write(f"MNIST/raw/{split}-{what}-ubyte", b"\x00\x00\x08")(run)


def opened(out: Path, *flags: str) -> None:
    open_run_folder(*vade.parse([*flags, "--out", str(out)]), data.digits())


def said(read: Callable[[list[str]], Any], flags: list[str]) -> None:
    """Flags are read; what is said on the way out is in the error."""
    with contextlib.redirect_stderr(io.StringIO()) as words:
        try:
            read(flags)
        except SystemExit as error:
            raise SystemExit(words.getvalue()) from error


def flags_of(protocol: Any, *rows: tuple[str, list[str], str]) -> list[tuple[Any, ...]]:
    """What is said of a protocol's flags."""
    return [
        (fault, partial(said, protocol.parse, flags), message, SystemExit)
        for fault, flags, message in rows
    ]


def resumed(run_json: str) -> On:
    return On(lambda run: opened(run, "--resume"), write("run.json", run_json))


EXAMPLES = {
    "mnist": [
        (
            "missing: folder",
            at("nowhere", mnist),
            r"(?s)no MNIST in .*--data-root FOLDER",
            FileNotFoundError,
        ),
        ("file: damaged", On(mnist, damaged_idx), "a file in .* is not what it should be"),
    ],
    "fashion_mnist": [
        ("missing: folder", On(fashion_mnist), "no FashionMNIST in", FileNotFoundError)
    ],
    "svhn": [("missing: files", On(data.svhn), "no SVHN in .*: train_32x32", FileNotFoundError)],
    "cifar10": [
        ("missing: folder", On(data.cifar10), "(?s)no CIFAR-10 in", FileNotFoundError),
        (
            "missing: file",
            On(data.cifar10, write("cifar-10-batches-bin/data_batch_1.bin", b"")),
            r"lacks data_batch_2.bin and .* unpack the binary version",
            FileNotFoundError,
        ),
    ],
    "yale_faces": [
        ("missing: folder", On(data.yale_faces), "no faces in .*Yale", FileNotFoundError)
    ],
    "folders": [
        (
            "missing: images",
            at("nowhere", data.folders),
            r"no images in .*nowhere: a folder for each group is needed",
            FileNotFoundError,
        ),
        (
            "misfit: groups of one image",
            On(data.folders, write("someone/0001.png", b"no image")),
            "1 folders with one image each: groups of 2 or more are needed",
        ),
    ],
    "shapes3d": [
        (
            "file: foreign",
            On(partial(data.shapes3d, 1), write("3dshapes.h5", b"no HDF5")),
            "is not the original 3DShapes, or not whole",
        ),
        ("range: configuration", lambda: data.shapes3d(3), "1 and 2 here, got 3"),
    ],
    "load": [("unknown: name", lambda: data.load("imagenet"), "'digits', .* got 'imagenet'")],
    "drawn_shapes": [
        ("range: rows", lambda: data.drawn_shapes(rows=0), f"rows {COUNT}, got 0"),
        ("huge: rows", lambda: data.drawn_shapes(rows=HUGE), f"rows {MANY}"),
    ],
    "some_rows": [("range: rows", lambda: some_rows(data.digits(), -1), f"rows {COUNT}, got -1")],
    "colored": [
        ("range: num_hues", lambda: data.colored(data.digits(), "c", 0), f"num_hues {COUNT}")
    ],
    "check_schedule": [
        (
            "misfit: run",
            lambda: check_schedule(WarmUp(10**6), guide().model, data.digits(), 1, 64),
            "warm-up would end at step 1000000, but the run has 23",
        )
    ],
    "vade.parse": flags_of(
        vade,
        ("unknown: data", ["--dataset", "imagenet"], "invalid choice: 'imagenet'"),
        ("missing: value", ["--lr"], "--lr: expected one argument"),
        ("nan: rate", ["--lr", "nan"], "lr must be a positive number, got nan"),
        ("range: rows", ["--batch-size", "-3"], f"batch_size {COUNT}, got -3"),
    ),
    "mfcvae.parse": flags_of(
        mfcvae,
        ("range: second epochs", ["--epochs", "5", "0"], f"epochs {COUNT}, got 0"),
        ("range: restarts", ["--restarts", "-1"], "restarts must be .* at least 0"),
        ("nan: weight", ["--waiting-weight", "nan"], "weight must be .* at least 0"),
    ),
    "identifiability.parse": flags_of(
        identifiability, ("range: rows", ["--per-segment", "0"], f"per_segment {COUNT}")
    ),
    "open_run_folder": [
        (
            "file: run.json cut",
            resumed('{"data": "dig'),
            "run.json is damaged, or of another program",
            SystemExit,
        ),
        (
            "file: run.json foreign",
            resumed('{"data": "digits"}'),
            r"run.json is damaged, or of another program \(it lacks 'flags'\)",
            SystemExit,
        ),
        (
            "type: run.json's flags",
            resumed('{"data": "digits", "flags": 3, "settings": {}}'),
            "flags must be a JSON object, got int",
            SystemExit,
        ),
    ],
    "once": [
        (
            "file: foreign",
            On(lambda run: once(run / "results.json", {}, dict), write("results.json", "[1]")),
            "results.json is damaged, or of another program .it must hold settings, got list",
            SystemExit,
        )
    ],
}
