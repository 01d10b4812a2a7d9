"""The ConvNet of *I Don't Need u* (Table A.3)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ppl_models.checks import check_images, check_size
from ppl_models.networks.base import ACTIVATIONS, ReadsImages
from ppl_models.networks.dense import Linear
from ppl_models.networks.layers import Batched, BatchNorm
from ppl_models.networks.plain import Plain

__all__ = ["ConvNet"]


class ConvNet(ReadsImages, Plain):
    """3 x 3 convolutions, two before each halving, and two fully connected layers (*I Don't Need
    u*, Table A.3).

    Encoder: ``x -> 8 -> 16 -> pool -> 32 -> 64 -> pool -> 64 x 1 x 1 -> 64 -> heads``, where the
    last convolution covers the whole remaining image. Decoder: ``z -> 64 -> 64 x 1 x 1 -> 64 -> 32
    -> 16 -> 8 -> x``; the convolutions to 32 and to 8 channels double the image. Every convolution
    except the last of the encoder and of the decoder is followed by batch normalisation, which
    provides the bias, and ELU; the fully connected layers use leaky ReLU with slope 0.1.

    :param widths: channels, two for each halving.
    :raises ValueError: if an option is out of range or ``widths`` has an odd length; when a network
        is built, if the data are not images or cannot be halved that often.

    Example:
        >>> from ppl_models import VAE, ConvNet
        >>> VAE((1, 28, 28), 8, network=ConvNet((4, 4, 8, 8))).generate(2).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        widths: Sequence[int] = (8, 16, 32, 64),
        activation: str = "elu",
        init: str = "pytorch",
        hidden: int = 64,
    ) -> None:
        super().__init__(widths, activation, init)
        if len(self.widths) % 2:
            raise ValueError(
                "ConvNet has two convolutions for each halving and needs an even number of widths: "
                f"{widths}"
            )
        self.hidden = check_size("hidden", hidden)

    def features(self, x_shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        smallest = self._smallest(x_shape)
        layers, channels = [], x_shape[0]
        for i, width in enumerate(self.widths):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), *self._after(width)]
            if i % 2:
                layers.append(nn.MaxPool2d(2))
            channels = width
        layers += [
            nn.Conv2d(channels, self.hidden, smallest),
            nn.Flatten(),
            *self._dense(self.hidden),
        ]
        return Batched(3, *layers), self.hidden

    def picture(self, dim: int, x_shape: tuple[int, ...]) -> nn.Module:
        smallest, last = self._smallest(x_shape), self.widths[-1]
        layers = [
            *self._dense(dim),
            Linear(self.hidden, self.hidden),
            nn.Unflatten(1, (self.hidden, 1, 1)),
        ]
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

    def _smallest(self, x_shape: tuple[int, ...]) -> tuple[int, int]:
        """Height and width of the features at the lowest resolution."""
        return check_images(
            f"a ConvNet of {len(self.widths)} widths", x_shape, len(self.widths) // 2
        )
