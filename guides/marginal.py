"""No posterior of the cluster: the mixture's density sums it out (MFCVAE, C.2 and Eq. 71)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from guides.base import FacetGuide


class MarginalGuide(FacetGuide):
    r"""q(z given x) only; the model scores each z_j by its full mixture, with the clusters summed
    out.

    .. math:: \frac{1}{L} \sum_{l=1}^{L} \Big[\log p(x \mid z^{(l)}) + \sum_j \big(
              \log p(z_j^{(l)}) - \log q(z_j^{(l)} \mid x) \big)\Big]

    For L = 1 this equals the objective of :class:`~guides.vade.VaDEGuide` in value and gradient
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
