"""VLAC's posterior: clusters from x, latents from x and the clusters up to their own layer."""

from __future__ import annotations

import pyro
import torch
from torch import Tensor, nn

from guides.amortized import NetworkGuide
from guides.base import check_model
from guides.discrete import Discrete
from ppl_models.base import FacetModel
from ppl_models.distributions import diagonal_normal, one_hot_of_largest
from ppl_models.networks import Encoder


class LadderGuide(NetworkGuide):
    r"""q(y given x) q(z given x, y), with clusters passed up the ladder (VLAC, Eq. 6 to 8).

    .. math:: y_l \sim q(y_l \mid x), \quad h_1 = g_1(x), \; h_l = g_l(h_{l-1}, y_{l-1}), \quad
              z_l \sim q(z_l \mid h_l, y_l)

    Details that the paper leaves open: q(y given x) has its own ladder, up to the last layer with
    clusters, and a cluster enters as a learned shift of its layer's features, initially zero.

    With ``GumbelSoftmax`` (the paper's choice) one pass estimates the objective (Eq. 9, with every
    KL in closed form). ``Enumerate`` is exact and takes as many passes through the layers above and
    the decoder as the product of all layers' K. ``embed``, ``posterior`` and ``reconstruct`` use
    each layer's most probable cluster.

    :param model: any model on a ladder network, such as :class:`~ppl_models.vlac.VLAC`.
    :param num_samples: L, the number of draws of z, all given the same clusters.
    :param discrete: how clusters are handled. Each guide needs its own object.
    :raises ValueError: if a model with clusters has a network that is not a ladder, or a facet has
        a VampPrior, whose components are posteriors given x alone.

    Example:
        >>> import torch
        >>> from guides import GumbelSoftmax, LadderGuide
        >>> from ppl_models import VLAC
        >>> model = VLAC((20,), num_components=(5, 10), dims=(2, 4))
        >>> guide = LadderGuide(model, discrete=GumbelSoftmax())
        >>> guide.predict(torch.zeros(3, 20))["layer_2"].shape
        (3,)
    """

    def __init__(
        self, model: FacetModel, num_samples: int = 1, discrete: Discrete | None = None
    ) -> None:
        check_model(model)
        if any(prior.uses_posterior for prior in model.priors.values()):
            raise ValueError(
                "a VampPrior is made of q(z given x), but here z is inferred given x and clusters: "
                "use another prior, or VaDEGuide"
            )
        super().__init__(model, num_samples, discrete)
        self.clustered = list(model.mixtures)
        if self.clustered:
            self.classifier = model.network.encoder(model.features_shape, self._components())
        for name in model.mixtures:
            self.forget_clusters(name)

    @property
    def factorizes(self) -> bool:
        return not self.model.mixtures

    def forward(
        self,
        x: Tensor,
        *,
        neighbors: Tensor | None = None,
        num_samples: int | None = None,
        marginal: bool = False,
    ) -> None:
        if marginal and self.model.mixtures:
            raise ValueError(
                "the density of LadderGuide's latents with clusters summed out has a term for each "
                "combination of them: use MarginalGuide or AmortizedGuide where it is asked for"
            )
        with self.model.plate(x, len(x)):
            x, near = self.model.seen(x), self.model.by_facet(neighbors)
            c: dict[str, Tensor] = {}
            for name, logits in self.classify(x).items():
                logits = self.with_neighbors(name, logits, **near.get(name, {}))
                # y_l ~ q(y_l | x)
                c[name] = self.discrete.sample(name, logits, x, self.downstream(name))
            with self.draws(num_samples):
                for name, head in self.climb(x, c).items():
                    # z_l ~ q(z_l | x, y_1, ..., y_l)
                    pyro.sample(f"z_{name}", diagonal_normal(head))

    def classify(self, prepared: Tensor) -> dict[str, Tensor]:
        """Logits of q(y_l given x), by facet: ``[B, K]``."""
        mixtures = self.model.mixtures  # none while a warm start has replaced them
        logits = zip(self.clustered, self.classifier(prepared), strict=True) if mixtures else ()
        return {name: each for name, each in logits if name in mixtures}

    def climb(self, prepared: Tensor, c: dict[str, Tensor]) -> dict[str, Tensor]:
        """The heads of the latents, by facet, given all clusters: ``[..., 2 d]``."""
        heads = self.encoder(prepared, [c.get(name) for name in self.model.priors])
        return dict(zip(self.model.priors, heads, strict=True))

    def downstream(self, name: str) -> tuple[str, ...]:
        """The sites that depend on a facet's cluster: its latent, those above and x."""
        names = list(self.model.priors)
        return (*(f"z_{above}" for above in names[names.index(name) :]), "x")

    def forget_clusters(self, name: str) -> None:
        for parameter in self.encoder.shift_of(list(self.model.priors).index(name)).parameters():
            nn.init.zeros_(parameter)

    def build_encoder(self) -> Encoder:
        sizes = [self.head_size(name) for name in self.model.priors]
        return self.model.network.encoder(self.model.features_shape, sizes, self._components())

    def _components(self) -> list[int]:
        """K of each facet, 0 if it has no clusters."""
        mixtures = self.model.mixtures
        return [p.num_components if n in mixtures else 0 for n, p in self.model.priors.items()]

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        logits, near = self.classify(prepared), self.model.by_facet(given.get("neighbors"))
        clusters = {
            name: one_hot_of_largest(self.with_neighbors(name, each, **near.get(name, {})))
            for name, each in logits.items()
        }
        latents = self.climb(prepared, clusters)
        return {
            name: torch.cat([z, logits[name]], -1) if name in logits else z
            for name, z in latents.items()
        }
