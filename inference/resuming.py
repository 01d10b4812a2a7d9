"""Checkpoints of a run that is going on, so that it can be stopped at any time and go on as if it never had been.

A checkpoint is a folder of safetensors and JSON, whole or absent (see :mod:`inference.disk`). Its files' digests are in
it, so that one that was damaged later is not taken for a whole one.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.disk import check_folder, held, read_folder, remove_left_over, write_folder
from inference.processes import Processes
from inference.randomness import random_state
from ppl_models.checks import check_count, check_keys, check_kind, check_positive

if TYPE_CHECKING:
    from inference.guard import Faults
    from inference.runner import SVIRunner

__all__ = ["CheckpointWarning", "Checkpoints", "Position"]

FORMAT = 2  # 1 had the random streams that a pass was dealt from
SIGNALS = (signal.SIGTERM, signal.SIGINT)
NAME = re.compile(r"step-\d{10,}")
# What a state holds: of the call, of where it stands, of each runner; and tensors beside those of the runners.
PARTS = ("call", "position", "runners")
POSITION = ("epoch", "batches", "logged", "stopped", "seconds")
OF_RUNNER = ("epoch", "step", "should_stop", "in_a_row", "history", "optimizer", "callbacks")
TENSORS = ("position.total_loss", "position.skipped", "position.first_skipped")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or one that is damaged was passed over."""


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


