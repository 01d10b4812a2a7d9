"""Networks for clusters as well: q(c given x), and q(z given x) or q(z given x, c)."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from guides.base import FacetGuide, check_model
from guides.discrete import Discrete, Enumerate, Needs
from ppl_models.base import FacetModel
from ppl_models.distributions import Component, DiagonalNormal, diagonal_normal
from ppl_models.given.checks import check_kind


class NetworkGuide(FacetGuide):
    """Base of guides whose heads hold 2 d numbers for z, then K logits for c.

    Given the clusters of a datum's neighbors (``neighbors=``), q(c given x) is multiplied by what
    these say. Where a latent is averaged over its clusters (``AmortizedGuide(conditional=True)``),
    as in ``embed``, neighbors do not count.

    :param discrete: how clusters are handled; each guide needs its own object.
    :raises ValueError: if ``num_samples`` is below 1, or ``discrete`` is none of these.
    """

    accepts: tuple[str, ...] = ("neighbors",)
    infers_clusters = True

    def __init__(
        self, model: FacetModel, num_samples: int = 1, discrete: Discrete | None = None
    ) -> None:
        discrete = Enumerate() if discrete is None else discrete
        check_kind("discrete", discrete, Discrete, "a rule such as Enumerate() or GumbelSoftmax()")
        discrete.check_free()
        super().__init__(model, num_samples)
        self.discrete = discrete
        self.discrete.attach(model)

    @property
    def needs(self) -> Needs:
        return self.discrete.needs if self.model.mixtures else Needs.NOTHING

    def forget_clusters(self, name: str) -> None:
        """Reset the latents to be the same for every cluster of a facet, as they are initially."""

    def cluster_logits(self, name: str, head: Tensor, **near: Tensor) -> Tensor:
        """Logits of q(c_j given x), or given neighbors, too: ``[..., size] -> [..., K]``."""
        return self.with_neighbors(name, head[..., 2 * self.model.priors[name].dim :], **near)

    def with_neighbors(self, name: str, logits: Tensor, **near: Tensor) -> Tensor:
        """Logits of q(c_j given x) ``[..., K]`` with what the neighbors' clusters add, p(c_j given
        them) / p(c_j): x and they are independent given c_j.
        """
        if not near:
            return logits
        prior = self.model.mixtures[name]
        return logits + prior.component(**near).log_probs - prior.component().log_probs

    def latent_given(self, name: str, head: Tensor, c: Tensor | None) -> DiagonalNormal:
        """q(z_j given x) from the head, which here does not depend on the cluster ``c``."""
        return diagonal_normal(head[..., : 2 * self.model.priors[name].dim])


class AmortizedGuide(NetworkGuide):
    r"""All posteriors from the encoder, including those of the clusters.

    .. math:: c_j \sim q(c_j \mid x), \quad
              z_j^{(l)} \sim q(z_j \mid x) \;\; \text{or} \;\; q(z_j \mid x, c_j)

    Without ``conditional`` this is the mean-field posterior of MFCVAE's Eq. 3 with a free q(c given
    x). At its optimum, q(c given x) equals the responsibilities of :class:`~guides.vade.VaDEGuide`
    (Theorem 2). With ``conditional``, z has one Normal per cluster, by a linear shift of its head,
    and q(z given x) is their mixture: the posterior of a Gaussian-mixture VAE.

    :param model: any model whose facets are mixtures or other priors.
    :param num_samples: L, the number of draws of z, all given the same cluster.
    :param discrete: how clusters are handled: ``Enumerate()``, ``GumbelSoftmax(...)`` or
        ``ScoreFunction(...)``. Each guide needs its own object.
    :param conditional: whether z is inferred given x and c. Enumeration then decodes every
        combination of clusters, which multiplies the work by the product of the facets' K.
    :raises ValueError: if ``num_samples`` is below 1, or ``conditional`` is combined with a
        VampPrior, whose components are posteriors given x alone.

    Example:
        >>> import torch
        >>> from guides import AmortizedGuide, GumbelSoftmax
        >>> from ppl_models import GaussianMixture, VaDE
        >>> model = VaDE((20,), GaussianMixture(10, 5))
        >>> guide = AmortizedGuide(model, discrete=GumbelSoftmax(), conditional=True)
        >>> guide.predict_proba(torch.zeros(3, 20))["cluster"].shape
        (3, 10)
    """

    def __init__(
        self,
        model: FacetModel,
        num_samples: int = 1,
        discrete: Discrete | None = None,
        conditional: bool = False,
    ) -> None:
        check_model(model)
        check_kind("conditional", conditional, bool, "True or False")
        if conditional and any(prior.uses_posterior for prior in model.priors.values()):
            raise ValueError(
                "a VampPrior is made of q(z given x), which a conditional guide does not have: use "
                "conditional=False"
            )
        super().__init__(model, num_samples, discrete)
        self.conditional = conditional
        self.shifts = nn.ModuleDict()
        for name, prior in model.mixtures.items() if conditional else ():
            self.shifts[name] = nn.Linear(prior.num_components, 2 * prior.dim, bias=False)
            self.forget_clusters(name)

    def forward(
        self,
        x: Tensor,
        *,
        neighbors: Tensor | None = None,
        num_samples: int | None = None,
        marginal: bool = False,
    ) -> None:
        with self.model.plate(x, len(x)):
            seen = self.model.seen(x)
            beside = {} if neighbors is None else {"neighbors": neighbors}
            heads, near = self.heads(x, **beside), self.model.by_facet(neighbors)
            c: dict[str, Tensor] = {}
            for name in () if marginal else self.model.mixtures:
                logits = self.cluster_logits(name, heads[name], **near.get(name, {}))
                c[name] = self.discrete.sample(name, logits, seen, self.downstream(name))
            with self.draws(num_samples):
                for name, head in heads.items():
                    if name not in c:
                        q = self.latent_posterior(name, head)
                    else:
                        q = self.latent_given(name, head, c[name])
                    pyro.sample(f"z_{name}", q)

    def downstream(self, name: str) -> tuple[str, ...]:
        """Other sites that depend on the facet's cluster: its latent and, if conditional or if the
        decoder reads the cluster, x.
        """
        decoded = self.conditional or name in self.model.decoded_clusters
        return (f"z_{name}", "x") if decoded else (f"z_{name}",)

    def forget_clusters(self, name: str) -> None:
        if name in self.shifts:
            nn.init.zeros_(self.shifts[name].weight)  # type: ignore[arg-type]

    # Layout of the encoder's output: 2 d numbers for z, then K for c.

    def head_size(self, name: str) -> int:
        prior = self.model.priors[name]
        return 2 * prior.dim + (prior.num_components if name in self.model.mixtures else 0)

    def latent_given(self, name: str, head: Tensor, c: Tensor | None) -> DiagonalNormal:
        """q(z_j given x, c_j), or q(z_j given x) where there is no shift by a cluster."""
        raw = head[..., : 2 * self.model.priors[name].dim]
        shift = self.shifts[name](c) if self.conditional and c is not None else 0.0
        return diagonal_normal(raw + shift)

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        """q(z_j given x): of a conditional guide, the mixture over q(c_j given x)."""
        if not (self.conditional and name in self.model.mixtures):
            return self.latent_given(name, head, None)
        component = Component(logits=self.cluster_logits(name, head))
        every = torch.eye(component.event_shape[0], dtype=head.dtype, device=head.device)
        latents = self.latent_given(name, head.unsqueeze(-2), every)
        return dist.MixtureSameFamily(dist.Categorical(logits=component.logits), latents)
