"""What guides have in common whose q(c given x) is taught by known classes, beside the bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
from torch import Tensor

from guides.base import FacetGuide
from ppl_models.base import FacetModel
from ppl_models.checks import number
from ppl_models.distributions import Component, one_hot_labels

__all__ = ["SupervisedGuide"]


class SupervisedGuide(FacetGuide):
    r"""Base of guides that may add :math:`w \log q(c \mid x)` of known classes to the objective.

    The bound alone asks of a known class that its latents be likely under it, and says nothing of
    the other classes: with few nats at stake, q(c given x) learns it late. Where w is above 0 the
    objective is *no bound*; ``elbo`` and the history's terms are without it. The weights of a
    schedule do not change this one: a facet that is still to be let in is taught already.

    :param label_weight: w, at least 0.
    :raises ValueError: if the weight is negative or no number.
    """

    def __init__(self, model: FacetModel, num_samples: int = 1, label_weight: float = 0.0) -> None:
        if not 0 <= number(label_weight) < float("inf"):
            raise ValueError(f"label_weight must be a number of at least 0, got {label_weight!r}")
        super().__init__(model, num_samples)
        self.label_weight = label_weight
        self.adds_label_loss = True

    def add_label_loss(self, site: str, logits: Tensor, label: Tensor) -> None:
        """Within the data plate, the term of one facet.

        :param logits: of q(c given x), ``[B, K]``, up to a constant.
        :param label: integers ``[B]``, -1 where the class is not known, which teaches nothing; or
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

    @contextmanager
    def without_relaxation(self) -> Iterator[None]:
        kept, self.adds_label_loss = self.adds_label_loss, False
        try:
            yield
        finally:
            self.adds_label_loss = kept
