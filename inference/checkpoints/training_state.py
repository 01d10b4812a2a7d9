"""The content of a checkpoint of a run in progress: JSON and safetensors, both read without running
code, and their digests, so that damage is detected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from inference.checkpoints.atomic_files import digest, read_indexed, write_indexed
from inference.checkpoints.saved_run import FORMER, serialized
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

    def without_tensors(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return plain(value)
        name = str(len(tensors))
        tensors[name] = value
        return {TENSOR: name}

    described = json.dumps({"format": FORMAT, **state}, default=without_tensors)
    files = {STATE: described.encode(), TENSORS: serialized(tensors)}
    write_indexed(folder, DIGESTS, {n: digest(content) for n, content in files.items()}, files)


def read(folder: Path) -> dict[str, Any]:
    """Read what :func:`write` wrote.

    :raises ValueError: if it is incomplete, damaged or has another format.
    """
    try:
        found = json.loads((folder / DIGESTS).read_bytes())
        described, content = (read_indexed(folder, n, found[n]) for n in (STATE, TENSORS))
        tensors = load(content)
        state = json.loads(
            described, object_hook=lambda of: tensors[of[TENSOR]] if of.keys() == {TENSOR} else of
        )
        if state["format"] not in (1, FORMAT):
            raise ValueError(f"its format is {state['format']!r}, but {FORMAT} is needed")
        return state if state.pop("format") == FORMAT else _of_former(state)
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
