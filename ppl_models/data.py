"""Data as it comes from a user, checked once at the door."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

if TYPE_CHECKING:
    from ppl_models.base import FacetModel

__all__ = [
    "Observed",
    "as_data",
    "as_groups",
    "as_integers",
    "as_labels",
    "as_mask",
    "as_numbers",
    "as_observed",
    "as_vectors",
    "draw_labels",
    "group_sizes",
]


# Numbers that are looked at together when data are checked.
CHECKED_AT_ONCE = 2**24


@dataclass(frozen=True)
class Observed:
    """Data and what is given beside them, row by row.

    :ivar x: ``[N, *x_shape]``.
    :ivar given: tensors with N rows each, by the keyword that a model takes them by, such as ``label``.
    :ivar size: how many data it stands for in an objective, where that is not its number of rows.
    """

    x: Tensor
    given: dict[str, Tensor] = field(default_factory=dict)
    size: float | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor | slice) -> Observed:
        return Observed(self.x[rows], {name: values[rows] for name, values in self.given.items()})

    def to(self, device: torch.device) -> Observed:
        given = {name: values.to(device, non_blocking=True) for name, values in self.given.items()}
        return Observed(self.x.to(device, non_blocking=True), given, self.size)

    def split(self, size: int) -> Iterator[Observed]:
        """Rows in their order, ``size`` at a time."""
        return (self[slice(start, start + size)] for start in range(0, len(self), size))

    def whole_groups(self, size: int) -> Iterator[Observed]:
        """About ``size`` rows at a time, no group in two parts; as :meth:`split` where there are no groups."""
        if "group" not in self.given:
            yield from self.split(size)
            return
        order = self.given["group"].argsort(stable=True)
        ends = self.given["group"].bincount().cumsum(0)
        last = ends[
            torch.searchsorted(ends, torch.arange(size, len(self) + size, size, device=ends.device)).clamp_max(
                len(ends) - 1
            )
        ]
        cuts = [0, *last.unique().tolist()]
        for start, end in pairwise(cuts):
            yield self.regrouped(order[start:end])

    def regrouped(self, rows: Tensor) -> Observed:
        """These rows, their groups numbered from 0 on."""
        part = self[rows]
        return Observed(part.x, part.given | {"group": part.given["group"].unique(return_inverse=True)[1]})


def as_observed(
    x: ArrayLike | Tensor, given: Mapping[str, Any], model: FacetModel, accepts: Collection[str] = ()
) -> Observed:
    """``x`` with what ``model`` takes beside it, all checked.

    :param given: by keyword; ``None`` counts as not given.
    :param accepts: keywords of what may be given and need not.
    :raises ValueError: as :func:`as_data`; and if something is missing, or the model takes no such thing.
    """
    data = as_data(x, model)
    found = {name: values for name, values in given.items() if values is not None}
    if unknown := sorted(found.keys() - {*model.takes, *accepts}):
        taken = " and ".join([*model.takes, *(f"{name}, if known," for name in accepts)]) or "nothing"
        raise ValueError(
            f"{type(model).__name__} takes {taken} beside x, got {' and '.join(unknown)}: is that a misspelt option?"
        )
    if missing := [name for name in model.takes if name not in found]:
        raise ValueError(f"{type(model).__name__} needs {missing[0]}= beside x, with one entry per datum")
    return Observed(data, {name: model.check_given(name, values, len(data)) for name, values in found.items()})


def as_labels(name: str, values: ArrayLike | Tensor, n: int, num_classes: int, unknown: bool = False) -> Tensor:
    """Classes ``[n]``, integers from 0 to ``num_classes - 1``.

    :param name: the keyword that they were given by.
    :param unknown: whether -1 may stand for a class that is not known.
    :raises ValueError: for another length, other numbers than integers, or classes that there are not.
    """
    labels = as_integers(name, values, n, "class")
    low, high = (int(bound) for bound in torch.aminmax(labels))
    if low < (-1 if unknown else 0) or high >= num_classes:
        marked = ", and -1 where it is not known" if unknown else ""
        raise ValueError(
            f"{name} has classes from {low} to {high}, but the model was built for 0 to {num_classes - 1}{marked}"
        )
    return labels


def draw_labels(
    n: int, num_classes: int, device: torch.device, given: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """Classes of ``n`` data that are drawn, each as likely; or the given ones, checked.

    :raises ValueError: as :func:`as_labels`, or if something else is given.
    """
    beside = dict(given or {})
    label = beside.pop("label", None)
    if beside:
        raise ValueError(f"only label= can be given beside the latents, got {' and '.join(beside)}")
    if label is None:
        return {"label": torch.randint(num_classes, (n,), device=device)}
    return {"label": as_labels("label", label, n, num_classes).to(device)}


def as_groups(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Groups ``[n]`` numbered from 0 on, of integers of any values.

    :param name: the keyword that they were given by.
    :raises ValueError: for another length, or other numbers than integers.
    """
    return as_integers(name, values, n, "group").unique(return_inverse=True)[1]


