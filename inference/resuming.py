"""Checkpoints of a run that is going on, so that it can be stopped at any time and go on as if it never had been.

When they are written and read, and how a run is stopped; what is in them is in :mod:`inference.state`.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inference.disk import check_folder, held, remove_left_over
from inference.processes import Processes
from inference.randomness import random_state
from inference.state import Position, check_whole, read, restore, state_of, write
from ppl_models.checks import check_count, check_kind, check_positive

if TYPE_CHECKING:
    from inference.runner import SVIRunner

__all__ = ["CheckpointWarning", "Checkpoints", "remove_checkpoints"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
NAME = re.compile(r"step-\d{10,}")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or one that is damaged was passed over."""


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
            restore(self.runners, self.callbacks, at, *found, self.processes)

    def last(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The last whole checkpoint to go on from.

        :raises ValueError: if it is of another run, or there are only damaged ones.
        """
        written = self.checkpoints.written() if self.checkpoints.resume else []
        for path in reversed(written):
            try:
                state, tensors = read(path)
                check_whole(state, tensors)
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
            write(path, *state_of(self.runners, self.callbacks, at, seconds, self.call, random))
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
