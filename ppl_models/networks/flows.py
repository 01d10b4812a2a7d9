"""Normalizing flows: invertible decoders."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from ppl_models.given.checks import check_size
from ppl_models.networks.base import Architecture, Decoder, Encoder, Shape


class AutoregressiveFlow(Architecture):
    """Masked autoregressive layers, with the order of coordinates reversed between layers
    (Papamakarios et al., 2017).

    x to z takes one pass per layer; z to x goes coordinate by coordinate, so sampling is slower
    than training. There is no encoder: :class:`~guides.flow.FlowGuide` inverts the decoder.

    :param widths: hidden widths of each layer's network.
    :param num_layers: number of layers; 10 in *I Don't Need u* (appendix D).
    :raises ImportError: when the decoder is built, if zuko, which has the layers, is not installed.

    Example:
        >>> import torch
        >>> from ppl_models import AutoregressiveFlow
        >>> flow = AutoregressiveFlow((16,), num_layers=2).decoder((5,), dims=(5,))
        >>> x = flow([torch.randn(4, 5)])
        >>> flow.invert(x)[0].shape
        torch.Size([4, 5])
    """

    def __init__(self, widths: Sequence[int] = (64, 64), num_layers: int = 10) -> None:
        super().__init__(widths)
        self.num_layers = check_size("num_layers", num_layers)

    def _encoder(self, x_shape: Shape, sizes: Shape, components: Shape) -> Encoder:
        raise ValueError(
            "a flow has no encoder, it inverts its decoder: use FlowGuide with GMMFlow"
        )

    def _decoder(self, x_shape: Shape, dims: Shape) -> Decoder:
        if sum(dims) != prod(x_shape):
            raise ValueError(
                f"a flow keeps the number of dimensions: its latents have {sum(dims)}, but x "
                f"{x_shape} has {prod(x_shape)}: give the prior dim={prod(x_shape)}"
            )
        checks = torch.distributions.Distribution._validate_args
        try:
            from zuko.flows import MAF
        except ImportError as error:
            raise ImportError(
                "flows need zuko, which is not installed: pip install 'facetvae[flows]'"
            ) from error
        finally:
            # Importing zuko turns off argument validation for every distribution in the process.
            torch.distributions.Distribution.set_default_validate_args(checks)
        masked = MAF(prod(x_shape), transforms=self.num_layers, hidden_features=self.widths)
        return FlowDecoder(masked.transform, x_shape)


class FlowDecoder(Decoder):
    """x = f(z) and its inverse.

    :param layers: zuko's transforms, from x to z.
    """

    def __init__(self, layers: nn.Module, x_shape: Shape) -> None:
        super().__init__()
        self.layers, self.x_shape = layers, x_shape

    def invert(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z ``[..., d]`` for x ``[..., *x_shape]``, and ``log |det dz/dx|`` ``[...]``."""
        return self.layers().call_and_ladj(x.flatten(-len(self.x_shape)))

    def output(self, z: Sequence[Tensor], gates: Tensor | None) -> Tensor:
        return self.layers().inv(torch.cat(list(z), -1)).unflatten(-1, self.x_shape)
