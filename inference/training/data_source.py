"""How data reach the steps: from memory or a mapped file, batched here, or from a loader."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from guides.base import FacetGuide
from inference.distributed import Shard, SingleProcess
from inference.randomness import derive_seed
from inference.training.batching import Batching, Groups, Rows, drawn_once
from ppl_models.configurable import to_config
from ppl_models.given.checks import check_count, check_kind, check_size
from ppl_models.given.observed import Observed
from ppl_models.given.sparse import SparseRows
from ppl_models.turns import exclusive

BATCH_SIZE = 512
# Rows of a loader's first pass to keep for later use.
HELD_ROWS = 2048
# Bytes to digest at a time, and, of a memory-mapped file, in all.
DIGESTED_AT_ONCE, LARGEST_DIGESTED = 2**24, 2**32
END = object()  # of a loader's pass; None could be a broken loader's batch


class DataSource(ABC):
    """A source of batches for the training steps.

    :ivar steps: number of batches in a pass.
    :ivar batch_size: rows in a batch, at most or on average.
    :ivar full: rows of every batch but a smaller last one; ``None`` if they vary.
    """

    steps: int
    batch_size: int
    full: int | None

    @abstractmethod
    def batches(self, seed: int, epoch: int = 0, done: int = 0) -> Iterator[Observed]:
        """One pass over the data, on the device, in an order that depends on these numbers alone.

        :param epoch: passes of the run before this one.
        :param done: how many of them are of the same call of ``fit``.
        """

    @abstractmethod
    def subset(self, at_most: int) -> Observed:
        """About ``at_most`` data, on the device; the same ones for the same data."""

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Observed]:
        """All data, about ``size`` rows at a time, on the device."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What identifies these data and their batching, in JSON types."""


@dataclass(eq=False)
class InMemorySource(DataSource):
    """Validated data, as tensors on the device; those of a memory-mapped file stay in the file, and
    batches are copied.
    """

    data: Observed
    batching: Batching
    batch_size: int
    device: torch.device
    mapped: bool

    def __post_init__(self) -> None:
        if not self.mapped:
            self.data = self.data.to(self.device)
        self.batching.check(self.data)
        self.steps = self.batching.steps(self.data, self.batch_size)
        self.full = self.batching.full(self.data, self.batch_size)

    def generator(self, seed: int, epoch: int) -> Generator:
        """The generator for the order of a pass."""
        return Generator(self.data.x.device).manual_seed(derive_seed(seed, epoch))

    def batches(self, seed: int, epoch: int = 0, done: int = 0) -> Iterator[Observed]:
        generator = self.generator(seed, epoch)
        batches = self.batching.batches(self.data, self.batch_size, generator)
        return (batch.to(self.device) for batch in batches)

    def subset(self, at_most: int) -> Observed:
        return self.batching.subset(self.data, at_most).to(self.device)

    def chunks(self, size: int) -> Iterator[Observed]:
        return (part.to(self.device) for part in self.data.whole_groups(size))

    def description(self) -> dict[str, Any]:
        prints = _fingerprints(self.data, self.mapped)
        return {"data": prints, "batches": to_config(self.batching)}


