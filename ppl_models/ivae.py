"""Models that are given a label: the identifiable VAE (Khemakhem et al., 2020), as in *I Don't Need
u* (Willetts and Paige, 2021), and the conditional VAE (Sohn, Lee and Yan, NeurIPS 2015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyro
from torch import Tensor

from ppl_models.base import FacetModel, Input
from ppl_models.distributions import one_hot_labels
from ppl_models.given.arrays import as_vectors
from ppl_models.given.checks import check_size
from ppl_models.given.labels import as_labels, draw_labels
from ppl_models.likelihood_base import Likelihood
from ppl_models.networks import Architecture
from ppl_models.networks.base import concatenate
from ppl_models.priors.base import Prior
from ppl_models.priors.gaussian_mixture import GaussianMixture
from ppl_models.priors.plain import ConditionalNormal, StandardNormal
from ppl_models.program import Given
from ppl_models.vade import VaDE


class Labeled(FacetModel):
    """Base of the models whose posterior of z is conditioned on a label: here a class."""

    inputs: ClassVar[Mapping[str, Input]] = {"label": Input()}
    suitable_guide = "ConditionalGuide"
    num_label_features: int

    def forward(self, x: Tensor | None = None, *, label: Tensor, num_samples: int = 1) -> Tensor:
        """The program. Sites: ``z_NAME`` ``[B, d]``, ``x`` ``[B, *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``; without it, a sample is drawn for each label.
        :param label: u: integers ``[B]``, or vectors ``[B, label_dim]``.
        :param num_samples: L, see :class:`~ppl_models.mfcvae.MFCVAE`.
        """
        u, z = self.label_features(label), {}
        with self.plate(x, len(label)), self.draws(num_samples):
            for name, prior in self.priors.items():
                z[name] = pyro.sample(f"z_{name}", prior.latent(u))  # z | u, or z by itself
            # x | z, or x | z, u
            return pyro.sample("x", self.decode(z, **dict.fromkeys(self.decodes, label)), obs=x)

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        return as_labels(name, values, n, self.num_label_features)

    def label_features(self, label: Tensor) -> Tensor:
        """The label as the networks read it, ``[B, num_label_features]``: one-hot."""
        return one_hot_labels(label, self.num_label_features, self.gates)

    def log_prior(self, name: str, z: Tensor, **given: Any) -> Tensor:
        return self.priors[name].latent(self.label_features(given["label"])).log_prob(z)


class IVAE(Labeled, VaDE):
    r"""A VAE whose prior is conditioned on a label u: :math:`z \mid u \sim \mathrm{Normal}(\mu_u,
    \Sigma_u), x \mid z`.

    The *identifiable* VAE, not the invariant VAE with the same initials. It is
    :class:`~ppl_models.vade.VaDE` with an observed cluster. The paper's point: without the label,
    when the cluster is inferred, the model can be just as identifiable. The objective is Eq. 3, a
    bound on log p(x given u), which excludes the label's own probability. ``generate`` draws labels
    uniformly if no cluster is chosen.

    :param x_shape: shape of one sample.
    :param num_labels: number of values of u.
    :param dim: length of the latent vector.
    :param scale: initial standard deviation of every component.
    :param name: the facet's name.
    :raises ValueError: if a size is below 1.

    Example:
        >>> import torch
        >>> from ppl_models import IVAE
        >>> model = IVAE((20,), num_labels=3, dim=2)
        >>> model.generate(5, facet="label", cluster=1).shape
        torch.Size([5, 20])
        >>> model(label=torch.tensor([0, 0, 2])).shape
        torch.Size([3, 20])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        num_labels: int,
        dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
        scale: float = 0.1,
        name: str = "label",
    ) -> None:
        check_size("num_labels", num_labels)
        prior = GaussianMixture(num_labels, dim, weights="uniform", scale=scale)
        super().__init__(x_shape, prior, likelihood, network, name)
        self.name, self.num_label_features = name, prior.num_components

    def forward(  # type: ignore[override]
        self, x: Tensor | None = None, *, label: Tensor, num_samples: int = 1
    ) -> Tensor:
        """The program of VaDE, its cluster known.

        :param x: observed batch ``[B, *x_shape]``; without it, a sample is drawn for each label.
        :param label: u, integers ``[B]``.
        :param num_samples: L, see :class:`~ppl_models.mfcvae.MFCVAE`.
        """
        # The bound is on log p(x given u): the label's own probability has no part in it.
        with Given({f"c_{self.name}": self.label_features(label)}, scored=False):
            return VaDE.forward(self, x, size=len(label), num_samples=num_samples)

    @property
    def inferred(self) -> Mapping[str, Prior]:
        return {}


