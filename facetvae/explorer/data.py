"""A saved run and the data that it is looked at with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import Repr

import numpy as np
from numpy.lib.format import open_memmap

from facetvae.datasets import DATASETS, Dataset
from facetvae.explorer.explorer import Explorer
from guides.grouped import TableGuide
from inference import SVIRunner
from ppl_models import CVAE, IVAE, FacetModel

__all__ = ["Asked", "Refused", "Shown", "explorer_of", "load_run", "shown_data"]

# How far above a run's folder the description may lie that names its data: examples of many runs
# have one for all.
LEVELS_UP = 2
# Text of others is repeated up to this length, and this many characters of names are read.
LONGEST, LARGEST_NAMES = 200, 1_000_000


class Refused(Exception):
    """What cannot be explored, and why, in a line."""


@dataclass(frozen=True)
class Asked:
    """What to look at.

    :ivar run: folder of a run, as :meth:`~inference.SVIRunner.save` writes it.
    :ivar data: file of data of your own; ``None`` for the run's data set, found by its name.
    :ivar label: what a model takes as ``label=``: a label of the data set, or a file.
    :ivar group: what a model takes as ``group=``, in the same way; ``None`` for one for each datum.
    :ivar columns: file of names of the columns, one a line.
    :ivar image_shape: shape in which to draw data of your own.
    :ivar rows: most rows to show.
    :ivar data_root: where data sets are.
    :ivar seed: of the rows and of probes.
    :ivar device: to compute on.
    :ivar datasets: what loads a data set, by name.
    """

    run: Path
    data: Path | None = None
    label: str | None = None
    group: str | None = None
    columns: Path | None = None
    image_shape: Sequence[int] | None = None
    rows: int = 3000
    data_root: Path | None = None
    seed: int = 0
    device: str = "cpu"
    datasets: Mapping[str, Callable[[Path | None], Dataset]] = field(
        default_factory=lambda: DATASETS
    )


@dataclass(frozen=True)
class Shown:
    """Data that are shown, what is known of them and how one is drawn."""

    name: str
    x: np.ndarray
    labels: dict[str, np.ndarray]
    image_shape: tuple[int, ...] | None


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


def shown_data(asked: Asked, x_shape: tuple[int, ...]) -> Shown:
    """The data to show: the user's own, or the test split of the data set that the run names.

    :raises Refused: if they are not found, or not of the model's shape.
    """
    shown = named_data(asked) if asked.data is None else own_data(asked.data, asked.image_shape)
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


def own_data(path: Path, image_shape: Sequence[int] | None) -> Shown:
    shape = None if image_shape is None else tuple(image_shape)
    return Shown(path.name, read_array(path), {}, shape)


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


def named_data(asked: Asked) -> Shown:
    name = data_name(asked.run)
    known = name.removesuffix("-drawn")
    if known not in asked.datasets:
        raise Refused(
            f"the run's data are {shortened(name)}, which cannot be loaded by name: give them as "
            "--data FILE.npy"
        )
    try:
        data = asked.datasets[known](asked.data_root)
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


def explorer_of(runner: SVIRunner, shown: Shown, asked: Asked) -> Explorer:
    """Some rows of the data, with what the model takes beside them.

    :raises Refused: if something does not fit.
    """
    labels, given = dict(shown.labels), {}
    for name, wanted in (("label", asked.label), ("group", asked.group)):
        if wanted is None:
            continue
        if wanted not in labels and not os.path.isfile(wanted):
            raise Refused(
                f"--{name} {shortened(wanted)}: there is no such file, and the labels of the data "
                f"are {list(labels)}"
            )
        values = labels[wanted] if wanted in labels else read_array(Path(wanted))
        if len(values) != len(shown.x):
            raise Refused(f"--{name} has {len(values)} entries, and there are {len(shown.x)} data")
        given[name] = values
        if wanted not in labels and values.ndim == 1 and values.dtype.kind in "iu":
            labels[name] = values
    if "label" not in given and (label := label_of(runner.model, labels)) is not None:
        given["label"] = label
    if isinstance(runner.guide, TableGuide) and len(runner.guide.group_of_row) == len(shown.x):
        given = {"group": runner.guide.group_of_row.cpu().numpy(), "row": np.arange(len(shown.x))}
        asked = replace(asked, rows=len(shown.x))  # a table has a row for each
    rows = np.random.default_rng(asked.seed).permutation(len(shown.x))[: asked.rows]
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
            asked.seed,
            read_names(asked.columns),
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