class Checkpoints:
    """Write the state of a run now and then; with ``resume``, go on from the last whole checkpoint.

    For one call of ``fit``, made again as it was: same parts, data, sizes and seed. What is restored are parameters,
    optimiser, history, random streams, the place within the pass over the data, and callbacks that say how (see
    :mod:`inference.callbacks`); on the CPU the resumed run ends bit for bit where it would have ended. SIGTERM and
    SIGINT (Ctrl-C) write a checkpoint after the step and end the process; a second one ends it at once.

    :param folder: of the checkpoints, ``step-N`` each; made where it is not there.
    :param epochs: passes between checkpoints, or ``None``; one more is written at the end of the call.
    :param seconds: also after so many seconds, within a pass.
    :param keep: the last so many are kept.
    :param resume: go on from the last whole checkpoint, where there is one.
    :raises ValueError: if a number is not positive, or the folder holds checkpoints already and ``resume`` is not set.
    """

    def __init__(
        self,
        folder: str | Path,
        epochs: int | None = 1,
        seconds: float | None = None,
        keep: int = 2,
        resume: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.epochs, self.keep = epochs if epochs is None else check_count("epochs", epochs), check_count("keep", keep)
        self.seconds = seconds if seconds is None else check_positive("seconds", seconds)
        self.resume = check_kind("resume", resume, bool, "True or False")
        self.check()

    def check(self) -> None:
        """:raises ValueError: if the folder is a file, or has checkpoints that are not to be gone on from."""
        check_folder(self.folder, "checkpoints")
        if not self.resume and self.written():
            raise ValueError(
                f"{self.folder} has checkpoints of a run, the last one at {self.written()[-1].name}: go on from it "
                "with resume=True, or give another folder"
            )

    def _begin(self, stack: ExitStack) -> None:
        stack.enter_context(held(self.folder))
        self.check()
        remove_left_over(self.folder, "step-*")

    def written(self) -> list[Path]:
        """The checkpoints in the folder, the oldest first."""
        return checkpoints_in(self.folder)

    @contextmanager
    def of(
        self,
        runners: Sequence[SVIRunner],
        callbacks: Sequence[Sequence[Any]],
        call: Mapping[str, Any],
        processes: Processes,
    ) -> Iterator[Keeper]:
        """For the training loop: what it tells of its progress, while signals are listened to.

        :param call: what makes this call of ``fit`` what it is, in JSON types.
        """
        with ExitStack() as stack:
            processes.first(lambda: self._begin(stack))
            keeper = Keeper(self, runners, callbacks, json.loads(json.dumps(call)), processes)
            with _listening(keeper.asked_to_stop):
                yield keeper
                keeper.leave(processes.most(keeper.wants()), keeper.written)  # asked to after the last step


class Keeper:
    """One call's checkpoints: of several processes the first one reads and writes, for all."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        runners: Sequence[SVIRunner],
        callbacks: Sequence[Sequence[Any]],
        call: dict[str, Any],
        processes: Processes,
    ) -> None:
        self.checkpoints, self.runners, self.callbacks, self.call = checkpoints, runners, callbacks, call
        self.processes = processes
        self.signal, self.written = 0, False
        self.whole: list[Path] = []  # of this call, and known to be
        self.wrote = self.started = time.monotonic()

    def asked_to_stop(self, number: int, frame: Any) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # a second one is not listened to
        self.signal = number

    def restore(self, at: Position) -> None:
        """Bring runners, callbacks and ``at`` to the last whole checkpoint, where there is one to go on from."""
        found = self.processes.first(self.last)
        if found is not None:
            _restore(self.runners, self.callbacks, at, *found, self.processes)

    def last(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The last whole checkpoint to go on from.

        :raises ValueError: if it is of another run, or there are only damaged ones.
        """
        written = self.checkpoints.written() if self.checkpoints.resume else []
        for path in reversed(written):
            try:
                state, tensors = read(path)
                _check_whole(state, tensors)
            except (OSError, ValueError) as error:
                warnings.warn(f"{path} is passed over: {error}", CheckpointWarning, stacklevel=7)
                continue
            then = state["call"]
            if differing := sorted(k for k in self.call.keys() | then.keys() if self.call.get(k) != then.get(k)):
                raise ValueError(
                    f"{path} is of another run, which differs in {' and '.join(differing)}: call fit as it was called "
                    "then, or give another folder"
                )
            self.whole = [path]
            return state, tensors
        if written:
            raise ValueError(f"no checkpoint in {self.checkpoints.folder} is whole: give another folder to start anew")
        return None

    def wants(self) -> int:
        """The signal that this process got; 1 where the first process has a checkpoint due; else 0."""
        every = self.checkpoints.seconds
        due = self.processes.leads and every is not None and time.monotonic() - self.wrote > every
        return self.signal or int(due)

    def after_step(self, at: Position) -> None:
        """Write where it is time, and leave where it was asked for; of several processes all do at the same step."""
        if self.runners[0].step % self.processes.agree_every:
            return
        wanted = self.processes.most(self.wants())
        self.leave(wanted, self.write(at) if wanted else False)

    def after_epoch(self, at: Position, last: bool) -> None:
        """Write where an epoch's checkpoint is due or it is the last one, and leave where it was asked for."""
        every = self.checkpoints.epochs
        wanted = self.processes.most(self.wants())
        due = last or (every is not None and at.epoch % every == 0) or wanted > 1
        self.leave(wanted, self.write(at) if due else False)

    def write(self, at: Position) -> bool:
        """One more checkpoint, and whether it was written; where it cannot be, a warning, and those before it stay."""
        self.wrote = time.monotonic()
        if any(faults.stopped for faults in at.faults):  # what cannot go on is not written
            return False
        at.random = random_state(self.runners[0].device)
        random = self.processes.gathered(at.random)
        self.written = self.processes.first(lambda: self._write(at, random))
        return self.written

    def _write(self, at: Position, random: Sequence[Sequence[Tensor]]) -> bool:
        step = self.runners[0].step
        path = self.checkpoints.folder / f"step-{step:010d}"
        seconds = at.seconds + self.wrote - self.started
        try:
            write(path, *_state(self.runners, self.callbacks, at, seconds, self.call, random))
        except (OSError, TypeError) as error:  # no room, or a record that JSON cannot hold
            warnings.warn(
                f"no checkpoint was written at step {step} ({error}): earlier ones stay, and training goes on",
                CheckpointWarning,
                stacklevel=7,
            )
            return False
        self.whole = [*(kept for kept in self.whole if kept != path), path][-self.checkpoints.keep :]
        for old in self.checkpoints.written():
            if old not in self.whole:
                shutil.rmtree(old, ignore_errors=True)
        return True

    def leave(self, wanted: int, written: bool) -> None:
        """End the process if a signal asked for it."""
        if wanted <= 1:
            return
        lead = self.runners[0]
        kept = f"the checkpoint is in {self.checkpoints.folder}, resume goes on from it"
        if self.processes.leads:
            print(
                f"{signal.Signals(wanted).name}: stopped at epoch {lead.epoch}, step {lead.step}; "
                + (kept if written else "no checkpoint could be written of it, see the warnings"),
                file=sys.stderr,
            )
        raise SystemExit(128 + wanted)


# On the disk


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


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first; what else is there is none of ours."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir())


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in a folder and in those below it, and nothing else.

    :raises ValueError: if another process is writing them.
    """
    for below in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        if found := checkpoints_in(below):
            with held(below):
                for path in found:
                    shutil.rmtree(path)


# What is in it


def _state(
    runners: Sequence[SVIRunner],
    callbacks: Sequence[Sequence[Any]],
    at: Position,
    seconds: float,
    call: dict[str, Any],
    random: Sequence[Sequence[Tensor]],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """:param random: the streams of each process."""
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


def _check_whole(state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
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


def _restore(
    runners: Sequence[SVIRunner],
    callbacks: Sequence[Sequence[Any]],
    at: Position,
    state: dict[str, Any],
    tensors: dict[str, Tensor],
    processes: Processes,
) -> None:
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


@contextmanager
def _listening(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Within this context the handler gets SIGTERM and SIGINT; only the main thread can be given any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {n: signal.getsignal(n) for n in SIGNALS}
    for number, before in kept.items():
        if before is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
