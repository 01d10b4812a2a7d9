"""Convolutional networks whose latents form a grid over the image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from ppl_models.given.checks import check_images
from ppl_models.networks.base import Batched, BatchNorm, ChannelsLast, Decoder, Encoder
from ppl_models.networks.shared import PlainDecoder


class ConvGrid(ChannelsLast):
    """Latents on a grid: each width halves the image, and a 1 x 1 convolution outputs each place's
    part of z.

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

    def places(self, x_shape: tuple[int, ...]) -> int:
        """Number of places of the grid, for images of ``x_shape``."""
        return prod(self._grid(x_shape))

    def _encoder(
        self, x_shape: tuple[int, ...], sizes: tuple[int, ...], components: tuple[int, ...]
    ) -> Encoder:
        if any(components):
            raise ValueError("ConvGrid takes no components: use a ladder, such as ConvLadder")
        depth = self._depth(sizes, x_shape)
        layers, channels = [], x_shape[0]
        for width in self.widths:
            layers += [nn.Conv2d(channels, width, 4, 2, 1, bias=False), *self._after(width)]
            channels = width
        layers += [_Residual(channels), _Residual(channels), nn.Conv2d(channels, depth, 1)]
        return _GridEncoder(Batched(3, *layers, nn.Flatten()))

    def _decoder(self, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> Decoder:
        grid, depth = self._grid(x_shape), self._depth(dims, x_shape)
        last = self.widths[-1]
        layers = [nn.Unflatten(1, (depth, *grid)), nn.Conv2d(depth, last, 3, padding=1)]
        layers += [_Residual(last), _Residual(last), *self._after(last)]
        for width, below in zip(self.widths[::-1], self.widths[-2::-1], strict=False):
            layers += [nn.ConvTranspose2d(width, below, 4, 2, 1, bias=False), *self._after(below)]
        image = nn.ConvTranspose2d(self.widths[0], x_shape[0], 4, 2, 1)
        return PlainDecoder(Batched(1, *layers, image))

    def _after(self, channels: int) -> list[nn.Module]:
        return [BatchNorm(channels), nn.ReLU()]

    def _grid(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        return check_images(f"a ConvGrid of {len(self.widths)} widths", x_shape, len(self.widths))

    def _depth(self, sizes: tuple[int, ...], x_shape: tuple[int, ...]) -> int:
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


class _GridEncoder(Encoder):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def heads(self, x: Tensor, components: Sequence[Tensor | None] = ()) -> list[Tensor]:
        return [self.trunk(x)]
