"""A saved run and the data that it is looked at with."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from facetvae.datasets import DATASETS, Dataset
from facetvae.estimators.training import bound
from facetvae.explorer.explorer import Explorer
from guides import FacetGuide
from guides.grouped import TableGuide
from inference import SVIRunner
from inference.randomness import seeded
from ppl_models import Flat

__all__ = ["Opened", "Refused", "open_run"]

# How far above a run's folder the description may lie that names its data: examples of many runs
# have one for all.
LEVELS_UP = 2
# Rows whose bounds are compared, and nats an entry that are no chance.
DRAWN, FAR = 200, 10


class Refused(Exception):
    """What cannot be explored, and why, in a line."""


@dataclass(frozen=True)
class Opened:
    """A run by its name, its data by theirs, the numbers of the ``rows`` that are shown of so many,
    and what seems strange about these (``doubt``).
    """

    runner: SVIRunner
    explorer: Explorer
    title: str
    data: str
    count: int
    rows: np.ndarray
    doubt: str = ""


def open_run(
    run: Path,
    *,
    data: Path | None = None,
    label: str | None = None,
    columns: Path | None = None,
    image_shape: Sequence[int] | None = None,
    rows: int = 3000,
    data_root: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Opened:
    """A run and the data to show: the user's own, or the test split of the data set that it names.

    :param run: folder of a run, as :meth:`~inference.SVIRunner.save` writes it; what follows are
        the flags of ``facetvae explore``, which its help describes.
    :raises Refused: if the run or its data cannot be loaded, or do not fit one another.
    """
    try:
        if not os.path.isdir(run):
            raise ValueError(f"there is no folder {shortened(run)}: give one of a saved run")
        runner = SVIRunner.load(run, device=device)
        if data is None:
            found = named_data(run, data_root)
            name, x, labels = found.name, found.test, dict(found.test_labels)
            image_shape = found.image_shape
        else:
            name, x, labels = data.name, read_array(data), {}
        x = fitting(x, runner.model.x_shape)
        given = given_beside(runner, x, labels, label)
        # A table has a row for each datum.
        most = len(x) if "row" in given else rows
        some = np.sort(np.random.default_rng(seed).permutation(len(x))[:most])
        explorer = Explorer(
            runner.guide,
            np.asarray(x[some]),
            {name: np.asarray(each[some]) for name, each in given.items()},
            {name: np.asarray(each[some]) for name, each in labels.items()},
            image_shape,
            None if columns is None else read_names(columns),
        )
        doubt = "" if data is None or given else units_doubted(runner.guide, explorer.x)
    except (OSError, ValueError, ImportError) as error:
        raise Refused(one_line(error)) from None
    return Opened(runner, explorer, run.resolve().name, name, len(x), some, doubt)


def fitting(x: np.ndarray, x_shape: tuple[int, ...]) -> np.ndarray:
    """Data in the model's shape; an error if they are of another."""
    if x.ndim > 1 and len(x) and np.prod(x.shape[1:]) == np.prod(x_shape):
        return x.reshape(-1, *x_shape)
    raise ValueError(
        f"data of shape {x.shape} are not the run's, which is of {x_shape} a datum: give its own "
        "(--data)"
    )


def units_doubted(guide: FacetGuide, x: np.ndarray) -> str:
    """What to say of data that are far less likely than what the model draws."""
    flat = any(isinstance(prior, Flat) for prior in guide.model.priors.values())
    if guide.takes or guide.model.likelihood.discrete or flat:
        return ""
    with seeded(0, guide.model.gates.device):
        drawn = guide.model.generate(DRAWN).cpu().numpy()
    own, given = (bound(guide, each, 2) / each[0].size for each in (drawn, x[:DRAWN]))
    if given > own - FAR:
        return ""
    return (
        f"the data have a log-density of {given:.3g} nats an entry, and what the model draws has "
        f"{own:.3g}: are they in its units, as an estimator's encode(X) returns them?"
    )


def given_beside(
    runner: SVIRunner, x: np.ndarray, labels: dict[str, np.ndarray], wanted: str | None
) -> dict[str, np.ndarray]:
    """What the model takes beside x: the label that is wanted. Integers that are read from a file
    become a known label, too.

    :raises ValueError: if there is no such label or file, or it has another number of entries.
    """
    guide = runner.guide
    if isinstance(guide, TableGuide) and len(guide.group_of_row) == len(x):
        return {"group": guide.group_of_row.cpu().numpy(), "row": np.arange(len(x))}
    if wanted is None:
        return {}
    if wanted not in labels:
        if not os.path.isfile(wanted):
            raise ValueError(
                f"--label {shortened(wanted)}: there is no such file, and the labels of the data "
                f"are {list(labels)}"
            )
        label = read_array(Path(wanted))
        if len(label) != len(x):
            raise ValueError(f"--label has {len(label)} entries, and there are {len(x)} data")
        if label.ndim == 1 and label.dtype.kind in "iu":
            labels["label"] = label
    else:
        label = labels[wanted]
    return {"label": label} if "label" in guide.takes else {}


def check_file(path: Path) -> None:
    """:raises ValueError: if it is no file, such as a device that never ends."""
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {shortened(path)}")


def read_array(path: Path) -> np.ndarray:
    """An array in its file, whose numbers are read when they are used; never code, or a number."""
    check_file(path)
    try:
        with np.errstate(all="raise"):
            array = open_memmap(path, mode="r")
    except Exception as error:  # NumPy's reader has many kinds for damaged headers
        raise ValueError(
            f"{path} cannot be read as an array that numpy.save wrote: {one_line(error)}"
        ) from None
    if array.ndim == 0:
        raise ValueError(f"{path} holds a single number: an entry per datum is needed")
    return array


def read_names(path: Path) -> list[str]:
    """The lines of a file, each a name; an error if there is none, or it is not text."""
    check_file(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as text: {one_line(error)}") from None
    return [line.strip() for line in lines if line.strip()]


def named_data(run: Path, data_root: Path | None) -> Dataset:
    """:raises ValueError: if the data set that a run names cannot be loaded."""
    name = data_name(run)
    if name not in DATASETS:
        raise ValueError(
            f"the run's data are {shortened(name)}, which cannot be loaded by name: give them as "
            "--data FILE.npy"
        )
    return DATASETS[name](data_root)


def data_name(folder: Path) -> str:
    """What a run's description, in its folder or in that of its example, says of its data."""
    places = (folder.resolve(), *folder.resolve().parents[:LEVELS_UP])
    files = [place / "run.json" for place in places if (place / "run.json").is_file()]
    try:
        return str(json.loads(files[0].read_text())["data"])
    except (OSError, LookupError, ValueError, TypeError, RecursionError):
        said = f"{files[0]} does not say" if files else f"{folder} has no run.json, which says"
        raise ValueError(f"{said} which data the run is on: give --data FILE.npy") from None


def shortened(text: Any) -> str:
    return f"{str(text)!r:.200}"


def one_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip() if str(error) else type(error).__name__
