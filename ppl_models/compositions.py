"""Likelihoods of a row of counts given its total: which words a text has, given how many."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import inf
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ppl_models.counts import check_counted
from ppl_models.distributions import NO_SHAPE
from ppl_models.given.checks import check_positive, check_size
from ppl_models.given.sparse import SparseRows, sparse_rows
from ppl_models.likelihood_base import Likelihood, rebuilt
from ppl_models.rising import log_rising_sums, wide

# Total of draws and means where none is given.
TYPICAL_TOTAL = 1000.0
# Concentration of a DirichletMultinomial before it is learned, and a step of its parameter on the
# scale of logarithms: it may be too far away for a learning rate that suits networks.
FIRST_CONCENTRATION, SPEED = 100.0, 3.0


class RowsGivenTotal(dist.TorchDistribution):
    """Counts in D columns, given that their sum is what it is.

    A value ``[..., D]`` brings its own total. Draws and means have the total ``total``.

    :param logits: ``[..., D]``.
    :param total: of draws and means.
    :param offset: of the logits in each batch ``[M, D]``; with several, values ``[..., D + 1]``
        have the batch's code in their last column, which has no probability, and draws and means
        are those of batch 0.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, logits: Tensor, total: float, offset: Tensor | None = None) -> None:
        self.logits, self.total, self.offset = logits, total, offset
        self.coded = offset is not None and len(offset) > 1
        event = torch.Size([logits.shape[-1] + self.coded])
        super().__init__(logits.shape[:-1], event, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of counts given their total ``[...]``, in nats."""
        counts = value[..., : self.logits.shape[-1]]
        # A difference of numbers of the size of the total, and so in 64 bits where there are such.
        total = counts.sum(-1, dtype=wide(counts))
        ways = (total + 1).lgamma() - log_rising_sums(counts, counts.new_ones(()))
        codes = value[..., -1].long() if self.coded else None
        kernel = self._log_kernel(counts, total, self._shifted(codes))
        return (ways + kernel).to(self.logits.dtype)

    def _log_kernel(self, counts: Tensor, total: Tensor, logits: Tensor) -> Tensor:
        """The log-probability of one order of the counts ``[...]``."""
        below = logits - logits.detach().amax(-1, keepdim=True)
        chosen = (counts * below).sum(-1, dtype=total.dtype)
        return chosen - total * below.exp().sum(-1, dtype=total.dtype).log()

    def _shifted(self, codes: Tensor | None) -> Tensor:
        """Logits in these batches, or in batch 0."""
        if self.offset is None:
            return self.logits
        return self.logits + (self.offset[0] if codes is None else self.offset[codes])

    @property
    def probs(self) -> Tensor:
        """Of each column, in batch 0 ``[..., D]``."""
        return self._shifted(None).softmax(-1)

    @property
    def mean(self) -> Tensor:
        return self._coded(self.total * self.probs)

    @property
    def variance(self) -> Tensor:
        return self._coded(self.total * self.probs * (1 - self.probs) * self._dispersion)

    @property
    def _dispersion(self) -> Tensor | float:
        """By how much the variance exceeds a multinomial's."""
        return 1.0

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SHAPE) -> Tensor:
        probs = self._drawn_probs(torch.Size(sample_shape))
        return self._coded(dist.Multinomial(max(1, round(self.total)), probs).sample())

    def _drawn_probs(self, sample_shape: torch.Size) -> Tensor:
        return self.probs.expand(*sample_shape, *self.logits.shape)

    def _coded(self, counts: Tensor) -> Tensor:
        """With the code of batch 0 if there are several."""
        return nn.functional.pad(counts, (0, 1)) if self.coded else counts

    def expand(self, batch_shape: torch.Size, _instance: Any = None) -> RowsGivenTotal:
        new = copy(self)
        new.logits, new._batch_shape = self.logits.expand(*batch_shape, -1), torch.Size(batch_shape)
        return new


class OverdispersedRows(RowsGivenTotal):
    """The same with probabilities that vary from row to row, by a Dirichlet distribution.

    :param concentration: sum of the Dirichlet distribution's parameters, a scalar.
    """

    def __init__(
        self, logits: Tensor, concentration: Tensor, total: float, offset: Tensor | None = None
    ) -> None:
        self.concentration = concentration
        super().__init__(logits, total, offset)

    def _log_kernel(self, counts: Tensor, total: Tensor, logits: Tensor) -> Tensor:
        rising = log_rising_sums(counts, self._alpha(logits.softmax(-1)))
        start = self.concentration.to(total.dtype)
        return rising - ((start + total).lgamma() - start.lgamma())

    def _alpha(self, probs: Tensor) -> Tensor:
        return (self.concentration * probs).clamp_min(torch.finfo(probs.dtype).tiny)

    @property
    def _dispersion(self) -> Tensor | float:
        return (self.total + self.concentration) / (1 + self.concentration)

    def _drawn_probs(self, sample_shape: torch.Size) -> Tensor:
        return dist.Dirichlet(self._alpha(self.probs)).sample(sample_shape)


