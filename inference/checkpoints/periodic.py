"""Checkpoints of a run in progress: when they are written and read, and how a run is stopped. Their
content is defined in :mod:`inference.checkpoints.training_state`.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from inference.checkpoints.atomic_files import check_folder, held
from inference.checkpoints.saved_run import check_history
from inference.checkpoints.training_state import check_like, is_unfinished, read, write
from inference.randomness import random_state, set_random_state
from ppl_models.given.checks import check_count, check_kind, check_path, check_positive
from ppl_models.warn import warn

__all__ = ["CheckpointWarning", "CheckpointWriter", "Checkpoints"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
NAME = re.compile(r"step-\d{10,}")
# What differs in a description if other numbers of processes have loaders of their own.
OF_LOADERS = {"data", "batches", "steps", "sizes"}


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written, or one that is damaged or does not fit was skipped."""


class Checkpoints:
    """Write the state of a run at intervals, and resume from it.

    A checkpoint belongs to one call of ``fit``, which is resumed by the same call: same parts,
    data, sizes, seed and settings of callbacks. (Of a loader only the first batch is compared,
    and of a mapped file of more than 4 GiB evenly spread rows.) There may be more processes
    then, or fewer; if each has a loader of its own rows, a warning says what is kept. Callbacks
    that have a state go on from theirs (see :mod:`inference.callbacks`), and on the CPU the run
    ends with the same bits.
    SIGTERM and SIGINT (Ctrl-C) write a checkpoint after the current step and end the process; a
    second signal has its usual effect at once.

    :param folder: for the checkpoints ``step-N``; created if missing.
    :param epochs: passes between checkpoints, or ``None``; the end of the call writes one as well.
    :param seconds: also write one after this many seconds, within a pass.
    :param keep: how many of the last checkpoints to keep.
    :param resume: whether to resume from the last complete checkpoint, if there is one.
    :raises ValueError: if a number is not positive, or the folder already holds checkpoints and
        ``resume`` is not set.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import Checkpoints, SVIRunner
        >>> from ppl_models import VAE, SharedMLP
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder, resume=True)
        ...     _ = runner.fit(x, epochs=2, progress=False, checkpoints=checkpoints)
        ...     [path.name for path in checkpoints.written()]
        ['step-0000000001', 'step-0000000002']
    """

    def __init__(
        self,
        folder: str | Path,
        epochs: int | None = 1,
        seconds: float | None = None,
        keep: int = 2,
        resume: bool = False,
    ) -> None:
        # A callback may change the working folder.
        self.folder = check_path("folder", folder).absolute()
        self.epochs = epochs if epochs is None else check_count("epochs", epochs)
        self.keep = check_count("keep", keep)
        self.seconds = seconds if seconds is None else check_positive("seconds", seconds)
        self.resume = check_kind("resume", resume, bool, "True or False")
        self.check()

    def check(self) -> None:
        """:raises ValueError: if the folder is a file, or has checkpoints to resume unasked."""
        check_folder(self.folder, "checkpoints")
        if not self.resume and self.written():
            raise ValueError(
                f"{self.folder} has checkpoints of a run, the last one at "
                f"{self.written()[-1].name}: resume it with resume=True, or give another folder"
            )

    def _begin(self, stack: ExitStack) -> None:
        stack.enter_context(held(self.folder))
        self.check()
        for path in filter(is_unfinished, _folders_in(self.folder)):
            shutil.rmtree(path, ignore_errors=True)

    def part(self, name: str) -> Checkpoints:
        """The same in a folder below, for one of several calls of ``fit``."""
        return Checkpoints(self.folder / name, self.epochs, self.seconds, self.keep, self.resume)

    def written(self) -> list[Path]:
        """The checkpoints in the folder, the oldest first."""
        return [path for path in _folders_in(self.folder) if not is_unfinished(path)]

    @contextmanager
    def writer(self, plan: Any) -> Iterator[CheckpointWriter]:
        """The writer that training tells of its progress, once runs are resumed; handles signals.

        :param plan: of the call (:class:`~inference.training.plan.FitPlan`).
        """
        with ExitStack() as stack:
            plan.processes.on_first(lambda: self._begin(stack))
            writer = CheckpointWriter(self, plan)
            with listening(writer.signals.append):
                writer.restore()
                yield writer
                writer.leave(writer.wanted())  # a signal after the last step


