"""Checkpoints of a run that is going on, so that it can be stopped at any time and go on as if it never had been.

A checkpoint is a folder of safetensors and JSON, whole or absent: it is written beside its place, flushed to the disk,
and renamed. Its files' digests are in it, so that one that was damaged later is not taken for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from inference.randomness import random_state
from ppl_models.checks import check_count

if TYPE_CHECKING:
    from inference.guard import Faults
    from inference.runner import SVIRunner

__all__ = ["CheckpointWarning", "Checkpoints", "Position"]

FORMAT = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT)
NAME = re.compile(r"step-\d{10,}")
LEFT_OVER = re.compile(r"\.(?P<name>step-\d{10,})\.(?P<what>new|old)\.(?P<node>.*)-(?P<process>\d+)\.tmp")


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
    :ivar dealt_from: random streams as they were when the pass was dealt.
    :ivar random: random streams now.
    """

    epoch: int = 0
    batches: int = 0
    logged: int = 0
    seconds: float = 0.0
    total_loss: Tensor = field(default_factory=lambda: torch.zeros(1))
    faults: list[Faults] = field(default_factory=list)
    dealt_from: list[Tensor] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)


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
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ValueError(f"seconds must be positive, got {seconds}")
        self.seconds, self.resume = seconds, resume
        self.check()

    def check(self) -> None:
        """:raises ValueError: if the folder is a file, or has checkpoints that are not to be gone on from."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file, and a folder for checkpoints is needed")
        if not self.resume and self.written():
            raise ValueError(
                f"{self.folder} has checkpoints of a run, the last one at {self.written()[-1].name}: go on from it "
                "with resume=True, or give another folder"
            )

    def written(self) -> list[Path]:
        """The checkpoints in the folder, the oldest first."""
        return checkpoints_in(self.folder)

    @contextmanager
    def of(
        self, runners: Sequence[SVIRunner], callbacks: Sequence[Sequence[Any]], call: Mapping[str, Any]
    ) -> Iterator[Keeper]:
        """For the training loop: what it tells of its progress, while signals are listened to.

        :param call: what makes this call of ``fit`` what it is, in JSON types.
        """
        self.check()
        keeper = Keeper(self, runners, callbacks, json.loads(json.dumps(call)))
        with _listening(keeper.asked_to_stop):
            yield keeper
            keeper.leave(written=True)  # asked to after the last step, whose checkpoint is there


class Keeper:
    """One call's checkpoints."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        runners: Sequence[SVIRunner],
        callbacks: Sequence[Sequence[Any]],
        call: dict[str, Any],
    ) -> None:
        self.checkpoints, self.runners, self.callbacks, self.call = checkpoints, runners, callbacks, call
        self.signal: int | None = None
        self.whole: list[Path] = []  # of this call, and known to be
        self.wrote = self.started = time.monotonic()
        checkpoints.folder.mkdir(parents=True, exist_ok=True)
        _remove_left_over(checkpoints.folder)

    def asked_to_stop(self, number: int, frame: Any) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # a second one is not listened to
        self.signal = number

    def restore(self, at: Position) -> None:
        """Bring runners, callbacks and ``at`` to the last whole checkpoint, where there is one to go on from."""
        for path in reversed(self.checkpoints.written() if self.checkpoints.resume else []):
            try:
                state, tensors = read(path)
            except (OSError, ValueError) as error:
                warnings.warn(f"{path} is passed over: {error}", CheckpointWarning, stacklevel=6)
                continue
            then = state["call"]
            if differing := sorted(k for k in self.call.keys() | then.keys() if self.call.get(k) != then.get(k)):
                raise ValueError(
                    f"{path} is of another run, which differs in {' and '.join(differing)}: call fit as it was called "
                    "then, or give another folder"
                )
            _restore(self.runners, self.callbacks, at, state, tensors)
            self.whole = [path]
            return
        if self.checkpoints.resume and self.checkpoints.written():
            raise ValueError(f"no checkpoint in {self.checkpoints.folder} is whole: give another folder to start anew")

    def after_step(self, at: Position) -> None:
        """Write where it is time, and leave where it was asked for."""
        due = self.checkpoints.seconds is not None and time.monotonic() - self.wrote > self.checkpoints.seconds
        written = self.write(at) if due or self.signal is not None else False
        self.leave(written)

    def after_epoch(self, at: Position, last: bool) -> None:
        every = self.checkpoints.epochs
        due = last or (every is not None and at.epoch % every == 0) or self.signal is not None
        self.leave(self.write(at) if due else False)

    def write(self, at: Position) -> bool:
        """One more checkpoint, and whether it was written; where it cannot be, a warning, and those before it stay."""
        lead, self.wrote = self.runners[0], time.monotonic()
        if any(faults.stopped for faults in at.faults):  # what cannot go on is not written
            return False
        at.random = random_state(lead.device)
        seconds = at.seconds + self.wrote - self.started
        path = self.checkpoints.folder / f"step-{lead.step:010d}"
        try:
            write(path, *_state(self.runners, self.callbacks, at, seconds, self.call))
        except (OSError, TypeError) as error:  # no room, or a record that JSON cannot hold
            warnings.warn(
                f"no checkpoint was written at step {lead.step} ({error}): earlier ones stay, and training goes on",
                CheckpointWarning,
                stacklevel=6,
            )
            return False
        self.whole = [*(kept for kept in self.whole if kept != path), path][-self.checkpoints.keep :]
        for old in self.checkpoints.written():
            if old not in self.whole:
                shutil.rmtree(old, ignore_errors=True)
        return True

    def leave(self, written: bool) -> None:
        """End the process if it was asked to."""
        if self.signal is None:
            return
        name, lead = signal.Signals(self.signal).name, self.runners[0]
        kept = f"the checkpoint is in {self.checkpoints.folder}, resume goes on from it"
        print(
            f"{name}: stopped at epoch {lead.epoch}, step {lead.step}; "
            + (kept if written else "no checkpoint could be written of it, see the warnings"),
            file=sys.stderr,
        )
        raise SystemExit(128 + self.signal)


