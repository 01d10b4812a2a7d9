"""Rows of a sparse matrix, which become dense a batch at a time, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from torch import Tensor, nn

from ppl_models.given.arrays import as_numbers

# Entries that are read at a time where all are.
ENTRIES_AT_ONCE = 2**22
# Numbers of a dense block, where blocks are made of all rows.
NUMBERS_AT_ONCE = 2**24
ALL = slice(None)


@dataclass(eq=False, repr=False)
class SparseRows:
    """Rows of a sparse matrix ``[N, D]``; entries that are not stored are 0.

    ``rows[index]`` are some of them, by a slice, an index or a mask: they stay sparse and share the
    entries, since each row has its own start and end. ``rows.dense(index)`` is a tensor ``[B, D]``
    on the device where the entries are, such as a batch. Models whose likelihood reads counts take
    sparse rows, or what :func:`sparse_rows` makes them of, wherever they take x.

    :param starts: of each row among the entries ``[N]``, integers of 32 or 64 bits.
    :param ends: one after its last entry ``[N]``.
    :param columns: of each entry ``[E]``; within a row no column comes twice.
    :param values: of each entry ``[E]``.
    :param num_columns: D.
    :param dtype: of dense rows; by default that of the values.

    Example:
        >>> from scipy.sparse import csr_array
        >>> from ppl_models.given.sparse import sparse_rows
        >>> rows = sparse_rows(csr_array([[0, 2, 0], [1, 0, 3], [0, 0, 0]]))
        >>> rows
        SparseRows([3, 3], 3 entries, torch.int64, cpu)
        >>> rows.dense(slice(1, 3))
        tensor([[1, 0, 3],
                [0, 0, 0]])
        >>> rows[[True, False, True]].shape
        (2, 3)
    """

    starts: Tensor
    ends: Tensor
    columns: Tensor
    values: Tensor
    num_columns: int
    dtype: torch.dtype = None  # type: ignore[assignment]
    ndim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self.dtype = self.dtype or self.values.dtype

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.num_columns

    @property
    def device(self) -> torch.device:
        return self.values.device

    def __getitem__(self, rows: slice | ArrayLike | Tensor) -> SparseRows:
        here = self._here(rows)
        return replace(self, starts=self.starts[here], ends=self.ends[here])

    def dense(self, rows: slice | Tensor = ALL) -> Tensor:
        """Rows as a dense tensor ``[B, D]``; for an index of more axes, ``[..., D]``.

        On the CPU exactly the rows' entries are gathered. Elsewhere their number would have to be
        read back: as many are gathered as the longest rows could have, and the rest counts as 0.
        """
        if isinstance(rows, Tensor) and rows.dim() > 1:
            return self.dense(rows.flatten()).unflatten(0, rows.shape)
        starts, lengths = self._spans(rows)
        row, entry, there = self._entries(starts, lengths)
        size = len(starts)
        dense = torch.zeros(size * self.num_columns, dtype=self.dtype, device=self.device)
        if len(entry):
            place = row * self.num_columns + self.columns[entry]
            values = self.values[entry].to(self.dtype)
            dense.scatter_add_(0, place, values if there is None else values * there)
        return dense.view(size, self.num_columns)

    def astype(self, dtype: torch.dtype) -> SparseRows:
        """The same, with dense rows of this type; entries stay as they are."""
        return replace(self, dtype=dtype)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SparseRows:
        parts = self.starts, self.ends, self.columns, self.values
        starts, ends, columns, values = (x.to(device, non_blocking=non_blocking) for x in parts)
        return SparseRows(starts, ends, columns, values, self.num_columns, self.dtype)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All entries, some rows at a time: row ``[E]``, column ``[E]`` and value ``[E]``."""
        lengths = (self.ends - self.starts).long()
        block = (lengths.cumsum(0) - lengths) // ENTRIES_AT_ONCE
        first = 0
        for number in torch.unique_consecutive(block, return_counts=True)[1].tolist():
            part = self[first : first + number]
            row, entry = _exactly(*part._spans(ALL))
            yield row + first, self.columns[entry].long(), self.values[entry]
            first += number

    @property
    def rows_at_once(self) -> int:
        """Rows of a dense block where blocks are made of all rows."""
        return max(1, NUMBERS_AT_ONCE // max(1, self.num_columns))

    def tocsr(self) -> Any:
        """A copy as ``scipy.sparse.csr_array``."""
        if not len(self):
            return csr_array(self.shape)
        row, column, value = (
            torch.cat(each).cpu().numpy() for each in zip(*self.blocks(), strict=True)
        )
        return csr_array((value, (row, column)), shape=self.shape)

    def __repr__(self) -> str:
        entries = int((self.ends - self.starts).long().sum())
        return f"SparseRows({list(self.shape)}, {entries} entries, {self.dtype}, {self.device})"

    @cached_property
    def _longest(self) -> int:
        return int((self.ends - self.starts).max()) if len(self) else 0

    def _here(self, rows: slice | ArrayLike | Tensor) -> slice | Tensor:
        return rows if isinstance(rows, slice) else torch.as_tensor(rows, device=self.device)

    def _spans(self, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Where these rows start, and how many entries they have: ``[B]`` each."""
        starts, ends = (x[self._here(rows)].long() for x in (self.starts, self.ends))
        return starts, ends - starts

    def _entries(self, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The row and the place of each entry ``[E]``, and which of them there are, if not all."""
        on_cpu = self.device.type == "cpu"
        return (*_exactly(starts, lengths), None) if on_cpu else self._padded(starts, lengths)

    def _padded(self, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As many as rows of the greatest length have, without reading a number back."""
        ends = lengths.cumsum(0)
        place = torch.arange(len(lengths) * self._longest, device=self.device)
        row = torch.searchsorted(ends, place, right=True).clamp_max(len(lengths) - 1)
        entry = (starts - ends + lengths)[row] + place
        return row, entry.clamp_max(max(0, len(self.values) - 1)), place < ends[-1:]


def _exactly(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    row = torch.repeat_interleave(lengths)
    first = lengths.cumsum(0) - lengths
    return row, (starts - first)[row] + torch.arange(len(row), device=row.device)


def is_sparse(x: Any) -> bool:
    """Whether ``x`` is a sparse matrix of SciPy, a sparse tensor, or already sparse rows."""
    if isinstance(x, Tensor):
        return x.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
    return isinstance(x, SparseRows) or hasattr(x, "tocsr")


def sparse_rows(x: Any) -> SparseRows:
    """Rows of a sparse matrix ``[N, D]`` of SciPy, or of a sparse tensor.

    A CSR matrix without entries that repeat is not copied; other forms become one.

    :raises ValueError: if it is not a matrix of real numbers.
    """
    if isinstance(x, SparseRows):
        return x
    if x.ndim != 2:
        raise ValueError(f"x is sparse and has shape {list(x.shape)}, but [N, D] is needed")
    parts = _of_tensor(x) if isinstance(x, Tensor) else _of_scipy(x)
    bounds, columns, values = map(as_numbers, parts)
    if values.dtype == torch.bool:  # which cannot be counted
        values = values.view(torch.uint8)
    if values.dtype in (torch.float16, torch.bfloat16):  # which SciPy does not have
        values = values.float()
    return SparseRows(bounds[:-1], bounds[1:], columns, values, x.shape[1])


def _of_scipy(x: Any) -> tuple[Any, Any, Any]:
    """Row bounds ``[N + 1]``, columns and values; repeated entries are added up in a copy."""
    matrix = x.tocsr()
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix.indptr, matrix.indices, matrix.data


def _of_tensor(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach()
    if x.layout == torch.sparse_csr:
        return x.crow_indices(), x.col_indices(), x.values()
    x = x.to_sparse_coo().coalesce()
    rows, columns = x.indices()
    bounds = torch.bincount(rows, minlength=len(x)).cumsum(0)
    return nn.functional.pad(bounds, (1, 0)), columns, x.values()
