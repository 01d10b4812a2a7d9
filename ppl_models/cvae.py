"""Conditional VAE (Sohn, Lee and Yan, NeurIPS 2015)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyro
from torch import Tensor

from ppl_models.base import Input
from ppl_models.given.checks import check_size
from ppl_models.given.labels import draw_labels
from ppl_models.ivae import Labeled
from ppl_models.likelihood_base import Likelihood
from ppl_models.networks import Architecture, SharedMLP
from ppl_models.networks.base import concatenate
from ppl_models.priors import StandardNormal


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
        network = network if network is not None else SharedMLP()
        super().__init__(x_shape, {name: StandardNormal(dim)}, likelihood, network)
        self.name = name

    @property
    def decoder_dims(self) -> tuple[int, ...]:
        return (self.dims[0] + self.num_classes,)

    def forward(self, x: Tensor | None = None, *, label: Tensor, num_samples: int = 1) -> Tensor:
        """The program. Sites: ``z_NAME`` ``[B, d]``, ``x`` ``[B, *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``; without it, a sample is drawn for each label.
        :param label: u, integers ``[B]``.
        """
        with self.plate(x, len(label)), self.draws(num_samples):
            # z ~ Normal(0, I)
            z = pyro.sample(f"z_{self.name}", self.priors[self.name].latent())
            # x | z, u
            return pyro.sample("x", self.decode({self.name: z}, label=label), obs=x)

    def decoder_inputs(self, z: Mapping[str, Tensor], **given: Any) -> list[Tensor]:
        return [concatenate(self.label_features(given["label"]), z[self.name])]

    def draw_given(
        self, n: int, facet: str | None = None, cluster: int | None = None, given: Any = None
    ) -> dict[str, Any]:
        return draw_labels(n, self.num_classes, self.gates.device, given)
