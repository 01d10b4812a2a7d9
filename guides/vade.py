"""Guides without a network for clusters. The VaDE trick: responsibilities serve as the posterior of
the cluster (MFCVAE, Theorem 2 and Eq. 58 to 62); and the marginal form: the mixture's density sums
the cluster out (C.2 and Eq. 71).
"""

from __future__ import annotations

from typing import Any

import pyro
from torch import Tensor

from guides.base import FacetGuide, SupervisedGuide
from guides.discrete import Needs
from ppl_models.distributions import Component, clamp_to_labels
from ppl_models.program import ENUMERATE


class VaDEGuide(SupervisedGuide):
    r"""q(z, c given x) without a network for c: the posterior of clusters follows from the draws of
    z.

    .. math:: z_j^{(l)} \sim q(z_j \mid x), \quad
              q(c_j \mid x) \propto \exp\Big(\frac{1}{L} \sum_{l=1}^{L} \log p(z_j^{(l)}, c_j)\Big)

    (Eq. 59 and 60, the Monte-Carlo form of the optimal posterior, Eq. 12). For L = 1 these are the
    responsibilities of the drawn z. With L > 1 all draws share *one* q(c given x), as in Eq. 58;
    this differs from ``num_particles=L``, which averages L one-sample objectives. The cluster is
    enumerated, never sampled.

    The clusters of some samples may be known (``label=``, see :class:`~ppl_models.mfcvae.MFCVAE`):
    q(c_j given x) then puts all weight on the known cluster. Predictions never use labels.

    Given the clusters of a datum's neighbors (``neighbors=``), p(z, c) is the one given these, in
    predictions as well.

    :param model: any model whose facets are mixtures or other priors.
    :param num_samples: L, the number of draws of z.
    :param family: of q(z given x), such as ``FullCovariance()``; diagonal Normals by default.
    :param label_weight: weight of log q(c given x) of known clusters in the objective, which is
        no longer the ELBO if it is above 0. See :class:`~guides.SupervisedGuide`.

    Example:
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from ppl_models import MFCVAE, GaussianMixture
        >>> facets = {"style": GaussianMixture(25, 5), "digit": GaussianMixture(10, 5)}
        >>> guide = VaDEGuide(MFCVAE((20,), facets))
        >>> guide.predict_proba(torch.zeros(3, 20))["digit"].shape
        (3, 10)
        >>> guide.embed(torch.zeros(3, 20))["style"].shape
        (3, 5)
    """

    accepts: tuple[str, ...] = ("label", "neighbors")

    @property
    def needs(self) -> Needs:
        return Needs.ENUMERATION if self.model.mixtures else Needs.NOTHING

    def forward(
        self,
        x: Tensor,
        *,
        label: Tensor | None = None,
        neighbors: Tensor | None = None,
        num_samples: int | None = None,
        marginal: bool = False,
    ) -> None:
        L = self.num_samples if num_samples is None else num_samples
        if label is not None and label.dim() == 1:  # of one facet
            label = label[:, None]
        if label is not None and label.shape[1:] != (len(self.model.mixtures),):
            raise ValueError(
                f"label needs a column for each of the facets {list(self.model.mixtures)}, got "
                f"shape {list(label.shape)}"
            )
        with self.model.plate(x, len(x)):
            z = self.draw_latents(x, L, **({} if neighbors is None else {"neighbors": neighbors}))
            near = self.model.by_facet(neighbors)
            for j, (name, prior) in enumerate(() if marginal else self.model.mixtures.items()):
                logits = prior.log_joint(z[name], **near.get(name, {}))  # [(L,) B, K]
                if L > 1:  # Eq. 59, 60; plates around this program are further left
                    logits = logits.mean(-3, keepdim=logits.dim() > 3)
                known = logits if label is None else clamp_to_labels(logits, label[:, j])
                pyro.sample(f"c_{name}", Component(logits=known), infer=ENUMERATE)
                if label is not None:
                    self.add_label_loss(f"label_loss_{name}", logits, label[:, j])


class MarginalGuide(FacetGuide):
    r"""q(z given x) only; the model scores each z_j by its full mixture, with the clusters summed
    out.

    .. math:: \frac{1}{L} \sum_{l=1}^{L} \Big[\log p(x \mid z^{(l)}) + \sum_j \big(
              \log p(z_j^{(l)}) - \log q(z_j^{(l)} \mid x) \big)\Big]

    For L = 1 this equals the objective of :class:`VaDEGuide` in value and gradient
    (Eq. 71 and Eq. 62). For L > 1 it is the mean of L such objectives, each with its own
    responsibilities, and therefore at least as large as with the shared ones of Eq. 58.

    Facets may have different weights. If all are equal and L = 1, Pyro can sum the clusters out
    instead, by enumeration in the model: ``TraceEnum_ELBO(max_plate_nesting=1)(model, guide)(x)``
    gives the same number, summed over the batch.

    :param model: any model whose facets are mixtures or other priors.
    :param num_samples: L, the number of draws of z.
    :param family: of q(z given x), such as ``FullCovariance()``; diagonal Normals by default.

    Example:
        >>> import torch
        >>> from guides import MarginalGuide
        >>> from ppl_models import GaussianMixture, VaDE
        >>> guide = MarginalGuide(VaDE((20,), GaussianMixture(10, 5)), num_samples=4)
        >>> guide.predict(torch.zeros(3, 20))["cluster"].shape
        (3,)
    """

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "marginal": True}

    def forward(self, x: Tensor, *, num_samples: int | None = None, marginal: bool = True) -> None:
        with self.model.plate(x, len(x)):
            self.draw_latents(x, num_samples)
