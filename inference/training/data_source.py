"""How data reach the steps: from memory or a mapped file, batched here, or from a loader."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from guides.base import FacetGuide
from inference.distributed import Shard, SingleProcess
from inference.training.batching import Batching, Groups, Rows
from inference.training.loader_passes import (
    items_of_first_batch,
    part_of_pass,
    takes_parts,
    whole_pass,
)
from ppl_models.configurable import to_config
from ppl_models.given.checks import check_kind, check_size
from ppl_models.given.observed import Observed
from ppl_models.given.sparse import SparseRows

BATCH_SIZE = 512
# Rows of a loader's first pass to keep for later use.
HELD_ROWS = 2048
# Bytes to digest at a time, and, of a memory-mapped file, in all.
DIGESTED_AT_ONCE, LARGEST_DIGESTED = 2**24, 2**32


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
    def batches(self, seed: int) -> Iterator[Observed]:
        """One pass over the data, on the device, in an order that depends on ``seed`` alone; of
        each batch at least this process's part.
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


class InMemorySource(DataSource):
    """Data as tensors on the device; those of a memory-mapped file stay in the file, and batches
    are copied.

    :param data: validated data.
    :param batching: how they are put into batches.
    """

    def __init__(
        self,
        data: Observed,
        batching: Batching,
        batch_size: int,
        device: torch.device,
        mapped: bool,
    ) -> None:
        self.data = data if mapped else data.to(device)
        self.batching, self.batch_size, self.device = batching, batch_size, device
        self.mapped = mapped
        batching.check(self.data)
        self.steps = batching.steps(self.data, batch_size)
        self.full = batching.full(self.data, batch_size)

    def generator(self, seed: int) -> Generator:
        """The generator for the order of a pass."""
        return Generator(self.data.x.device).manual_seed(seed)

    def batches(self, seed: int) -> Iterator[Observed]:
        batches = self.batching.batches(self.data, self.batch_size, self.generator(seed))
        return (batch.to(self.device) for batch in batches) if self.mapped else batches

    def subset(self, at_most: int) -> Observed:
        return self.batching.subset(self.data, at_most).to(self.device)

    def chunks(self, size: int) -> Iterator[Observed]:
        return (part.to(self.device) for part in self.data.whole_groups(size))

    def description(self) -> dict[str, Any]:
        prints = {"x": fingerprint(self.data.x, self.mapped)} | {
            name: fingerprint(v) for name, v in self.data.given.items()
        }
        return {"data": prints, "batches": to_config(self.batching)}


class LoaderSource(DataSource):
    """Batches from a PyTorch ``DataLoader``: x alone, a mapping with ``"x"``, or x followed by the
    inputs that the model needs.

    What it can do without, such as labels of some rows, is given in mappings alone, by name; their
    other names are refused. What follows in a tuple, such as the labels of a data set, is ignored.
    All batches give the same names.

    What a pass draws (its order, and what a data set draws with torch, NumPy or Python's
    ``random``, in worker processes or without) depends only on the seed and the epoch, so that a
    resumed run sees the same batches; earlier batches of the epoch are loaded again and dropped.
    Generators of the loader and its samplers are set while a batch is fetched, and otherwise
    unchanged.

    Of several processes each reads, besides the first batches (2,048 rows), only its own items of
    every batch, where items have an index and a batch is a row of each. All read whole batches if
    these hold groups, of a data set without indices (``IterableDataset``) or without
    ``batch_sampler``, and if ``collate_fn`` makes more or fewer rows.

    :param loader: gives batches of any size; all members of a group must be in one batch.
    :param guide: the guide whose model gets the batches; each batch is validated.
    :param processes: that train the run; by default one.
    :raises ValueError: if the loader has no length, gives no batch or has persistent workers, or
        its batches do not fit; at the end of a pass, if it gave more or fewer batches than its
        length says.
    """

    def __init__(
        self,
        loader: DataLoader,
        guide: FacetGuide,
        device: torch.device,
        processes: SingleProcess | None = None,
    ) -> None:
        self.loader, self.guide, self.device = loader, guide, device
        self.processes = processes or SingleProcess()
        try:
            self.steps = len(loader)
        except TypeError:
            raise ValueError(
                "the DataLoader has no length, which schedules and epochs need: give its "
                "IterableDataset a __len__"
            ) from None
        if self.steps == 0:
            raise ValueError(
                "the DataLoader gives no batch: is its data set empty, or smaller than a batch "
                "with drop_last?"
            )
        if loader.persistent_workers:
            raise ValueError(
                "the DataLoader's workers would keep their random state between passes, which a "
                "resumed run could not repeat: create it with persistent_workers=False"
            )
        self.names: set[str] | None = None
        self.held = self._held(HELD_ROWS)
        self.batch_size = len(self.held[0])
        self.full = None if "group" in self.held[0].given else self.batch_size
        self.in_parts = self.processes.size > 1 and self._takes_parts()

    def _takes_parts(self) -> bool:
        """Whether each process can read its own items alone: rows are items, without groups."""
        if "group" in self.held[0].given or not takes_parts(self.loader):
            return False
        return items_of_first_batch(self.loader, 0) == self.batch_size

    def batches(self, seed: int) -> Iterator[Observed]:
        if not self.in_parts:
            return self._whole(seed)
        rank, size = self.processes.rank, self.processes.size
        return (
            self._part(batch, items) for batch, items in part_of_pass(self.loader, seed, rank, size)
        )

    def _whole(self, seed: int) -> Iterator[Observed]:
        return map(self.observed, whole_pass(self.loader, seed))

    def _part(self, batch: Any, items: int) -> Shard:
        """:raises ValueError: if ``collate_fn`` does not make a row of each item."""
        part = self.observed(batch)
        own = len(range(self.processes.rank, items, self.processes.size))
        if len(part) != max(1, own):
            raise ValueError(
                f"the DataLoader's collate_fn made {len(part)} rows of {max(1, own)} items, but "
                "processes that read their own items of a batch need a row for each: drop or "
                "repeat items in the sampler"
            )
        return Shard(part.x, part.given, part.size, own, items)

    def observed(self, batch: Any) -> Observed:
        """A loader's batch, validated, on the device."""
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
        self._check_names(set(observed.given))
        return observed

    def _check_names(self, names: set[str]) -> None:
        """:raises ValueError: if a batch gives something else beside x than the first one did."""
        if self.names is None:
            self.names = names
        if names != self.names:
            one, other = (", ".join(sorted(each)) or "nothing" for each in (self.names, names))
            raise ValueError(
                f"the DataLoader's batches must give the same beside x, but the first one gave "
                f"{one}, and another {other}: give -1 for labels that are not known"
            )

    def _held(self, rows: int) -> list[Observed]:
        """The first batches of a pass, until they have ``rows`` rows."""
        batches = []
        for batch in self._whole(0):
            batches.append(batch)
            if sum(map(len, batches)) >= rows:
                break
        return batches

    def subset(self, at_most: int) -> Observed:
        ends = np.cumsum([len(batch) for batch in self.held])
        return _joined(self.held[: int(np.searchsorted(ends, at_most)) + 1])

    def chunks(self, size: int) -> Iterator[Observed]:
        return self._whole(0)

    def description(self) -> dict[str, Any]:
        """Of a loader's data the first batch is known, in the order of seed 0."""
        first = self.subset(1)
        prints = {"x": fingerprint(first.x)} | {
            name: fingerprint(v) for name, v in first.given.items()
        }
        return {"data": prints, "batches": self.steps}


