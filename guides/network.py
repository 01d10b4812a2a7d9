"""Base of guides with a network for the clusters: q(c given x) from x alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pyro.distributions as dist
from torch import Tensor, nn

from guides.base import FacetGuide
from guides.discrete import Discrete, Enumerate
from guides.needs import Needs
from ppl_models.base import FacetModel
from ppl_models.distributions import DiagonalNormal, diagonal_normal

__all__ = ["NetworkGuide"]


class NetworkGuide(FacetGuide):
    """Base of guides whose heads hold 2 d numbers for z, then K logits for c; ``discrete`` says how
    clusters are handled.

    Given the clusters of a datum's neighbours (``neighbors=``), q(c given x) is multiplied by what
    these say. Where a latent is averaged over its clusters (``AmortizedGuide(conditional=True)``),
    as in ``embed``, neighbours do not count.

    :param discrete: ``Enumerate()``, ``GumbelSoftmax(...)`` or ``ScoreFunction(...)``. Each guide
        needs its own object.
    :raises ValueError: if ``num_samples`` is below 1, or ``discrete`` is none of these.
    """

    accepts: tuple[str, ...] = ("neighbors",)

    def __init__(
        self, model: FacetModel, num_samples: int = 1, discrete: Discrete | None = None
    ) -> None:
        if not isinstance(discrete, Discrete | None):
            raise ValueError(
                f"discrete must be a rule such as Enumerate() or GumbelSoftmax(), got {discrete!r}"
            )
        discrete = Enumerate() if discrete is None else discrete
        discrete.check_free()
        super().__init__(model, num_samples)
        self.discrete = discrete
        self.discrete.attach(model)

    @property
    def needs(self) -> Needs:
        return self.discrete.needs if self.model.mixtures else Needs.NOTHING

    def at_step(self, step: Tensor) -> None:
        self.discrete.at_step(step)

    def without_relaxation(self) -> AbstractContextManager:
        return self.discrete.without_relaxation()

    def reading_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the networks that read x: not the model's, and not those of the clusters'
        shifts.
        """
        return (
            p
            for name, p in self.named_parameters()
            if not name.startswith("model.") and "shifts." not in name
        )

    def forget_clusters(self, name: str) -> None:
        """Reset the latents to be the same for every cluster of a facet, as they are initially."""

    def cluster_logits(self, name: str, head: Tensor, **near: Tensor) -> Tensor:
        """Logits of q(c_j given x) from the network, or given neighbours, too: ``[..., size] ->
        [..., K]``.
        """
        return self.with_neighbors(name, head[..., 2 * self.model.priors[name].dim :], **near)

    def with_neighbors(self, name: str, logits: Tensor, **near: Tensor) -> Tensor:
        """Logits of q(c_j given x) ``[..., K]`` with what the neighbours' clusters add, p(c_j given
        them) / p(c_j): x and they are independent given c_j.
        """
        if not near:
            return logits
        prior = self.model.mixtures[name]
        return logits + prior.component(**near).log_probs - prior.component().log_probs

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        return self.latent_given(name, head, None)

    def latent_given(self, name: str, head: Tensor, c: Tensor | None) -> DiagonalNormal:
        """q(z_j given x) from the head, for a guide whose head does not use the facet's cluster
        ``c``.
        """
        return diagonal_normal(head[..., : 2 * self.model.priors[name].dim])
