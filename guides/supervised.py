"""Base of guides whose q(c given x) is also trained on known classes, in addition to the bound."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pyro
from torch import Tensor

from guides.base import FacetGuide
from guides.families import Family
from ppl_models.base import FacetModel
from ppl_models.distributions import Component, one_hot_labels
from ppl_models.given.checks import number
from ppl_models.modes import temporarily


class SupervisedGuide(FacetGuide):
    r"""Base of guides that may add :math:`w \log q(c \mid x)` of known classes to the objective.

    For a sample of known class, the bound alone only makes its latents likely under that class and
    ignores the other classes: with only a few nats at stake, q(c given x) learns the class late.
    With w above 0 the objective is a looser bound than the ELBO, since the term is at most 0;
    ``elbo`` and the history's terms leave it out. A schedule's weights do not apply to it: it also
    trains facets that are not yet faded in.

    :param label_weight: w, at least 0.
    :raises ValueError: if the weight is negative or not a number.
    """

    def __init__(
        self,
        model: FacetModel,
        num_samples: int = 1,
        label_weight: float = 0.0,
        family: Family | None = None,
    ) -> None:
        if not 0 <= number(label_weight) < float("inf"):
            raise ValueError(f"label_weight must be a number of at least 0, got {label_weight!r}")
        super().__init__(model, num_samples, family)
        self.label_weight = label_weight
        self.adds_label_loss = True

    def add_label_loss(self, site: str, logits: Tensor, label: Tensor) -> None:
        """Add the term of one facet, within the data plate.

        :param logits: logits of q(c given x), ``[B, K]``, up to a constant.
        :param label: integers ``[B]``, -1 where the class is unknown, which adds nothing; or
            one-hot ``[B, K]``.
        """
        if self.adds_label_loss and self.label_weight:
            one_hot = label.is_floating_point()
            known = 1.0 if one_hot else label >= 0
            classes = one_hot_labels(
                label if one_hot else label.clamp_min(0), logits.shape[-1], logits
            )
            log_q = Component(logits=logits).log_prob(classes)
            pyro.factor(site, -self.label_weight * known * log_q, has_rsample=True)

    def without_relaxation(self) -> AbstractContextManager:
        return temporarily(self, adds_label_loss=False)
