"""Latents from x and a label: q(z given x, u)."""

from __future__ import annotations

import torch
from torch import Tensor

from guides.base import FacetGuide, check_model
from guides.families import Family, Refined
from ppl_models.base import FacetModel
from ppl_models.given.checks import check_kind
from ppl_models.ivae import Labeled
from ppl_models.networks import Encoder


class ConditionalGuide(FacetGuide):
    r"""z ~ q(z given x, u) for a model conditioned on a label u (*I Don't Need u*, Eq. 3).

    The encoder reads x and the label's features (one-hot, or the vector itself) as one input: a
    network for images gets a channel per feature, other networks a concatenated vector. With
    ``reads_label=False`` it is q(z given x), as in the paper authors' code for images; the label
    then speaks through the prior alone, but is still given.

    :param model: an :class:`~ppl_models.ivae.IVAE`, :class:`~ppl_models.ivae.ContinuousIVAE` or
        :class:`~ppl_models.ivae.CVAE`.
    :param num_samples: L, the number of draws of z.
    :param family: of q(z given x, u), see :mod:`guides.families`; a diagonal Normal by default.
    :param reads_label: whether the encoder reads the label.
    :raises ValueError: if the model is none of these, or ``family`` is Refined without the label.

    Example:
        >>> import torch
        >>> from guides import ConditionalGuide
        >>> from ppl_models import IVAE
        >>> guide = ConditionalGuide(IVAE((20,), num_labels=3, dim=2))
        >>> guide.embed(torch.zeros(4, 20), label=[0, 0, 1, 2])["label"].shape
        (4, 2)
    """

    takes = ("label",)
    model: Labeled

    def __init__(
        self,
        model: FacetModel,
        num_samples: int = 1,
        family: Family | None = None,
        reads_label: bool = True,
    ) -> None:
        check_model(model)
        if not isinstance(model, Labeled):
            raise ValueError(
                "ConditionalGuide is for IVAE, ContinuousIVAE and CVAE, got "
                f"{type(model).__name__}: use {model.suitable_guide}"
            )
        # before the encoder is built
        self.reads_label = check_kind("reads_label", reads_label, bool, "True or False")
        super().__init__(model, num_samples, family)
        if not reads_label and isinstance(family, Refined):
            raise ValueError(
                "a Refined posterior follows the prior, which knows the label: leave "
                f"reads_label=False out, or use {family.family!r}"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        return self.takes if self.reads_label else ()

    def forward(self, x: Tensor, *, label: Tensor, num_samples: int | None = None) -> None:
        with self.model.plate(x, len(x)):
            self.draw_latents(x, num_samples, label=label)

    def build_encoder(self) -> Encoder:
        if not self.reads_label:
            return super().build_encoder()
        model = self.model
        x, label = torch.zeros(1, *model.features_shape), torch.zeros(1, model.num_label_features)
        shape = model.network.join(x, label).shape[1:]
        return model.network.encoder(shape, [self.head_size(name) for name in model.priors])

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        if not self.reads_label:
            return super()._prepared_heads(prepared)
        known = self.model.label_features(given["label"]).to(prepared)
        return super()._prepared_heads(self.model.network.join(prepared, known))
