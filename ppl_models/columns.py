"""A likelihood a column: tables of numbers, categories and counts, with gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor, nn

from ppl_models.configurable import CLASS
from ppl_models.distributions import NO_SHAPE
from ppl_models.given.checks import check_kind
from ppl_models.likelihood_base import Likelihood


class ColumnsDistribution(dist.TorchDistribution):
    """Independent columns, each with a distribution of its own; a NaN in a value adds nothing.

    The ``mean`` of a column of categories is its most probable code.

    :param columns: of each column, batch ``[...]``, event ``[1]``.
    :param placeholders: a value within the support of each, instead of missing ones.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self, columns: Sequence[dist.TorchDistribution], placeholders: Sequence[float | Tensor]
    ) -> None:
        self.columns, self.placeholders = tuple(columns), tuple(placeholders)
        super().__init__(
            self.columns[0].batch_shape, torch.Size([len(self.columns)]), validate_args=False
        )

    @property
    def mean(self) -> Tensor:
        return torch.cat([column.mean for column in self.columns], -1)

    @property
    def variance(self) -> Tensor:
        return torch.cat([column.variance for column in self.columns], -1)

    def log_probs(self, value: Tensor) -> Tensor:
        """Log-density or log-probability of each entry ``[..., D]``, in nats; 0 if missing."""
        missing = value.isnan()
        filled = [
            torch.where(missing[..., k, None], place, value[..., k, None])
            for k, place in enumerate(self.placeholders)
        ]
        columns = zip(self.columns, filled, strict=True)
        each = [column.base_dist.log_prob(values) for column, values in columns]
        return torch.where(missing, 0.0, torch.cat(torch.broadcast_tensors(*each), -1))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.log_probs(value).sum(-1)

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        return torch.cat([column.sample(sample_shape) for column in self.columns], -1)

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> ColumnsDistribution:
        expanded = [column.expand(torch.Size(batch_shape)) for column in self.columns]
        return ColumnsDistribution(expanded, self.placeholders)


