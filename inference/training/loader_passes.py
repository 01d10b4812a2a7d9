"""Passes over a PyTorch loader: of whole batches, or of one process's part of each."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Generator
from torch.utils.data import DataLoader, IterableDataset

from inference.randomness import derive_seed
from ppl_models.turns import exclusive

END = object()  # of a loader's pass; None could be a broken loader's batch


def whole_pass(loader: DataLoader, seed: int) -> Iterator[Any]:
    """The batches of a pass. Its order, and what the data set draws, depend on ``seed`` alone.

    :raises ValueError: if the loader gives more or fewer batches than its length says.
    """
    return _fetched(loader, Stream(seed, _generators(loader)))


def part_of_pass(loader: DataLoader, seed: int, rank: int, size: int) -> Iterator[tuple[Any, int]]:
    """The items of process ``rank`` of ``size`` in each batch of the same pass, collated, and how
    many items the whole batch has. A batch of fewer items than processes gives its first item to
    those that have none.

    The order of all items is that of :func:`whole_pass`, in every process. What the data set draws
    for an item differs between processes.

    :raises ValueError: as :func:`whole_pass`.
    """
    part = _Part(loader, Stream(seed, _generators(loader)), rank, size)
    drawn = derive_seed(seed, rank)
    for batch in _fetched(_reading(loader, part, drawn), Stream(drawn, ())):
        yield batch, part.sizes.popleft()


def takes_parts(loader: DataLoader) -> bool:
    """Whether processes can read parts of the batches: the loader chooses items by their index, in
    order, and has no way of its own to go through them.
    """
    return (
        not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and getattr(loader, "in_order", True)
        and type(loader).__iter__ is DataLoader.__iter__
        and type(loader)._get_iterator is DataLoader._get_iterator
    )


def items_of_first_batch(loader: DataLoader, seed: int) -> int:
    """How many items the first batch of a pass has; none is read."""
    return len(next(iter(_Part(loader, Stream(seed, _generators(loader)), 0, 1))))


class _Part:
    """A batch sampler: of each batch of a loader's own, every ``size``-th index from ``rank`` on.

    :ivar sizes: of the whole batches whose part is not read yet, in order.
    """

    def __init__(self, loader: DataLoader, stream: Stream, rank: int, size: int) -> None:
        self.loader, self.stream, self.rank, self.size = loader, stream, rank, size
        self.sizes: deque[int] = deque()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Any]]:
        whole: Any = self.loader.batch_sampler
        with self.stream.on():
            batches = iter(whole)
            # What the loader itself draws here, as the seed of its workers.
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        while True:
            with self.stream.on():
                batch: Any = next(batches, END)
            if batch is END:
                return
            indices = list(batch)
            self.sizes.append(len(indices))
            yield indices[self.rank :: self.size] or indices[:1]


def _reading(loader: DataLoader, part: _Part, seed: int) -> DataLoader:
    """A loader of this part with the settings of ``loader``; its workers draw from ``seed``."""
    return DataLoader(
        loader.dataset,
        batch_sampler=part,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=Generator().manual_seed(seed),
        prefetch_factor=loader.prefetch_factor,
    )


def _fetched(loader: DataLoader, stream: Stream) -> Iterator[Any]:
    """What a loader gives, fetched under ``stream``."""
    steps = len(loader)
    with stream.on(), _workers_alive():
        batches = iter(loader)
    for taken in count():
        with stream.on(), _workers_alive():
            batch = next(batches, END)
        if (batch is END) != (taken == steps):
            found = taken if batch is END else f"more than {taken}"
            raise ValueError(
                f"the DataLoader gave {found} batches in a pass, but its length is {steps}, which "
                "schedules and epochs rely on: correct the __len__ of its data set or sampler"
            )
        if batch is END:
            return
        yield batch


def _generators(loader: DataLoader) -> list[Generator]:
    """Of the loader and its samplers, each once."""
    batched = loader.batch_sampler
    parts = (loader, loader.sampler, batched, getattr(batched, "sampler", None))
    found = (getattr(part, "generator", None) for part in parts)
    return list({id(each): each for each in found if each is not None}.values())


@contextmanager
def _workers_alive() -> Iterator[None]:
    """Within this context the end of a worker is an error that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise RuntimeError(
            f"a worker process of the DataLoader ended ({' '.join(str(error).split())}): it may "
            "have run out of memory, or its data set ends it; num_workers=0 shows any error"
        ) from error


class Stream:
    """Random streams of torch, NumPy and Python that each context continues."""

    def __init__(self, seed: int, generators: Iterable[Generator]) -> None:
        self.generators = list(generators)
        self.state = self._seeded(seed)

    @contextmanager
    def on(self) -> Iterator[None]:
        with exclusive():
            kept = self._get()
            self._set(self.state)
            try:
                yield
            finally:
                self.state = self._get()
                self._set(kept)

    def _seeded(self, seed: int) -> tuple[Any, ...]:
        own = Generator().manual_seed(seed).get_state()
        numpy = np.random.RandomState(seed % 2**32).get_state()
        return own, numpy, random.Random(seed).getstate(), [own for _ in self.generators]

    def _get(self) -> tuple[Any, ...]:
        numpy = np.random.get_state()  # noqa: NPY002, a data set may use it
        return (
            torch.get_rng_state(),
            numpy,
            random.getstate(),
            [g.get_state() for g in self.generators],
        )

    def _set(self, state: tuple[Any, ...]) -> None:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        random.setstate(state[2])
        for generator, own in zip(self.generators, state[3], strict=True):
            generator.set_state(own)
