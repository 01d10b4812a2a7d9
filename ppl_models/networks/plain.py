"""Networks without levels, which all latents share (*I Don't Need u*, appendix A)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from ppl_models.checks import check_kind, number
from ppl_models.networks.base import Decoder, concatenate, gated
from ppl_models.networks.dense import Linear
from ppl_models.networks.shared import Shared

__all__ = ["MLP"]


class Plain(Shared):
    """Base of architectures without levels: the decoder's first layer reads all latents,
    concatenated.
    """

    @abstractmethod
    def picture(self, dim: int, x_shape: tuple[int, ...]) -> nn.Module:
        """Layers from the concatenated latents ``[..., dim]`` to ``[..., *x_shape]``."""

    def _decoder(self, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> Decoder:
        return _PlainDecoder(self.picture(sum(dims), x_shape))


class MLP(Plain):
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
            raise ValueError(
                "dropout is the fraction of units dropped and must be within [0, 1), got "
                f"{dropout!r}"
            )
        self.dropout = dropout
        self.skip = skip

    def features(self, x_shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        hidden, width = self._hidden(prod(x_shape), *self.widths)
        return nn.Sequential(nn.Flatten(-len(x_shape)), *hidden), width

    def picture(self, dim: int, x_shape: tuple[int, ...]) -> nn.Module:
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


class _PlainDecoder(Decoder):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def output(self, z: Sequence[Tensor], gates: Tensor | None) -> Tensor:
        return self.trunk(concatenate(*gated(z, gates)))
