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
from tests.bad_inputs.shared import COUNT, HUGE, MANY, Row, guide, of


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


def flags_of(about: str, protocol: Any, *rows: tuple[str, list[str], str]) -> list[Row]:
    """Rows of a protocol's flags."""
    return [
        Row(about, fault, lambda run, flags=flags: said(protocol.parse, flags), says, SystemExit)
        for fault, flags, says in rows
    ]


EXAMPLES = [
    Row(
        "mnist",
        "missing: folder",
        lambda run: mnist(run / "nowhere"),
        r"(?s)no MNIST in .*--data-root FOLDER",
        FileNotFoundError,
    ),
    Row(
        "mnist", "file: damaged", mnist, "a file in .* is not what it should be", damage=damaged_idx
    ),
    Row("fashion_mnist", "missing: folder", fashion_mnist, "no FashionMNIST in", FileNotFoundError),
    Row("svhn", "missing: files", data.svhn, "no SVHN in .*: train_32x32", FileNotFoundError),
    Row("cifar10", "missing: folder", data.cifar10, "(?s)no CIFAR-10 in", FileNotFoundError),
    Row(
        "cifar10",
        "missing: file",
        data.cifar10,
        r"lacks data_batch_2.bin and .* unpack the binary version",
        FileNotFoundError,
        write("cifar-10-batches-bin/data_batch_1.bin", b""),
    ),
    Row("yale_faces", "missing: folder", data.yale_faces, "no faces in .*Yale", FileNotFoundError),
    Row(
        "folders",
        "missing: images",
        lambda run: data.folders(run / "nowhere"),
        r"no images in .*nowhere: a folder for each group is needed",
        FileNotFoundError,
    ),
    Row(
        "folders",
        "misfit: groups of one image",
        data.folders,
        "1 folders with one image each: groups of 2 or more are needed",
        damage=write("someone/0001.png", b"no image"),
    ),
    Row(
        "shapes3d",
        "file: foreign",
        partial(data.shapes3d, 1),
        "is not the original 3DShapes, or not whole",
        damage=write("3dshapes.h5", b"no HDF5"),
    ),
    *of("shapes3d", ("range: configuration", lambda: data.shapes3d(3), "1 and 2 here, got 3")),
    *of("load", ("unknown: name", lambda: data.load("imagenet"), "'digits', .* got 'imagenet'")),
    *of(
        "drawn_shapes",
        ("range: rows", lambda: data.drawn_shapes(rows=0), f"rows {COUNT}, got 0"),
        ("huge: rows", lambda: data.drawn_shapes(rows=HUGE), f"rows {MANY}"),
    ),
    *of(
        "some_rows", ("range: rows", lambda: some_rows(data.digits(), -1), f"rows {COUNT}, got -1")
    ),
    *of(
        "colored",
        ("range: num_hues", lambda: data.colored(data.digits(), "c", 0), f"num_hues {COUNT}"),
    ),
    *of(
        "check_schedule",
        (
            "misfit: run",
            lambda: check_schedule(WarmUp(10**6), guide().model, data.digits(), 1, 64),
            "warm-up would end at step 1000000, but the run has 23",
        ),
    ),
    *flags_of(
        "vade.parse",
        vade,
        ("unknown: data", ["--dataset", "imagenet"], "invalid choice: 'imagenet'"),
        ("missing: value", ["--lr"], "--lr: expected one argument"),
        ("nan: rate", ["--lr", "nan"], "lr must be a positive number, got nan"),
        ("range: rows", ["--batch-size", "-3"], f"batch_size {COUNT}, got -3"),
    ),
    *flags_of(
        "mfcvae.parse",
        mfcvae,
        ("range: second epochs", ["--epochs", "5", "0"], f"epochs {COUNT}, got 0"),
        ("range: restarts", ["--restarts", "-1"], "restarts must be .* at least 0"),
        ("nan: weight", ["--waiting-weight", "nan"], "weight must be .* at least 0"),
    ),
    *flags_of(
        "identifiability.parse",
        identifiability,
        ("range: rows", ["--per-segment", "0"], f"per_segment {COUNT}"),
    ),
    Row(
        "open_run_folder",
        "file: run.json cut",
        lambda run: opened(run, "--resume"),
        "run.json is damaged, or of another program",
        SystemExit,
        write("run.json", '{"data": "dig'),
    ),
    Row(
        "open_run_folder",
        "file: run.json foreign",
        lambda run: opened(run, "--resume"),
        r"run.json is damaged, or of another program \(it lacks 'flags'\)",
        SystemExit,
        write("run.json", '{"data": "digits"}'),
    ),
    Row(
        "open_run_folder",
        "type: run.json's flags",
        lambda run: opened(run, "--resume"),
        "flags must be a JSON object, got int",
        SystemExit,
        write("run.json", '{"data": "digits", "flags": 3, "settings": {}}'),
    ),
    Row(
        "once",
        "file: foreign",
        lambda run: once(run / "results.json", {}, dict),
        "results.json is damaged, or of another program .it must hold settings, got list",
        SystemExit,
        write("results.json", "[1]"),
    ),
]
