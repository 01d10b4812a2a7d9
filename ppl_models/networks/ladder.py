"""The ladder: each facet has its own depth in encoder and decoder (MFCVAE, D.2, Eq. 74 to 80)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from ppl_models.given.checks import check_one_of, is_index
from ppl_models.networks.base import Architecture, Decoder, Encoder, Shape, concatenate, gated
from ppl_models.networks.dense import Linear


def _gated_add(upper: Tensor, rung: Tensor, dim: int) -> Tensor:
    return upper + 0.1 * rung


# How a rung joins the features from above: the function, and the ratio of joined to rung width.
MERGES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "concatenate": (concatenate, 2),  # Eq. 79, as the paper writes it
    # The authors' code, which has a hidden layer after it as well: layers_after_merge=1.
    "gated_add": (_gated_add, 1),
}
Modules = Sequence[nn.Module]
# More is a mistake, reported before memory runs out.
MOST_AFTER_MERGE = 100


class Ladder(Architecture):
    """Base of the ladders: levels from the data inwards, and one level with a rung for each facet.

    Subclasses define the layers of a level, upwards and downwards, of a rung, and after a merge.

    :param widths: one width per level, from the data inwards.
    :param merge: how a rung joins: ``"concatenate"`` (Eq. 79) or ``"gated_add"`` (0.1 times it).
    :param rungs: levels with a facet, 0 being the shallowest; every level by default.
    :param layers_after_merge: hidden layers of the level's own width between each merge and the
        layers to the level below (or the data). With none, as in Eq. 79, the shallowest facet and
        all deeper ones only add up on their way to x; the authors' code has one.
    :raises ValueError: if rungs are empty or out of order, or layers_after_merge is not from 0 to
        100; when a network is built, if there is not one rung per facet.

    :cvar feature_axis: axis of the features, counted from the end.
    """

    feature_axis = -1

    def __init__(
        self,
        widths: Sequence[int] = (500, 2000),
        activation: str = "relu",
        init: str = "pytorch",
        merge: str = "concatenate",
        rungs: Sequence[int] | None = None,
        layers_after_merge: int = 0,
    ) -> None:
        super().__init__(widths, activation, init)
        self.merge = check_one_of("merge", merge, MERGES)
        if not is_index(layers_after_merge, MOST_AFTER_MERGE + 1):
            raise ValueError(
                f"layers_after_merge must be an integer from 0 to {MOST_AFTER_MERGE}, got "
                f"{layers_after_merge!r}"
            )
        self.layers_after_merge = layers_after_merge
        levels: Sequence[int] = range(len(self.widths))
        chosen = levels if rungs is None else rungs
        self.rungs = tuple(chosen) if isinstance(chosen, Sequence) else ()
        found = all(is_index(rung, len(levels)) for rung in self.rungs)
        if not self.rungs or not found or list(self.rungs) != sorted(set(self.rungs)):
            raise ValueError(
                "rungs are levels of the ladder, from shallow to deep: out of 0 to "
                f"{len(self.widths) - 1} for widths={self.widths}, got {rungs!r}"
            )

    # The layers that a subclass defines.

    @abstractmethod
    def up(self, x_shape: Shape, level: int) -> nn.Module:
        """Layers from the features below (or the data) to those of ``level``."""

    @abstractmethod
    def head(self, x_shape: Shape, level: int, size: int) -> nn.Module:
        """Layers from the features of ``level`` to ``size`` raw parameters."""

    @abstractmethod
    def rung(self, x_shape: Shape, level: int, dim: int) -> nn.Module:
        """Layers from a latent of length ``dim`` to :meth:`rung_width` features of ``level``."""

    def after_merge(self, x_shape: Shape, level: int, width: int) -> nn.Module:
        """Hidden layer from ``width`` features to :meth:`rung_width`, after a merge."""
        raise NotImplementedError(
            f"{type(self).__name__} has no layer for layers_after_merge={self.layers_after_merge}: "
            "define after_merge, or give 0"
        )

    @abstractmethod
    def down(self, x_shape: Shape, level: int, width: int) -> nn.Module:
        """Layers from ``width`` features of ``level`` to the level below, or to the data."""

    def rung_width(self, level: int) -> int:
        """Width of the features that a rung outputs."""
        return self.widths[level]

    def shift(self, level: int, num_components: int) -> nn.Module:
        """Layer from a component to what it adds to the features of ``level``."""
        return Linear(num_components, self.widths[level], bias=False)

    # How they are put together.

    def _encoder(self, x_shape: Shape, sizes: Shape, components: Shape) -> Encoder:
        self._check_rungs(sizes)
        heads = [(level, size) for level, size in zip(self.rungs, sizes, strict=True) if size]
        shifts = enumerate(zip(self.rungs, components, strict=False))
        return LadderEncoder(
            backbones=[
                _chain([self.up(x_shape, level) for level in range(low + 1, high + 1)])
                for low, high in pairwise([-1, *(level for level, _ in heads)])
            ],
            rungs=[self.head(x_shape, level, size) for level, size in heads],
            shifts={str(j): self.shift(level, K) for j, (level, K) in shifts if K},
        )

    def _decoder(self, x_shape: Shape, dims: Shape) -> Decoder:
        self._check_rungs(dims)
        levels = zip(self.rungs, dims, strict=True)
        rungs = [self.rung(x_shape, level, dim) for level, dim in levels]
        gaps = pairwise((-1, *self.rungs))
        backbones = [self._descent(x_shape, low, high) for low, high in gaps]
        return LadderDecoder(
            rungs, backbones, partial(MERGES[self.merge][0], dim=self.feature_axis)
        )

    def _descent(self, x_shape: Shape, low: int, high: int) -> nn.Module:
        """Layers from the joined features of ``high`` to the next rung's ``low``; -1: the data."""
        # The deepest rung joins nothing from above; a level without a rung has nothing to join.
        merges = high != self.rungs[-1]
        arriving = self.rung_width(high) * (MERGES[self.merge][1] if merges else 1)
        mixing = []
        for _ in range(self.layers_after_merge if merges else 0):
            mixing.append(self.after_merge(x_shape, high, arriving))
            arriving = self.rung_width(high)
        widths = [arriving, *self.widths[low + 1 : high][::-1]]
        levels = zip(range(high, low, -1), widths, strict=True)
        return _chain([*mixing, *(self.down(x_shape, level, width) for level, width in levels)])

    def _check_rungs(self, dims: Shape) -> None:
        if len(dims) != len(self.rungs):
            raise ValueError(
                f"the ladder has {len(self.rungs)} rungs (widths={self.widths}, "
                f"rungs={self.rungs}) but the model has {len(dims)} facets: give one width per "
                "facet, shallow to deep, or give the levels of the facets as rungs"
            )


