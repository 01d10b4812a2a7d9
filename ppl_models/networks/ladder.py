"""The ladder: each facet leaves the encoder, and enters the decoder, at its own depth (MFCVAE, D.2, Eq. 74 to 80)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ppl_models.checks import check_one_of
from ppl_models.networks.base import Architecture, Decoder, Encoder, Flat, concatenate

__all__ = ["MLPLadder"]


def _gated_add(upper: Tensor, rung: Tensor) -> Tensor:
    return upper + 0.1 * rung


# How a rung joins the stream from above: the function, and the joined width over the rung's own.
MERGES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "concatenate": (concatenate, 2),  # Eq. 79, as the paper writes it
    "gated_add": (_gated_add, 1),  # what the authors' code computes
}


class MLPLadder(Architecture):
    """Fully connected ladder with one hidden layer a rung (MFCVAE, Table 4).

    Encoder: ``x -> 500 -> 2000``, a linear head for z_1 on the first and for z_2 on the second.
    Decoder: ``z_2 -> 2000 -> 500``, joined there by ``z_1 -> 500``, then to x.

    :param widths: one hidden width per facet, shallow to deep.
    :param merge: how a rung joins the stream: ``"concatenate"`` (Eq. 79) or ``"gated_add"`` (plus 0.1 times the rung).
    :raises ValueError: also if the number of widths is not the number of facets, when a network is built.
    """

    def __init__(
        self,
        widths: Sequence[int] = (500, 2000),
        activation: str = "relu",
        init: str = "pytorch",
        merge: str = "concatenate",
    ) -> None:
        super().__init__(widths, activation, init)
        self.merge = check_one_of("merge", merge, MERGES)

    def _encoder(self, x_shape: tuple[int, ...], sizes: tuple[int, ...]) -> Encoder:
        self._check_rungs(sizes)
        return _LadderEncoder(self, x_shape, sizes)

    def _decoder(self, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> Decoder:
        self._check_rungs(dims)
        return _LadderDecoder(self, x_shape, dims)

    def _check_rungs(self, dims: tuple[int, ...]) -> None:
        if len(dims) != len(self.widths):
            raise ValueError(
                f"the ladder has {len(self.widths)} rungs (widths={self.widths}) but the model has {len(dims)} facets: "
                "give one width per facet, shallow to deep"
            )


class _LadderEncoder(Flat, Encoder):
    def __init__(self, recipe: MLPLadder, x_shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.x_shape = x_shape
        inputs = (self.num_features, *recipe.widths)
        self.backbones = nn.ModuleList(recipe._block(n, m) for n, m in zip(inputs, recipe.widths, strict=False))
        self.rungs = nn.ModuleList(nn.Linear(width, size) for width, size in zip(recipe.widths, sizes, strict=True))

    def heads(self, x: Tensor) -> list[Tensor]:
        h, heads = self.flatten(x), []
        for backbone, rung in zip(self.backbones, self.rungs, strict=True):
            h = backbone(h)  # Eq. 74
            heads.append(rung(h))  # Eq. 75
        return heads


class _LadderDecoder(Flat, Decoder):
    def __init__(self, recipe: MLPLadder, x_shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
        super().__init__()
        self.x_shape = x_shape
        self.merge, joined = MERGES[recipe.merge]
        widths = recipe.widths
        self.rungs = nn.ModuleList(recipe._block(d, width) for d, width in zip(dims, widths, strict=True))
        # The deepest rung has nothing above it to join.
        inputs = [width * joined for width in widths[:-1]] + [widths[-1]]
        self.backbones = nn.ModuleList(
            [nn.Linear(inputs[0], self.num_features)]
            + [recipe._block(n, m) for n, m in zip(inputs[1:], widths, strict=False)]
        )

    def output(self, z: Sequence[Tensor], gates: Tensor) -> Tensor:
        deepest = len(z) - 1
        rungs = [gate * rung(z_j) for gate, rung, z_j in zip(gates, self.rungs, z, strict=True)]
        h = self.backbones[deepest](rungs[deepest])  # Eq. 78
        for j in reversed(range(deepest)):
            h = self.backbones[j](self.merge(h, rungs[j]))  # Eq. 79, gated as in Eq. 88
        return self.unflatten(h)
