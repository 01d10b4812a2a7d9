"""The ELBO with KL terms in closed form where one exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import kl_divergence

from inference.objectives.direct import Direct_ELBO, site_densities
from inference.objectives.enumerated import GuideEnum_ELBO, enumerated_probs, expected_sum


class MeanField_ELBO(Direct_ELBO):
    r"""``TraceMeanField_ELBO`` without reading back to the host: same value and gradient.

    .. math:: \mathbb{E}_q[\log p(x \mid z)] - \sum_s \mathbb{E}_q \, \mathrm{KL}(q_s \,\|\, p_s)

    with each KL in closed form given the draws of the sites before it, or by the drawn
    log-densities if there is none (a Normal and a mixture). Relaxed clusters need this objective:
    it never evaluates the density of their draws.

    :raises NotImplementedError: if a site has no reparameterized draw.

    Example:
        >>> import torch
        >>> from facetvae import AmortizedGuide, GaussianMixture, GumbelSoftmax, Loss
        >>> from facetvae import MeanField_ELBO, VaDE
        >>> guide = AmortizedGuide(VaDE((6,), GaussianMixture(3, 2)), discrete=GumbelSoftmax())
        >>> objective = MeanField_ELBO(max_plate_nesting=guide.max_plate_nesting)
        >>> Loss(guide.model, guide, objective)(torch.zeros(5, 6)).shape
        torch.Size([])
    """

    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        return torch.stack([term.sum() for term in _terms(model_trace, guide_trace)]).sum()


class MeanFieldEnum_ELBO(GuideEnum_ELBO):
    r""":class:`MeanField_ELBO` with the guide's discrete sites enumerated, for guides in which no
    posterior depends on the draw of another site.

    .. math:: \mathbb{E}_{q(c)} \Big[\mathbb{E}_q[\log p(x \mid z, c)] -
              \sum_s \mathrm{KL}(q_s \,\|\, p_s(\cdot \mid c))\Big]

    Not for guides whose clusters depend on their draws, such as :class:`~guides.vade.VaDEGuide`: a
    KL in closed form would average over draws that the cluster depends on.

    :raises NotImplementedError: as :class:`GuideEnum_ELBO`.

    Example:
        >>> import torch
        >>> from facetvae import NVAE, ClassifierGuide, Loss, MeanFieldEnum_ELBO, SharedMLP
        >>> model = NVAE((6,), num_classes=3, class_dim=1, shared_dim=2, network=SharedMLP((8,)))
        >>> guide = ClassifierGuide(model)
        >>> objective = MeanFieldEnum_ELBO(max_plate_nesting=guide.max_plate_nesting)
        >>> Loss(model, guide, objective)(torch.zeros(2, 6), label=torch.tensor([1, 2])).shape
        torch.Size([])
    """

    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        probs = enumerated_probs(model_trace, guide_trace)
        return expected_sum(_terms(model_trace, guide_trace), (), probs)


def _terms(model_trace: Trace, guide_trace: Trace) -> Iterator[Tensor]:
    """Densities of observed sites, minus KLs, minus what only the guide has (``pyro.factor``)."""
    for name, site in site_densities(model_trace):
        yield site["log_prob"] if site["is_observed"] else -_kl(name, guide_trace.nodes[name], site)
    for name, site in site_densities(guide_trace):
        if name not in model_trace.nodes:
            yield -site["log_prob"]


def _kl(name: str, guide_site: dict, model_site: dict) -> Tensor:
    """KL of one site, or an unbiased draw of it: batch ``[...]``, weighted like the site."""
    q, p = guide_site["fn"], model_site["fn"]
    if not (q.has_rsample or "_enumerate_dim" in guide_site["infer"]):
        raise NotImplementedError(f"guide site {name!r} has no reparameterized draw")
    with suppress(NotImplementedError):
        if not isinstance(getattr(q, "base_dist", q), Delta):  # whose own density Pyro leaves out
            return scale_and_mask(kl_divergence(q, p), guide_site["scale"], guide_site["mask"])
    return guide_site["log_prob"] - model_site["log_prob"]
