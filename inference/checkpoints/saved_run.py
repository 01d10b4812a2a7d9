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

from inference.checkpoints.atomic_files import digest, read_indexed, write_indexed
from inference.run import check_settings
from ppl_models.configurable import UnknownClass
from ppl_models.given.checks import check_keys, check_kind, is_index

FORMAT = 1
CONFIG, HISTORY, WEIGHTS = "config.json", "history.jsonl", "weights.safetensors"
CARD = "card.md"
# A buffer of models that saved runs may have: the weights of KL terms, which are a run's alone.
FORMER = "kl_weights"


def write_run(
    folder: Path, config: dict[str, Any], state: Mapping[str, Tensor], history: str, card: str
) -> None:
    """Write a run and its card into ``folder``, creating it if need be."""
    files = {WEIGHTS: serialized(state), HISTORY: history.encode()}
    digests = {name: digest(content) for name, content in files.items()}
    index = {"format": FORMAT, **config, "files": digests}
    write_indexed(folder, CONFIG, index, files | {CARD: card.encode()})


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], list[dict[str, Any]]]:
    """The description, weights and history of the run in ``folder``.

    :raises FileNotFoundError: if the folder or a file is missing.
    :raises ValueError: if a file is damaged, has the wrong content or belongs to another save.
    """
    path = folder / CONFIG
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"no checkpoint in {folder}: {CONFIG} is missing (it is written by SVIRunner.save)"
        ) from None
    with blamed_on(path):
        config = json.loads(content)
    found = config.get("format", "none") if isinstance(config, dict) else "none"
    if found != FORMAT or isinstance(found, bool):
        raise ValueError(
            f"{path} is not a checkpoint of format {FORMAT}: its format is {repr(found)[:50]}: "
            "load it with the version of the library that wrote it, or train anew"
        )
    with blamed_on(path):
        _check_config(config)
    files = {name: read_indexed(folder, name, config["files"][name]) for name in (WEIGHTS, HISTORY)}
    with blamed_on(folder / WEIGHTS):
        weights = load(files[WEIGHTS])
    weights.pop(f"model.{FORMER}", None)
    with blamed_on(folder / HISTORY):
        history = [json.loads(line) for line in files[HISTORY].splitlines()]
        check_history(history)
    return config, weights, history


def serialized(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a file of tensors; what two names share is written once for each."""
    return save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def check_history(history: Any, name: str = "line") -> None:
    """:raises ValueError: if something is not a record."""
    for i, record in enumerate(check_kind("it", history, list, "a list of records"), start=1):
        _check_counts(f"{name} {i}", record)


@contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Within this context errors name this file, and say that it is damaged if that may be so."""
    try:
        yield
    except UnknownClass as error:
        raise ValueError(f"{path}: {error}") from error
    except (ValueError, RecursionError, SafetensorError) as error:
        how = "damaged" if type(error) is ValueError else "truncated or damaged"
        raise ValueError(f"{path} is {how}: {error}") from error


def _check_config(config: dict[str, Any]) -> None:
    """:raises ValueError: if a part is missing or invalid."""
    check_keys("it", config, ("guide", "schedule", "runner", "progress"))
    settings = ("lr", "seed", "precision")
    if unknown := sorted(check_keys("runner", config["runner"], settings).keys() - set(settings)):
        raise ValueError(f"runner has an unknown {unknown[0]!r}")
    check_settings(**config["runner"])
    _check_counts("progress", config["progress"])
    for name, found in check_keys("files", config.get("files"), (WEIGHTS, HISTORY)).items():
        if not (isinstance(found, str) and len(found) == 64 and found.isalnum()):
            raise ValueError(f"files must hold digests, got {found!r} for {name!r}")


def _check_counts(what: str, value: Any) -> None:
    """:raises ValueError: if it does not count epochs and steps."""
    names = ("epoch", "step")
    entries = check_keys(what, value, names)
    for name in names:
        if not is_index(entries[name], 2**63):
            raise ValueError(f"{what} must count, got {entries[name]!r} for {name!r}")
