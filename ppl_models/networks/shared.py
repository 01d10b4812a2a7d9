"""Networks in which all facets have the same depth, and MFCVAE's shared architecture (D.2, Eq. 81
to 87).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from ppl_models.networks.base import Architecture, Decoder, Encoder, concatenate, gated
from ppl_models.networks.dense import Linear

__all__ = ["SharedMLP"]


class Shared(Architecture):
    """Base of encoders without levels: each facet's head is a linear layer on the last features."""

    @abstractmethod
    def features(self, x_shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Layers from ``[..., *x_shape]`` to a vector of features, and the number of features."""

    def _encoder(
        self, x_shape: tuple[int, ...], sizes: tuple[int, ...], components: tuple[int, ...]
    ) -> Encoder:
        if any(components):
            raise ValueError(
                f"{type(self).__name__} has no levels that components could enter: use a ladder, "
                "such as MLPLadder() for two facets or MLPLadder(rungs=[1]) for one"
            )
        trunk, width = self.features(x_shape)
        return _SharedEncoder(trunk, [Linear(width, size) for size in sizes if size])


class SharedMLP(Shared):
    """Fully connected and shared, except for the layers next to the latents (MFCVAE, Table 6;
    VaDE's network at J = 1).

    Encoder: ``x -> 500 -> 2000``, one linear head per facet. Decoder: ``z_j -> 2000`` for each
    facet, concatenated, ``-> 500 -> x``. (The table has ``2000 -> 500`` for this layer, which two
    concatenated facets do not fit: here it is ``J 2000 -> 500``.)

    :param widths: hidden widths from the data inwards.

    Example:
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((784,), GaussianMixture(10, 5), network=SharedMLP((64, 128)))
        >>> model.generate(2).shape
        torch.Size([2, 784])
    """

    def __init__(
        self, widths: Sequence[int] = (500, 2000), activation: str = "relu", init: str = "pytorch"
    ) -> None:
        super().__init__(widths, activation, init)

    def features(self, x_shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        hidden = [self._block(n, m) for n, m in pairwise((prod(x_shape), *self.widths))]
        return nn.Sequential(nn.Flatten(-len(x_shape)), *hidden), self.widths[-1]

    def _decoder(self, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> Decoder:
        rungs = [self._block(dim, self.widths[-1]) for dim in dims]
        widths = (len(dims) * self.widths[-1], *self.widths[-2::-1])
        hidden = [self._block(n, m) for n, m in pairwise(widths)]
        return _SharedDecoder(
            rungs=rungs,
            trunk=nn.Sequential(
                *hidden, Linear(widths[-1], prod(x_shape)), nn.Unflatten(-1, x_shape)
            ),
        )


class _SharedEncoder(Encoder):
    def __init__(self, trunk: nn.Module, rungs: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk, self.rungs = trunk, nn.ModuleList(rungs)

    def heads(self, x: Tensor, components: Sequence[Tensor | None] = ()) -> list[Tensor]:
        h = self.trunk(x)  # Eq. 81
        return [rung(h) for rung in self.rungs]  # Eq. 82


class _SharedDecoder(Decoder):
    def __init__(self, rungs: Sequence[nn.Module], trunk: nn.Module) -> None:
        super().__init__()
        self.rungs, self.trunk = nn.ModuleList(rungs), trunk

    def output(self, z: Sequence[Tensor], gates: Tensor | None) -> Tensor:
        rungs = gated((rung(z_j) for rung, z_j in zip(self.rungs, z, strict=True)), gates)
        return self.trunk(concatenate(*rungs))  # Eq. 85 and 86
