"""How data reach the steps: from memory or a mapped file, batched here, or from a loader."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from guides.base import FacetGuide
from inference.distributed import Shard, SingleProcess
from inference.training.batching import Batching, Groups, Rows
from inference.training.loader_passes import part_of_pass, takes_parts, whole_pass
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


@dataclass(eq=False)
class InMemorySource(DataSource):
    """Data as tensors on the device; those of a memory-mapped file stay in the file, and batches
    are copied.

    :param data: validated data.
    :param batching: how they are put into batches.
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

    def generator(self, seed: int) -> Generator:
        """The generator for the order of a pass."""
        return Generator(self.data.x.device).manual_seed(seed)

    def batches(self, seed: int) -> Iterator[Observed]:
        batches = self.batching.batches(self.data, self.batch_size, self.generator(seed))
        return (batch.to(self.device) for batch in batches)

    def subset(self, at_most: int) -> Observed:
        return self.batching.subset(self.data, at_most).to(self.device)

    def chunks(self, size: int) -> Iterator[Observed]:
        return (part.to(self.device) for part in self.data.whole_groups(size))

    def description(self) -> dict[str, Any]:
        prints = _fingerprints(self.data, self.mapped)
        return {"data": prints, "batches": to_config(self.batching)}


class LoaderSource(DataSource):
    """Batches from a PyTorch ``DataLoader``: x alone, a mapping with ``"x"``, or x followed by the
    inputs that the model needs.

    What it can do without, such as labels of some rows, is given in mappings alone, by name; their
    other names are refused, and what follows in a tuple is ignored. All batches give the same
    names.

    What a pass draws (its order, and what a data set draws with torch, NumPy or Python's
    ``random``, in worker processes or without) depends only on the seed and the epoch, so that a
    resumed run sees the same batches; earlier batches of the epoch are loaded again and dropped.

    Of several processes each reads, besides the first batches (2,048 rows), only its own items of
    every batch; or whole batches, if these hold groups or have no indices (``IterableDataset``, no
    ``batch_sampler``), or if ``collate_fn`` makes more or fewer rows.

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
        self.held: list[Observed] = []
        for batch in self._whole(0):
            self.held.append(batch)
            if sum(map(len, self.held)) >= HELD_ROWS:
                break
        self.batch_size = len(self.held[0])
        self.full = None if "group" in self.held[0].given else self.batch_size
        several = self.processes.size > 1 and self.full is not None
        self.in_parts = several and takes_parts(loader, self.batch_size)

    def batches(self, seed: int) -> Iterator[Observed]:
        return self._parts(seed) if self.in_parts else self._whole(seed)

    def _whole(self, seed: int) -> Iterator[Observed]:
        return map(self.observed, whole_pass(self.loader, seed))

    def _parts(self, seed: int) -> Iterator[Shard]:
        """:raises ValueError: if ``collate_fn`` does not make a row of each item."""
        rank, size = self.processes.rank, self.processes.size
        for batch, items in part_of_pass(self.loader, seed, rank, size):
            part, own = self.observed(batch), len(range(rank, items, size))
            if len(part) != max(1, own):
                raise ValueError(
                    f"the DataLoader's collate_fn made {len(part)} rows of {max(1, own)} items, "
                    "but processes that read their own items of a batch need a row for each: drop "
                    "or repeat items in the sampler"
                )
            yield Shard(part.x, part.given, part.size, own, items)

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
        if first.given.keys() != observed.given.keys():
            one, other = (", ".join(sorted(of.given)) or "nothing" for of in (first, observed))
            raise ValueError(
                f"the DataLoader's batches must give the same beside x, but the first one gave "
                f"{one}, and another {other}: give -1 for labels that are not known"
            )
        return observed

    def subset(self, at_most: int) -> Observed:
        ends = np.cumsum([len(batch) for batch in self.held])
        held = self.held[: int(np.searchsorted(ends, at_most)) + 1]
        given = {name: torch.cat([batch.given[name] for batch in held]) for name in held[0].given}
        if "group" in given:  # each batch numbers its groups from 0
            groups = [batch.given["group"] for batch in held]
            first = accumulate((int(group.max()) + 1 for group in groups[:-1]), initial=0)
            given["group"] = torch.cat([group + n for group, n in zip(groups, first, strict=True)])
        return Observed(torch.cat([batch.x for batch in held]), given)

    def chunks(self, size: int) -> Iterator[Observed]:
        return self._whole(0)

    def description(self) -> dict[str, Any]:
        """Of a loader's data the first batch is known, in the order of seed 0."""
        return {"data": _fingerprints(self.held[0]), "batches": self.steps}


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
        own = {"batch_size": batch_size, "batches": batches}
        if beside := [*(name for name, value in own.items() if value is not None), *given]:
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