class ContinuousIVAE(Labeled):
    r"""A VAE whose prior is conditioned on a vector u: :math:`z \mid u \sim \mathrm{Normal}(\mu(u),
    \sigma(u)), x \mid z`.

    As :class:`IVAE`, with a network of u for the prior's mean and scale instead of a table
    (Khemakhem et al., 2020). ``generate`` draws u from a standard normal, which is only meaningful
    if u is standardized.

    :param x_shape: shape of one sample.
    :param label_dim: length of u.
    :param dim: length of the latent vector.
    :raises ValueError: if a size is below 1.

    Example:
        >>> import torch
        >>> from ppl_models import ContinuousIVAE
        >>> model = ContinuousIVAE((20,), label_dim=3, dim=2)
        >>> model.prior("label").latent(torch.zeros(4, 3)).mean.shape
        torch.Size([4, 2])
        >>> model.generate(4).shape
        torch.Size([4, 20])
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        label_dim: int,
        dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
    ) -> None:
        self.num_label_features = check_size("label_dim", label_dim)
        prior = ConditionalNormal(label_dim, dim)
        super().__init__(x_shape, {"label": prior}, likelihood, network)

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        return as_vectors(name, values, n, self.num_label_features, self.gates.dtype)

    def label_features(self, label: Tensor) -> Tensor:
        """The label as the networks read it: unchanged, ``[B, label_dim]``."""
        return label.to(self.gates)


class CVAE(Labeled):
    r"""Conditional VAE (Sohn et al., 2015): :math:`z \sim \mathrm{Normal}(0, I), x \mid z, u`, with
    u the given label.

    N-VAE's baseline: the decoder reads the label, the prior does not. The objective is a bound on
    log p(x given u). ``generate`` draws labels uniformly if none are given.

    :param x_shape: shape of one sample.
    :param num_classes: number of values of u.
    :param dim: length of the latent vector.
    :param name: the facet's name.
    :raises ValueError: if a size is below 1.

    Example:
        >>> from ppl_models import CVAE
        >>> model = CVAE((784,), num_classes=10, dim=8)
        >>> model.generate(3, label=[7, 7, 1]).shape
        torch.Size([3, 784])
    """

    inputs: ClassVar[Mapping[str, Input]] = {"label": Input(decoded=True)}

    def __init__(
        self,
        x_shape: Sequence[int],
        num_classes: int,
        dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
        name: str = "z",
    ) -> None:
        self.num_classes = self.num_label_features = check_size("num_classes", num_classes)
        super().__init__(x_shape, {name: StandardNormal(dim)}, likelihood, network)
        self.name = name

    @property
    def decoder_dims(self) -> tuple[int, ...]:
        return (self.dims[0] + self.num_classes,)

    def decoder_inputs(self, z: Mapping[str, Tensor], **given: Any) -> list[Tensor]:
        return [concatenate(self.label_features(given["label"]), z[self.name])]

    def draw_given(
        self, n: int, facet: str | None = None, cluster: int | None = None, given: Any = None
    ) -> dict[str, Any]:
        return draw_labels(n, self.num_classes, self.gates.device, given)
