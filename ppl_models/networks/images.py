"""Convolutional networks that all facets share (*I Don't Need u*, Tables A.3, A.4; ML-VAE), and
those whose latents form a grid over the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, relu
from torch.nn.utils.parametrize import register_parametrization

from ppl_models.given.checks import check_size
from ppl_models.networks.base import (
    ACTIVATIONS,
    Batched,
    BatchNorm,
    ChannelsLast,
    Decoder,
    Encoder,
    NetworkT,
    ReadsImages,
    Shape,
)
from ppl_models.networks.dense import Linear
from ppl_models.networks.shared import Shared, SharedDecoder, SharedEncoder


class ConvNet(ReadsImages, Shared):
    """3 x 3 convolutions, two before each halving, and two linear layers (*I Don't Need u*, A.3).

    Encoder: ``x -> 8 -> 16 -> pool -> 32 -> 64 -> pool -> 64 x 1 x 1 -> 64 -> heads``, where the
    last convolution covers the whole remaining image. Decoder: ``z -> 64 -> 64 x 1 x 1 -> 64 -> 32
    -> 16 -> 8 -> x``; the convolutions to 32 and to 8 channels double the image. Every convolution
    except the last of the encoder and of the decoder is followed by batch normalization, which
    provides the bias, and ELU; the fully connected layers use leaky ReLU with slope 0.1.

    :param widths: channels, two for each halving.
    :raises ValueError: if an option is out of range or ``widths`` has an odd length; when a network
        is built, if the data are not images or cannot be halved that often.

    Example:
        >>> from ppl_models import VAE, ConvNet
        >>> VAE((1, 28, 28), 8, network=ConvNet((4, 4, 8, 8))).generate(2).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(self, widths: Sequence[int] = (8, 16, 32, 64), hidden: int = 64) -> None:
        super().__init__(widths, "elu")
        if len(self.widths) % 2:
            raise ValueError(
                f"ConvNet has two convolutions for each halving, an even number of widths: {widths}"
            )
        self.hidden = check_size("hidden", hidden)

    def features(self, x_shape: Shape) -> tuple[nn.Module, int]:
        smallest = self.smallest(x_shape, len(self.widths) // 2)
        layers, channels = [], x_shape[0]
        for i, width in enumerate(self.widths):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), *self._after(width)]
            if i % 2:
                layers.append(nn.MaxPool2d(2))
            channels = width
        whole = nn.Conv2d(channels, self.hidden, smallest)
        return Batched(3, *layers, whole, nn.Flatten(), *self._dense(self.hidden)), self.hidden

    def picture(self, dim: int, x_shape: Shape) -> nn.Module:
        smallest, last = self.smallest(x_shape, len(self.widths) // 2), self.widths[-1]
        layers = [*self._dense(dim), Linear(self.hidden, self.hidden)]
        layers += [nn.Unflatten(1, (self.hidden, 1, 1))]
        layers += [nn.ConvTranspose2d(self.hidden, last, smallest, bias=False), *self._after(last)]
        for i, width in reversed(list(enumerate(self.widths[:-1]))):
            kernel, stride = (3, 1) if i % 2 else (4, 2)  # every second one doubles the image
            layer = nn.ConvTranspose2d(self.widths[i + 1], width, kernel, stride, 1, bias=False)
            layers += [layer, *self._after(width)]
        return Batched(1, *layers, nn.Conv2d(self.widths[0], x_shape[0], 3, padding=1))

    def _dense(self, size: int) -> list[nn.Module]:
        return [Linear(size, self.hidden), ACTIVATIONS["leaky_relu_0.1"]()]

    def _after(self, channels: int) -> list[nn.Module]:
        return [BatchNorm(channels), ACTIVATIONS[self.activation]()]


class ResNet(ReadsImages, Shared):
    """Residual blocks with weight normalization that halve or double (*I Don't Need u*, A.4).

    Encoder: a 1 x 1 convolution to 16 channels, blocks to 32, 64, 128, 256, 512, ReLU, heads.
    Decoder: a fully connected layer, blocks to 256, 128, 64, 32, 16, ReLU, a 1 x 1 convolution.
    Halving rounds odd sizes up: 28 x 28 images become 14, 7, 4, 2 and 1 pixels wide, and back.

    The table does not define a block. Here: two 3 x 3 convolutions, each after its activation, in
    parallel with one 1 x 1 convolution; the image is halved (by averaging) after them, or doubled
    (by repetition) before them.

    :param widths: channels, from the data inwards: of the first convolution and of each block.
    :raises ValueError: if there are fewer than two widths; later, if the data are not images.

    Example:
        >>> from ppl_models import VAE, ResNet
        >>> VAE((1, 28, 28), 8, network=ResNet((4, 8, 16))).generate(2).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self, widths: Sequence[int] = (16, 32, 64, 128, 256, 512), init: str = "pytorch"
    ) -> None:
        super().__init__(widths, init=init)
        if len(self.widths) < 2:
            raise ValueError(f"ResNet needs a first width and one for each block, got {widths}")

    def features(self, x_shape: Shape) -> tuple[nn.Module, int]:
        sizes = self._sizes(x_shape)
        blocks = [_Block(n, m) for n, m in pairwise(self.widths)]
        first = nn.Conv2d(x_shape[0], self.widths[0], 1)
        trunk = Batched(3, first, *blocks, nn.ReLU(), nn.Flatten())
        return trunk, self.widths[-1] * prod(sizes[-1])

    def picture(self, dim: int, x_shape: Shape) -> nn.Module:
        sizes = self._sizes(x_shape)
        start = (self.widths[-1], *sizes[-1])
        steps = zip(pairwise(self.widths[::-1]), sizes[-2::-1], strict=True)
        blocks = [_Block(n, m, size) for (n, m), size in steps]
        first = Linear(dim, prod(start)), nn.Unflatten(1, start)
        return Batched(1, *first, *blocks, nn.ReLU(), nn.Conv2d(self.widths[0], x_shape[0], 1))

    def _sizes(self, x_shape: Shape) -> list[tuple[int, int]]:
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
        for block in [module for module in network.modules() if isinstance(module, _Block)]:
            for convolution in (block.first, block.second, block.beside):
                # It starts from the initialized weights.
                register_parametrization(convolution, "weight", _WeightNorm())
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
    """:param size: height and width of a larger output; by default it is half as high and wide."""

    def __init__(
        self, channels_in: int, channels_out: int, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.size = size
        self.first = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.beside = nn.Conv2d(channels_in, channels_out, 1)
        self.activation = nn.ReLU()

    def forward(self, h: Tensor) -> Tensor:
        if self.size is not None:
            h = interpolate(h, self.size)
        h = self.beside(h) + self.second(self.activation(self.first(self.activation(h))))
        return h if self.size is not None else avg_pool2d(h, 2, ceil_mode=True)


class StridedConvNet(ReadsImages, Shared):
    """Strided convolutions and two fully connected layers (ML-VAE, supplement, 2.1).

    Encoder: convolutions of size 4 and stride 2 to ``widths`` channels, each with batch
    normalization and ReLU; two linear layers of ``hidden`` units, each with batch normalization and
    concatenated ReLU (max(h, 0) and max(-h, 0)); heads. Decoder: a linear layer, transposed
    convolutions of size 4 and stride 2 to all widths except the deepest, from deep to shallow, each
    with batch normalization and ReLU; a convolution of size 3.

    :param widths: channels, from the data inwards; the paper's are for 64 x 64 images.
    :param hidden: units of the two linear layers.
    :raises ValueError: if an option is out of range; later, if data are no images or too small.

    Example:
        >>> from ppl_models import VAE, StridedConvNet
        >>> VAE((3, 32, 32), 8, network=StridedConvNet((8, 16), hidden=32)).generate(2).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(self, widths: Sequence[int] = (64, 128, 256, 512), hidden: int = 256) -> None:
        super().__init__(widths)
        self.hidden = check_size("hidden", hidden)

    def features(self, x_shape: Shape) -> tuple[nn.Module, int]:
        height, width = self.smallest(x_shape, len(self.widths))
        layers = _strided(nn.Conv2d, x_shape[0], *self.widths)
        for size in (self.widths[-1] * height * width, 2 * self.hidden):
            layers += [nn.Flatten(), Linear(size, self.hidden, bias=False)]
            layers += [BatchNorm(self.hidden), _ConcatenatedReLU()]
        return Batched(3, *layers), 2 * self.hidden

    def picture(self, dim: int, x_shape: Shape) -> nn.Module:
        height, width = self.smallest(x_shape, len(self.widths))
        start = (self.widths[-1], 2 * height, 2 * width)
        first = Linear(dim, prod(start)), nn.Unflatten(1, start)
        doubled = _strided(nn.ConvTranspose2d, *self.widths[::-1])
        return Batched(1, *first, *doubled, nn.Conv2d(self.widths[0], x_shape[0], 3, padding=1))


def _strided(convolution: Callable[..., nn.Module], *channels: int) -> list[nn.Module]:
    """Convolutions of size 4 and stride 2, each with batch normalization and ReLU."""
    layers: list[nn.Module] = []
    for n, m in pairwise(channels):
        layers += [convolution(n, m, 4, 2, 1, bias=False), BatchNorm(m), nn.ReLU()]
    return layers


class _ConcatenatedReLU(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.cat([relu(h), relu(-h)], 1)


class ConvGrid(ChannelsLast):
    """Latents on a grid: each width halves the image; a 1 x 1 convolution gives places' parts of z.

    ``x -> widths, each by a convolution of size 4 and stride 2 -> two residual blocks -> grid``,
    and back: the usual architecture of VQ-VAEs (van den Oord et al., 2017). For models with one
    facet, whose z is the flattened grid, one channel after the other.

    :param widths: channels after each halving.
    :raises ValueError: if an option is out of range; when a network is built, if the data are not
        images, cannot be halved that often, or the latents do not fit the grid.

    Example:
        >>> from ppl_models import VQVAE, ConvGrid
        >>> network = ConvGrid((8, 8))
        >>> network.places((1, 28, 28))
        49
        >>> VQVAE((1, 28, 28), num_codes=16, code_dim=4, network=network).generate(2).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(self, widths: Sequence[int] = (64, 64)) -> None:
        super().__init__(widths)

    def places(self, x_shape: Shape) -> int:
        """Number of places of the grid, for images of ``x_shape``."""
        return prod(self.smallest(x_shape, len(self.widths)))

    def _encoder(self, x_shape: Shape, sizes: Shape, components: Shape) -> Encoder:
        if any(components):
            raise ValueError("ConvGrid takes no components: use a ladder, such as ConvLadder")
        depth = self._depth(sizes, x_shape)
        layers, last = _strided(nn.Conv2d, x_shape[0], *self.widths), self.widths[-1]
        layers += [_Residual(last), _Residual(last), nn.Conv2d(last, depth, 1)]
        return SharedEncoder(Batched(3, *layers, nn.Flatten()), [nn.Identity()])

    def _decoder(self, x_shape: Shape, dims: Shape) -> Decoder:
        grid, depth = self.smallest(x_shape, len(self.widths)), self._depth(dims, x_shape)
        last = self.widths[-1]
        layers = [nn.Unflatten(1, (depth, *grid)), nn.Conv2d(depth, last, 3, padding=1)]
        layers += [_Residual(last), _Residual(last), BatchNorm(last), nn.ReLU()]
        layers += _strided(nn.ConvTranspose2d, *self.widths[::-1])
        image = nn.ConvTranspose2d(self.widths[0], x_shape[0], 4, 2, 1)
        return SharedDecoder(Batched(1, *layers, image))

    def _depth(self, sizes: Shape, x_shape: Shape) -> int:
        """Number of latents per place."""
        places = self.places(x_shape)
        if len(sizes) != 1 or sizes[0] % places:
            raise ValueError(
                f"a ConvGrid has {places} places for images {x_shape}: give it one facet whose "
                f"size is a multiple of this, got sizes {sizes}"
            )
        return sizes[0] // places


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            BatchNorm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, h: Tensor) -> Tensor:
        return h + self.layers(h)
