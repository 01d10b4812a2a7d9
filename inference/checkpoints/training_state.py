"""The content of a checkpoint of a run in progress: JSON and safetensors, both read without running
code, and their digests, so that damage is detected.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.checkpoints.atomic_files import digest, flush, read_indexed, write_atomically
from inference.checkpoints.saved_run import FORMER
from inference.records import plain

FORMAT = 1
# Marks the place of a tensor in the JSON, with its name among the tensors.
TENSOR = "@tensor"
STATE, TENSORS, DIGESTS = "state.json", "tensors.safetensors", "digests.json"
# Parts of a state that differ between runs of one kind: each has a check of its own.
FREE = {"call", "history", "optimizer", "callbacks", "random"}


@dataclass
class TrainingProgress:
    """The progress of a call of ``fit``.

    :ivar logged: the step of the last record.
    :ivar total_loss: each run's sum of objectives since the last record.
    :ivar epoch: complete passes in this call.
    :ivar batches: batches taken in the current pass.
    :ivar stopped: whether a callback ended the call before its last epoch.
    """

    logged: int
    total_loss: Tensor
    epoch: int = 0
    batches: int = 0
    stopped: bool = False
    before: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds that the call has taken, including before it was resumed."""
        return self.before + time.monotonic() - self.started

    def state_dict(self) -> dict[str, Any]:
        """Everything except the clock."""
        plain = {name: getattr(self, name) for name in ("epoch", "batches", "logged", "stopped")}
        return plain | {"seconds": self.seconds, "total_loss": self.total_loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what :meth:`state_dict` returned."""
        for name in ("epoch", "batches", "logged", "stopped"):
            setattr(self, name, state[name])
        self.total_loss = state["total_loss"].to(self.total_loss)
        self.before, self.started = state["seconds"], time.monotonic()


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
        if described["format"] != FORMAT:
            raise ValueError(f"its format is {described['format']!r}, but {FORMAT} is needed")
        return _as_now(_with_tensors(described, load(tensors)))
    except (OSError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        raise ValueError(f"it is incomplete: {error}") from error


def _as_now(state: dict[str, Any]) -> dict[str, Any]:
    """Without a buffer that models had (:data:`~inference.checkpoints.saved_run.FORMER`)."""
    with suppress(LookupError, TypeError, AttributeError):  # another form, which is refused later
        of_runs = [each["run"]["weights"] for each in state["runs"]]
        for weights in (state["call"]["weights"], *of_runs):
            weights.pop(f"guide.model.{FORMER}", None)
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
