"""The shared architecture: all facets leave and enter at the same depth (MFCVAE, D.2, Eq. 81 to 87)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ppl_models.networks.base import ACTIVATIONS, Architecture, Decoder, Encoder, Flat, concatenate

__all__ = ["SharedMLP"]


class SharedMLP(Architecture):
    """Fully connected, fully shared but for the layers next to the latents (MFCVAE, Table 6; VaDE's network at J = 1).

    Encoder: ``x -> 500 -> 2000``, one linear head per facet.
    Decoder: ``z_j -> 2000`` for each facet, joined, ``-> 500 -> x``.

    :param widths: hidden widths from the data inwards.
    """

    def __init__(self, widths: Sequence[int] = (500, 2000), activation: str = "relu", init: str = "pytorch") -> None:
        super().__init__(widths, activation, init)

    def _encoder(self, x_shape: tuple[int, ...], sizes: tuple[int, ...]) -> Encoder:
        return _SharedEncoder(self, x_shape, sizes)

    def _decoder(self, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> Decoder:
        return _SharedDecoder(self, x_shape, dims)


class _SharedEncoder(Flat, Encoder):
    def __init__(self, recipe: SharedMLP, x_shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.x_shape = x_shape
        inputs = (self.num_features, *recipe.widths)
        self.trunk = nn.Sequential(*(recipe._block(n, m) for n, m in zip(inputs, recipe.widths, strict=False)))
        self.rungs = nn.ModuleList(nn.Linear(recipe.widths[-1], size) for size in sizes)

    def heads(self, x: Tensor) -> list[Tensor]:
        h = self.trunk(self.flatten(x))  # Eq. 81
        return [rung(h) for rung in self.rungs]  # Eq. 82


class _SharedDecoder(Flat, Decoder):
    def __init__(self, recipe: SharedMLP, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
        super().__init__()
        self.x_shape = x_shape
        widths = recipe.widths[::-1]
        self.rungs = nn.ModuleList(recipe._block(d, widths[0]) for d in dims)
        inputs = (len(dims) * widths[0], *widths[1:])
        outputs = (*widths[1:], self.num_features)
        layers = [nn.Linear(n, m) for n, m in zip(inputs, outputs, strict=True)]
        activation = ACTIVATIONS[recipe.activation]
        self.trunk = nn.Sequential(*(part for layer in layers for part in (layer, activation())))[:-1]

    def output(self, z: Sequence[Tensor], gates: Tensor) -> Tensor:
        rungs = [gate * rung(z_j) for gate, rung, z_j in zip(gates, self.rungs, z, strict=True)]
        return self.unflatten(self.trunk(concatenate(*rungs)))  # Eq. 85 and 86