class CheckpointWriter:
    """Reads and writes one call's checkpoints; among several processes, only the first one does.

    :ivar signals: that asked to stop the run.
    :ivar written: whether the last checkpoint that was due could be written.
    :ivar whole: checkpoints of this call that are known to be complete, the oldest first.
    """

    def __init__(self, checkpoints: Checkpoints, plan: Any) -> None:
        self.checkpoints, self.plan = checkpoints, plan
        self.runs, self.callbacks, self.processes = plan.runs, plan.callbacks, plan.processes
        self.call = json.loads(json.dumps(plan.description()))
        self.written, self.wrote = False, time.monotonic()
        self.signals: list[int] = []
        self.whole: list[Path] = []

    def restore(self) -> None:
        """Resume runs, callbacks and random streams from the last complete checkpoint."""
        state = self.processes.on_first(self.last)
        if state is None:
            return
        for run, of in zip(self.runs, state["runs"], strict=True):
            run.load_state_dict(of["run"])
        # A process beyond the earlier number of processes starts its own stream.
        rank, lead, random = self.processes.rank, self.runs[0], state["random"]
        fresh = self.processes.fresh_random_state(lead)
        set_random_state(random[rank] if rank < len(random) else fresh, lead.device)

    def last(self) -> dict[str, Any] | None:
        """The last checkpoint that is complete and fits; its callbacks' states are loaded.

        :raises ValueError: if it belongs to another run, or there are only damaged ones.
        """
        written = self.checkpoints.written() if self.checkpoints.resume else []
        for path in reversed(written):
            try:
                state = read(path)
                differing = self._differing(state)
                if not differing or self._moved(state, differing):
                    self._check(state)
                    states = [each for of in state["runs"] for each in of["callbacks"]]
                    _load([each for of in self.callbacks for each in of], states)
                    self.whole = [path]
                    return state
            except (OSError, ValueError) as error:
                warn(f"{path} is skipped: {error}", CheckpointWarning)
            else:
                raise ValueError(
                    f"{path} belongs to another run, which differs in {' and '.join(differing)}: "
                    "call fit as it was called then, or give another folder"
                )
        if written:
            raise ValueError(
                f"no checkpoint in {self.checkpoints.folder} is complete: give another folder to "
                "start anew"
            )
        return None

    def _differing(self, state: Mapping[str, Any]) -> list[str]:
        """What differs between the call that a state is of and this one."""
        now = self.call
        then = check_kind("call", state.get("call", now), dict, "a description of a call")
        added = "optimizer's settings"  # not in earlier checkpoints
        then = {added: now[added], **then}
        return sorted(k for k in now.keys() | then.keys() if now.get(k) != then.get(k))

    def _moved(self, state: dict[str, Any], differing: Sequence[str]) -> bool:
        """Whether only the number of processes with loaders of their own differs; then the pass
        begins anew, which a warning says.
        """
        calls = state["call"], self.call
        if {*differing} - OF_LOADERS or not all(isinstance(of["batches"], int) for of in calls):
            return False
        one, other = (1 if isinstance(of["data"], dict) else len(of["data"]) for of in calls)
        if one == other or len({tuple(of["sizes"][::2]) for of in calls}) > 1:  # but for the rows
            return False
        for of in state["runs"]:
            of["run"]["progress"]["batches"] = 0
        warn(
            f"processes with loaders of their own: {one} wrote the checkpoint, and {other} go on "
            "(whether with the same rows cannot be seen); parameters, the optimizer's state, "
            "steps, history and passes are kept, and a pass that was begun starts anew",
            CheckpointWarning,
        )
        return True

    def _check(self, state: Mapping[str, Any]) -> None:
        """:raises ValueError: if a state has another form than that of this run."""
        check_like("it", state, own := self._state(()))
        for of, mine in zip(state["runs"], own["runs"], strict=True):
            check_history(of["run"]["history"], "record")
            groups = (each["run"]["optimizer"]["param_groups"] for each in (of, mine))
            one, other = ([group["params"] for group in each] for each in groups)
            if one != other:
                raise ValueError("its optimizer has other parameters")
        streams = random_state(self.runs[0].device)
        for random in state["random"] or [[]]:
            check_like("its random streams", random, streams)

    def wanted(self) -> int:
        """A signal that any process received; 1 if the time for a checkpoint is up; else 0."""
        every = self.checkpoints.seconds
        late = every is not None and time.monotonic() - self.wrote > every
        own = max([int(late and self.processes.is_first), *self.signals])
        return max(self.processes.every(own))

    def after_steps(self, taken: int) -> None:
        """Write a checkpoint if one is due; end if a signal asked for it, in all processes."""
        if self.runs[0].step % self.processes.sync_every == 0:
            self._write_if(False)

    def after_epoch(self) -> None:
        """As :meth:`after_steps`; one is also due at the call's end and after so many passes."""
        every, epoch = self.checkpoints.epochs, self.runs[0].progress.epoch
        self._write_if(self.plan.ended or (every is not None and epoch % every == 0))

    def _write_if(self, due: bool) -> None:
        wanted = self.wanted()
        if due or wanted:
            self.write()
        self.leave(wanted)

    def write(self) -> None:
        """Write a checkpoint, and warn if it could not be written."""
        self.wrote, self.written = time.monotonic(), False
        # A run that a fault has ended cannot be resumed.
        ended = (run.guard.action == "stop" and run.counters["faults"] > 0 for run in self.runs)
        if not any(ended):
            own = [stream.cpu() for stream in random_state(self.runs[0].device)]
            random = self.processes.every(own)
            self.written = self.processes.on_first(lambda: self._write(self._state(random)))

    def _state(self, random: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
        """Everything that a run needs to resume.

        :param random: the random streams of each process.
        """
        runs = [
            {"run": run.state_dict(), "callbacks": [_remembered(each) for each in callbacks]}
            for run, callbacks in zip(self.runs, self.callbacks, strict=True)
        ]
        return {"call": self.call, "runs": runs, "random": random}

    def _write(self, state: Mapping[str, Any]) -> bool:
        step = self.runs[0].step
        path = self.checkpoints.folder / f"step-{step:010d}"
        try:
            write(path, state)
        except (OSError, TypeError, ValueError, RecursionError) as error:  # disk full, or not JSON
            warn(
                f"no checkpoint was written at step {step} ({error}): earlier ones are kept, and "
                "training continues",
                CheckpointWarning,
            )
            return False
        self.whole = [*(p for p in self.whole if p != path), path][-self.checkpoints.keep :]
        for old in self.checkpoints.written():
            if old not in self.whole:
                shutil.rmtree(old, ignore_errors=True)
        return True

    def leave(self, wanted: int) -> None:
        """End the process if a signal asked for it."""
        if wanted <= 1:
            return
        lead = self.runs[0]
        if self.processes.is_first:
            kept = f"the checkpoint is in {self.checkpoints.folder}; use resume=True to continue"
            lost = "no checkpoint could be written of it, see the warnings"
            print(
                f"{signal.Signals(wanted).name}: stopped at epoch {lead.epoch}, step {lead.step}; "
                f"{kept if self.written else lost}",
                file=sys.stderr,
            )
        raise SystemExit(128 + wanted)


def _remembered(callback: Any) -> Any:
    """A callback's state, if it has one."""
    return callback.state_dict() if callable(getattr(callback, "state_dict", None)) else None


def _load(callbacks: Sequence[Any], states: Sequence[Any]) -> None:
    """Load the states of all callbacks, or of none.

    :raises ValueError: if a state does not fit its callback.
    """
    if len(states) != len(callbacks):
        needed = f"but {len(callbacks)} are needed"
        raise ValueError(f"it has {len(states)} states of callbacks, {needed}")
    names = [f"the state of {type(each).__name__}" for each in callbacks]
    before = [_remembered(each) for each in callbacks]
    for name, own, state in zip(names, before, states, strict=True):
        if own is not None and state is None:
            raise ValueError(f"{name} is missing")
    for callback, name, state in zip(callbacks, names, states, strict=True):
        try:
            if state is not None:
                callback.load_state_dict(state)
        except Exception as error:  # a user's callback may say so in any way
            for each, own in zip(callbacks, before, strict=True):
                if own is not None:
                    each.load_state_dict(own)
            raise ValueError(f"{name} does not fit it: {type(error).__name__}: {error}") from error


def _folders_in(folder: Path) -> list[Path]:
    """Those of checkpoints, the oldest first, also of one whose writing was stopped."""
    return sorted(
        path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir()
    )


@contextmanager
def listening(asked_to_stop: Callable[[int], None]) -> Iterator[None]:
    """Within this context the first SIGTERM or SIGINT goes to the function; a second one has the
    effect that it has outside. Signals can only be handled in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Ignored signals, as under nohup, stay so; None is a handler from outside Python.
    found = {number: signal.getsignal(number) for number in SIGNALS}
    kept = {n: before or signal.SIG_DFL for n, before in found.items() if before != signal.SIG_IGN}

    def restore() -> None:
        for number, before in kept.items():
            signal.signal(number, before)

    def handler(number: int, frame: Any) -> None:
        restore()
        asked_to_stop(number)

    for number in kept:
        signal.signal(number, handler)
    try:
        yield
    finally:
        restore()
