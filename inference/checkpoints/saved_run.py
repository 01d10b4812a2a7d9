"""A run on disk: a description, weights and a history, of which none contains code.

The description holds the digests of the other two and is replaced together with them, so that a
folder holds the run of one call of ``save`` or is refused. A card to read is written with them,
and never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.checkpoints.atomic_files import digest, read_indexed, write_atomically
from ppl_models.configurable import UnknownClass
from ppl_models.given.checks import check_keys, check_kind, is_index

FORMAT = 1
CONFIG, HISTORY = "config.json", "history.jsonl"
#: The file of tensors.
WEIGHTS = "weights.safetensors"
#: What people read, and no program.
CARD = "card.md"
# A buffer of models that saved runs may have: the weights of KL terms, which are a run's alone.
FORMER = "kl_weights"


def write_checkpoint(
    folder: Path, config: dict[str, Any], state: Mapping[str, Tensor], history: str, card: str
) -> Path:
    """Write the files of a checkpoint, and its card, into ``folder``, creating it if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    others = {WEIGHTS: _serialized(state), HISTORY: history.encode()}
    files = {name: digest(content) for name, content in others.items()}
    described = {"format": FORMAT, **config, "files": files}
    index = (json.dumps(described, indent=2) + "\n").encode()
    write_atomically(folder / CONFIG, index, others | {CARD: card.encode()})
    return folder


def _serialized(state: Mapping[str, Tensor]) -> bytes:
    # Clones: parameters that two layers share are written once for each.
    return save({name: t.detach().cpu().contiguous().clone() for name, t in state.items()})


def read_config(folder: Path) -> dict[str, Any]:
    """Description of the checkpoint in ``folder``.

    :raises FileNotFoundError: if the folder or its description is missing.
    :raises ValueError: if it is truncated or has the wrong content.
    """
    path = folder / CONFIG
    with _missing(folder, CONFIG), _damaged(folder):
        config = json.loads(path.read_bytes())
    found = config.get("format", "none") if isinstance(config, dict) else "none"
    if found != FORMAT or isinstance(found, bool):
        raise ValueError(
            f"{path} is not a checkpoint of format {FORMAT}: its format is {repr(found)[:50]}: "
            "load it with the version of the library that wrote it, or train anew"
        )
    with blamed_on(path):
        _check_config(config)
    return config


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors of the checkpoint in ``folder``.

    :raises FileNotFoundError: if the file is missing.
    :raises ValueError: if it is damaged, or belongs to another save than the description.
    """
    content = _read(folder, WEIGHTS, config)
    with _damaged(folder):
        tensors = load(content)
    tensors.pop(f"model.{FORMER}", None)
    return tensors


def read_history(folder: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Records of the checkpoint in ``folder``; errors are those of :func:`read_weights`."""
    content = _read(folder, HISTORY, config)
    with _damaged(folder):
        history = [json.loads(line) for line in content.splitlines()]
    with blamed_on(folder / HISTORY):
        check_history(history)
    return history


def check_history(history: Any, name: str = "line") -> None:
    """:raises ValueError: if something is not a record."""
    for i, record in enumerate(check_kind("it", history, list, "a list of records"), start=1):
        entries = check_keys(f"{name} {i}", record, ("epoch", "step"))
        for key in ("epoch", "step"):
            check_counts_up(f"{name} {i}", key, entries[key])


def check_counts_up(what: str, name: str, value: Any) -> None:
    """:raises ValueError: if it is not a number of epochs, steps or the like."""
    if not is_index(value, 2**63):
        raise ValueError(f"{what} must count, got {value!r} for {name!r}")


@contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Within this context errors name this file, and say that it is damaged if that may be so."""
    try:
        yield
    except UnknownClass as error:
        raise ValueError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


@contextmanager
def _damaged(folder: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, SafetensorError) as error:
        raise ValueError(f"the checkpoint in {folder} is truncated or damaged: {error}") from error


@contextmanager
def _missing(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"no checkpoint in {folder}: {name} is missing (it is written by SVIRunner.save)"
        ) from None


def _read(folder: Path, name: str, config: Mapping[str, Any]) -> bytes:
    with _missing(folder, name):
        return read_indexed(folder, name, config["files"][name])


def _check_config(config: dict[str, Any]) -> None:
    """:raises ValueError: if a part is missing or invalid."""
    check_keys("it", config, ("guide", "schedule", "runner", "progress"))
    settings = ("lr", "seed", "precision")
    if unknown := sorted(check_keys("runner", config["runner"], settings).keys() - set(settings)):
        raise ValueError(f"runner has an unknown {unknown[0]!r}")
    for name in ("epoch", "step"):
        value = check_keys("progress", config["progress"], ("epoch", "step"))[name]
        check_counts_up("progress", name, value)
    for name, found in check_keys("files", config.get("files"), (WEIGHTS, HISTORY)).items():
        if not (isinstance(found, str) and len(found) == 64 and found.isalnum()):
            raise ValueError(f"files must hold digests, got {found!r} for {name!r}")
