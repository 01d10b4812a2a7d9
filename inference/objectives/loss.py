"""One model, guide and objective as a module, and which of them fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from guides.base import FacetGuide, check_guide, check_model
from guides.discrete import Needs
from inference.objectives.enumerated import GuideEnum_ELBO
from inference.objectives.mean_field import MeanField_ELBO, MeanFieldEnum_ELBO
from inference.objectives.score_function import ScoreFunction_ELBO
from ppl_models.base import FacetModel
from ppl_models.modes import evaluating

__all__ = ["SUITABLE", "Loss", "default_objective"]


@dataclass(frozen=True)
class Suitable:
    """The objectives that suit guides of one kind.

    :ivar default: the objective to use if none is given.
    :ivar suitable: objectives that treat such a guide correctly.
    :ivar unsuitable: subclasses of ``suitable`` that do not.
    :ivar why: what the guide does that other objectives treat wrongly.
    """

    default: type[ELBO]
    suitable: tuple[type[ELBO], ...]
    why: str
    unsuitable: tuple[type[ELBO], ...] = ()


#: The suitable objectives by what a guide needs (:attr:`~guides.FacetGuide.needs`).
SUITABLE: dict[Needs, Suitable] = {
    Needs.ANY_OBJECTIVE: Suitable(Trace_ELBO, (ELBO,), "is a program of Pyro's"),
    Needs.NOTHING: Suitable(GuideEnum_ELBO, (ELBO,), "draws every site with a gradient"),
    Needs.GROUPING: Suitable(
        MeanField_ELBO,
        (MeanField_ELBO, GuideEnum_ELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO),
        "shares draws among the members of a group, which {objective} would treat as each row's "
        "own",
    ),
    Needs.ENUMERATION: Suitable(
        GuideEnum_ELBO,
        (GuideEnum_ELBO, TraceEnum_ELBO),
        "enumerates its clusters, which {objective} would score wrongly",
        unsuitable=(MeanFieldEnum_ELBO,),
    ),
    Needs.FREE_ENUMERATION: Suitable(
        GuideEnum_ELBO,
        (GuideEnum_ELBO, TraceEnum_ELBO),  # in closed form too: draws do not depend on each other
        "enumerates its clusters, which {objective} would score wrongly",
    ),
    Needs.CLASSIFICATION: Suitable(
        MeanFieldEnum_ELBO,
        (MeanFieldEnum_ELBO, GuideEnum_ELBO, TraceEnum_ELBO),
        "enumerates classes that are unknown, which {objective} would sample once and score "
        "wrongly",
    ),
    Needs.RELAXATION: Suitable(
        MeanField_ELBO,
        (MeanField_ELBO, TraceMeanField_ELBO),
        "draws relaxed clusters, whose density {objective} would treat as that of exact clusters, "
        "which is not a bound",
    ),
    Needs.SCORING: Suitable(
        ScoreFunction_ELBO,
        (ScoreFunction_ELBO, Trace_ELBO),
        "draws clusters without a gradient of their own, which {objective} would leave out",
        unsuitable=(TraceMeanField_ELBO,),
    ),
}


def _check_objective(objective: Any, guide: FacetGuide) -> None:
    suits = SUITABLE[guide.needs]
    if not (
        isinstance(objective, ELBO) and callable(getattr(objective, "differentiable_loss", None))
    ):
        suitable = suits.default.__name__
        raise ValueError(
            "the objective must be an instance of an ELBO with a differentiable_loss, got "
            f"{objective!r}: such as {suitable}(max_plate_nesting={guide.max_plate_nesting}), "
            "or leave it out"
        )
    if not isinstance(objective, suits.suitable) or isinstance(objective, suits.unsuitable):
        raise ValueError(
            f"{type(guide).__name__} {suits.why.format(objective=type(objective).__name__)}: "
            f"use {' or '.join(kind.__name__ for kind in suits.suitable)}, or leave the "
            "objective out"
        )
    if objective.max_plate_nesting < guide.max_plate_nesting < inf:
        raise ValueError(
            f"{type(guide).__name__} with num_samples={guide.num_samples} has "
            f"{guide.max_plate_nesting} plates, but the objective was built for "
            f"{objective.max_plate_nesting}: give it max_plate_nesting={guide.max_plate_nesting}"
        )


def default_objective(guide: FacetGuide) -> ELBO:
    """The objective that suits ``guide``.

    Example:
        >>> from facetvae import VAE, VaDEGuide
        >>> from inference.objectives.loss import default_objective
        >>> type(default_objective(VaDEGuide(VAE((6,), 2)))).__name__
        'GuideEnum_ELBO'
    """
    own = getattr(guide, "objective", None) if guide.needs is Needs.ANY_OBJECTIVE else None
    if own is not None:  # that which it is trained by
        return own
    return SUITABLE[guide.needs].default(max_plate_nesting=guide.max_plate_nesting)


class Loss(nn.Module):
    """The objective of one model and guide as a module: maps a batch to nats per datum.

    This is the only place where a loss is divided by the number of data.

    :param objective: any of Pyro's ELBOs; by default the one that suits the guide.
    :raises ValueError: if guide and model, or guide and objective, do not fit together.

    Example:
        >>> import torch
        >>> from facetvae import GaussianMixture, Loss, SharedMLP, VaDE, VaDEGuide
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> loss = Loss(model, VaDEGuide(model))
        >>> loss(torch.zeros(5, 6)).shape
        torch.Size([])
        >>> list(loss.terms(torch.zeros(5, 6)))
        ['elbo', 'reconstruction', 'kl_z_cluster', 'kl_c_cluster']
    """

    def __init__(self, model: FacetModel, guide: FacetGuide, objective: ELBO | None = None) -> None:
        super().__init__()
        check_model(model)
        check_guide(guide)
        if guide.model is not model:
            raise ValueError(
                "the guide was built for another model: build one for this model, "
                "such as VaDEGuide(model)"
            )
        objective = objective if objective is not None else default_objective(guide)
        _check_objective(objective, guide)
        self.objective = objective
        if guide.needs is Needs.ANY_OBJECTIVE:
            guide.objective = objective
        # The model is registered once, inside the guide: functional calls need each parameter to
        # have one name.
        self.guide = guide

    @property
    def model(self) -> FacetModel:
        return self.guide.model

    def forward(
        self,
        x: Tensor,
        size: float | None = None,
        kl_weights: Tensor | None = None,
        **given: Tensor,
    ) -> Tensor:
        """Objective for a batch ``[B, *x_shape]``: a scalar in nats per datum, to minimize.

        :param size: how many data the batch stands for; by default B. Model and guide get it, too.
        :param kl_weights: of KL(z_j) and KL(c_j), ``[J, 2]``; by default all are 1, which is the
            ELBO. Fade-in, warm-up and beta all act through them.
        :param given: inputs of model and guide other than x.
        """
        with self.model.annealed(kl_weights):
            return self._per_datum(self.objective, x, given, size)

    def _per_datum(
        self, objective: ELBO, x: Tensor, given: Mapping[str, Tensor], size: float | None = None
    ) -> Tensor:
        beside: dict[str, Any] = {**self.guide.options, **given}
        if size is not None:
            beside["size"] = size
        # Some of Pyro's objectives cannot be had without gradients.
        graded = torch.is_grad_enabled() or self.guide.needs is Needs.ANY_OBJECTIVE
        with torch.set_grad_enabled(graded):
            loss = objective.differentiable_loss(self.model, self.guide, x, **beside)
        return loss / (len(x) * self.model.share if size is None else size)

    def terms(self, x: Tensor, **given: Tensor) -> dict[str, Tensor]:
        """The ELBO of a batch and its terms with every weight at 1, in nats per datum.

        The ELBO is linear in the weights of its terms, so each term is the derivative by its
        weight; for any guide the terms add up by construction. It is the ELBO of the posterior
        itself, even if training uses another bound or a relaxation.

        :returns: ``elbo``, ``reconstruction``, ``kl_z_NAME`` for every facet and ``kl_c_NAME`` for
            every discrete one (unless the guide sums the clusters out: then ``kl_z_NAME`` is the KL
            to the whole mixture).
        """
        kl_weights = self.model.gates.new_ones(len(self.model.priors), 2).requires_grad_()
        with (
            torch.enable_grad(),
            evaluating(self),
            self.model.annealed(kl_weights),
            self.guide.without_relaxation(),
        ):
            loss = self._per_datum(default_objective(self.guide), x, given)
            (kl,) = torch.autograd.grad(loss, kl_weights, allow_unused=True)
        if kl is None:  # no facet
            return {"elbo": -loss.detach()}
        terms = {"elbo": -loss.detach(), "reconstruction": kl.sum() - loss.detach()}
        for j, name in enumerate(self.model.priors):
            terms[f"kl_z_{name}"] = kl[j, 0]
            if name in self.model.discrete and not self.guide.options.get("marginal"):
                terms[f"kl_c_{name}"] = kl[j, 1]
        return terms
