"""Networks in which all facets have one depth (MFCVAE, D.2, Eq. 81 to 87; *I Don't Need u*, A)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from ppl_models.given.checks import check_kind, number
from ppl_models.networks.base import Architecture, Decoder, Encoder, Shape, concatenate, gated
from ppl_models.networks.dense import Linear


class Shared(Architecture):
    """Base of architectures without levels: each facet's head is a linear layer on the last
    features, and the decoder reads all latents, concatenated.
    """

    @abstractmethod
    def features(self, x_shape: Shape) -> tuple[nn.Module, int]:
        """Layers from ``[..., *x_shape]`` to a vector of features, and the number of features."""

    @abstractmethod
    def picture(self, dim: int, x_shape: Shape) -> nn.Module:
        """Layers from the concatenated latents ``[..., dim]`` to ``[..., *x_shape]``."""

    def _encoder(self, x_shape: Shape, sizes: Shape, components: Shape) -> Encoder:
        if any(components):
            raise ValueError(
                f"{type(self).__name__} has no levels that components could enter: use a ladder, "
                "such as MLPLadder() for two facets or MLPLadder(rungs=[1]) for one"
            )
        trunk, width = self.features(x_shape)
        return SharedEncoder(trunk, [Linear(width, size) for size in sizes if size])

    def _decoder(self, x_shape: Shape, dims: Shape) -> Decoder:
        return SharedDecoder(self.picture(sum(dims), x_shape))


class SharedMLP(Shared):
    """Fully connected, shared but for the layers next to the latents (MFCVAE, Table 6; VaDE's).

    Encoder: ``x -> 500 -> 2000``, one linear head per facet. Decoder: ``z_j -> 2000`` for each
    facet, concatenated, ``-> 500 -> x``. (The table has ``2000 -> 500`` for this layer, which two
    concatenated facets do not fit: here it is ``J 2000 -> 500``.)

    :param widths: hidden widths from the data inwards.

    Example:
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((784,), GaussianMixture(10, 5), network=SharedMLP((64, 128)))
        >>> model.generate(2).shape
        torch.Size([2, 784])
    """

    def features(self, x_shape: Shape) -> tuple[nn.Module, int]:
        hidden = [self._block(n, m) for n, m in pairwise((prod(x_shape), *self.widths))]
        return nn.Sequential(nn.Flatten(-len(x_shape)), *hidden), self.widths[-1]

    def picture(self, dim: int, x_shape: Shape) -> nn.Module:
        widths = (dim, *self.widths[-2::-1])
        hidden = [self._block(n, m) for n, m in pairwise(widths)]
        return nn.Sequential(*hidden, Linear(widths[-1], prod(x_shape)), nn.Unflatten(-1, x_shape))

    def _decoder(self, x_shape: Shape, dims: Shape) -> Decoder:
        rungs = [self._block(dim, self.widths[-1]) for dim in dims]
        return SharedDecoder(self.picture(len(dims) * self.widths[-1], x_shape), rungs)


class SharedEncoder(Encoder):
    def __init__(self, trunk: nn.Module, rungs: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk, self.rungs = trunk, nn.ModuleList(rungs)

    def heads(self, x: Tensor, components: Sequence[Tensor | None] = ()) -> list[Tensor]:
        h = self.trunk(x)  # Eq. 81
        return [rung(h) for rung in self.rungs]  # Eq. 82


class SharedDecoder(Decoder):
    """:param rungs: from each facet's latent to what the trunk reads; if none, the latents."""

    def __init__(self, trunk: nn.Module, rungs: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.rungs, self.trunk = nn.ModuleList(rungs), trunk

    def output(self, z: Sequence[Tensor], gates: Tensor | None) -> Tensor:
        if self.rungs:
            z = [rung(z_j) for rung, z_j in zip(self.rungs, z, strict=True)]
        return self.trunk(concatenate(*gated(z, gates)))  # Eq. 85 and 86


class MLP(Shared):
    """Fully connected layers; the decoder mirrors the encoder (*I Don't Need u*, Table A.2).

    With the widths of the table: ``x -> 512 -> 384 -> dropout -> 256 -> 256 -> heads``.

    :param widths: hidden widths from the data inwards.
    :param dropout: fraction of units dropped in training, in the middle of encoder and decoder.
    :param skip: whether the heads read the data beside the last hidden layer, and the decoder's
        last layer the latents: linear maps that the hidden layers correct.
    :raises ValueError: if an option is out of range or ``dropout`` is not within [0, 1).

    Example:
        >>> from ppl_models import MLP, VAE
        >>> VAE((784,), 8, network=MLP((64, 32), dropout=0.0)).generate(2).shape
        torch.Size([2, 784])
    """

    def __init__(
        self,
        widths: Sequence[int] = (512, 384, 256, 256),
        activation: str = "leaky_relu_0.1",
        init: str = "pytorch",
        dropout: float = 0.1,
        skip: bool = False,
    ) -> None:
        super().__init__(widths, activation, init)
        check_kind("skip", skip, bool, "True or False")
        if not 0 <= number(dropout) < 1:
            raise ValueError(f"dropout is a fraction of units, within [0, 1), got {dropout!r}")
        self.dropout = dropout
        self.skip = skip

    def features(self, x_shape: Shape) -> tuple[nn.Module, int]:
        hidden, width = self._hidden(prod(x_shape), *self.widths)
        return nn.Sequential(nn.Flatten(-len(x_shape)), *hidden), width

    def picture(self, dim: int, x_shape: Shape) -> nn.Module:
        hidden, width = self._hidden(dim, *self.widths[::-1])
        return nn.Sequential(*hidden, Linear(width, prod(x_shape)), nn.Unflatten(-1, x_shape))

    def _hidden(self, *widths: int) -> tuple[list[nn.Module], int]:
        """Layers from the first width to the last, and how many features they end in."""
        layers: list[nn.Module] = [self._block(n, m) for n, m in pairwise(widths)]
        if self.dropout:
            layers.insert(max(1, len(layers) // 2), nn.Dropout(self.dropout))
        return ([_Skip(*layers)], widths[0] + widths[-1]) if self.skip else (layers, widths[-1])


class _Skip(nn.Sequential):
    """Layers whose features are followed by what they read."""

    def forward(self, rows: Tensor) -> Tensor:
        return concatenate(super().forward(rows), rows)
