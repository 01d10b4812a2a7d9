"""Likelihoods of categories, which data hold as codes from 0 on: unordered and ordered ones."""

from __future__ import annotations

from collections.abc import Sequence

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from ppl_models.given.checks import check_size
from ppl_models.likelihood_base import Likelihood, rebuilt


class Codes(dist.Categorical):
    """Codes 0 to K - 1 as floats, beside numbers; their ``mean`` is the most probable one."""

    @property
    def mean(self) -> Tensor:
        return self.logits.argmax(-1).to(self.logits)

    @property
    def variance(self) -> Tensor:
        codes = torch.arange(self.probs.shape[-1]).to(self.probs)
        mean = (self.probs * codes).sum(-1)
        return (self.probs * codes.square()).sum(-1) - mean.square()

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        return super().sample(sample_shape).to(self.logits)


class CodedLikelihood(Likelihood):
    """Base of likelihoods of codes."""

    discrete = True
    eight_bit = 1

    def __init__(self, num_categories: int | None = None) -> None:
        """:raises ValueError: if it is no integer of at least 2."""
        super().__init__()
        self.num_categories = num_categories
        if num_categories is None:
            return
        check_size("num_categories", num_categories, least=2)
        self.support = (0.0, float(num_categories - 1))

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """:raises ValueError: if the number of categories is not known."""
        if self.num_categories is None:
            name = type(self).__name__
            raise ValueError(
                f"{name}() does not know its categories: give their number, such as {name}(3)"
            )
        return super().output_shape(x_shape)

    def fitted(self, values: Tensor) -> Likelihood:
        if self.num_categories is not None or not len(values):
            return self
        return rebuilt(self, num_categories=max(2, int(values.max()) + 1))

    def check(self, x: Tensor) -> None:
        """:raises ValueError: naming a value that is no code, and the codes that there are."""
        low, high = self.support
        if (wrong := x[(x < low) | (x > high) | (x != x.floor())]).numel():
            raise ValueError(
                f"x has values such as {float(wrong.flatten()[0]):.4g}, but "
                f"{type(self).__name__}({self.num_categories}) needs the codes 0 to {high:.0f}: "
                "number the categories from 0 on"
            )

    def extra_repr(self) -> str:
        return "" if self.num_categories is None else f"{self.num_categories}"


class Categorical(CodedLikelihood):
    """Independent categories by logits from the decoder; encoders see codes as zeros and a one.

    :param num_categories: K, at least 2; ``None`` only for a column that is still to be read.
    :raises ValueError: if it is no integer of at least 2.

    Example:
        >>> import torch
        >>> from ppl_models import Categorical
        >>> likelihood = Categorical(3)
        >>> likelihood(torch.zeros(1, 3), event_dim=1).log_prob(torch.tensor([[2.0]])).exp()
        tensor([0.3333])
        >>> likelihood.features(torch.tensor([[2.0]]))
        tensor([[0., 0., 1.]])
    """

    def __init__(self, num_categories: int | None = None) -> None:
        super().__init__(num_categories)
        self.parameters_per_entry = self.features_per_entry = num_categories or 1

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([(x == k).to(x) for k in range(self.features_per_entry)], 1)

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        logits = torch.stack(output.chunk(self.parameters_per_entry, -event_dim), -1)
        return Codes(logits=logits).to_event(event_dim)


class Ordinal(CodedLikelihood):
    r"""Independent ordered categories by cumulative logits,
    :math:`p(x \leq k) = \sigma(b_k - \text{output})`, with ordered cut points b that are learned,
    the same for all entries.

    As ``pyro.distributions.OrderedLogistic``, but in logits, which float32 does not round to 0.
    Encoders see codes on a scale from -1 to 1.

    The argument is that of :class:`Categorical`.

    Example:
        >>> import torch
        >>> from ppl_models import Ordinal
        >>> p = Ordinal(4)(torch.zeros(1, 1), event_dim=1)
        >>> p.log_prob(torch.tensor([[3.0]])).exp()  # before training all are as probable
        tensor([0.2500], grad_fn=<ExpBackward0>)
    """

    def __init__(self, num_categories: int | None = None) -> None:
        super().__init__(num_categories)
        K = num_categories or 2
        cuts = torch.logit(torch.arange(1, K) / K)
        self.first_cut = nn.Parameter(cuts[0].clone())
        if K > 2:
            self.log_steps = nn.Parameter(cuts.diff().log())

    @property
    def cuts(self) -> Tensor:
        """The cut points, ascending: ``[K - 1]``."""
        if not hasattr(self, "log_steps"):
            return self.first_cut[None]
        return torch.cat([self.first_cut[None], self.first_cut + self.log_steps.exp().cumsum(0)])

    def features(self, x: Tensor) -> Tensor:
        high = self.support[1] if self.num_categories else 1.0
        return 2 * x / high - 1

    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        below = self.cuts - output.unsqueeze(-1)
        # log(s(b) - s(a)) = log s(b) + log s(-a) + log(1 - exp(a - b)), s the sigmoid.
        logits = [logsigmoid(below[..., :1]), -softplus(below[..., -1:])]
        if hasattr(self, "log_steps"):
            # Not by differences of cuts, which lose small steps to rounding.
            gaps = (-torch.expm1(-self.log_steps.exp())).log()
            logits.insert(1, logsigmoid(below[..., 1:]) - softplus(below[..., :-1]) + gaps)
        return Codes(logits=torch.cat(logits, -1)).to_event(event_dim)