class Multinomial(Likelihood):
    r"""A row of counts given its total n, x ~ Multinomial(n, softmax(output)).

    .. math:: \log p(x \mid n, z) = \log \frac{n!}{\prod_d x_d!} + \sum_d x_d \log p_d(z)

    The total of each row is given, and takes the place of a size factor. Bounds are in nats per
    datum, of the exact probability; a row whose total is 0 has the log-probability 0. Encoders see
    log(1 + x m / n), where m is a typical total. Data may be sparse
    (:class:`~ppl_models.given.sparse.SparseRows`).

    With several batches, such as laboratories, the last column of x holds the batch's code, which
    is given: each batch has learned offsets of the logits, and encoders see its code as zeros and a
    one. Means and draws have the total m, and are as in batch 0.

    :param num_batches: M; with 2 or more, the last column of x holds codes from 0 to M - 1.
    :param num_columns: D, if the logits are to have offsets: needed for several batches.
    :param total: m; by default 1,000.
    :raises ValueError: if a number is too small, or several batches lack ``num_columns``.

    Example:
        >>> import torch
        >>> from ppl_models import Multinomial
        >>> p = Multinomial()(torch.zeros(1, 4), event_dim=1)
        >>> p.log_prob(torch.tensor([[1.0, 1.0, 0.0, 0.0]])).exp()  # of 16 pairs in order
        tensor([0.1250])
        >>> x = torch.tensor([[6.0, 2.0], [1.0, 3.0]])
        >>> Multinomial().fitted(x)
        Multinomial(num_columns=2, total=4)
    """

    support = (0.0, inf)
    discrete = True
    eight_bit = 1
    takes_sparse = True
    entrywise = False

    def __init__(
        self, num_batches: int = 1, num_columns: int | None = None, total: float | None = None
    ) -> None:
        super().__init__()
        self.num_batches = check_size("num_batches", num_batches)
        self._is_coded = num_batches > 1  # the last column of x
        self.given_total = total
        self.total = TYPICAL_TOTAL if total is None else check_positive("total", total)
        self.num_columns = num_columns
        if num_columns is not None:
            check_size("num_columns", num_columns)
            self.offset = nn.Parameter(torch.zeros(num_batches, num_columns))

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """:raises ValueError: if x has other columns, or their number is missing."""
        found = x_shape[-1] - self._is_coded
        if len(x_shape) != 1 or found < 1:
            raise ValueError(
                f"{type(self).__name__} describes rows of columns, and x_shape is {tuple(x_shape)}"
            )
        if self.num_columns is None and self._is_coded:
            raise ValueError(
                f"{type(self).__name__} needs num_columns= for its offsets of {self.num_batches} "
                f"batches: give num_columns={found}"
            )
        if self.num_columns not in (None, found):
            beside = " and the batch's code" if self._is_coded else ""
            raise ValueError(
                f"x_shape is {tuple(x_shape)}, but {type(self).__name__} has "
                f"{self.num_columns} columns{beside}: give x_shape="
                f"({self.num_columns + self._is_coded},)"
            )
        return (found,)

    def features_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        return (x_shape[0] - 1 + self.num_batches if self._is_coded else x_shape[0],)

    def features(self, x: Tensor) -> Tensor:
        counts = self._counts(x)
        seen = (counts * (self.total / counts.sum(-1, keepdim=True).clamp_min(1))).log1p()
        if not self._is_coded:
            return seen
        codes = one_hot(x[..., -1].long(), self.num_batches)
        return torch.cat([seen, codes.to(seen)], -1)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        return RowsGivenTotal(output, self.total, getattr(self, "offset", None))

    def misfit(self, p: dist.TorchDistribution, x: Tensor) -> Tensor:
        """Minus the log-probability, in nats per count."""
        return -p.log_prob(x).sum() / self._counts(x).sum().clamp_min(1)

    def fitted(self, values: Tensor | SparseRows) -> Likelihood:
        """With the median total, if none was given, and offsets that begin at the shares of the
        columns in each batch, from data ``[N, D]``, or ``[N, D + 1]`` with the batches' codes.
        """
        sums, totals = _sums(values, self.num_batches)
        # Shares in a batch are drawn to those of all batches by as many counts as there are
        # columns; those of all to equal ones by half a count a column.
        D = sums.shape[1]
        shares = (sums.sum(0) + 0.5) / (sums.sum() + 0.5 * D)
        shares = (sums + D * shares) / (sums.sum(1, keepdim=True) + D)
        typical = float(totals[totals > 0].median()) if (totals > 0).any() else TYPICAL_TOTAL
        built = rebuilt(self, num_columns=D, total=self.given_total or typical)
        with torch.no_grad():
            built.offset.copy_(shares.log())
        return built

    def check(self, x: Tensor) -> None:
        """:raises ValueError: naming a value that is no count, or no batch's code."""
        check_counted(self._counts(x), type(self).__name__)
        if self._is_coded:
            self._check_codes(x[..., -1])

    def check_sparse(self, x: SparseRows) -> None:
        for _, column, values in x.blocks():
            is_code = column == x.num_columns - 1 if self._is_coded else column < 0
            check_counted(values[~is_code], type(self).__name__)
            self._check_codes(values[is_code])

    def _counts(self, x: Tensor) -> Tensor:
        return x[..., :-1] if self._is_coded else x

    def _check_codes(self, codes: Tensor) -> None:
        known = (codes >= 0) & (codes < self.num_batches) & (codes == codes.floor())
        if (wrong := codes[~known]).numel():
            raise ValueError(
                f"the last column of x holds codes of batches, which are 0 to "
                f"{self.num_batches - 1}, but one is {float(wrong[0]):.4g}"
            )

    def extra_repr(self) -> str:
        said: dict[str, float | None] = {"num_batches": self.num_batches} if self._is_coded else {}
        said |= {"num_columns": self.num_columns, "total": self.total}
        return ", ".join(f"{name}={value:.6g}" for name, value in said.items() if value is not None)


