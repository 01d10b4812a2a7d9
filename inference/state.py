"""What a checkpoint of a run that is going on holds: JSON and safetensors, and how a run is made of them again.

It is a folder, whole or absent (see :mod:`inference.disk`). Its files' digests are in it, so that one that was damaged
later is not taken for a whole one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.disk import read_folder, write_folder
from inference.processes import Processes
from ppl_models.checks import check_keys, check_kind

if TYPE_CHECKING:
    from inference.guard import Faults
    from inference.runner import SVIRunner

__all__ = ["Position", "check_whole", "read", "restore", "state_of", "write"]

FORMAT = 2  # 1 had the random streams that a pass was dealt from
# What a state holds: of the call, of where it stands, of each runner; and tensors beside those of the runners.
PARTS = ("call", "position", "runners")
POSITION = ("epoch", "batches", "logged", "stopped", "seconds")
OF_RUNNER = ("epoch", "step", "should_stop", "in_a_row", "history", "optimizer", "callbacks")
TENSORS = ("position.total_loss", "position.skipped", "position.first_skipped")


@dataclass
class Position:
    """Where a call of ``fit`` stands.

    :ivar epoch: whole passes in this call.
    :ivar batches: batches of the pass that goes on.
    :ivar logged: the step of the last record.
    :ivar seconds: of earlier processes of this call.
    :ivar total_loss: objectives since the last record, summed, by run.
    :ivar faults: of each run.
    :ivar random: random streams now.
    :ivar stopped: whether the call ended before its last epoch, as a callback asked for.
    """

    epoch: int = 0
    batches: int = 0
    logged: int = 0
    seconds: float = 0.0
    total_loss: Tensor = field(default_factory=lambda: torch.zeros(1))
    faults: list[Faults] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)
    stopped: bool = False


def write(folder: Path, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint, whole or not at all."""
    write_folder(
        folder,
        {
            "state.json": json.dumps(state, default=_number).encode(),
            "tensors.safetensors": save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}),
        },
    )


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What :func:`write` wrote.

    :raises ValueError: if it is not whole, or of another format.
    """
    contents = read_folder(folder)
    try:
        state = json.loads(contents["state.json"])
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']}, and {FORMAT} is needed")
        return state, load(contents["tensors.safetensors"])
    except (KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"it is not whole: {error}") from error


def state_of(
    runners: Sequence[SVIRunner],
    callbacks: Sequence[Sequence[Any]],
    at: Position,
    seconds: float,
    call: dict[str, Any],
    random: Sequence[Sequence[Tensor]],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's JSON and tensors.

    :param seconds: that the call has taken.
    :param call: what makes it what it is.
    :param random: the streams of each process.
    """
    tensors = {
        "position.total_loss": at.total_loss,
        "position.skipped": torch.stack([f.count for f in at.faults]),
        "position.first_skipped": torch.stack([f.first for f in at.faults]),
    }
    tensors |= {f"{i}.norms": f.norms for i, f in enumerate(at.faults)}
    tensors |= {f"random.{rank}.{i}": t for rank, each in enumerate(random) for i, t in enumerate(each)}
    each = []
    for i, (runner, calls) in enumerate(zip(runners, callbacks, strict=True)):
        optimizer = runner.optimizer.state_dict()
        tensors |= {f"{i}.weights.{name}": t for name, t in runner.loss.state_dict().items()}
        for p, moments in optimizer["state"].items():
            tensors |= {f"{i}.optimizer.{p}.{name}": torch.as_tensor(t) for name, t in moments.items()}
        each.append(
            {
                "epoch": runner.epoch,
                "step": runner.step,
                "should_stop": runner.should_stop,
                "in_a_row": at.faults[i].in_a_row,
                "history": runner.history,
                "optimizer": optimizer["param_groups"],
                "callbacks": [call.state(runner) if remembers(call) else None for call in calls],
            }
        )
    position = {name: getattr(at, name) for name in ("epoch", "batches", "logged", "stopped")} | {"seconds": seconds}
    return {"format": FORMAT, "call": call, "position": position, "runners": each}, tensors


def check_whole(state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """:raises ValueError: naming the first thing that a run goes on from and that is not there."""
    try:
        check_keys("state.json", state, PARTS)
        check_keys("its position", state["position"], POSITION)
        for i, of in enumerate(check_kind("its runners", state["runners"], list, "a list")):
            check_keys(f"its runner {i}", of, OF_RUNNER)
        then = check_keys("its call", state["call"], ("runners", "weights"))
        if len(then["runners"]) != len(state["runners"]):
            raise ValueError(f"of {len(then['runners'])} runners it holds {len(state['runners'])}")
        held = [*(f"weights.{name}" for name in then["weights"]), "norms"]
        names = [f"{i}.{name}" for i in range(len(state["runners"])) for name in held]
        check_keys("tensors.safetensors", tensors, (*TENSORS, *names))
    except ValueError as error:
        raise ValueError(f"it is not whole: {error}") from error


def _moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """An optimiser's moments, as they lie in ``tensors`` by ``parameter.name``."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        p, _, what = name.partition(".")
        # Moments lie in memory as their parameter does, which fused steps rely on.
        like = parameters[int(p)]
        moments.setdefault(int(p), {})[what] = (
            torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
        )
    return moments


def restore(
    runners: Sequence[SVIRunner],
    callbacks: Sequence[Sequence[Any]],
    at: Position,
    state: dict[str, Any],
    tensors: dict[str, Tensor],
    processes: Processes,
) -> None:
    """Bring runners, callbacks and ``at`` to a checkpoint, which is known to be whole and of this call."""
    for i, (runner, of, calls) in enumerate(zip(runners, state["runners"], callbacks, strict=True)):
        moments = _moments(runner.optimizer, _under(tensors, f"{i}.optimizer."))
        runner.optimizer.load_state_dict({"state": moments, "param_groups": of["optimizer"]})
        runner.loss.load_state_dict(_under(tensors, f"{i}.weights."))
        runner.history, runner.epoch, runner.step = of["history"], of["epoch"], of["step"]
        runner.should_stop = of["should_stop"]
        for call, kept in zip(calls, of["callbacks"], strict=True) if processes.leads else ():
            if kept is not None:
                call.restore(runner, kept)
    for name, value in state["position"].items():
        setattr(at, name, value)
    at.total_loss = tensors["position.total_loss"].to(at.total_loss)
    for i, faults in enumerate(at.faults):
        faults.count.copy_(tensors["position.skipped"][i])
        faults.first.copy_(tensors["position.first_skipped"][i])
        faults.norms.copy_(tensors[f"{i}.norms"])
        faults.in_a_row = state["runners"][i]["in_a_row"]
    # A process more than there were then starts a stream of its own.
    at.random = list(_under(tensors, f"random.{processes.rank}.").values()) or processes.fresh(runners[0])


def remembers(callback: Any) -> bool:
    """Whether a callback has something to be kept."""
    return callable(getattr(callback, "state", None)) and callable(getattr(callback, "restore", None))


def _number(value: Any) -> Any:
    """A number of NumPy's or torch's as Python's, for JSON."""
    if callable(getattr(value, "item", None)) and value.shape == ():
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in sorted(tensors.items()) if name.startswith(prefix)}
