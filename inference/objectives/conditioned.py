"""The ELBO less a penalty that keeps a mixture's latents identifiable."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor

from inference.objectives.enumerated import GuideEnum_ELBO
from ppl_models.base import FacetModel
from ppl_models.given.checks import check_kind, number
from ppl_models.priors import GaussianMixture

__all__ = ["Conditioned_ELBO"]


class Conditioned_ELBO(GuideEnum_ELBO):
    r""":class:`GuideEnum_ELBO` less :math:`\alpha \, \mathrm{CN}(L)` for each datum (Willetts and
    Paige, *I Don't Need u*, footnote 2).

    CN is the condition number of L, the components' natural parameters less those of the first one
    (Eq. 2), summed over the model's Gaussian mixtures of diagonal covariance; each needs 2 d + 1
    components, of different scales: where all are alike, as in a new model, L is singular and the
    objective infinite, so begin with :func:`~inference.warm_start` or
    :func:`~inference.fit_mixtures`. It is at most the ELBO; the history's ``elbo`` leaves the
    penalty out, its ``objective`` has it.

    :param weight: :math:`\alpha`, in nats per datum, at least 0.
    :param max_plate_nesting: of the guide, as for :class:`GuideEnum_ELBO`.
    :raises ValueError: if the weight is negative; in training, if a mixture has too few components
        or the model's are of other kinds. Without mixtures there is no penalty.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from inference import Conditioned_ELBO, SVIRunner
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((6,), GaussianMixture(5, 2), network=SharedMLP((8,)))
        >>> loc, variance = torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(0))
        >>> model.mixtures["cluster"].initialize(loc, torch.diag_embed(0.5 + variance))
        >>> objective = Conditioned_ELBO(0.01, max_plate_nesting=1)
        >>> runner = SVIRunner(model, VaDEGuide(model), objective=objective)
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> runner.fit(x, epochs=2, progress=False).epoch
        2
    """

    def __init__(self, weight: float, *, max_plate_nesting: int, num_particles: int = 1) -> None:
        if not 0 <= number(weight) < inf:
            raise ValueError(f"weight is in nats for each datum, at least 0, got {weight!r}")
        super().__init__(max_plate_nesting=max_plate_nesting, num_particles=num_particles)
        self.weight = weight

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().differentiable_loss(model, guide, *args, **kwargs)
        if not self.weight or not model.mixtures:  # none while a warm start replaces them
            return loss
        return loss + len(args[0]) * self.weight * _condition_numbers(model).to(loss)


def _condition_numbers(model: Any) -> Tensor:
    check_kind("model", model, FacetModel, "a model, such as VaDE(...)")
    priors = {
        name: prior
        for name, prior in model.mixtures.items()
        if isinstance(prior, GaussianMixture) and prior.covariance == "diag"
    }
    if not priors:
        raise ValueError(
            "Conditioned_ELBO is for Gaussian mixtures of diagonal covariance, and this model has "
            "none: use GuideEnum_ELBO"
        )
    for name, prior in priors.items():
        if prior.num_components <= 2 * prior.dim:
            raise ValueError(
                f"facet {name!r} has {prior.num_components} components of length {prior.dim}, and "
                f"its condition number needs {2 * prior.dim + 1}: give it more, or use "
                "GuideEnum_ELBO"
            )
    return sum((_condition_number(prior) for prior in priors.values()), torch.zeros(()))


def _condition_number(prior: GaussianMixture) -> Tensor:
    parameters = prior.natural_parameters()
    values = torch.linalg.svdvals((parameters[1:] - parameters[0]).T)
    return values[0] / values[-1]
