"""Natural-clustering Variational Autoencoder (Antorán and Miguel, 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import pyro
import torch
from torch import Tensor

from ppl_models.base import FacetModel, Input
from ppl_models.distributions import Proportions, one_hot_labels
from ppl_models.given.checks import check_kind, check_positive, check_size
from ppl_models.given.labels import as_labels, draw_labels
from ppl_models.likelihood_base import Likelihood
from ppl_models.networks import Architecture, SharedMLP
from ppl_models.networks.base import concatenate
from ppl_models.priors.plain import ClassBlocks, StandardNormal
from ppl_models.program import Given


class NVAE(FacetModel):
    r"""Latents specific to each class, and latents shared by all classes.

    The generative process (III; Fig. 4), for each sample:

    * class probabilities :math:`\pi \sim \mathrm{Dirichlet}(\alpha_p, \ldots, \alpha_p)`, and a
      class :math:`y \sim \mathrm{Cat}(\pi)`;
    * latents of every class, :math:`z_{c1}, \ldots, z_{cL} \sim \mathrm{Normal}(0, I)`, and shared
      ones, :math:`z_s \sim \mathrm{Normal}(0, I)`;
    * then :math:`x \mid y, z \sim p(x \mid f(y, z_{cy}, z_s))`: the decoder sees the latents of
      class y (those of other classes are set to 0) and y itself, one-hot (Appendix B).

    The class may be given for all samples, for some (-1 means unknown), or for none; unknown
    classes are inferred. The objective bounds log p(x, y) where the class is given, and log p(x)
    elsewhere. The facets are ``shared`` and ``class``.

    :param x_shape: shape of one sample.
    :param num_classes: L.
    :param class_dim: length of each class's latents.
    :param shared_dim: length of the shared latents.
    :param concentration: :math:`\alpha_p`; with ``None``, :math:`\pi` is summed out: :math:`y \sim
        \mathrm{Cat}(1/L)`.
    :param class_bias: whether the decoder sees y itself; without it the decoder can only recognize
        the class by its latents, which must then carry much information (Fig. 10).
    :raises ValueError: if a size is below 1 or ``concentration`` is not positive.

    Example:
        >>> from ppl_models import NVAE
        >>> model = NVAE((784,), num_classes=10, class_dim=2, shared_dim=8)
        >>> model.dims
        (8, 20)
        >>> model.generate(3, label=[7, 7, 1]).shape
        torch.Size([3, 784])
    """

    inputs: ClassVar[Mapping[str, Input]] = {"label": Input(decoded=True)}
    suitable_guide = "ClassifierGuide"

    def __init__(
        self,
        x_shape: Sequence[int],
        num_classes: int,
        class_dim: int,
        shared_dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
        concentration: float | None = None,
        class_bias: bool = True,
    ) -> None:
        if concentration is not None:
            check_positive("concentration", concentration)
        self.class_bias = check_kind("class_bias", class_bias, bool, "True or False")
        self.concentration = concentration
        sizes = {"num_classes": num_classes, "class_dim": class_dim, "shared_dim": shared_dim}
        for name, value in sizes.items():
            check_size(name, value)
        blocks = ClassBlocks(num_classes, class_dim)
        facets = {"shared": StandardNormal(shared_dim), "class": blocks}
        network = SharedMLP() if network is None else network
        super().__init__(x_shape, facets, likelihood, network)

    @property
    def blocks(self) -> ClassBlocks:
        """The prior of the class-specific latents."""
        return cast(ClassBlocks, self.facets["class"])

    @property
    def num_classes(self) -> int:
        return self.blocks.num_components

    @property
    def inferred(self) -> dict[str, ClassBlocks]:
        return {"class": self.blocks}

    def by_site(self, kl_weights: Tensor) -> dict[str, Tensor]:
        scales = super().by_site(kl_weights)
        return {**scales, "pi": scales["c_class"]}  # pi and the class given pi are the class

    @property
    def decoder_dims(self) -> tuple[int, ...]:
        shared, blocks = self.dims
        return shared, blocks + self.num_classes * self.class_bias

    def forward(
        self,
        x: Tensor | None = None,
        *,
        label: Tensor | None = None,
        known: Tensor | None = None,
        size: int = 1,
        num_samples: int = 1,
    ) -> Tensor:
        """The program. Sites: ``c_class`` ``[B, L]`` one-hot, ``pi`` ``[B, L]`` (unless it is
        summed out), ``z_shared`` and ``z_class`` ``[B, d]``, ``x`` ``[B, *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``; without it, a sample is drawn for each label.
        :param label: y, integers ``[B]``; without it, ``size`` samples of random classes are drawn.
        :param known: which labels are known, ``[B]``; if given, the class is not observed but
            inferred by a guide.
        :param num_samples: L of :class:`~ppl_models.mfcvae.MFCVAE`, draws of the latents.
        """
        given = self.one_hot(label) if label is not None and known is None else None
        with self.plate(x, size if label is None else len(label)), Given({"c_class": given}):
            # y ~ Cat(1 / L)
            y = pyro.sample("c_class", self.blocks.component())
            if self.concentration is not None:
                # pi | y ~ Dirichlet(alpha + y): the same joint as pi ~ Dirichlet(alpha),
                # y | pi ~ Cat(pi)
                pyro.sample("pi", Proportions(self.concentration + y))
            with self.draws(num_samples):
                z = {}
                for name, prior in self.priors.items():
                    # z ~ Normal(0, I)
                    z[name] = pyro.sample(f"z_{name}", prior.latent())
                # x | y, z_cy, z_s
                return pyro.sample("x", self.decode(z, label=y), obs=x)

    def decoder_inputs(self, z: Mapping[str, Tensor], **given: Any) -> list[Tensor]:
        y = self.one_hot(given["label"])
        own = self.blocks.chosen(z["class"], y)
        return [z["shared"], concatenate(y, own) if self.class_bias else own]

    def one_hot(self, label: Tensor) -> Tensor:
        """One-hot vectors ``[..., L]`` of integers ``[...]``; one-hot input stays as it is."""
        return one_hot_labels(label, self.num_classes, self.gates)

    def draw_given(
        self, n: int, facet: str | None = None, cluster: int | None = None, given: Any = None
    ) -> dict[str, Any]:
        if facet != "class" or cluster is None:
            return draw_labels(n, self.num_classes, self.gates.device, given)
        if given:
            raise ValueError(
                f"cluster={cluster} and label= both choose the class: give only one of them"
            )
        return {"label": torch.full((n,), cluster, device=self.gates.device)}

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        return as_labels(name, values, n, self.num_classes, unknown=True)
