"""Numbers that say how well a fitted model and guide describe data."""

from __future__ import annotations

import math

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from guides.base import FacetGuide, evaluating
from inference.objectives import Loss
from ppl_models.base import FacetModel
from ppl_models.data import as_data

__all__ = ["elbo", "mutual_information"]


@torch.no_grad()
def elbo(model: FacetModel, guide: FacetGuide, x: ArrayLike | Tensor, num_draws: int = 100) -> tuple[float, float]:
    """Monte-Carlo estimate of the ELBO of ``x`` with every weight and gate at 1: mean and its standard error.

    Both in nats per datum. The error is that of the draws of the latents, for the data as given.

    :param x: ``[N, *x_shape]``.
    :param num_draws: independent draws of the whole estimate, at least 2.
    :raises ValueError: if the data do not fit the model or ``num_draws`` is below 2.
    """
    if num_draws < 2:
        raise ValueError(f"num_draws must be at least 2 to give a standard error, got {num_draws}")
    data = as_data(x, model).to(model.gates.device)
    loss = Loss(model, guide)
    gates, model.gates = model.gates, torch.ones_like(model.gates)
    try:
        with evaluating(loss), model.weights_set_to(torch.ones_like(model.kl_weights)):
            draws = torch.stack([_mean_elbo(loss, data) for _ in range(num_draws)])
    finally:
        model.gates = gates
    return float(draws.mean()), float(draws.std() / math.sqrt(num_draws))


def _mean_elbo(loss: Loss, data: Tensor, batch_size: int = 4096) -> Tensor:
    parts = [-loss(batch) * len(batch) for batch in data.split(batch_size)]
    return torch.stack(parts).sum() / len(data)


@torch.no_grad()
def mutual_information(guide: FacetGuide, x: Tensor) -> dict[str, Tensor]:
    """I(x; c_j) of every mixture facet, in nats: entropy of the mean responsibilities less their mean entropy.

    It vanishes when a facet has died (its latent ignores x) *and* when all data share one cluster; the entropy of the
    mean responsibilities alone would call the first of these healthy.

    :param x: checked data ``[N, *x_shape]`` on the guide's device.
    """
    posterior = guide.encode(x)
    information = {}
    for name, prior in guide.model.mixtures.items():
        log_proba = prior.log_joint(posterior[name].mean).log_softmax(-1)
        mean_log_proba = log_proba.logsumexp(0) - math.log(len(x))
        information[name] = _entropy(mean_log_proba) - _entropy(log_proba).mean()
    return information


def _entropy(log_proba: Tensor) -> Tensor:
    return -(log_proba.exp() * log_proba).sum(-1)
