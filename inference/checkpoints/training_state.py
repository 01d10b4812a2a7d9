"""The content of a checkpoint of a run in progress: JSON and safetensors, both read without running
code.

It is a folder that is complete or absent (see :mod:`inference.checkpoints.atomic_files`). It
contains its files' digests, so that later damage is detected.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.checkpoints.atomic_files import LARGEST_TEXT, read_folder, write_folder
from inference.checkpoints.json_text import parsed
from inference.records import plain
from ppl_models.given.checks import check_keys, check_kind

# Format 2 had another layout, which can still be read; formats 2 and 3 said less of the call.
FORMAT = 1
# Parts of a state: the call, its progress, each run, and random streams by process.
PARTS = ("call", "progress", "runs", "random")
OF_RUN = ("run", "non_finite", "callbacks")
RUN = ("epoch", "step", "should_stop", "history", "weights", "optimizer")
NON_FINITE = ("in_a_row", "count", "first", "norms")
# Marks the place of a tensor in the JSON, with its name among the tensors.
TENSOR = "@tensor"
STATE, TENSORS = "state.json", "tensors.safetensors"
# Bytes of each file; tensors may fill the memory.
LIMITS = {STATE: LARGEST_TEXT, TENSORS: sys.maxsize}


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
    write_folder(
        folder,
        {
            STATE: json.dumps(plain(described)).encode(),
            TENSORS: save(tensors),
        },
    )


def read(folder: Path) -> dict[str, Any]:
    """Read what :func:`write` wrote.

    :raises ValueError: if it is incomplete or has another format.
    """
    contents = read_folder(folder, LIMITS)
    try:
        state = parsed(contents[STATE])
        tensors = load(contents[TENSORS])
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']!r}, but {FORMAT} is needed")
        return _with_tensors(state, tensors)
    except (AttributeError, LookupError, TypeError, SafetensorError) as error:
        raise ValueError(f"it is incomplete: {error}") from error


def check_complete(state: Mapping[str, Any]) -> None:
    """:raises ValueError: if something that a run needs to resume is missing, naming the first."""
    try:
        check_keys("state.json", state, PARTS)
        progress = ("epoch", "batches", "logged", "stopped", "seconds", "total_loss")
        check_keys("its progress", state["progress"], progress)
        then = check_keys("its call", state["call"], ("runners", "weights"))
        runners = check_kind("its runners", then["runners"], list, "a list")
        runs = check_kind("its runs", state["runs"], list, "a list")
        if len(runners) != len(runs):
            raise ValueError(f"of {len(runners)} runs it holds {len(runs)}")
        for i, of in enumerate(runs):
            check_keys(f"its run {i}", of, OF_RUN)
            check_keys(f"its run {i}", of["run"], RUN)
            check_kind(f"callbacks of run {i}", of["callbacks"], list, "a list")
            check_keys(f"its run {i}", of["non_finite"], NON_FINITE)
    except ValueError as error:
        raise ValueError(f"it is incomplete: {error}") from error


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
