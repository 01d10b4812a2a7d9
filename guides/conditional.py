"""Latents from x and a label: q(z given x, u)."""

from __future__ import annotations

from math import prod
from typing import cast

import torch
from torch import Tensor

from guides.base import FacetGuide
from ppl_models.base import FacetModel
from ppl_models.ivae import IVAE, ContinuousIVAE
from ppl_models.networks import Encoder

__all__ = ["ConditionalGuide"]

Labelled = IVAE | ContinuousIVAE


class ConditionalGuide(FacetGuide):
    r"""z ~ q(z given x, u) for a model whose prior is given by u (*I Don't Need u*, Eq. 3).

    The encoder reads x and the label together, so that what it makes of one depends on the other: images
    ``(C, H, W)`` get a plane for each of the label's features (one-hot, or the vector itself), anything else is
    flattened and the features appended.

    :param model: an :class:`~ppl_models.ivae.IVAE` or :class:`~ppl_models.ivae.ContinuousIVAE`.
    :param num_samples: L draws of z.
    :raises ValueError: if the model is another.
    """

    takes = ("label",)

    def __init__(self, model: FacetModel, num_samples: int = 1) -> None:
        if not isinstance(model, IVAE | ContinuousIVAE):
            raise ValueError(f"ConditionalGuide is for IVAE and ContinuousIVAE, got {type(model).__name__}")
        super().__init__(model, num_samples)

    def forward(self, x: Tensor, *, label: Tensor, num_samples: int | None = None) -> None:
        with self.model.plate(x, len(x)):
            self.draw_latents(x, self.num_samples if num_samples is None else num_samples, label=label)

    def build_encoder(self) -> Encoder:
        x_shape, extra = self.model.x_shape, cast(Labelled, self.model).num_label_features
        shape = (x_shape[0] + extra, *x_shape[1:]) if len(x_shape) == 3 else (prod(x_shape) + extra,)
        return self.model.network.encoder(shape, [self.head_size(name) for name in self.model.priors])

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        known = cast(Labelled, self.model).label_features(given["label"]).to(prepared)
        return super()._prepared_heads(_joined(prepared, known))


def _joined(x: Tensor, known: Tensor) -> Tensor:
    """Data ``[B, *x_shape]`` with features ``[B, F]`` beside them: planes of images, else more numbers in a row."""
    if x.dim() == 4:
        return torch.cat([x, known[:, :, None, None].expand(-1, -1, *x.shape[2:])], 1)
    return torch.cat([x.flatten(1), known], 1)
