"""One of every model at a size that it is used at: what model_costs measures.

784 pixels, and the widths and sizes of the papers or of the examples, as far as they have any;
likelihoods are Bernoulli. The flow is of five dimensions, as in its paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from guides import (
    ClassifierGuide,
    CodebookGuide,
    ConditionalGuide,
    FacetGuide,
    FlowGuide,
    GroupedGuide,
    GumbelSoftmax,
    LadderGuide,
    PointGuide,
    VaDEGuide,
)
from lab.benchmarks import plain_objectives as plain
from ppl_models import (
    CVAE,
    GMDGM,
    IVAE,
    MFCVAE,
    MLP,
    MLVAE,
    NVAE,
    VAE,
    VLAC,
    VLAE,
    VQVAE,
    Autoencoder,
    AutoregressiveFlow,
    ContinuousIVAE,
    ConvGrid,
    GaussianMixture,
    GMMFlow,
    MLPLadder,
    SharedMLP,
    VaDE,
)
from ppl_models.given.observed import Observed

CLASSES, LABEL_DIM, FLOW_DIM = 10, 5, 5


@dataclass(frozen=True)
class Size:
    """All models as they are used, or so small that a step takes no time."""

    small: bool

    @property
    def side(self) -> int:
        """Height and width of an image."""
        return 8 if self.small else 28

    @property
    def row(self) -> tuple[int]:
        return (self.side**2,)

    @property
    def image(self) -> tuple[int, int, int]:
        return (1, self.side, self.side)

    def widths(self, *full: int) -> tuple[int, ...]:
        return tuple(8 + i for i in range(len(full))) if self.small else full

    def rows(self, full: int) -> int:
        """Of a batch."""
        return 16 if self.small else full


FULL, SMALL = Size(small=False), Size(small=True)


# What is given beside x, for n data.


def nothing(n: int) -> dict[str, Tensor]:
    return {}


def labels(n: int) -> dict[str, Tensor]:
    return {"label": torch.arange(n) % CLASSES}


def vectors(n: int) -> dict[str, Tensor]:
    return {"label": torch.randn(n, LABEL_DIM)}


def groups_of_eight(n: int) -> dict[str, Tensor]:
    return {"group": torch.arange(n) // 8}


# The networks alone: the mean of what the decoder makes of the encoder's means, without noise.


def through_means(guide: Any, x: Tensor, group: Tensor | None = None) -> Tensor:
    return _decoded(guide, guide.encoder(x))


def through_classifier(guide: Any, x: Tensor) -> Tensor:
    model = guide.model
    c = dict(
        zip(model.mixtures, (logits.softmax(-1) for logits in guide.classifier(x)), strict=True)
    )
    return _decoded(guide, guide.encoder(x, [c.get(name) for name in model.priors]))


def beside_label(guide: Any, x: Tensor, label: Tensor) -> Tensor:
    features = guide.model.label_features(label)
    (head,) = guide.encoder(torch.cat([x, features], 1))
    z = head[:, : guide.model.dims[0]]
    read = torch.cat([features, z], 1) if guide.model.decodes else z
    return guide.model.decoder([read], guide.model.gates).mean()


def beside_class(guide: Any, x: Tensor, label: Tensor) -> Tensor:
    model, y = guide.model, one_hot(label, CLASSES).to(x)
    shared, blocks = (head[:, :d] for head, d in zip(guide.encoder(x), model.dims, strict=True))
    return model.decoder([shared, torch.cat([y, blocks], 1)], model.gates).mean()


def backwards(guide: Any, x: Tensor) -> Tensor:
    z, log_determinant = guide.model.flow.invert(x)
    return z.mean() + log_determinant.mean()


def _decoded(guide: Any, heads: list[Tensor]) -> Tensor:
    means = [head[:, :d] for head, d in zip(heads, guide.model.dims, strict=True)]
    return guide.model.decoder(means, guide.model.gates).mean()


@dataclass(frozen=True)
class Case:
    """One model.

    :ivar guide: builds it, at either size.
    :ivar plain: its objective written by hand, in nats per datum, given the guide, x and what is
        beside x.
    :ivar networks: a mean of what its networks give, likewise.
    :ivar given: what it takes beside x, for a number of data.
    :ivar batch: rows of a batch at full size.
    """

    guide: Callable[[Size], FacetGuide]
    plain: Callable[..., Tensor]
    networks: Callable[..., Tensor] = through_means
    given: Callable[[int], dict[str, Tensor]] = nothing
    batch: int = 512

    def data(self, guide: FacetGuide, size: Size, device: torch.device) -> Observed:
        """A batch of uniform noise, whose values no cost depends on."""
        n = size.rows(self.batch)
        return Observed(torch.rand(n, *guide.model.x_shape), self.given(n)).to(device)


# The models.


def facets(num_facets: int, num_components: int = 25) -> dict[str, GaussianMixture]:
    return {f"facet_{j}": GaussianMixture(num_components, 5) for j in range(1, num_facets + 1)}


def mfcvae(size: Size) -> VaDEGuide:
    return VaDEGuide(MFCVAE(size.row, facets(2), network=MLPLadder(size.widths(500, 2000))))


def vade(size: Size) -> VaDEGuide:
    return VaDEGuide(
        VaDE(size.row, GaussianMixture(25, 5), network=SharedMLP(size.widths(500, 2000)))
    )


def vlac(size: Size) -> LadderGuide:
    network = MLPLadder(size.widths(500, 800, 1250, 2000))
    return LadderGuide(
        VLAC(size.row, (1, 20, 50, 20), (5, 5, 10, 5), network=network), discrete=GumbelSoftmax()
    )


def vlae(size: Size) -> LadderGuide:
    return LadderGuide(
        VLAE(size.row, (5, 5, 10, 5), network=MLPLadder(size.widths(500, 800, 1250, 2000)))
    )


def gmdgm(size: Size) -> LadderGuide:
    network = MLPLadder(size.widths(500, 2000), rungs=[1])
    return LadderGuide(GMDGM(size.row, 50, 10, network=network), discrete=GumbelSoftmax())


def vae(size: Size) -> LadderGuide:
    return LadderGuide(VAE(size.row, 10, network=MLPLadder(size.widths(500, 2000), rungs=[1])))


def ivae(size: Size) -> ConditionalGuide:
    return ConditionalGuide(
        IVAE(size.row, CLASSES, 50, network=MLP(size.widths(512, 384, 256, 256)), scale=1.0)
    )


def continuous_ivae(size: Size) -> ConditionalGuide:
    network = MLP(size.widths(512, 384, 256, 256))
    return ConditionalGuide(ContinuousIVAE(size.row, LABEL_DIM, 50, network=network))


def gmm_flow(size: Size) -> FlowGuide:
    layers = AutoregressiveFlow(size.widths(32, 32), num_layers=2 if size.small else 10)
    return FlowGuide(GMMFlow((FLOW_DIM,), GaussianMixture(50, FLOW_DIM, scale=1.0), layers))


def vqvae(size: Size) -> CodebookGuide:
    return CodebookGuide(VQVAE(size.image, 128, 64, network=ConvGrid(size.widths(64, 64))))


def autoencoder(size: Size) -> PointGuide:
    return PointGuide(Autoencoder(size.image, 64, network=ConvGrid(size.widths(64, 64))))


def mlvae(size: Size) -> GroupedGuide:
    return GroupedGuide(MLVAE(size.row, 10, 10, network=MLP(size.widths(500), "tanh", dropout=0)))


def nvae(size: Size) -> ClassifierGuide:
    return ClassifierGuide(
        NVAE(size.row, CLASSES, 4, 4, network=MLP(size.widths(512, 256), "relu", dropout=0))
    )


def cvae(size: Size) -> ConditionalGuide:
    return ConditionalGuide(
        CVAE(size.row, CLASSES, 8, network=MLP(size.widths(512, 256), "relu", dropout=0))
    )


CASES: dict[str, Case] = {
    "MFCVAE": Case(mfcvae, plain.mfcvae),
    "VaDE": Case(vade, plain.mfcvae),
    "VLAC": Case(vlac, plain.vlac, through_classifier),
    "VLAE": Case(vlae, plain.vlae),
    "GMDGM": Case(gmdgm, plain.vlac, through_classifier),
    "VAE": Case(vae, plain.vlae),
    "IVAE": Case(ivae, plain.ivae, beside_label, labels),
    "ContinuousIVAE": Case(continuous_ivae, plain.continuous_ivae, beside_label, vectors),
    "GMMFlow": Case(gmm_flow, plain.gmm_flow, backwards),
    "VQVAE": Case(vqvae, plain.vqvae, batch=64),
    "Autoencoder": Case(autoencoder, plain.autoencoder, batch=64),
    "MLVAE": Case(mlvae, plain.mlvae, given=groups_of_eight),
    "NVAE": Case(nvae, plain.nvae, beside_class, labels),
    "CVAE": Case(cvae, plain.cvae, beside_label, labels),
}
