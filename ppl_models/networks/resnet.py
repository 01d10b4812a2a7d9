"""The ResNet of *I Don't Need u* (Table A.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.parametrize import register_parametrization

from ppl_models.networks.base import ACTIVATIONS, NetworkT, ReadsImages
from ppl_models.networks.dense import Linear
from ppl_models.networks.layers import Batched
from ppl_models.networks.plain import Plain

__all__ = ["ResNet"]


class ResNet(ReadsImages, Plain):
    """Residual blocks with weight normalisation, each of which halves or doubles the image (*I
    Don't Need u*, Table A.4).

    Encoder: a 1 x 1 convolution to 16 channels, blocks to 32, 64, 128, 256, 512, ReLU, heads.
    Decoder: a fully connected layer, blocks to 256, 128, 64, 32, 16, ReLU, a 1 x 1 convolution.
    Halving rounds odd sizes up: 28 x 28 images become 14, 7, 4, 2 and 1 pixels wide, and back.

    The table does not define a block. Here: two 3 x 3 convolutions, each after its activation, in
    parallel with one 1 x 1 convolution; the image is halved (by averaging) after them, or doubled
    (by repetition) before them.

    :param widths: channels, from the data inwards: one number for the first convolution and one per
        block.
    :raises ValueError: if an option is out of range or there are fewer than two widths; when a
        network is built, if the data are not images.

    Example:
        >>> from ppl_models import VAE, ResNet
        >>> VAE((1, 28, 28), 8, network=ResNet((4, 8, 16))).generate(2).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        widths: Sequence[int] = (16, 32, 64, 128, 256, 512),
        activation: str = "relu",
        init: str = "pytorch",
    ) -> None:
        super().__init__(widths, activation, init)
        if len(self.widths) < 2:
            raise ValueError(
                "ResNet needs a width for its first convolution and one for each block, got "
                f"{widths}"
            )

    def features(self, x_shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        sizes = self._sizes(x_shape)
        blocks = [_Halving(n, m, self.activation) for n, m in pairwise(self.widths)]
        first = nn.Conv2d(x_shape[0], self.widths[0], 1)
        trunk = Batched(3, first, *blocks, ACTIVATIONS[self.activation](), nn.Flatten())
        return trunk, self.widths[-1] * prod(sizes[-1])

    def picture(self, dim: int, x_shape: tuple[int, ...]) -> nn.Module:
        sizes = self._sizes(x_shape)
        start = (self.widths[-1], *sizes[-1])
        steps = zip(pairwise(self.widths[::-1]), sizes[-2::-1], strict=True)
        blocks = [_Growing(n, m, self.activation, size) for (n, m), size in steps]
        last = nn.Conv2d(self.widths[0], x_shape[0], 1)
        return Batched(
            1,
            Linear(dim, prod(start)),
            nn.Unflatten(1, start),
            *blocks,
            ACTIVATIONS[self.activation](),
            last,
        )

    def _sizes(self, x_shape: tuple[int, ...]) -> list[tuple[int, int]]:
        """Height and width before the first block and after each."""
        if len(x_shape) != 3:
            raise ValueError(
                f"a ResNet needs images (channels, height, width), got x_shape={x_shape}"
            )
        sizes = [(x_shape[1], x_shape[2])]
        for _ in self.widths[1:]:
            sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
        return sizes

    def _initialized(self, network: NetworkT) -> NetworkT:
        super()._initialized(network)
        blocks = [module for module in network.modules() if isinstance(module, _Block)]
        for block in blocks:
            for convolution in (block.first, block.second, block.beside):
                register_parametrization(
                    convolution, "weight", _WeightNorm()
                )  # starts from the initialised weights
        return network


class _WeightNorm(nn.Module):
    """A weight as length times direction, per output channel (Salimans and Kingma, 2016).

    torch's own is a fused operator that torch.vmap does not support.
    """

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        return direction * (length / direction.flatten(1).norm(dim=1))[:, None, None, None]

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight.flatten(1).norm(dim=1), weight


class _Block(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, activation: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.beside = nn.Conv2d(channels_in, channels_out, 1)
        self.activation = ACTIVATIONS[activation]()

    def residual(self, h: Tensor) -> Tensor:
        return self.beside(h) + self.second(self.activation(self.first(self.activation(h))))


class _Halving(_Block):
    def forward(self, h: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(self.residual(h), 2, ceil_mode=True)


class _Growing(_Block):
    """:param size: height and width of the output."""

    def __init__(
        self, channels_in: int, channels_out: int, activation: str, size: tuple[int, int]
    ) -> None:
        super().__init__(channels_in, channels_out, activation)
        self.size = size

    def forward(self, h: Tensor) -> Tensor:
        return self.residual(interpolate(h, self.size))
