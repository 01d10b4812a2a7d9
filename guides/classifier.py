"""Posteriors of latents and class from one encoder (N-VAE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

from guides.base import Rows, SupervisedGuide
from guides.discrete import Needs
from ppl_models.base import FacetModel
from ppl_models.distributions import Component, Proportions, clamp_to_labels
from ppl_models.given.labels import as_mask
from ppl_models.given.observed import Observed, as_data
from ppl_models.nvae import NVAE
from ppl_models.program import ENUMERATE


class ClassifierGuide(SupervisedGuide):
    r"""z ~ q(z given x) from one encoder, and y ~ q(y given x) where the class is unknown.

    .. math:: q(z_c, z_s, y, \pi \mid x)
              = q(z_c \mid x) \, q(z_s \mid x) \, q(y \mid x) \, q(\pi \mid x)

    (N-VAE, Eq. 4 and 5.) Three objectives differ in how the classifier learns from known labels:

    * Eq. 6, the paper's: a model without :math:`\pi`, with log q(y given x) added to the ELBO,
      which ``elbo`` and the history leave out.
    * Eq. 3: a model with :math:`\pi`, whose posterior is :math:`\mathrm{Dirichlet}(\alpha_p + q(y
      \mid x))`, with the KL in closed form; the default objective for such models.
    * Eq. 2: the same with :math:`\pi` drawn, using ``objective=GuideEnum_ELBO(...)``.

    Here :math:`\alpha_q \alpha(x) = \alpha_p + q(y \mid x)` (Eq. 4), so that Eq. 3 is highest where
    q(y given x) is the true class probability.

    Labels are integers from 0 to L - 1, with -1 where unknown; they may be omitted. A sample of
    unknown class enters once per class, weighted by q(y given x). (Booleans ``known=`` may mark
    unknown labels instead of -1.) Predictions never use labels.

    :param model: an :class:`~ppl_models.nvae.NVAE`.
    :param num_samples: number of draws of z.
    :param label_weight: weight of log q(y given x) in the objective; by default 1 in Eq. 6, or 0.
    :raises ValueError: if the model is not an NVAE, or the weight is negative.

    Example:
        >>> import torch
        >>> from guides import ClassifierGuide
        >>> from ppl_models import NVAE
        >>> guide = ClassifierGuide(NVAE((20,), num_classes=10, class_dim=2, shared_dim=4))
        >>> guide.predict(torch.zeros(3, 20))["class"].shape
        (3,)
        >>> guide.reconstruct(torch.zeros(3, 20), label=[7, -1, -1]).shape
        (3, 20)
    """

    kind = NVAE
    model: NVAE
    needs = Needs.CLASSIFICATION
    takes = ("label",)
    reads = ()

    def __init__(
        self, model: FacetModel, num_samples: int = 1, label_weight: float | None = None
    ) -> None:
        if label_weight is None:
            label_weight = 1.0 if getattr(model, "concentration", None) is None else 0.0
        super().__init__(model, num_samples, label_weight)

    def forward(
        self,
        x: Tensor,
        *,
        label: Tensor,
        known: Tensor | None = None,
        num_samples: int | None = None,
    ) -> None:
        model = self.model
        heads = self.heads(x)
        logits = self.cluster_logits("class", heads["class"])
        found = label if known is None else torch.where(known, label, -1)
        with model.plate(x, len(x)):
            if known is not None:
                q = Component(logits=clamp_to_labels(logits, found))
                pyro.sample("c_class", q, infer=ENUMERATE)
            if model.concentration is not None:
                pi = Proportions(model.concentration + logits.softmax(-1))  # Eq. 4
                pyro.sample("pi", pi)
            self.add_label_loss("classified", logits, found)
            with self.draws(num_samples):
                for name, head in heads.items():
                    pyro.sample(f"z_{name}", self.latent_posterior(name, head))  # Eq. 5

    # Layout of the encoder's output: 2 d numbers for z, and for the class facet L logits.

    def head_size(self, name: str) -> int:
        logits = self.model.num_classes if name == "class" else 0
        return super().head_size(name) + logits

    def cluster_logits(self, name: str, head: Tensor, **near: Tensor) -> Tensor:
        """Logits of q(y given x): ``[..., size] -> [..., L]``."""
        return head[..., super().head_size(name) :]

    def observed(self, x: Rows, given: Mapping[str, Any]) -> Observed:
        if isinstance(x, Observed):
            return x
        beside = dict(given)
        known = beside.pop("known", None)
        if beside.get("label") is None:
            beside["label"] = np.full(len(as_data(x, self.model)), -1)
        data = super().observed(x, beside)
        label = data.given["label"]
        known = (label >= 0) & (
            True if known is None else as_mask("known", known, len(label)).to(label.device)
        )
        if bool(known.all()):
            return data
        return Observed(data.x, {"label": label.clamp_min(0), "known": known})

    def decoder_given(self, x: Rows, given: Mapping[str, Any]) -> dict[str, Tensor]:
        data = self.observed(x, given)
        label = data.given["label"]
        if "known" not in data.given:
            return {"label": label}
        predicted = torch.as_tensor(self.predict(data)["class"], device=label.device)
        return {"label": torch.where(data.given["known"], label, predicted)}
