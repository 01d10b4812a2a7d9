"""Codes by their distance to the encoder's output, and the encoder's output as a point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from guides.base import EVALUATION_BATCH, FacetGuide, check_model
from guides.discrete import GumbelSoftmax, Needs
from ppl_models.base import FacetModel
from ppl_models.distributions import one_hot_of_largest
from ppl_models.given.checks import check_kind
from ppl_models.modes import evaluating
from ppl_models.vqvae import VQVAE


class PointGuide(FacetGuide):
    """z is the encoder's output, a point: with a flat prior, an autoencoder.

    Its "ELBO" is no bound; ``kl_z_NAME`` is minus the prior's log-density at the point.

    :param model: any model whose facets have no clusters.
    :raises ValueError: if a facet has clusters.

    Example:
        >>> import torch
        >>> from guides import PointGuide
        >>> from ppl_models import Autoencoder, ConvGrid
        >>> model = Autoencoder((1, 28, 28), code_dim=4, network=ConvGrid((8, 8)))
        >>> PointGuide(model).reconstruct(torch.zeros(3, 1, 28, 28)).shape
        (3, 1, 28, 28)
    """

    deterministic = True

    def __init__(self, model: FacetModel) -> None:
        check_model(model)
        if model.mixtures:
            raise ValueError(
                "PointGuide is for facets without clusters, such as an Autoencoder's, got "
                f"{model.priors}"
            )
        super().__init__(model)

    def forward(self, x: Tensor, *, num_samples: int | None = None) -> None:
        with self.model.plate(x, len(x)):
            self.draw_latents(x, num_samples)

    def head_size(self, name: str) -> int:
        return self.model.priors[name].dim

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        return dist.Delta(head, event_dim=1)


class CodebookGuide(FacetGuide):
    r"""A code at each place, by its distance to the encoder's output (Sonderby et al., 2017).

    .. math:: q(c_p = k \mid x) \propto \exp(-\lVert e_p(x) - e_k \rVert^2 / 2)

    the responsibilities of a mixture with identity covariances (*I Don't Need u*, appendix B).
    Training relaxes draws (Gumbel-softmax), with the KL in closed form; the history and
    :func:`inference.elbo` are of one-hot draws. ``embed`` gives the codes' mean vectors.

    :param model: a :class:`~ppl_models.vqvae.VQVAE`.
    :param num_samples: L, the number of draws of the codes.
    :param discrete: how codes are relaxed; ``GumbelSoftmax()`` by default.
    :raises ValueError: if the model is not a VQVAE, or ``discrete`` is not a GumbelSoftmax.

    Example:
        >>> import torch
        >>> from guides import CodebookGuide
        >>> from ppl_models import VQVAE, ConvGrid
        >>> model = VQVAE((1, 28, 28), num_codes=16, code_dim=4, network=ConvGrid((8, 8)))
        >>> CodebookGuide(model).codes(torch.zeros(3, 1, 28, 28)).shape
        (3, 49)
    """

    kind = VQVAE
    model: VQVAE
    needs = Needs.RELAXATION

    def __init__(
        self, model: FacetModel, num_samples: int = 1, discrete: GumbelSoftmax | None = None
    ) -> None:
        discrete = GumbelSoftmax() if discrete is None else discrete
        check_kind("discrete", discrete, GumbelSoftmax, "a GumbelSoftmax(...), for relaxed codes")
        discrete.check_free()
        super().__init__(model, num_samples)
        self.discrete = discrete
        self.discrete.attach(model)

    def forward(self, x: Tensor, *, num_samples: int | None = None) -> None:
        model = self.model
        with model.plate(x, len(x)):
            logits = model.codebook.log_affinity(self.heads(x)[model.name])
            with self.draws(num_samples):
                pyro.sample(f"c_{model.name}", self.discrete.relaxed(logits).to_event(1))

    def head_size(self, name: str) -> int:
        return self.model.priors[name].dim

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        """The mean of z as a point; z itself has one of K vectors at each place."""
        codebook = self.model.codebook
        return dist.Delta(codebook.vectors(codebook.log_affinity(head).softmax(-1)), event_dim=1)

    @torch.no_grad()
    def codes(self, x: ArrayLike | Tensor, **given: Any) -> np.ndarray:
        """The nearest code at every place: integers ``[N, places]``.

        :param x: ``[N, *x_shape]``.
        :raises ValueError: if ``x`` does not fit the model.
        """
        return self._log_affinity(x, given).argmax(-1).cpu().numpy()

    @torch.no_grad()
    def reconstruct(self, x: ArrayLike | Tensor, **given: Any) -> np.ndarray:
        """Mean of p(x given c) at the nearest codes: ``[N, *x_shape]``."""
        model, parts = self.model, self._log_affinity(x, given).split(EVALUATION_BATCH)
        codes = (model.codebook.vectors(one_hot_of_largest(part)) for part in parts)
        with evaluating(self):
            means = [model.decode({model.name: each}).mean for each in codes]
        return torch.cat(means).cpu().numpy()

    def _log_affinity(self, x: ArrayLike | Tensor, given: Mapping[str, Any]) -> Tensor:
        heads = self._all_heads(self.observed(x, given))
        return self.model.codebook.log_affinity(heads[self.model.name])
