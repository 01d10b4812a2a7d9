"""The importance-weighted bound (Burda et al., *Importance Weighted Autoencoders*, 2016)."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.poutine import Trace
from torch import Tensor

from inference.objectives.direct import Direct_ELBO, densities
from ppl_models.given.checks import check_size


class ImportanceWeighted_ELBO(Direct_ELBO):
    r"""IWAE for the model with its clusters summed out: a tighter bound for a
    :class:`~guides.vade.MarginalGuide`.

    .. math::

        \mathbb{E} \log \frac{1}{K} \sum_{k=1}^{K}
        \frac{p(x \mid z^{(k)}) \prod_j p(z_j^{(k)})}{\prod_j q(z_j^{(k)} \mid x)}

    (Burda et al., Eq. 8), for each datum; K = 1 is the ELBO, and the bound never decreases in K. It
    is a bound if every weight is 1; the weights of an annealed run multiply log-densities before
    the mean is taken.

    :param num_draws: K; replaces the guide's ``num_samples``.
    :raises ValueError: if ``num_draws`` is below 1.

    Example:
        >>> import torch
        >>> from facetvae import GaussianMixture, ImportanceWeighted_ELBO, Loss, MarginalGuide, VaDE
        >>> model = VaDE((6,), GaussianMixture(3, 2))
        >>> loss = Loss(model, MarginalGuide(model), ImportanceWeighted_ELBO(num_draws=10))
        >>> loss(torch.zeros(5, 6)).shape
        torch.Size([])
    """

    def __init__(self, num_draws: int = 10) -> None:
        self.num_draws = check_size("num_draws", num_draws)
        super().__init__(max_plate_nesting=2)

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        return super().differentiable_loss(
            model, guide, *args, **{**kwargs, "num_samples": self.num_draws}
        )

    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        log_weight = self._sum(model_trace) - self._sum(guide_trace)
        if self.num_draws == 1:
            return log_weight.sum()
        return (log_weight.logsumexp(0) - math.log(self.num_draws)).sum()

    def _sum(self, trace: Trace) -> Tensor:
        """Log-density of each whole draw, ``[K, B]``, or ``[B]`` for K = 1."""
        # Model and guide weight each draw by 1 / K; a site outside the draws (a given cluster)
        # counts fully in each.
        terms = [self.num_draws * term if term.dim() == 2 else term for term in densities(trace)]
        return torch.stack(torch.broadcast_tensors(*terms)).sum(0)
