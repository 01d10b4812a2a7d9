"""Passes over a PyTorch loader, whose draws depend on a seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Generator
from torch.utils.data import DataLoader

from inference.randomness import derive_seed
from ppl_models.turns import exclusive

END = object()  # of a loader's pass; None could be a broken loader's batch


def whole_pass(loader: DataLoader, seed: int, epoch: int) -> Iterator[Any]:
    """The batches of a pass. Its order, and what the data set draws, depend on ``seed`` and
    ``epoch`` alone.

    :raises ValueError: if the loader gives more or fewer batches than its length says.
    """
    steps = len(loader)
    for taken, batch in enumerate(chain(_fetched(loader, seed, epoch), [END])):
        if (batch is END) != (taken == steps):
            found = taken if batch is END else f"more than {taken}"
            raise ValueError(
                f"the DataLoader gave {found} batches in a pass, but its length is {steps}, which "
                "schedules and epochs rely on: correct the __len__ of its data set or sampler, or "
                "give fit steps_per_epoch="
            )
        if batch is not END:
            yield batch


def endless_passes(loader: DataLoader, seed: int, epoch: int) -> Iterator[Any]:
    """The batches of one pass after the other, from the pass ``epoch`` on.

    :raises ValueError: if a pass has no batch.
    """
    for number in count(epoch):
        batch = END
        for batch in _fetched(loader, derive_seed(seed, number), number):
            yield batch
        if batch is END:
            raise ValueError("the DataLoader gave no batch: is its data set empty?")


def _fetched(loader: DataLoader, seed: int, epoch: int) -> Iterator[Any]:
    """What a loader gives, each fetched under random streams that begin with ``seed``; what counts
    epochs by itself, as samplers of several processes do, is told this one's number.
    """
    batched = loader.batch_sampler
    parts = (loader, loader.sampler, batched, getattr(batched, "sampler", None))
    for part in (loader.dataset, *parts):
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)
    own = filter(None, (getattr(part, "generator", None) for part in parts))
    stream = _Stream(seed, [torch.default_generator, *own])
    batches = chain(loader)  # which begins the pass with its first batch
    while True:
        try:
            with stream.on():
                batch = next(batches, END)
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise RuntimeError(
                f"a worker process of the DataLoader ended ({' '.join(str(error).split())}): it "
                "may have run out of memory, or its data set ends it; num_workers=0 shows any error"
            ) from error
        if batch is END:
            return
        yield batch


class _Stream:
    """Random streams of generators, NumPy and Python that each context continues."""

    def __init__(self, seed: int, generators: list[Generator]) -> None:
        own = Generator().manual_seed(seed).get_state()
        numpy, python = np.random.RandomState(seed % 2**32), random.Random(seed)
        self.states = [*(own for _ in generators), numpy.get_state(), python.getstate()]
        self.used: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
            *((each.get_state, each.set_state) for each in generators),
            (np.random.get_state, np.random.set_state),  # which a data set may use
            (random.getstate, random.setstate),
        ]

    @contextmanager
    def on(self) -> Iterator[None]:
        with exclusive():
            self._exchange()
            try:
                yield
            finally:
                self._exchange()

    def _exchange(self) -> None:
        """Put the states that are held in the place of those that are used, and hold these."""
        before = [get() for get, _ in self.used]
        for (_, put), state in zip(self.used, self.states, strict=True):
            put(state)
        self.states = before
