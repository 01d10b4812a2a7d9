"""The protocols' data, flags and run folders, and the examples' flags."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import facetvae.datasets
from examples import quickstart
from inference import WarmUp
from lab.protocols import augmentation, identifiability, mfcvae, shapes, vade
from lab.protocols import datasets as data
from lab.protocols.common import check_schedule, once, open_run_folder
from lab.protocols.sources import time_contrastive
from tests.bad_inputs.files import write
from tests.bad_inputs.shared import COUNT, HUGE, MANY, Row, guide, of


def damaged_idx(run: Path) -> None:
    for split in ("train", "t10k"):
        for what in ("images-idx3", "labels-idx1"):
            write(f"MNIST/raw/{split}-{what}-ubyte", b"\x00\x00\x08")(run)


def cut_batches(run: Path) -> None:
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        write(f"cifar-10-batches-bin/{name}.bin", b"cut")(run)


def damaged_images(run: Path) -> None:
    for split in ("train", "test"):
        write(f"cifar-10/{split}/cat/0001.png", b"no image")(run)


def two_damaged(run: Path) -> None:
    for name in ("0001", "0002"):
        write(f"someone/{name}.png", b"no image")(run)


EXAMPLES = [
    Row(
        "mnist",
        "missing: folder",
        lambda run: facetvae.datasets.mnist(run / "nowhere"),
        r"(?s)no MNIST in .*--data-root FOLDER",
        FileNotFoundError,
    ),
    Row(
        "mnist",
        "file: damaged",
        facetvae.datasets.mnist,
        "a file in .* is not what it should be",
        damage=damaged_idx,
    ),
    Row(
        "fashion_mnist",
        "missing: folder",
        facetvae.datasets.fashion_mnist,
        "no FashionMNIST in",
        FileNotFoundError,
    ),
    Row(
        "svhn",
        "missing: files",
        data.svhn,
        r"no SVHN in .*: train_32x32.mat and test_32x32.mat",
        FileNotFoundError,
    ),
    Row(
        "cifar10",
        "missing: folder",
        lambda run: data.cifar10(run / "nowhere"),
        r"(?s)no CIFAR-10 in .*data_batch_1.bin .*--data-root FOLDER",
        FileNotFoundError,
    ),
    Row(
        "cifar10",
        "missing: file",
        data.cifar10,
        r"lacks data_batch_2.bin and .* unpack the binary version",
        FileNotFoundError,
        write("cifar-10-batches-bin/data_batch_1.bin", b""),
    ),
    Row(
        "cifar10",
        "file: cut",
        data.cifar10,
        "data_batch_1.bin has 3 bytes, which is not a multiple of 3073",
        damage=cut_batches,
    ),
    Row(
        "cifar10",
        "file: no image",
        data.cifar10,
        "0001.png cannot be read",
        damage=damaged_images,
    ),
    Row(
        "yale_faces",
        "missing: folder",
        data.yale_faces,
        "no faces in .*CroppedYale",
        FileNotFoundError,
    ),
    Row(
        "yale_faces",
        "file: damaged",
        data.yale_faces,
        r"yaleB01_P00A\+000E\+00.pgm cannot be read",
        damage=write("CroppedYale/yaleB01/yaleB01_P00A+000E+00.pgm", b"P5"),
    ),
    Row(
        "folders",
        "missing: images",
        lambda run: data.folders(run / "nowhere"),
        r"no images in .*nowhere: a folder for each group is needed",
        FileNotFoundError,
    ),
    Row(
        "folders",
        "file: no image",
        data.folders,
        "0001.png cannot be read",
        damage=two_damaged,
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
    *of(
        "shapes3d",
        (
            "range: configuration",
            lambda: data.shapes3d(3),
            "the configurations 1 and 2 here, got 3",
        ),
    ),
    *of(
        "load",
        (
            "unknown: name",
            lambda: data.load("imagenet"),
            r"name must be one of \('digits', .* got 'imagenet'",
        ),
    ),
    *of(
        "drawn_shapes",
        ("range: rows", lambda: data.drawn_shapes(rows=0), f"rows {COUNT}, got 0"),
        ("huge: rows", lambda: data.drawn_shapes(rows=HUGE), f"rows {MANY}"),
    ),
    *of(
        "some_rows",
        (
            "range: rows",
            lambda: facetvae.datasets.some_rows(data.digits(), -1),
            f"rows {COUNT}, got -1",
        ),
        (
            "range: test_rows",
            lambda: facetvae.datasets.some_rows(data.digits(), 9, test_rows=0),
            f"test_rows {COUNT}, got 0",
        ),
    ),
    *of(
        "coloured",
        (
            "range: num_hues",
            lambda: data.coloured(data.digits(), "c", 0),
            f"num_hues {COUNT}, got 0",
        ),
        (
            "shape: large",
            lambda: data.coloured(replace(data.digits(), image_shape=(64, 64)), "c"),
            "larger than 32",
        ),
    ),
    *of(
        "factor_grid",
        (
            "unknown: factor",
            lambda: shapes.factor_grid(colour=1),
            "no value 1 of a factor 'colour'",
        ),
        ("range: value", lambda: shapes.factor_grid(floor=10), "no value 10 of a factor 'floor'"),
    ),
    *of(
        "time_contrastive",
        ("range: rows", lambda: time_contrastive(0), f"per_segment {COUNT}, got 0"),
        ("type: dim", lambda: time_contrastive(5, dim=2.0), f"dim {COUNT}, got 2.0"),
    ),
    *of(
        "check_schedule",
        (
            "misfit: run",
            lambda: check_schedule(WarmUp(10**6), guide().model, data.digits(), 1, 64),
            "warm-up would end at step 1000000, but the run has 23",
        ),
    ),
    *of(
        "quickstart.main",
        (
            "type: seed",
            lambda: said(quickstart.main, "--seed", "ten"),
            "invalid int value: 'ten'",
            SystemExit,
        ),
        (
            "range: seed",
            lambda: said(quickstart.main, "--seed", "-1"),
            "seed must be .* 0 to .* got -1",
            SystemExit,
        ),
        (
            "huge: seed",
            lambda: said(quickstart.main, "--seed", "9" * 30),
            "seed must be .* 0 to .* got 999",
            SystemExit,
        ),
        (
            "unknown: device",
            lambda: said(quickstart.main, "--device", "gpu"),
            "device must be .* got 'gpu'",
            SystemExit,
        ),
        (
            "unknown: flag",
            lambda: said(quickstart.main, "--epoch", "3"),
            "unrecognized arguments",
            SystemExit,
        ),
    ),
    *of(
        "vade.parse",
        (
            "unknown: data",
            lambda: parsed(vade, "--dataset", "imagenet"),
            "invalid choice: 'imagenet'",
            SystemExit,
        ),
        ("missing: value", lambda: parsed(vade, "--lr"), "--lr: expected one argument", SystemExit),
        (
            "range: rate",
            lambda: parsed(vade, "--lr", "-1"),
            "lr must be a positive number, got -1.0",
            SystemExit,
        ),
        (
            "nan: rate",
            lambda: parsed(vade, "--lr", "nan"),
            "lr must be a positive number, got nan",
            SystemExit,
        ),
        (
            "range: rows",
            lambda: parsed(vade, "--batch-size", "-3"),
            f"batch_size {COUNT}, got -3",
            SystemExit,
        ),
    ),
    *of(
        "mfcvae.parse",
        (
            "type: seed",
            lambda: parsed(mfcvae, "--seed", "1.5"),
            "invalid int value: '1.5'",
            SystemExit,
        ),
        (
            "range: second epochs",
            lambda: parsed(mfcvae, "--epochs", "5", "0"),
            f"epochs {COUNT}, got 0",
            SystemExit,
        ),
        (
            "range: restarts",
            lambda: parsed(mfcvae, "--restarts", "-1"),
            "restarts must be .* at least 0",
            SystemExit,
        ),
        (
            "nan: weight",
            lambda: parsed(mfcvae, "--waiting-weight", "nan"),
            "weight must be .* at least 0",
            SystemExit,
        ),
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
        "file: cut",
        lambda run: once(run / "results.json", {}, dict),
        "results.json is damaged, or of another program",
        SystemExit,
        write("results.json", '{"settings": {'),
    ),
    Row(
        "once",
        "file: foreign",
        lambda run: once(run / "results.json", {}, dict),
        "results.json is damaged, or of another program .it must hold settings, got list",
        SystemExit,
        write("results.json", "[1]"),
    ),
    *of(
        "identifiability.parse",
        (
            "range: rows",
            lambda: parsed(identifiability, "--per-segment", "0"),
            f"per_segment {COUNT}",
            SystemExit,
        ),
    ),
    *of(
        "augmentation.parse",
        (
            "unknown: flag",
            lambda: parsed(augmentation, "--sed", "1"),
            "unrecognized arguments",
            SystemExit,
        ),
    ),
]


def opened(out: Path, *flags: str) -> None:
    open_run_folder(*vade.parse([*flags, "--out", str(out)]), data.digits())


def parsed(protocol: Any, *flags: str) -> None:
    said(protocol.parse, *flags)


def said(read: Callable[[list[str]], Any], *flags: str) -> None:
    """Flags are read; what is said on the way out is in the error."""
    with contextlib.redirect_stderr(io.StringIO()) as words:
        try:
            read(list(flags))
        except SystemExit as error:
            raise SystemExit(words.getvalue()) from error
