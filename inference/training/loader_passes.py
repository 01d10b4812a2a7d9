"""Passes over a PyTorch loader: of whole batches, or of one process's part of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, tee
from typing import Any

import numpy as np
import torch
from torch import Generator
from torch.utils.data import DataLoader, Dataset, IterableDataset

from inference.randomness import derive_seed
from ppl_models.turns import exclusive

END = object()  # of a loader's pass; None could be a broken loader's batch


def whole_pass(loader: DataLoader, seed: int) -> Iterator[Any]:
    """The batches of a pass. Its order, and what the data set draws, depend on ``seed`` alone.

    :raises ValueError: if the loader gives more or fewer batches than its length says.
    """
    steps = len(loader)
    for taken, batch in enumerate(chain(_fetched(loader, seed), [END])):
        if (batch is END) != (taken == steps):
            found = taken if batch is END else f"more than {taken}"
            raise ValueError(
                f"the DataLoader gave {found} batches in a pass, but its length is {steps}, which "
                "schedules and epochs rely on: correct the __len__ of its data set or sampler"
            )
        if batch is not END:
            yield batch


def part_of_pass(loader: DataLoader, seed: int, rank: int, size: int) -> Iterator[tuple[Any, int]]:
    """The items of process ``rank`` of ``size`` in each batch of the same pass, collated, and how
    many items the whole batch has. A batch of fewer items than processes gives its first item to
    those that have none.

    The order of all items is that of :func:`whole_pass`, in every process. What the data set draws
    for an item differs between processes.

    :raises ValueError: as :func:`whole_pass`.
    """
    whole, again = tee(whole_pass(_indices(loader), seed))
    reading = DataLoader(
        loader.dataset,
        batch_sampler=(indices[rank::size] or indices[:1] for indices in whole),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=Generator(),  # not the loader's, which the order is drawn by
        prefetch_factor=loader.prefetch_factor,
    )
    batches = _fetched(reading, derive_seed(seed, rank))
    yield from ((batch, len(indices)) for batch, indices in zip(batches, again, strict=False))


def takes_parts(loader: DataLoader, rows: int) -> bool:
    """Whether processes can read parts of the batches: the loader chooses items by their index, in
    order, has no way of its own to go through them, and makes the ``rows`` of the first batch of
    seed 0 of as many items.
    """
    return (
        not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and getattr(loader, "in_order", True)
        and type(loader).__iter__ is DataLoader.__iter__
        and type(loader)._get_iterator is DataLoader._get_iterator
        and len(next(whole_pass(_indices(loader), 0))) == rows
    )


class _Index(Dataset):
    """Gives the index that it is asked for."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _indices(loader: DataLoader) -> DataLoader:
    """A loader of the indices of a loader's items; it draws as that one does."""
    sampler, generator = loader.batch_sampler, loader.generator
    return DataLoader(_Index(), batch_sampler=sampler, collate_fn=list, generator=generator)


def _fetched(loader: DataLoader, seed: int) -> Iterator[Any]:
    """What a loader gives, each fetched under random streams that begin with ``seed``."""
    batched = loader.batch_sampler
    parts = (loader, loader.sampler, batched, getattr(batched, "sampler", None))
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
