"""Numbers that say how well a fitted model and guide describe data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import entropy
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from guides.base import FacetGuide, check_guide
from inference.objectives import Loss
from ppl_models.base import FacetModel, evaluating
from ppl_models.checks import check_size
from ppl_models.data import Observed
from ppl_models.priors import ClassBlocks, StandardNormal

__all__ = ["elbo", "kl_by_dimension", "mutual_information"]


@torch.no_grad()
def elbo(
    model: FacetModel, guide: FacetGuide, x: ArrayLike | Tensor, num_draws: int = 100, **given: Any
) -> tuple[float, float]:
    """Monte-Carlo estimate of the ELBO of ``x`` with every weight and gate at 1: mean and its standard error.

    Both in nats per datum. The error is that of the draws of the latents, for the data as given.

    :param x: ``[N, *x_shape]``.
    :param num_draws: independent draws of the whole estimate, at least 2.
    :param given: what the model takes beside x, one entry per datum.
    :raises ValueError: if the data do not fit the model or ``num_draws`` is below 2.
    """
    if check_size("num_draws", num_draws) < 2:
        raise ValueError(f"num_draws must be at least 2 to give a standard error, got {num_draws}")
    loss = Loss(model, guide)
    data = guide.observed(x, given).to(model.gates.device)
    at_one = model.weights_set_to(torch.ones_like(model.kl_weights), torch.ones_like(model.gates))
    with evaluating(guide), guide.unrelaxed(), at_one:
        draws = torch.stack([_mean_elbo(loss, data) for _ in range(num_draws)])
    return float(draws.mean()), float(draws.std() / math.sqrt(num_draws))


def _mean_elbo(loss: Loss, data: Observed, batch_size: int = 4096) -> Tensor:
    parts = [-loss(batch.x, **batch.given) * len(batch) for batch in data.whole_groups(batch_size)]
    return torch.stack(parts).sum() / len(data)


def mutual_information(guide: FacetGuide, x: ArrayLike | Tensor, **given: Any) -> dict[str, float]:
    """I(x; c_j) of every mixture facet, in nats: entropy of the mean responsibilities less their mean entropy.

    It vanishes when a facet has died (its latent ignores x) *and* when all data share one cluster; the entropy of the
    mean responsibilities alone would call the first of these healthy.

    Clusters that are given are not inferred from x, and have no such number.

    :param x: ``[N, *x_shape]``.
    :param given: what the model takes beside x, one entry per datum.
    :raises ValueError: if ``x`` does not fit the model.
    """
    check_guide(guide)
    return {
        name: float(entropy(proba.mean(0)) - entropy(proba, axis=-1).mean())
        for name, proba in guide.predict_proba(x, **given).items()
    }


@torch.no_grad()
def kl_by_dimension(guide: FacetGuide, x: ArrayLike | Tensor, **given: Any) -> dict[str, np.ndarray]:
    """KL(q(z given x) || p(z)) of every latent dimension: ``{name: [N, d]}``, nats.

    Of facets whose prior is a standard normal, with a class beside it or without.

    :param x: ``[N, *x_shape]``.
    :param given: what the model takes beside x, one entry per datum.
    :raises ValueError: if ``x`` does not fit the model.
    """
    check_guide(guide)
    return {
        name: kl_divergence(q.base_dist, guide.model.priors[name].latent().base_dist).cpu().numpy()
        for name, q in guide.posterior(x, **given).items()
        if isinstance(q, Independent) and isinstance(guide.model.priors[name], StandardNormal | ClassBlocks)
    }