class DirichletMultinomial(Multinomial):
    r"""The same with overdispersion: a row's probabilities are drawn from a Dirichlet distribution
    with the parameters a softmax(output), where the concentration a is learned.

    .. math:: \log p(x \mid n, z) = \log \frac{n!\, \Gamma(a)}{\Gamma(a + n)}
        + \sum_d \log \frac{\Gamma(x_d + a p_d(z))}{x_d!\, \Gamma(a p_d(z))}

    The variance of a count is that of :class:`Multinomial` times (n + a) / (1 + a) (Minka,
    *Estimating a Dirichlet distribution*, 2000).

    The other arguments are those of :class:`Multinomial`.

    :param concentration: a before it is learned; by default 100.
    :raises ValueError: as :class:`Multinomial`; if ``concentration`` is not positive.

    Example:
        >>> import torch
        >>> from ppl_models import DirichletMultinomial
        >>> p = DirichletMultinomial(concentration=2.0)(torch.zeros(1, 2), event_dim=1)
        >>> x = torch.tensor([[0.0, 3.0], [1.0, 2.0]])
        >>> p.log_prob(x).exp()  # all numbers of the first column are as probable
        tensor([0.2500, 0.2500], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        num_batches: int = 1,
        num_columns: int | None = None,
        total: float | None = None,
        concentration: float = FIRST_CONCENTRATION,
    ) -> None:
        super().__init__(num_batches, num_columns, total)
        first = torch.tensor(check_positive("concentration", concentration))
        self.slow_log_concentration = nn.Parameter(first.log() / SPEED)

    @property
    def concentration(self) -> Tensor:
        """The concentration, a positive scalar."""
        return (SPEED * self.slow_log_concentration).exp()

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        offset = getattr(self, "offset", None)
        return OverdispersedRows(output, self.concentration, self.total, offset)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, concentration={self.concentration.item():.4g}"


def _sums(x: Tensor | SparseRows, num_batches: int) -> tuple[Tensor, Tensor]:
    """Sums of the columns in each batch ``[M, D]``, and totals of the rows ``[N]``."""
    D = x.shape[1] - (num_batches > 1)
    sums = torch.zeros(num_batches * D, dtype=torch.float64, device=x.device)
    totals = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    code = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    rows = x if isinstance(x, SparseRows) else sparse_rows(x.to_sparse())
    for row, column, value in rows.blocks():
        is_code = column == D
        code[row[is_code]] = value[is_code].long()
        row, column, value = (each[~is_code] for each in (row, column, value.double()))
        totals.index_add_(0, row, value)
        sums.index_add_(0, code[row] * D + column, value)
    return sums.view(num_batches, D), totals