def fingerprint(tensor: Tensor) -> dict[str, Any]:
    """What tells data apart: shape, type, and a digest of at most 1,024 rows spread over them."""
    n = min(len(tensor), 1024)
    rows = torch.arange(n) * (len(tensor) - 1) // max(n - 1, 1)
    sample = tensor[rows.to(tensor.device)].detach().cpu().contiguous()
    digest = hashlib.sha256(sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b"").hexdigest()
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "digest": digest}


# On the disk


def write(folder: Path, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint, whole or not at all."""
    contents = {
        "state.json": json.dumps(state, default=_number).encode(),
        "tensors.safetensors": save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}),
    }
    contents["digests.json"] = json.dumps({name: _digest(content) for name, content in contents.items()}).encode()
    mark = f"{platform.node()}-{os.getpid()}"
    temporary, aside = (folder.with_name(f".{folder.name}.{what}.{mark}.tmp") for what in ("new", "old"))
    try:
        temporary.mkdir()
        for name, content in contents.items():
            with (temporary / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _flush(temporary)
        if folder.exists():  # one of the same step: it is gone only when this one is there
            os.rename(folder, aside)
        os.rename(temporary, folder)
        _flush(folder.parent)
    except BaseException:
        if aside.exists() and not folder.exists():
            os.rename(aside, folder)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What :func:`write` wrote.

    :raises ValueError: if it is not whole, or of another format.
    """
    try:
        digests = json.loads((folder / "digests.json").read_text())
        contents = {name: (folder / name).read_bytes() for name in ("state.json", "tensors.safetensors")}
        damaged = [name for name, content in contents.items() if digests[name] != _digest(content)]
        if damaged:
            raise ValueError(f"{' and '.join(damaged)} is damaged")
        state = json.loads(contents["state.json"])
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']}, and {FORMAT} is needed")
        return state, load(contents["tensors.safetensors"])
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"it is not whole: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _flush(folder: Path) -> None:
    """Make the names in a folder last, where folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_left_over(folder: Path) -> None:
    """What processes of this machine that are gone had begun to write; what they had set aside comes back."""
    for path in folder.glob(".step-*.tmp"):
        found = LEFT_OVER.fullmatch(path.name)
        if found is None or found["node"] != platform.node() or _lives(int(found["process"])):
            continue
        if found["what"] == "old" and not (whole := folder / found["name"]).exists():
            os.rename(path, whole)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _lives(process: int) -> bool:
    if process == os.getpid() or os.name != "posix":
        return process != os.getpid()
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first; what else is there is none of ours."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir())


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in a folder and in those below it, and nothing else."""
    for below in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        for path in checkpoints_in(below):
            shutil.rmtree(path)


# What is in it


def _state(
    runners: Sequence[SVIRunner], callbacks: Sequence[Sequence[Any]], at: Position, seconds: float, call: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {
        "position.total_loss": at.total_loss,
        "position.skipped": torch.stack([f.count for f in at.faults]),
        "position.first_skipped": torch.stack([f.first for f in at.faults]),
    }
    tensors |= {f"position.dealt_from.{i}": t for i, t in enumerate(at.dealt_from)}
    tensors |= {f"position.random.{i}": t for i, t in enumerate(at.random)}
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
                "history": runner.history,
                "optimizer": optimizer["param_groups"],
                "callbacks": [call.state(runner) if remembers(call) else None for call in calls],
            }
        )
    position = {"epoch": at.epoch, "batches": at.batches, "logged": at.logged, "seconds": seconds}
    return {"format": FORMAT, "call": call, "position": position, "runners": each}, tensors


