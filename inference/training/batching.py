"""How data are split into batches: by rows or by groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Generator, Tensor

from ppl_models.configurable import Options
from ppl_models.given.checks import check_count
from ppl_models.given.observed import Observed

__all__ = ["Batching", "Groups", "Rows"]


class Batching(Options):
    """A way to form batches."""

    @abstractmethod
    def check(self, data: Observed) -> None:
        """:raises ValueError: if such data cannot be batched in this way."""

    @abstractmethod
    def steps(self, data: Observed, batch_size: int) -> int:
        """The number of batches in a pass over ``data``."""

    @abstractmethod
    def batches(
        self, data: Observed, batch_size: int, generator: Generator | None = None
    ) -> Iterator[Observed]:
        """A pass in random order, by ``generator`` or else the device's random stream."""

    @abstractmethod
    def subset(self, data: Observed, at_most: int) -> Observed:
        """About ``at_most`` data as one batch; the same ones for the same data."""

    def full(self, data: Observed, batch_size: int) -> int | None:
        """Rows of every batch but a smaller last one; ``None`` if they vary."""
        return None if "group" in data.given else min(batch_size, len(data))


class Rows(Batching):
    """Batches of rows: ``batch_size`` rows each; the last batch of a pass may be smaller.

    Example:
        >>> import torch
        >>> from inference import Rows
        >>> from ppl_models.given.observed import Observed
        >>> [len(batch) for batch in Rows().batches(Observed(torch.zeros(10, 6)), batch_size=4)]
        [4, 4, 2]
    """

    def check(self, data: Observed) -> None:
        if "group" in data.given:
            raise ValueError("Rows would split the groups that were given: use batches=Groups()")

    def steps(self, data: Observed, batch_size: int) -> int:
        return -(-len(data) // batch_size)

    def batches(
        self, data: Observed, batch_size: int, generator: Generator | None = None
    ) -> Iterator[Observed]:
        return (data[rows] for rows in self.order(data, generator).split(batch_size))

    def order(self, data: Observed, generator: Generator | None = None) -> Tensor:
        """All rows in random order."""
        return torch.randperm(len(data), device=data.x.device, generator=generator)

    def subset(self, data: Observed, at_most: int) -> Observed:
        return data[drawn_once(len(data), at_most)]


def drawn_once(n: int, at_most: int) -> Tensor:
    """So many of ``n`` rows at random, in order, as the data may be sorted."""
    order = torch.randperm(n, generator=Generator().manual_seed(0))
    return order[:at_most].sort().values


class Groups(Batching):
    """Batches of groups: as many groups each as have ``batch_size`` rows on average (ML-VAE, Eq.
    5).

    Every batch has the same number of groups, so that the mean over batches of their groups' mean
    is the mean over all groups. A group of more than ``max_members`` is split at random in every
    pass into parts, each of which counts as a group: evidence is then combined within a part alone,
    and the objective is biased (supplement, section 6).

    :param max_members: most rows of a group; by default groups stay whole, and a very large one may
        fill the memory.
    :raises ValueError: if ``max_members`` is below 1.

    Example:
        >>> import torch
        >>> from inference import Groups
        >>> Groups(max_members=4).parts(torch.tensor([3, 9]))  # sizes of two groups
        tensor([3, 3, 3, 3])
    """

    def __init__(self, max_members: int | None = None) -> None:
        self.max_members = None if max_members is None else check_count("max_members", max_members)

    def check(self, data: Observed) -> None:
        if "group" not in data.given:
            raise ValueError("Groups needs data in groups, but none were given: leave batches= out")
        most = int(data.given["group"].bincount().max())
        if "row" in data.given and self.max_members is not None and self.max_members < most:
            raise ValueError(
                f"max_members={self.max_members} would split groups of up to {most} rows, but a "
                "guide of tables has one content for each: build the guide with smaller groups, or "
                "leave max_members out"
            )

    def steps(self, data: Observed, batch_size: int) -> int:
        sizes = self.parts(data.given["group"].bincount())
        return -(-len(sizes) // self.per_batch(sizes, batch_size))

    def full(self, data: Observed, batch_size: int) -> int | None:
        sizes = self.parts(data.given["group"].bincount())
        groups = min(self.per_batch(sizes, batch_size), len(sizes))
        return groups * int(sizes[0]) if bool((sizes == sizes[0]).all()) else None

    def parts(self, sizes: Tensor) -> Tensor:
        """Sizes of the parts of groups of these sizes, group by group, as equal as possible."""
        if self.max_members is None:
            return sizes
        counts = -(-sizes // self.max_members)
        which = torch.repeat_interleave(counts)
        left = counts.cumsum(0)[which] - torch.arange(len(which), device=sizes.device)
        return (sizes[which] + left - 1) // counts[which]

    def per_batch(self, sizes: Tensor, batch_size: int) -> int:
        """Number of parts in a batch, for parts of these sizes."""
        return max(1, round(batch_size * len(sizes) / int(sizes.sum())))

    def batches(
        self, data: Observed, batch_size: int, generator: Generator | None = None
    ) -> Iterator[Observed]:
        device = data.x.device if generator is None else generator.device
        group = data.given["group"].to(device)
        order = torch.randperm(len(group), device=device, generator=generator)
        # Group by group, with members in random order.
        by_group = order[group[order].argsort(stable=True)]
        sizes = self.parts(group.bincount())
        chosen = torch.randperm(len(sizes), device=device, generator=generator)
        place = chosen.argsort()[torch.repeat_interleave(sizes)]  # of each row's part in the pass
        M, lengths = self.per_batch(sizes, batch_size), sizes[chosen]
        ends = lengths.cumsum(0)[M - 1 : -1 : M].cpu()
        blocks = by_group[place.argsort(stable=True)].tensor_split(ends)
        size = M * len(group) / len(sizes)
        for rows, parts in zip(blocks, lengths.split(M), strict=True):
            batch = data[rows]
            group = torch.repeat_interleave(parts, output_size=len(rows)).to(data.x.device)
            yield Observed(batch.x, batch.given | {"group": group}, size * len(parts) / M)

    def subset(self, data: Observed, at_most: int) -> Observed:
        return replace(next(self.batches(data, at_most, Generator().manual_seed(0))), size=None)
