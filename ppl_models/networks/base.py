"""The interfaces of encoders, decoders and architectures, and the small parts that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import torch
from pyro.distributions.util import broadcast_shape
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from ppl_models.configurable import Options
from ppl_models.given.checks import check_counts, check_images, check_one_of
from ppl_models.modes import run_network
from ppl_models.networks.dense import Linear

#: Of one sample, or a number for each facet.
Shape = tuple[int, ...]
NetworkT = TypeVar("NetworkT", bound=nn.Module)

#: Activations by name, as networks take them.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "leaky_relu_0.1": partial(nn.LeakyReLU, 0.1),
    "tanh": nn.Tanh,
}


def _glorot(draw: Callable[[Tensor], Tensor], module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
        draw(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


#: Initializers of a layer's weights by name, as networks take them.
INITIALIZERS: dict[str, Callable[[nn.Module], None]] = {
    "pytorch": lambda module: None,  # each layer's own default
    "glorot_normal": partial(_glorot, nn.init.xavier_normal_),
    "glorot_uniform": partial(_glorot, nn.init.xavier_uniform_),
}


def concatenate(*parts: Tensor, dim: int = -1) -> Tensor:
    """Join along ``dim``, from the end, after broadcasting the axes to its left."""
    batch = broadcast_shape(*(part.shape[:dim] for part in parts))
    return torch.cat([part.expand(*batch, *part.shape[dim:]) for part in parts], dim)


def gated(inputs: Iterable[Tensor], gates: Tensor | None) -> list[Tensor]:
    """Each facet's input to the decoder times its gate, of ``[J]``; ``None`` for ones."""
    if gates is None:
        return list(inputs)
    return [gate * each for gate, each in zip(gates, inputs, strict=True)]


class Encoder(nn.Module):
    """Reads x ``[..., *x_shape]``: a vector of raw parameters per facet, shallow to deep. The base
    itself stands in guides that do not infer their latents from x by a network.
    """

    def heads(self, x: Tensor, components: Sequence[Tensor | None] = ()) -> list[Tensor]:
        """``[..., *x_shape] -> [[..., size_j], ...]``, in the precision that the networks run at.

        :param components: one-hot (or relaxed) ``[..., K_j]``, one per facet, if built so.
        """
        raise NotImplementedError(
            "this guide has no encoder: its latents are not inferred from x by a network"
        )

    def forward(self, x: Tensor, components: Sequence[Tensor | None] = ()) -> list[Tensor]:
        return run_network(self.heads, x.device, x, components)

    def shift_of(self, facet: int) -> nn.Module:
        """The layer by which the component of facet number ``facet`` enters."""
        raise ValueError(
            f"{type(self).__name__} takes no components: use a ladder, such as MLPLadder()"
        )


class Decoder(nn.Module):
    """The likelihood's parameters from all latents, shallow to deep."""

    @abstractmethod
    def output(self, z: Sequence[Tensor], gates: Tensor | None) -> Tensor:
        """``[[..., d_j], ...] -> [..., *x_shape]``; ``gates`` ``[J]`` multiplies each facet's input
        (Eq. 88); ``None`` leaves them as they are, as ones would.
        """

    def forward(self, z: Sequence[Tensor], gates: Tensor | None = None) -> Tensor:
        return run_network(self.output, z[0].device, z, gates)


class Architecture(Options):
    """Base of the architectures, which build an encoder and the matching decoder.

    :param widths: widths of the hidden layers, from the data inwards.
    :param activation: ``"relu"``, ``"elu"``, ``"leaky_relu"``, ``"leaky_relu_0.1"`` or ``"tanh"``.
    :param init: ``"pytorch"``, ``"glorot_normal"`` (MFCVAE, D.4) or ``"glorot_uniform"``.
    :raises ValueError: if a width is below 1 or an option is unknown.
    """

    def __init__(
        self, widths: Sequence[int] = (500, 2000), activation: str = "relu", init: str = "pytorch"
    ) -> None:
        self.widths = check_counts("widths", widths, "(500, 2000)")
        self.activation = check_one_of("activation", activation, ACTIVATIONS)
        self.init = check_one_of("init", init, INITIALIZERS)

    def encoder(
        self, x_shape: Sequence[int], sizes: Sequence[int], components: Sequence[int] = ()
    ) -> Encoder:
        """Encoder for data of ``x_shape`` with ``sizes`` raw parameters per facet, shallow to deep.

        :param sizes: 0 for a facet that has no head and is omitted from the output.
        :param components: K of each facet (0: none) whose component enters its level and above.
        :raises ValueError: if components are not given for every facet, or a facet has no head.
        """
        if components and (len(components) != len(sizes) or not all(sizes)):
            raise ValueError(
                f"components and sizes need one entry per facet, all with heads: got {components} "
                f"and {sizes}"
            )
        return self._initialized(self._encoder(tuple(x_shape), tuple(sizes), tuple(components)))

    def decoder(self, x_shape: Sequence[int], dims: Sequence[int]) -> Decoder:
        """Decoder from latents of lengths ``dims``, shallow to deep, to data of ``x_shape``."""
        return self._initialized(self._decoder(tuple(x_shape), tuple(dims)))

    def join(self, x: Tensor, features: Tensor) -> Tensor:
        """Data ``[B, *x_shape]`` and features ``[B, F]`` as one input: here as vectors."""
        return torch.cat([x.flatten(1), features], 1)

    @abstractmethod
    def _encoder(self, x_shape: Shape, sizes: Shape, components: Shape) -> Encoder: ...

    @abstractmethod
    def _decoder(self, x_shape: Shape, dims: Shape) -> Decoder: ...

    def _initialized(self, network: NetworkT) -> NetworkT:
        network.apply(INITIALIZERS[self.init])
        return network

    def _block(self, features_in: int, features_out: int) -> nn.Sequential:
        return nn.Sequential(Linear(features_in, features_out), ACTIVATIONS[self.activation]())


class ReadsImages(Architecture):
    """Base of architectures that read images ``(C, H, W)``: extra features become channels."""

    def join(self, x: Tensor, features: Tensor) -> Tensor:
        return torch.cat([x, features[:, :, None, None].expand(-1, -1, *x.shape[2:])], 1)

    def smallest(self, x_shape: Shape, halvings: int) -> tuple[int, int]:
        """Height and width at the lowest resolution; the images have to fit."""
        what = f"a {type(self).__name__} of {len(self.widths)} widths"
        return check_images(what, x_shape, halvings)


class ChannelsLast(ReadsImages):
    """Base of those whose convolutions run in the channels-last layout, faster on the CPU."""

    def _initialized(self, network: NetworkT) -> NetworkT:
        network = super()._initialized(network)
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Batched(nn.Sequential):
    """Layers that expect a single batch axis, applied to any number of batch axes.

    :param event_dim: number of axes of one sample.
    """

    def __init__(self, event_dim: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.event_dim = event_dim

    def forward(self, h: Tensor) -> Tensor:
        batch = h.shape[: -self.event_dim]
        out = super().forward(h.reshape(-1, *h.shape[-self.event_dim :]))
        return out.reshape(*batch, *out.shape[1:])


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization of vectors or images that allows a single value per channel."""

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept both vectors and images."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.numel() > x.shape[1]:
            return super().forward(x)
        # The variance of one value is undefined: use the running statistics.
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