class Columns(Likelihood):
    r"""A likelihood for each column of a table ``[N, D]``, in which NaN marks a gap.

    .. math:: p(x \mid z) = \prod_{d \,\text{observed}} p_d(x_d \mid z)

    Gaps are left out, as by :class:`~ppl_models.likelihoods.Incomplete` (Nazabal et al., *Handling
    incomplete heterogeneous data using VAEs*, 2020). Categories are codes from 0 on, whose means
    are the most probable ones. Densities, draws and means are in the units of x: the bound is in
    nats per datum, of a density for numbers and a probability for categories and counts. Encoders
    see the columns' own features, 0 in a gap, and then for each column whether there is one.

    :param columns: a likelihood for each column by name, in the columns' order: any of single
        entries, such as ``Normal(loc=40.0, unit=12.0)``, ``StudentT()``, ``LogNormal()``,
        ``Bernoulli()``, ``Categorical(3)``, ``Ordinal(5)``, ``Poisson()``, ``NegativeBinomial()``.
    :raises ValueError: if ``columns`` maps no names to such likelihoods, or two columns share one.

    Example:
        >>> import torch
        >>> from ppl_models import Categorical, Columns, Normal
        >>> likelihood = Columns({"age": Normal(5.0, loc=40.0, unit=12.0), "city": Categorical(3)})
        >>> likelihood.output_shape((2,)), likelihood.features_shape((2,))
        ((4,), (6,))
        >>> x = torch.tensor([[52.0, 2.0], [float("nan"), 0.0]])
        >>> likelihood.features(x)
        tensor([[1., 0., 0., 1., 0., 0.],
                [0., 1., 0., 0., 1., 0.]])
        >>> likelihood(torch.zeros(2, 4), event_dim=1).log_prob(x)
        tensor([-6.5070, -1.0986])
    """

    takes_missing = True
    entrywise = False

    def __init__(self, columns: Mapping[str, Likelihood]) -> None:
        super().__init__()
        _check_columns(columns)
        self.names = tuple(columns)
        self.likelihoods = nn.ModuleList(columns.values())
        self.discrete = all(each.discrete for each in self)

    def __iter__(self) -> Iterator[Likelihood]:
        return iter(self.likelihoods)  # type: ignore[arg-type]

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """:raises ValueError: if x has other columns, or one does not know its categories."""
        if tuple(x_shape) != (len(self.names),):
            raise ValueError(
                f"x_shape is {tuple(x_shape)}, but there are {len(self.names)} columns, "
                f"{_some(self.names)}: give x_shape=({len(self.names)},)"
            )
        return (sum(self._outputs),)

    @cached_property
    def _outputs(self) -> list[int]:
        """Length of the decoder's output for each column."""
        sizes: list[int] = []
        for name, each in zip(self.names, self, strict=True):
            with _about(name):
                sizes += each.output_shape((1,))
        return sizes

    def features_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        return (sum(each.features_shape((1,))[0] for each in self) + len(self.names),)

    def prepare(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        x = x.to(dtype) if x.dtype == torch.uint8 else x  # codes and counts, not 8-bit images
        if all(type(each).prepare is Likelihood.prepare for each in self):
            return x
        prepared = [
            each.prepare(one, dtype) for each, one in zip(self, x.split(1, -1), strict=True)
        ]
        return torch.where(x.isnan(), x, torch.cat(prepared, -1))

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([*self.column_features(x), x.isnan().to(x)], -1)

    def column_features(self, x: Tensor) -> list[Tensor]:
        """What encoders read of each column, ``[B, F_d]``; 0 in a gap."""
        return [
            torch.where(
                one.isnan(), 0.0, each.features(torch.where(one.isnan(), each.placeholder, one))
            )
            for each, one in zip(self, x.split(1, -1), strict=True)
        ]

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        parts = output.split(self._outputs, -1)
        columns = [each(part, 1) for each, part in zip(self, parts, strict=True)]
        return ColumnsDistribution(columns, [each.placeholder for each in self])

    def misfit(self, p: dist.TorchDistribution, x: Tensor) -> Tensor:
        """Minus the log-density, in nats per column: squared distances of codes mean nothing."""
        return -p.log_prob(x).mean() / len(self.names)

    def fitted(self, values: Tensor) -> Columns:
        """With what was not given of each column chosen from ``values`` ``[N, D]``."""
        each = [
            one.fitted(column[~column.isnan()])
            for one, column in zip(self, values.unbind(-1), strict=True)
        ]
        return Columns(dict(zip(self.names, each, strict=True)))

    def check(self, x: Tensor) -> None:
        """:raises ValueError: naming a column outside its likelihood's support."""
        numbers = x.float() if x.dtype == torch.uint8 else x
        for name, each, column in zip(self.names, self, numbers.unbind(-1), strict=True):
            if len(there := column[~column.isnan()]):
                with _about(name):
                    each.check(there)


def numeric(columns: Columns, x: Tensor) -> list[Tensor]:
    """Each column of ``x`` as encoders see it, ``[N, F_d]``, with a gap as the others' mean."""
    return [
        torch.where(gap[:, None], each.sum(0) / (~gap).sum().clamp_min(1), each)
        for each, gap in zip(columns.column_features(x), x.isnan().unbind(-1), strict=True)
    ]


def _check_columns(columns: Mapping[str, Likelihood]) -> None:
    check_kind("columns", columns, Mapping, 'likelihoods by name, such as {"age": Normal()}')
    if not columns:
        raise ValueError('columns is empty: give at least one, such as {"age": Normal()}')
    for name, each in columns.items():
        if not isinstance(name, str) or name in ("", CLASS):
            raise ValueError(
                f"names of columns must be strings, not empty and not {CLASS!r}: got {name!r}"
            )
        if not isinstance(each, Likelihood) or not each.entrywise:
            raise ValueError(
                f"column {name!r} needs a likelihood of single entries, such as Normal(), got "
                f"{each!r}"
            )
    if len({id(each) for each in columns.values()}) < len(columns):
        raise ValueError(
            f"the columns {_some(tuple(columns))} share a likelihood object: give each its own"
        )


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Errors within this context say which column they are about, without a word on images."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"column {name!r}: {str(error).splitlines()[0]}") from error


def _some(names: Sequence[str]) -> str:
    return str(list(names) if len(names) <= 6 else [*names[:6], "..."])
