"""Check the data that a user gives, once, on entry."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_rows
from ppl_models.given.sparse import SparseRows, is_sparse, sparse_rows

#: A FacetModel, whose module reads arrays by this package itself.
Model = Any
# Numbers per block when data are checked.
CHECKED_AT_ONCE = 2**22


@dataclass(frozen=True)
class Observed:
    """Data and what is given with them, row by row.

    :ivar x: ``[N, *x_shape]``; sparse rows, of which each block that is taken is dense.
    :ivar given: tensors with N rows each, by the model's keyword, such as ``label``.
    :ivar size: how many samples it counts as in an objective, if not its number of rows.
    """

    x: Any  # a Tensor; of data that stay sparse SparseRows, whose batches are Tensors
    given: dict[str, Tensor] = field(default_factory=dict)
    size: float | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor | slice) -> Observed:
        given = {name: _take(values, rows) for name, values in self.given.items()}
        return Observed(_take(self.x, rows), given)

    def to(self, device: torch.device) -> Observed:
        given = {name: values.to(device, non_blocking=True) for name, values in self.given.items()}
        return Observed(self.x.to(device, non_blocking=True), given, self.size)

    def split(self, size: int) -> Iterator[Observed]:
        """Blocks of ``size`` rows, in order; of sparse rows fewer, if these are long."""
        if isinstance(self.x, SparseRows):
            size = min(size, self.x.rows_at_once)
        return (self[slice(start, start + size)] for start in range(0, len(self), size))

    def whole_groups(self, size: int) -> Iterator[Observed]:
        """Blocks of about ``size`` rows that split no group, if there are any."""
        if "group" not in self.given:
            yield from self.split(size)
            return
        order = self.given["group"].argsort(stable=True)
        ends = self.given["group"].bincount().cumsum(0)
        wanted = torch.arange(size, len(self) + size, size, device=ends.device)
        last = ends[torch.searchsorted(ends, wanted).clamp_max(len(ends) - 1)]
        for start, end in pairwise([0, *last.unique().tolist()]):
            yield self.regrouped(order[start:end])

    def regrouped(self, rows: Tensor) -> Observed:
        """These rows, with their groups renumbered from 0."""
        part = self[rows]
        group = part.given["group"].unique(return_inverse=True)[1]
        return Observed(part.x, part.given | {"group": group})


def _take(values: Tensor | SparseRows, rows: Tensor | slice) -> Tensor:
    """``values[rows]``: where it can, by copying whole rows, which takes a third of the time."""
    if isinstance(values, SparseRows):
        return values.dense(rows)
    if isinstance(rows, Tensor) and rows.dim() == 1 and rows.dtype == torch.int64:
        return values.index_select(0, rows.to(values.device))
    return values[rows]


def as_observed(
    x: ArrayLike | Tensor | SparseRows,
    given: Mapping[str, Any],
    model: Model,
    accepts: Collection[str] = (),
) -> Observed:
    """``x`` with what ``model`` takes besides it, all checked.

    :param given: by keyword; ``None`` counts as not given.
    :param accepts: optional keywords.
    :raises ValueError: as :func:`as_data`; also if a required keyword is missing or one is unknown.
    """
    data = as_data(x, model)
    found = {name: values for name, values in given.items() if values is not None}
    if unknown := sorted(found.keys() - {*model.takes, *accepts}):
        names = [*model.takes, *(f"{name}, if known," for name in accepts)]
        taken = " and ".join(names) or "nothing"
        raise ValueError(
            f"{type(model).__name__} takes {taken} besides x, got {' and '.join(unknown)}: is that "
            "a misspelled option?"
        )
    if missing := [name for name in model.takes if name not in found]:
        raise ValueError(
            f"{type(model).__name__} needs {missing[0]}= besides x, with one entry per sample"
        )
    return Observed(
        data, {name: model.check_given(name, values, len(data)) for name, values in found.items()}
    )


def as_data(x: ArrayLike | Tensor | SparseRows, model: Model) -> Any:
    """A tensor ``[N, *x_shape]``: uint8 stays uint8, other numbers get the model's dtype.

    A memory-mapped array is read once to check it and stays memory-mapped; its batches are
    converted. Sparse matrices of SciPy and sparse tensors stay sparse if the likelihood reads
    counts, and are refused otherwise.

    :raises ValueError: if ``x`` is empty, is not numeric, has the wrong shape, holds NaN or
        infinity, or lies outside the support of the model's likelihood.
    """
    sparse, likelihood = is_sparse(x), model.likelihood
    if sparse and not likelihood.takes_sparse and not isinstance(x, Tensor):
        raise ValueError(
            f"x is sparse ({type(x).__name__}): give x.toarray(), or a likelihood of counts, such "
            f"as DirichletMultinomial(), where the model has {type(likelihood).__name__}"
        )
    takes = sparse and likelihood.takes_sparse
    data: Any = sparse_rows(x) if takes else as_numbers(cast(ArrayLike, x))  # refuses the others
    check_rows(data.shape, model.x_shape)
    if len(data) == 0:
        raise ValueError(f"x is empty (shape {list(data.shape)}): at least one sample is needed")
    if isinstance(data, SparseRows):
        bad = sum(int((~values.isfinite()).sum()) for _, _, values in data.blocks())
        if bad:
            raise ValueError(
                f"x holds {bad} stored values that are NaN or infinite: counts have none, so drop "
                "those rows or set the values"
            )
        likelihood.check_sparse(data)
        return data.astype(model.gates.dtype)
    for start, part in _parts(data):
        _check_values(part, start, data, model)
    stays = data.dtype == torch.uint8 or isinstance(x, np.memmap)
    return data if stays else data.to(model.gates.dtype)


def _parts(data: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Blocks of rows and the index of their first row, so that checks need little memory."""
    rows = max(1, CHECKED_AT_ONCE // data[0].numel())
    return ((start, data[start : start + rows]) for start in range(0, len(data), rows))


def _check_values(part: Tensor, start: int, data: Tensor, model: Model) -> None:
    if part.dtype != torch.uint8:
        part = part.to(model.gates.dtype)
        bad = _bad(part, model)
        if bad.any():
            row, *within = (int(i) for i in bad.nonzero()[0])
            if not _bad(data[start:][: len(part)], model).any():
                raise ValueError(
                    f"x holds values beyond what {part.dtype} can hold, the first at index "
                    f"{[start + row, *within]}: give x in other units, or a model in float64"
                )
            count = sum(int(_bad(rows.to(part), model).sum()) for _, rows in _parts(data))
            what = "infinite" if model.likelihood.takes_missing else "NaN or infinite"
            raise ValueError(
                f"x holds {count} values that are {what}, the first at index "
                f"{[start + row, *within]}: drop those rows or fill them in; if NaN marks missing "
                "entries, use the likelihood Incomplete(...)"
            )
    model.likelihood.check(part)


def _bad(x: Tensor, model: Model) -> Tensor:
    """Which entries are infinite, or NaN where NaN does not mark missing entries."""
    return x.isinf() if model.likelihood.takes_missing else ~x.isfinite()