def _restore(
    runners: Sequence[SVIRunner],
    callbacks: Sequence[Sequence[Any]],
    at: Position,
    state: dict[str, Any],
    tensors: dict[str, Tensor],
) -> None:
    for i, (runner, of, calls) in enumerate(zip(runners, state["runners"], callbacks, strict=True)):
        runner.loss.load_state_dict(_under(tensors, f"{i}.weights."))
        parameters = [p for group in runner.optimizer.param_groups for p in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under(tensors, f"{i}.optimizer.").items():
            p, _, what = name.partition(".")
            # Moments lie in memory as their parameter does, which fused steps rely on.
            like = parameters[int(p)]
            moments.setdefault(int(p), {})[what] = (
                torch.empty_like(like).copy_(tensor) if tensor.shape == like.shape else tensor
            )
        runner.optimizer.load_state_dict({"state": moments, "param_groups": of["optimizer"]})
        runner.history, runner.epoch, runner.step = of["history"], of["epoch"], of["step"]
        for call, kept in zip(calls, of["callbacks"], strict=True):
            if kept is not None:
                call.restore(runner, kept)
    for name, value in state["position"].items():
        setattr(at, name, value)
    at.total_loss = tensors["position.total_loss"].to(at.total_loss)
    for i, faults in enumerate(at.faults):
        faults.count = tensors["position.skipped"][i].to(faults.count)
        faults.first = tensors["position.first_skipped"][i].to(faults.first)
    at.dealt_from = list(_under(tensors, "position.dealt_from.").values())
    at.random = list(_under(tensors, "position.random.").values())


def remembers(callback: Any) -> bool:
    """Whether a callback has something to be kept."""
    return callable(getattr(callback, "state", None)) and callable(getattr(callback, "restore", None))


def _number(value: Any) -> Any:
    """A number of NumPy's or torch's as Python's, for JSON."""
    if callable(getattr(value, "item", None)):
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
