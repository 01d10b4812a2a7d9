"""The convolutional ladder (MFCVAE, Table 5), of any depth and widths."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from ppl_models.given.checks import check_images
from ppl_models.networks.base import ACTIVATIONS, Batched, BatchNorm, ChannelsLast, Shape
from ppl_models.networks.dense import Linear
from ppl_models.networks.ladder import Ladder


class ConvLadder(ChannelsLast, Ladder):
    """Ladder for images ``(C, H, W)``; each level halves height and width (MFCVAE, Table 5).

    With two levels of 64 and 128 channels on 32 x 32 images, as in the table: encoder ``x -> 64 x
    16 x 16 -> 128 x 8 x 8``. A head has two convolutions and a linear layer. The first convolution
    is strided; on the last level the second is strided as well and doubles the channels. The linear
    layer reads ``64 x 7 x 7`` features for z_1 and ``256 x 2 x 2`` for z_2, which the table prints
    in the opposite order. Decoder: ``z_2 -> 256 x 8 x 8 -> 128 x 16 x 16 -> 64 x 16 x 16``, there
    joined by ``z_1 -> 64 x 16 x 16``, to x.

    Kernels have size 4; those that keep the image size have size 3, as in the authors' code (size
    4, as in the table, cannot keep it), and the second of a head has size 1 after a single pixel.
    Layers but those of heads and x are followed by their activation and then batch normalization,
    in the order of the authors' code; the output is linear. The layers of ``layers_after_merge``,
    of which the table has none, keep the image size. When clusters are enumerated, batch statistics
    are over all values of every cluster, not weighted by probability.

    :param widths: channels of each level, shallow to deep; of VLAC's kind (64, 128, 256, 1024).
    :raises ValueError: if an option is out of range; later, if data are no images or too small.

    Example:
        >>> from ppl_models import VLAE, ConvLadder
        >>> VLAE((3, 32, 32), dims=(4, 8), network=ConvLadder((8, 16))).generate(2).shape
        torch.Size([2, 3, 32, 32])
    """

    feature_axis = -3

    def __init__(
        self,
        widths: Sequence[int] = (64, 128),
        activation: str = "elu",
        init: str = "pytorch",
        merge: str = "concatenate",
        rungs: Sequence[int] | None = None,
        layers_after_merge: int = 0,
    ) -> None:
        super().__init__(widths, activation, init, merge, rungs, layers_after_merge)

    def up(self, x_shape: Shape, level: int) -> nn.Module:
        self._image(x_shape, level)  # raises if the images do not fit
        channels = self.widths[level - 1] if level else x_shape[0]
        return Batched(3, *self._conv(channels, self.widths[level], stride=2))

    def head(self, x_shape: Shape, level: int, size: int) -> nn.Module:
        image = [n // 2 for n in self._image(x_shape, level)]
        stride = 2 if level == len(self.widths) - 1 else 1
        kernel = 4 if min(image) > 1 else 1
        left = prod((n - 2) // stride + 1 for n in image) if kernel == 4 else prod(image)
        channels, last = self.widths[level], self.rung_width(level)
        return Batched(
            3,
            *self._conv(channels, channels, stride=2),
            *self._conv(channels, last, kernel, stride if kernel == 4 else 1),
            nn.Flatten(),
            Linear(last * left, size),
        )

    def rung(self, x_shape: Shape, level: int, dim: int) -> nn.Module:
        shape = (self.rung_width(level), *self._image(x_shape, level))
        first = Linear(dim, prod(shape))
        return Batched(1, first, *self._after(prod(shape)), nn.Unflatten(1, shape))

    def after_merge(self, x_shape: Shape, level: int, width: int) -> nn.Module:
        channels = self.rung_width(level)
        return Batched(3, nn.Conv2d(width, channels, 3, 1, 1), *self._after(channels))

    def down(self, x_shape: Shape, level: int, width: int) -> nn.Module:
        if level == 0:
            return Batched(3, nn.ConvTranspose2d(width, x_shape[0], 4, 2, 1))
        channels, below = self.widths[level], self.widths[level - 1]
        return Batched(
            3,
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
            *self._after(channels),
            nn.ConvTranspose2d(channels, below, 3, 1, 1),
            *self._after(below),
        )

    def shift(self, level: int, num_components: int) -> nn.Module:
        image = nn.Unflatten(-1, (self.widths[level], 1, 1))
        return nn.Sequential(super().shift(level, num_components), image)

    def rung_width(self, level: int) -> int:
        return self.widths[level] * (2 if level == len(self.widths) - 1 else 1)

    def _conv(
        self, channels_in: int, channels_out: int, kernel: int = 4, stride: int = 1
    ) -> list[nn.Module]:
        padding = 1 if kernel > 1 else 0
        layer = nn.Conv2d(channels_in, channels_out, kernel, stride, padding)
        return [layer, *self._after(channels_out)]

    def _after(self, channels: int) -> list[nn.Module]:
        return [ACTIVATIONS[self.activation](), BatchNorm(channels)]

    def _image(self, x_shape: Shape, level: int) -> tuple[int, int]:
        """Height and width of the features of ``level``."""
        return check_images(f"level {level} of a ConvLadder", x_shape, level + 1, at_least=2)
