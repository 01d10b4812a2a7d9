"""One thread at a time uses what the process has only once: random streams, Pyro's handlers and
checks, and the modes of modules.

Everything of this library that uses them does so within :func:`exclusive`. A training loop lets
other threads in between two steps (:func:`let_others_in`), so that predictions do not wait until
a fit ends, and a fit draws the same numbers beside others as it draws alone.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.poutine.util import is_validation_enabled
from torch import Tensor


@dataclass(frozen=True)
class _ProcessState:
    """What a section changes and then restores, which others must not see meanwhile."""

    random: list[Tensor]
    validation: bool
    filters: Any

    @classmethod
    def now(cls) -> _ProcessState:
        random = [generator.get_state() for generator in _generators()]
        return cls(random, is_validation_enabled(), warnings.filters)

    def restore(self) -> None:
        for generator, state in zip(_generators(), self.random, strict=False):
            generator.set_state(state)
        pyro.enable_validation(self.validation)
        if warnings.filters is not self.filters:
            warnings.filters = self.filters
            warnings._filters_mutated()  # type: ignore[attr-defined]


def _generators() -> list[torch.Generator]:
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *on_devices]


class _Turns:
    """A lock that a thread may take several times; waiting threads get it in the order of their
    coming.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[object] = deque()
        self.owner: int | None = None
        self.depth = 0
        self.outside: _ProcessState | None = None

    def acquire(self, depth: int = 1) -> None:
        with self.changed:
            if self.owner != threading.get_ident():
                self._wait()
                self.owner, self.outside = threading.get_ident(), _ProcessState.now()
            self.depth += depth

    def _wait(self) -> None:
        ticket = object()
        self.waiting.append(ticket)
        try:
            self.changed.wait_for(lambda: self.owner is None and self.waiting[0] is ticket)
        finally:  # also if the wait was interrupted
            self.waiting.remove(ticket)
            self.changed.notify_all()

    def release(self, depth: int = 1) -> None:
        with self.changed:
            self.depth -= depth
            if self.depth == 0:
                self.owner = self.outside = None
                self.changed.notify_all()

    def let_others_in(self) -> None:
        if not self.waiting or self.outside is None:
            return
        inside, depth = _ProcessState.now(), self.depth
        self.outside.restore()
        self.release(depth)
        interrupted = None
        while self.owner != threading.get_ident():
            try:
                self.acquire(depth)
            except BaseException as error:  # whose sections all end with a release
                interrupted = interrupted or error
        inside.restore()
        if interrupted is not None:
            raise interrupted


_turns = _Turns()


def _after_fork() -> None:
    """The other threads, one of which may have had its turn, do not exist in the new process."""
    global _turns
    _turns = _Turns()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def exclusive() -> Iterator[None]:
    """Within this context no other thread is in one; a thread may enter it several times."""
    turns = _turns
    turns.acquire()
    try:
        yield
    finally:
        turns.release()


def let_others_in() -> None:
    """Let threads that wait have their turns, with the process's state as it was before this
    thread's own turn began.

    Called within :func:`exclusive`, where no handler of Pyro is active.
    """
    _turns.let_others_in()