def group_sizes(group: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """How many rows each of B slots has, for groups ``[B]`` numbered from 0 on: ``[B]``, 0 for slots not used.

    There are as many slots as rows, so that nothing has to be counted on the host.
    """
    ones = torch.ones(len(group), dtype=dtype, device=group.device)
    return torch.zeros_like(ones).index_add(0, group, ones)


def as_mask(name: str, values: ArrayLike | Tensor, n: int) -> Tensor:
    """Truth values ``[n]``.

    :param name: the keyword that they were given by.
    :raises ValueError: for another length, or other values.
    """
    mask = as_numbers(values, name)
    if tuple(mask.shape) != (n,) or mask.dtype != torch.bool:
        raise ValueError(f"{name} must hold {n} truth values, one per datum, got {mask.dtype} {list(mask.shape)}")
    return mask


def as_integers(name: str, values: ArrayLike | Tensor, n: int, what: str) -> Tensor:
    """Integers ``[n]``.

    :param name: the keyword that they were given by.
    :param what: what each of them stands for.
    :raises ValueError: for another length, or other numbers than integers.
    """
    integers = as_numbers(values, name)
    if tuple(integers.shape) != (n,):
        raise ValueError(
            f"{name} has shape {list(integers.shape)}, but there are {n} data: one {what} per datum is needed"
        )
    if integers.is_floating_point() or integers.is_complex() or integers.dtype == torch.bool:
        raise ValueError(f"{name} must hold integers, got {integers.dtype}: convert them, if each stands for a {what}")
    return integers.long()


def as_vectors(name: str, values: ArrayLike | Tensor, n: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Real vectors ``[n, dim]``, of ``dtype``.

    :param name: the keyword that they were given by.
    :raises ValueError: for another shape, or numbers that are not finite.
    """
    vectors = as_numbers(values, name).to(dtype)
    if tuple(vectors.shape) != (n, dim):
        raise ValueError(
            f"{name} has shape {list(vectors.shape)}, but {[n, dim]} is needed: a vector of {dim} for each of {n} data"
        )
    if not vectors.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity: drop those rows from it and from x")
    return vectors


def as_data(x: ArrayLike | Tensor, model: FacetModel) -> Tensor:
    """A tensor ``[N, *x_shape]`` that ``model`` can take: uint8 stays uint8, other numbers take the model's dtype.

    A memory-mapped array is read through once to be checked and stays what it is: batches of it are converted.

    :raises ValueError: if ``x`` is empty, is not numeric, has the wrong shape, holds NaN or infinity, or lies outside
        the support of the model's likelihood; the message says what was given and what is needed.
    """
    data = as_numbers(x)
    expected = "[N, " + ", ".join(map(str, model.x_shape)) + "]"
    if data.ndim == 0 or tuple(data.shape[1:]) != model.x_shape:
        raise ValueError(
            f"x has shape {list(data.shape)}, but the model was built for {expected}: {_shape_advice(data, model)}"
        )
    if len(data) == 0:
        raise ValueError(f"x is empty (shape {list(data.shape)}): at least one datum is needed")
    for start, part in _parts(data):
        _check_values(part, start, data, model)
    stays = data.dtype == torch.uint8 or isinstance(x, np.memmap)
    return data if stays else data.to(model.gates.dtype)


def _parts(data: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Rows with the first one's number, so many at a time that no check needs memory for all."""
    rows = max(1, CHECKED_AT_ONCE // data[0].numel())
    return ((start, data[start : start + rows]) for start in range(0, len(data), rows))


def _check_values(part: Tensor, start: int, data: Tensor, model: FacetModel) -> None:
    if part.dtype != torch.uint8:
        part = part.to(model.gates.dtype)
        bad = _bad(part, model)
        if bad.any():
            row, *within = (int(i) for i in bad.nonzero()[0])
            count = sum(int(_bad(rows.to(part), model).sum()) for _, rows in _parts(data))
            what = "infinite" if model.likelihood.takes_missing else "NaN or infinite"
            raise ValueError(
                f"x holds {count} values that are {what}, the first at index {[start + row, *within]}: "
                "drop those rows or fill them in, or, where NaN stands for what is missing, say so by the likelihood: "
                "Incomplete(...)"
            )
    model.likelihood.check(part)


def _bad(x: Tensor, model: FacetModel) -> Tensor:
    """Which entries are no numbers, and do not stand for missing ones."""
    return x.isinf() if model.likelihood.takes_missing else ~x.isfinite()


def _shape_advice(data: Tensor, model: FacetModel) -> str:
    if tuple(data.shape) == model.x_shape:
        return "for a single datum give x[None]"
    if len(data.shape) > 1 and prod(data.shape[1:]) == prod(model.x_shape):
        return f"reshape it, for example x.reshape(len(x), {', '.join(map(str, model.x_shape))})"
    return f"build the model with x_shape={tuple(data.shape[1:])}, or look for what is wrong with the data"


def as_numbers(x: ArrayLike | Tensor, name: str = "x") -> Tensor:
    """Numbers as a tensor of their own type.

    :param name: the keyword that they were given by.
    :raises ValueError: for what is no array of numbers.
    """
    if isinstance(x, Tensor):
        return x
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{name} must be an array, with rows that are alike: {error}") from error
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name} must hold numbers, got {type(x).__name__} of dtype {array.dtype}")
    if not array.dtype.isnative:
        raise ValueError(f"{name} has the byte order of another machine: give x.astype({array.dtype.name!r})")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes to data
        # Torch knows no steps backwards.
        return torch.from_numpy(array.copy() if any(step < 0 for step in array.strides) else array)
