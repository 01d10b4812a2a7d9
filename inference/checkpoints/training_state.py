"""The content of a checkpoint of a run in progress: JSON and safetensors, both read without running
code, and their digests, so that damage is detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.checkpoints.atomic_files import digest, flush, read_indexed, write_atomically
from inference.checkpoints.saved_run import FORMER
from inference.records import plain

FORMAT = 2
# Marks the place of a tensor in the JSON, with its name among the tensors.
TENSOR = "@tensor"
STATE, TENSORS, DIGESTS = "state.json", "tensors.safetensors", "digests.json"
# Parts of a state that differ between runs of one kind: each has a check of its own.
FREE = {"call", "history", "optimizer", "callbacks", "random"}


def write(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, completely or not at all.

    :param state: JSON types, with tensors anywhere among them.
    """
    tensors: dict[str, Tensor] = {}
    described = _without_tensors({"format": FORMAT, **state}, "", tensors)
    contents = {STATE: json.dumps(plain(described)).encode(), TENSORS: save(tensors)}
    digests = json.dumps({name: digest(content) for name, content in contents.items()})
    folder.mkdir(exist_ok=True)
    try:
        write_atomically(folder / DIGESTS, digests.encode(), contents)
        flush(folder.parent)
    finally:
        with suppress(OSError):  # it is not empty, unless nothing could be written
            folder.rmdir()


def read(folder: Path) -> dict[str, Any]:
    """Read what :func:`write` wrote.

    :raises ValueError: if it is incomplete, damaged or has another format.
    """
    try:
        digests = json.loads((folder / DIGESTS).read_bytes())
        state, tensors = (read_indexed(folder, name, digests[name]) for name in (STATE, TENSORS))
        described = json.loads(state)
        if described["format"] not in (1, FORMAT):
            raise ValueError(f"its format is {described['format']!r}, but {FORMAT} is needed")
        read = _with_tensors(described, load(tensors))
        return read if described["format"] == FORMAT else _of_former(read)
    except (OSError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"it is incomplete: {error}") from error


def _of_former(state: dict[str, Any]) -> dict[str, Any]:
    """A state of format 1 as it is now."""
    progress, call = state.pop("progress"), state["call"]
    seconds, totals = progress.pop("seconds"), progress.pop("total_loss")
    kind, _, executor = call.pop("kind").partition(" ")
    call["steps by"] = [executor or None, kind == "VmappedStep"]
    call["weights"].pop(f"guide.model.{FORMER}", None)
    for of, total in zip(state["runs"], totals, strict=True):
        faults, run = of.pop("non_finite"), of["run"]
        run["weights"].pop(f"guide.model.{FORMER}", None)
        run["progress"] = progress | {"before": seconds, "faults_in_a_row": faults["in_a_row"]}
        run["counters"] = {
            "step": total.new_full((), run["step"]),
            "total": total,
            "faults": faults["count"],
            "first_fault": faults["first"],
            "fault_norms": faults["norms"],
        }
    return state


def is_unfinished(folder: Path) -> bool:
    """Whether a process ended while it wrote this checkpoint for the first time."""
    names = [path.name for path in folder.iterdir()]
    return bool(names) and all(name.endswith(".tmp") for name in names)


def check_like(name: str, value: Any, like: Any) -> None:
    """Whether a state that was read is of the kind of the state that a run would write now.

    :raises ValueError: if it is of another kind, has more parts or fewer, or tensors of another
        shape or type, naming the first.
    """
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            raise ValueError(f"{name} must hold {' and '.join(like)}")
        for key, item in like.items():
            if key not in FREE:
                check_like(f"{name}: {key}", value[key], item)
    elif isinstance(like, list | tuple):
        if not isinstance(value, list) or len(value) != len(like):
            raise ValueError(f"{name} must have {len(like)} entries")
        for i, (item, own) in enumerate(zip(value, like, strict=True)):
            check_like(f"{name} {i}", item, own)
    elif isinstance(like, Tensor):
        kind = (like.dtype, like.shape)
        if not isinstance(value, Tensor) or (value.dtype, value.shape) != kind:
            raise ValueError(f"{name} must be {like.dtype} of shape {list(like.shape)}")
    elif type(value) is not type(like):
        raise ValueError(f"{name} must be {type(like).__name__}, got {type(value).__name__}")


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` for JSON, its tensors moved to ``tensors``."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {TENSOR: name}
    if isinstance(value, Mapping | list | tuple):
        named = {
            key: _without_tensors(item, f"{name}/{key}", tensors) for key, item in _items(value)
        }
        return named if isinstance(value, Mapping) else list(named.values())
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """``value`` with the tensors that :func:`_without_tensors` removed."""
    if isinstance(value, dict) and value.keys() == {TENSOR}:
        return tensors[value[TENSOR]]
    if isinstance(value, dict | list):
        named = {key: _with_tensors(item, tensors) for key, item in _items(value)}
        return named if isinstance(value, dict) else list(named.values())
    return value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if isinstance(value, Mapping) else enumerate(value))
