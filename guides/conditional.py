"""Latents from x and a label: q(z given x, u)."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.nn.functional import one_hot

from guides.base import FacetGuide
from ppl_models.ivae import IVAE
from ppl_models.networks import Encoder

__all__ = ["ConditionalGuide"]


class ConditionalGuide(FacetGuide):
    r"""z ~ q(z given x, u) for models whose clusters are given (*I Don't Need u*, Eq. 3).

    The label enters as a learned shift of the features that each facet's head reads.

    :param model: one that takes ``label``, such as :class:`~ppl_models.ivae.IVAE`, on a ladder network.
    :param num_samples: L draws of z.
    :raises ValueError: if the model takes no label, or its network is no ladder.
    """

    takes = ("label",)

    def forward(self, x: Tensor, *, label: Tensor, num_samples: int | None = None, marginal: bool = False) -> None:
        with self.model.plate(x, len(x)):
            self.draw_latents(x, self.num_samples if num_samples is None else num_samples, label=label)

    def build_encoder(self) -> Encoder:
        sizes = [self.head_size(name) for name in self.model.priors]
        return self.model.network.encoder(self.model.x_shape, sizes, [self.num_labels] * len(sizes))

    @property
    def num_labels(self) -> int:
        """How many values the label takes."""
        return cast(IVAE, self.model).num_labels

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        known = one_hot(given["label"], self.num_labels).to(prepared)
        return dict(zip(self.model.priors, self.encoder(prepared, [known] * len(self.model.priors)), strict=True))
