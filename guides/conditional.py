"""Latents from x and a label: q(z given x, u)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from guides.base import FacetGuide
from ppl_models.base import FacetModel
from ppl_models.ivae import IVAE
from ppl_models.networks import Encoder

__all__ = ["ConditionalGuide"]


class ConditionalGuide(FacetGuide):
    r"""z ~ q(z given x, u) for a model whose clusters are given (*I Don't Need u*, Eq. 3).

    The encoder reads x and the label together, so that what it makes of one depends on the other: images
    ``(C, H, W)`` get a plane for each label, anything else is flattened and the one-hot label appended.

    :param model: an :class:`~ppl_models.ivae.IVAE`.
    :param num_samples: L draws of z.
    :raises ValueError: if the model is another.
    """

    takes = ("label",)

    def __init__(self, model: FacetModel, num_samples: int = 1) -> None:
        if not isinstance(model, IVAE):
            raise ValueError(f"ConditionalGuide is for IVAE, whose cluster is given, got {type(model).__name__}")
        super().__init__(model, num_samples)

    def forward(self, x: Tensor, *, label: Tensor, num_samples: int | None = None) -> None:
        with self.model.plate(x, len(x)):
            self.draw_latents(x, self.num_samples if num_samples is None else num_samples, label=label)

    @property
    def num_labels(self) -> int:
        """How many values the label takes."""
        return cast(IVAE, self.model).num_labels

    def build_encoder(self) -> Encoder:
        shape = self._with_label(torch.zeros(1, *self.model.x_shape), torch.zeros(1, dtype=torch.long)).shape[1:]
        return self.model.network.encoder(shape, [self.head_size(name) for name in self.model.priors])

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        return super()._prepared_heads(self._with_label(prepared, given["label"]))

    def _with_label(self, x: Tensor, label: Tensor) -> Tensor:
        """``[B, *x_shape]`` and ``[B]`` to what the encoder reads."""
        known = one_hot(label, self.num_labels).to(x)
        if x.dim() == 4:
            return torch.cat([x, known[:, :, None, None].expand(-1, -1, *x.shape[2:])], 1)
        return torch.cat([x.flatten(1), known], 1)
