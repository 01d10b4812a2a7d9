"""The convolutional network of ML-VAE (supplement, 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from ppl_models.checks import check_images, check_size
from ppl_models.networks.base import ReadsImages
from ppl_models.networks.dense import Linear
from ppl_models.networks.layers import Batched, BatchNorm
from ppl_models.networks.plain import Plain

__all__ = ["StridedConvNet"]


class StridedConvNet(ReadsImages, Plain):
    """Strided convolutions and two fully connected layers (ML-VAE, supplement, 2.1).

    Encoder: convolutions of size 4 and stride 2 to ``widths`` channels, each with batch
    normalisation and ReLU; two linear layers of ``hidden`` units, each with batch normalisation and
    concatenated ReLU (max(h, 0) and max(-h, 0)); heads. Decoder: a linear layer, transposed
    convolutions of size 4 and stride 2 to all widths except the deepest, from deep to shallow, each
    with batch normalisation and ReLU; a convolution of size 3. The paper does not say how its
    decoder turns a vector into the first image: here the linear layer does.

    :param widths: channels, from the data inwards; (64, 128, 256, 512) in the paper, for 64 x 64
        images.
    :param hidden: units of the two linear layers.
    :raises ValueError: if an option is out of range; when a network is built, if the data are not
        images or cannot be halved that often.

    Example:
        >>> from ppl_models import VAE, StridedConvNet
        >>> VAE((3, 32, 32), 8, network=StridedConvNet((8, 16), hidden=32)).generate(2).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512),
        init: str = "pytorch",
        hidden: int = 256,
    ) -> None:
        super().__init__(widths, init=init)
        self.hidden = check_size("hidden", hidden)

    def features(self, x_shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        height, width = self._smallest(x_shape)
        layers: list[nn.Module] = []
        for n, m in pairwise((x_shape[0], *self.widths)):
            layers += [nn.Conv2d(n, m, 4, 2, 1, bias=False), BatchNorm(m), nn.ReLU()]
        for size in (self.widths[-1] * height * width, 2 * self.hidden):
            layers += [
                nn.Flatten(),
                Linear(size, self.hidden, bias=False),
                BatchNorm(self.hidden),
                _ConcatenatedReLU(),
            ]
        return Batched(3, *layers), 2 * self.hidden

    def picture(self, dim: int, x_shape: tuple[int, ...]) -> nn.Module:
        height, width = self._smallest(x_shape)
        start = (self.widths[-1], 2 * height, 2 * width)
        layers = [Linear(dim, prod(start)), nn.Unflatten(1, start)]
        for n, m in pairwise(self.widths[::-1]):
            layers += [nn.ConvTranspose2d(n, m, 4, 2, 1, bias=False), BatchNorm(m), nn.ReLU()]
        return Batched(1, *layers, nn.Conv2d(self.widths[0], x_shape[0], 3, padding=1))

    def _smallest(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        """Height and width of the encoder's features at the lowest resolution."""
        return check_images(
            f"a StridedConvNet of {len(self.widths)} widths", x_shape, len(self.widths)
        )


class _ConcatenatedReLU(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([relu(h), relu(-h)], 1)
