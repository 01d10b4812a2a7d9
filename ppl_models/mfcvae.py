"""Multi-Facet Clustering Variational Autoencoder (Falck et al., NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
from torch import Tensor

from ppl_models.base import FacetModel, Input
from ppl_models.given.labels import cluster_labels, neighbor_counts
from ppl_models.program import ENUMERATE


class MFCVAE(FacetModel):
    r"""Several clusterings of the same data: a mixture of Gaussians per facet, one decoder.

    The generative process (Eq. 1, 2; Fig. 2, right), for each sample:

    * for each facet j, a cluster :math:`c_j \sim \mathrm{Cat}(\pi_j)`,
    * and its latent vector :math:`z_j \mid c_j \sim \mathrm{Normal}(\mu_{c_j}, \Sigma_{c_j})`;
    * then, from all facets together, :math:`x \mid z \sim p(x \mid f(z_1, \ldots, z_J))`.

    .. math:: p(x, z, c) = p(x \mid z) \prod_{j=1}^{J} p(z_j \mid c_j) \, p(c_j)

    Facets are independent a priori, which pushes them to find different clusterings. A facet may
    be any mixture, or a ``StandardNormal``, which has no clusters.

    If the clusters of some samples are known, give them as ``label=``: a dictionary from facet to
    integers ``[N]`` from 0 to K - 1, with -1 where unknown (for a single facet, just the integers).
    The objective then bounds log p(x, known c).

    If data have neighbors, and a facet is a :class:`~ppl_models.NeighborMixture`, give the
    number of each datum's neighbors in each of the facet's clusters as ``neighbors=``: a
    dictionary from facet to numbers ``[N, K]`` (for a single such facet, just the numbers). The
    objective then bounds log p(x given the neighbors' clusters).

    The arguments are those of :class:`~ppl_models.base.FacetModel`; facets go from shallow to deep.

    :raises ValueError: if a prior is made for another model, too.

    Example:
        >>> import torch
        >>> from ppl_models import MFCVAE, GaussianMixture
        >>> facets = {"style": GaussianMixture(25, 5), "digit": GaussianMixture(10, 5)}
        >>> model = MFCVAE((784,), facets)
        >>> model.generate(4, facet="digit", cluster=3).shape
        torch.Size([4, 784])
        >>> model.decode({"style": torch.zeros(2, 5), "digit": torch.zeros(2, 5)}).mean.shape
        torch.Size([2, 784])
    """

    inputs: ClassVar[Mapping[str, Input]] = {
        "label": Input(required=False),
        "neighbors": Input(required=False),
    }

    def forward(
        self,
        x: Tensor | None = None,
        *,
        label: Tensor | None = None,
        neighbors: Tensor | None = None,
        size: int = 1,
        num_samples: int = 1,
        marginal: bool = False,
    ) -> Tensor:
        """The program. Sites: ``c_NAME`` ``[B, K]`` one-hot, ``z_NAME`` ``[B, d]``, ``x`` ``[B,
        *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``; without it, ``size`` samples are drawn, or as
            many as there are rows of ``neighbors``.
        :param label: known clusters ``[B, J]``, a column for each mixture. The guide puts all
            weight on them, which is equivalent to observing them, so the model ignores them.
        :param neighbors: numbers of neighbors in each cluster, the facets' side by side.
        :param num_samples: L; above 1, latents and x gain a leading axis of draws, weighted 1 / L.
        :param marginal: omit the clusters: each z_j is drawn from its full mixture (Eq. 17).
        """
        with self.plate(x, size if neighbors is None else len(neighbors)):
            c: dict[str, Tensor] = {}
            near = self.by_facet(neighbors)
            for name, mixture in () if marginal else self.mixtures.items():
                # c_j ~ Cat(pi_j), or given its neighbors' clusters
                component = mixture.component(**near.get(name, {}))
                c[name] = pyro.sample(f"c_{name}", component, infer=ENUMERATE)
            with self.draws(num_samples):
                z: dict[str, Tensor] = {}
                for name, prior in self.priors.items():
                    # z_j | c_j ~ Normal(mu, Sigma)
                    latent = prior.latent(c.get(name), **near.get(name, {}))
                    z[name] = pyro.sample(f"z_{name}", latent)
                # x | z_1, ..., z_J
                return pyro.sample("x", self.decode(z), obs=x)

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        if name == "neighbors":
            return neighbor_counts(name, values, n, self.neighborly, self.gates)
        numbers = {facet: prior.num_components for facet, prior in self.mixtures.items()}
        return cluster_labels(name, values, n, numbers)