class LadderEncoder(Encoder):
    """``x -> h_1 -> h_2 -> ...`` with a head on each; a component may shift its features."""

    def __init__(self, backbones: Modules, rungs: Modules, shifts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.backbones, self.rungs = nn.ModuleList(backbones), nn.ModuleList(rungs)
        self.shifts = nn.ModuleDict(shifts)

    def heads(self, x: Tensor, components: Sequence[Tensor | None] = ()) -> list[Tensor]:
        h, heads = x, []
        for j, (backbone, rung) in enumerate(zip(self.backbones, self.rungs, strict=True)):
            h = backbone(h)  # Eq. 74
            if components and (component := components[j]) is not None:
                h = h + self.shift_of(j)(component)  # for this head and all above (VLAC, Eq. 7, 8)
            heads.append(rung(h))  # Eq. 75
        return heads

    def shift_of(self, facet: int) -> nn.Module:
        return self.shifts[str(facet)]


class LadderDecoder(Decoder):
    """``z_J -> ... -> x``, with every facet's rung joining at its level."""

    def __init__(self, rungs: Modules, backbones: Modules, merge: Callable[..., Tensor]) -> None:
        super().__init__()
        self.rungs, self.backbones = nn.ModuleList(rungs), nn.ModuleList(backbones)
        self.merge = merge

    def output(self, z: Sequence[Tensor], gates: Tensor | None) -> Tensor:
        deepest = len(z) - 1
        rungs = gated((rung(z_j) for rung, z_j in zip(self.rungs, z, strict=True)), gates)
        h = self.backbones[deepest](rungs[deepest])  # Eq. 78
        for j in reversed(range(deepest)):
            h = self.backbones[j](self.merge(h, rungs[j]))  # Eq. 79, gated as in Eq. 88
        return h


class MLPLadder(Ladder):
    """Fully connected ladder with one hidden layer per level (MFCVAE, D.2 and Table 4).

    Encoder: ``x -> 500 -> 2000``, with a linear head for z_1 on the first and for z_2 on the second
    layer (Table 4). Decoder: ``z_2 -> 2000 -> 500``, joined there by ``z_1 -> 500``, then to x.

    Eq. 79, the default, concatenates at the join, which gives the last layer 1000 inputs; Table 4
    has 500. The authors' code adds a tenth of the rung, which leaves 500, and has one more layer
    ``500 -> 500`` before the last one: ``MLPLadder(merge="gated_add", layers_after_merge=1)``.

    The arguments are those of :class:`Ladder`.

    Example:
        >>> import torch
        >>> from ppl_models import MLPLadder
        >>> network = MLPLadder((64, 32))
        >>> z_1, z_2 = network.encoder((20,), sizes=(4, 6))(torch.zeros(3, 20))
        >>> z_1.shape, z_2.shape
        (torch.Size([3, 4]), torch.Size([3, 6]))
    """

    def up(self, x_shape: Shape, level: int) -> nn.Module:
        if level:
            return self._block(self.widths[level - 1], self.widths[level])
        return nn.Sequential(nn.Flatten(-len(x_shape)), *self._block(prod(x_shape), self.widths[0]))

    def head(self, x_shape: Shape, level: int, size: int) -> nn.Module:
        return Linear(self.widths[level], size)

    def rung(self, x_shape: Shape, level: int, dim: int) -> nn.Module:
        return self._block(dim, self.rung_width(level))

    def after_merge(self, x_shape: Shape, level: int, width: int) -> nn.Module:
        return self._block(width, self.rung_width(level))

    def down(self, x_shape: Shape, level: int, width: int) -> nn.Module:
        if level:
            return self._block(width, self.widths[level - 1])
        return nn.Sequential(Linear(width, prod(x_shape)), nn.Unflatten(-1, x_shape))


def _chain(modules: Sequence[nn.Module]) -> nn.Module:
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)
