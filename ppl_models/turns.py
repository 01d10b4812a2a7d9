"""One thread at a time uses what a process has once: random streams, Pyro's handlers, modes.

All uses are within :func:`exclusive`. A training loop lets other threads in between two steps
(:func:`yield_lock`): predictions need not wait, and a fit draws the same numbers as alone.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.poutine.util import is_validation_enabled
from torch import Tensor


def _generators() -> list[torch.Generator]:
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *on_devices]


def _process_state() -> tuple[Any, ...]:
    """What a section changes and then restores, which others must not see meanwhile."""
    return [each.get_state() for each in _generators()], is_validation_enabled(), warnings.filters


def _restore(random: list[Tensor], validation: bool, filters: Any) -> None:
    for generator, state in zip(_generators(), random, strict=False):
        generator.set_state(state)
    pyro.enable_validation(validation)
    if warnings.filters is not filters:
        warnings.filters = filters
        warnings._filters_mutated()  # type: ignore[attr-defined]


class _Turns:
    """A lock that a thread may take several times, and others get in the order of their coming."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[object] = deque()
        self.owner: int | None = None
        self.depth = 0
        self.outside: tuple[Any, ...] | None = None

    def acquire(self, depth: int = 1) -> None:
        with self.changed:
            if self.owner != threading.get_ident():
                self._wait()
                self.owner, self.outside = threading.get_ident(), _process_state()
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

    def let_in(self, outside: tuple[Any, ...]) -> None:
        inside, depth = _process_state(), self.depth
        _restore(*outside)
        self.release(depth)
        interrupted = None
        while self.owner != threading.get_ident():
            try:
                self.acquire(depth)
            except BaseException as error:  # whose sections all end with a release
                interrupted = interrupted or error
        _restore(*inside)
        if interrupted is not None:
            raise interrupted


_turns = _Turns()
if hasattr(os, "register_at_fork"):  # no other thread, which may hold the lock, exists in the child
    os.register_at_fork(after_in_child=lambda: globals().update(_turns=_Turns()))


@contextmanager
def exclusive() -> Iterator[None]:
    """Within this context no other thread is in one; a thread may enter it several times."""
    turns = _turns
    turns.acquire()
    try:
        yield
    finally:
        turns.release()


def yield_lock() -> None:
    """Let threads that wait have their turns, with the process's state as it was before this
    thread's own began; called within :func:`exclusive`, where no handler of Pyro is active.
    """
    if _turns.waiting and _turns.outside is not None:
        _turns.let_in(_turns.outside)