class LoaderSource(DataSource):
    """Batches from a PyTorch ``DataLoader``, of the forms that :meth:`SVIRunner.fit
    <inference.SVIRunner.fit>` says; all give the same inputs beside x.

    What a pass draws (its order, and what a data set draws with torch, NumPy or Python's
    ``random``, in worker processes or without) depends only on the seed and the epoch, so that a
    resumed run sees the same batches; earlier batches of the epoch are loaded again and dropped.

    Each of several processes has a loader of its own rows (:class:`~inference.distributed.Shard`).
    The pass with the most batches counts; a process whose pass has ended waits in further steps.

    :param loader: gives batches of any size; all members of a group must be in one batch.
    :param guide: the guide whose model gets the batches; each batch is validated.
    :param processes: that train the run; by default one.
    :param steps: batches that count as a pass, each of which goes on where the last one ended, and
        begins with the loader anew at its end; by default the loader's length.
    :raises ValueError: if the loader has no length, gives no batch or has persistent workers, its
        batches do not fit, or processes have the same rows; at the end of a pass, if it gave more
        or fewer batches than its length says.
    """

    def __init__(
        self,
        loader: DataLoader,
        guide: FacetGuide,
        device: torch.device,
        processes: SingleProcess | None = None,
        steps: int | None = None,
    ) -> None:
        self.loader, self.guide, self.device = loader, guide, device
        self.processes = processes or SingleProcess()
        if loader.persistent_workers:
            raise ValueError(
                "the DataLoader's workers would keep their random state between passes, which a "
                "resumed run could not repeat: create it with persistent_workers=False"
            )
        self.counted = steps is not None
        self.rest: Iterator[Any] | None = None  # of passes that are counted
        self.own = _length(loader) if steps is None else check_count("steps_per_epoch", steps)
        self.steps = max(self.processes.every(self.own))
        self.held: list[Observed] = []
        for batch in self._first_rows():
            self.held.append(batch)
            if (drawn := self._drawn()) or sum(map(len, self.held)) >= HELD_ROWS:
                break
        self.watched = drawn or self.held
        rows = len(self.held[0])
        self.full = None if "group" in self.held[0].given else rows
        self.batch_size = max(self.processes.every(rows))
        self.prints = self.processes.every(_fingerprints(self.held[0]))
        self._check_shards()

    def _first_rows(self) -> Iterator[Observed]:
        """A pass that is the same for the same data, at all times and in all processes."""
        if self.counted:
            return map(self.observed, islice(endless_passes(self.loader, 0, 0), self.own))
        return map(self.observed, whole_pass(self.loader, 0, 0))

    def _drawn(self) -> list[Observed]:
        """Random rows where a pass begins with the data's first, which may be sorted; none where it
        does not, or batches are made in another way.
        """
        of, rows = self.loader, self.loader.sampler
        if type(of) is not DataLoader or type(rows) is not SequentialSampler or not of.batch_size:
            return []
        if len(rows) <= HELD_ROWS or "group" in self.held[0].given:
            return []
        drawn = DataLoader(
            of.dataset,
            of.batch_size,
            sampler=drawn_once(len(rows), -(-HELD_ROWS // self.processes.size)).tolist(),
            num_workers=of.num_workers,
            collate_fn=of.collate_fn,
            worker_init_fn=of.worker_init_fn,
            multiprocessing_context=of.multiprocessing_context,
        )
        return [*map(self.observed, whole_pass(drawn, 0, 0))]

    def _check_shards(self) -> None:
        """:raises ValueError: if two processes have the same rows, or other inputs beside x."""
        for rank, found in enumerate(self.prints):
            _check_alike("the loaders of all processes", self.prints[0], found)
            if found in self.prints[:rank]:
                raise ValueError(
                    f"the loaders of processes {self.prints.index(found)} and {rank} begin with "
                    "the same rows, which would count twice: give each process a loader of its own "
                    "rows, such as DataLoader(data, 512, sampler=DistributedSampler(data)), or "
                    "give all of them the same arrays"
                )

    def batches(self, seed: int, epoch: int = 0, done: int = 0) -> Iterator[Observed]:
        if len(self.prints) == 1:
            return map(self.observed, self._pass(seed, epoch, done))
        return self._shards(derive_seed(seed, self.processes.rank), epoch, done)

    def _shards(self, seed: int, epoch: int, done: int) -> Iterator[Shard]:
        for batch in map(self.observed, self._pass(seed, epoch, done)):
            counts = len(batch) if batch.size is None else batch.size
            yield Shard(batch.x, batch.given, batch.size, counts)
        first = self.held[0]
        for _ in range(self.own, self.steps):
            yield Shard(first.x, first.given, first.size, counts=0)

    def _pass(self, seed: int, epoch: int, done: int) -> Iterator[Any]:
        if not self.counted:
            return whole_pass(self.loader, derive_seed(seed, epoch), epoch)
        if self.rest is None:  # in a resumed call after so many passes
            passes = endless_passes(self.loader, seed, epoch - done)
            self.rest = islice(passes, done * self.own, None)
        return islice(self.rest, self.own)

    def observed(self, batch: Any) -> Observed:
        """A loader's batch, validated, on the device.

        :raises ValueError: if it has no x, or other inputs beside it than the first batch.
        """
        if isinstance(batch, Mapping):
            given = dict(batch)
            x = given.pop("x", None)
        else:
            x, *beside = (batch or [None]) if isinstance(batch, tuple | list) else (batch,)
            given = dict(zip(self.guide.model.takes, beside, strict=False))
        if x is None:
            raise ValueError(
                f"the DataLoader's batches have no x, only {sorted(map(str, given))}: name it 'x'"
            )
        observed = self.guide.observed(x, given).to(self.device)
        first = self.held[0] if self.held else observed
        _check_alike("the DataLoader's batches", first.given, observed.given)
        return observed

    def subset(self, at_most: int) -> Observed:
        ends = np.cumsum([len(batch) for batch in self.watched])
        own = self.watched[: int(np.searchsorted(ends, at_most / len(self.prints))) + 1]
        own = [each.to(torch.device("cpu")) for each in own]
        held = [each.to(self.device) for of in self.processes.every(own) for each in of]
        every = [{"known": of.x.new_ones(len(of), dtype=torch.bool), **of.given} for of in held]
        names = dict.fromkeys(chain.from_iterable(batch.given for batch in held))
        given = {name: torch.cat([of[name] for of in every]) for name in names}
        if "group" in given:  # each batch numbers its groups from 0
            groups = [batch.given["group"] for batch in held]
            first = accumulate((int(group.max()) + 1 for group in groups[:-1]), initial=0)
            given["group"] = torch.cat([group + n for group, n in zip(groups, first, strict=True)])
        return Observed(torch.cat([batch.x for batch in held]), given)

    def chunks(self, size: int) -> Iterator[Observed]:
        return self._first_rows()

    def description(self) -> dict[str, Any]:
        """Of a loader's data the first batch is known, in the order of seed 0; of several
        processes' loaders each one's.
        """
        data = self.prints if len(self.prints) > 1 else self.prints[0]
        return {"data": data, "batches": self.steps}


def _check_alike(who: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """:raises ValueError: if they have other names; but for those of known labels, which a batch
    has only if some are not.
    """
    if ({*one} ^ {*other}) - {"known"}:
        first, second = (
            ", ".join(sorted(given.keys() - {"x"})) or "nothing" for given in (one, other)
        )
        raise ValueError(
            f"{who} must give the same beside x, but the first one gave {first}, and another "
            f"{second}: give -1 for labels that are not known"
        )


def _length(loader: DataLoader) -> int:
    """:raises ValueError: if it has none, or is empty."""
    try:
        steps = len(loader)
    except TypeError:
        raise ValueError(
            "the DataLoader has no length, which schedules and epochs need: give fit "
            "steps_per_epoch=, the number of batches that count as an epoch"
        ) from None
    if steps == 0:
        raise ValueError(
            "the DataLoader gives no batch: is its data set empty, or smaller than a batch with "
            "drop_last?"
        )
    return steps


def whole_pass(loader: DataLoader, seed: int, epoch: int) -> Iterator[Any]:
    """The batches of a pass. Its order, and what the data set draws, depend on ``seed`` and
    ``epoch`` alone.

    :raises ValueError: if the loader gives more or fewer batches than its length says.
    """
    steps, taken = len(loader), 0
    for taken, batch in enumerate(_fetched(loader, seed, epoch), start=1):
        if taken > steps:
            break
        yield batch
    if taken != steps:
        found = taken if taken < steps else f"more than {steps}"
        raise ValueError(
            f"the DataLoader gave {found} batches in a pass, but its length is {steps}, which "
            "schedules and epochs rely on: correct the __len__ of its data set or sampler, or "
            "give fit steps_per_epoch="
        )


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
    generators = [torch.default_generator, *own]
    # Of generators, and of NumPy and Python, which a data set may use.
    streams: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        *((each.get_state, each.set_state) for each in generators),
        (np.random.get_state, np.random.set_state),
        (random.getstate, random.setstate),
    ]
    begins = [Generator().manual_seed(seed).get_state()] * len(generators)
    states = [
        *begins,
        np.random.RandomState(seed % 2**32).get_state(),
        random.Random(seed).getstate(),
    ]

    def exchange() -> None:
        """Put the states that are held in the place of those that are used, and hold these."""
        before = [get() for get, _ in streams]
        for (_, put), state in zip(streams, states, strict=True):
            put(state)
        states[:] = before

    batches = chain(loader)  # which begins the pass with its first batch
    while True:
        with exclusive():
            exchange()
            try:
                batch = next(batches, END)
            except RuntimeError as error:
                if not str(error).startswith("DataLoader worker"):
                    raise
                raise RuntimeError(
                    "a worker process of the DataLoader ended "
                    f"({' '.join(str(error).split())}): it may have run out of memory, or its "
                    "data set ends it; num_workers=0 shows any error"
                ) from error
            finally:
                exchange()
        if batch is END:
            return
        yield batch


def data_source_for(
    guide: FacetGuide,
    device: torch.device,
    x: ArrayLike | Tensor | DataLoader,
    given: Mapping[str, Any],
    batch_size: int | None,
    batches: Batching | None,
    processes: SingleProcess | None = None,
    steps_per_epoch: int | None = None,
) -> DataSource:
    """The data source for the arguments of :meth:`SVIRunner.fit <inference.SVIRunner.fit>`.

    :raises ValueError: if an argument does not fit.
    """
    if batches is not None:
        check_kind("batches", batches, Batching, "such as Groups()")
    x = getattr(x, "_dataloader", x)  # of Fabric.setup_dataloaders
    if isinstance(x, DataLoader):
        own = {"batch_size": batch_size, "batches": batches}
        if beside := [*(name for name, value in own.items() if value is not None), *given]:
            raise ValueError(
                f"a DataLoader gives its batches as they are: leave {' and '.join(beside)} out"
            )
        return LoaderSource(x, guide, device, processes, steps_per_epoch)
    if steps_per_epoch is not None:
        raise ValueError(
            "steps_per_epoch is of a DataLoader, but an epoch of arrays is a pass over them: leave "
            "it out"
        )
    if isinstance(x, Dataset):
        raise ValueError(
            f"x is a data set ({type(x).__name__}): give a DataLoader of it, such as "
            "DataLoader(x, 512)"
        )
    size = check_size("batch_size", BATCH_SIZE if batch_size is None else batch_size)
    data = guide.observed(x, given)
    batching = batches if batches is not None else Groups() if "group" in data.given else Rows()
    return InMemorySource(data, batching, size, device, mapped=isinstance(x, np.memmap))


def _fingerprints(data: Observed, mapped: bool = False) -> dict[str, Any]:
    given = {name: fingerprint(values) for name, values in data.given.items()}
    return {"x": fingerprint(data.x, mapped), **given}


def fingerprint(tensor: Tensor | SparseRows, mapped: bool = False) -> dict[str, Any]:
    """What identifies data: shape, type, and digests of all numbers and of 1,024 evenly spread
    rows, which is what earlier versions compared; of sparse rows, of all their entries.

    :param mapped: whether the numbers are in a memory-mapped file. If that has more than
        ``LARGEST_DIGESTED`` bytes, so many are read, in evenly spread rows.
    """
    found: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    if isinstance(tensor, SparseRows):
        return found | {"all": _digest(chain.from_iterable(tensor.blocks()))}
    row = max(1, tensor.nbytes // max(1, len(tensor)))
    most = LARGEST_DIGESTED // row if mapped else len(tensor)
    digest, of_all = (_digest(_spread(tensor, number, row)) for number in (1024, most))
    return found | {"digest": digest, "all": of_all}


def _spread(tensor: Tensor, most: int, row: int) -> Iterator[Tensor]:
    """At most so many rows, evenly spread, a block at a time.

    :param row: bytes of a row.
    """
    n = min(len(tensor), max(1, most))
    for rows in torch.arange(n).split(max(1, DIGESTED_AT_ONCE // row)):
        yield tensor[(rows * (len(tensor) - 1) // max(n - 1, 1)).to(tensor.device)]


def _digest(parts: Iterable[Tensor]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