def _joined(batches: list[Observed]) -> Observed:
    given = {name: torch.cat([batch.given[name] for batch in batches]) for name in batches[0].given}
    if "group" in given:  # each batch numbers its groups from 0
        sizes = [int(batch.given["group"].max()) + 1 for batch in batches]
        first = np.cumsum([0, *sizes[:-1]]).tolist()
        given["group"] = torch.cat(
            [batch.given["group"] + n for batch, n in zip(batches, first, strict=True)]
        )
    return Observed(torch.cat([batch.x for batch in batches]), given)


def data_source_for(
    guide: FacetGuide,
    device: torch.device,
    x: ArrayLike | Tensor | DataLoader,
    given: Mapping[str, Any],
    batch_size: int | None,
    batches: Batching | None,
    processes: SingleProcess | None = None,
) -> DataSource:
    """The data source for the arguments of :meth:`SVIRunner.fit <inference.SVIRunner.fit>`.

    :raises ValueError: if an argument does not fit.
    """
    if batches is not None:
        check_kind("batches", batches, Batching, "such as Groups()")
    if isinstance(x, DataLoader):
        beside = [
            name
            for name, value in (("batch_size", batch_size), ("batches", batches))
            if value is not None
        ]
        if beside := [*beside, *given]:
            raise ValueError(
                f"a DataLoader gives its batches as they are: leave {' and '.join(beside)} out"
            )
        return LoaderSource(x, guide, device, processes)
    if isinstance(x, Dataset):
        raise ValueError(
            f"x is a data set ({type(x).__name__}): give a DataLoader of it, such as "
            "DataLoader(x, 512)"
        )
    size = check_size("batch_size", BATCH_SIZE if batch_size is None else batch_size)
    data = guide.observed(x, given)
    batching = batches if batches is not None else Groups() if "group" in data.given else Rows()
    return InMemorySource(data, batching, size, device, mapped=isinstance(x, np.memmap))


def fingerprint(tensor: Tensor | SparseRows, mapped: bool = False) -> dict[str, Any]:
    """What identifies data: shape, type, and digests of all numbers and of 1,024 evenly spread
    rows, which is what earlier versions compared; of sparse rows, of all their entries.

    :param mapped: whether the numbers are in a memory-mapped file. If that has more than
        ``LARGEST_DIGESTED`` bytes, so many are read, in evenly spread rows.
    """
    if isinstance(tensor, SparseRows):
        return {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            "all": _digest_entries(tensor),
        }
    row = max(1, tensor[0].numel() * tensor.element_size()) if len(tensor) else 1
    most = LARGEST_DIGESTED // row if mapped else len(tensor)
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype),
        "digest": _digest(tensor, 1024, row),
        "all": _digest(tensor, most, row),
    }


def _digest(tensor: Tensor, most: int, row: int) -> str:
    """A digest of at most so many rows, evenly spread, read a block at a time.

    :param row: bytes of a row.
    """
    n, found = min(len(tensor), max(1, most)), hashlib.sha256()
    for rows in torch.arange(n).split(max(1, DIGESTED_AT_ONCE // row)):
        if n == len(tensor):
            part = tensor[int(rows[0]) : int(rows[-1]) + 1]
        else:
            part = tensor[(rows * (len(tensor) - 1) // max(n - 1, 1)).to(tensor.device)]
        block = part.detach().cpu().contiguous().flatten().view(torch.uint8)
        found.update(block.numpy().data)
    return found.hexdigest()


def _digest_entries(rows: SparseRows) -> str:
    """A digest of where the entries are and of their values, some rows at a time."""
    found = hashlib.sha256()
    for block in rows.blocks():
        for part in block:
            found.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()
