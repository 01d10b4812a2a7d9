"""Bases of likelihoods: from a decoder's output to a distribution over x."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar, cast

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.configurable import Configurable
from ppl_models.given.checks import check_kind, check_positive, number
from ppl_models.given.sparse import SparseRows

__all__ = ["Likelihood", "Located", "Scaled", "rebuilt"]

# A scale that is learned: where it begins, and what it stays above, in units of the data.
FIRST_SHARE, LEAST_SHARE = 0.5, 0.1

Built = TypeVar("Built", bound=Configurable)


class Likelihood(Configurable, nn.Module):
    """Turns the decoder's output ``[..., *x_shape]`` into a distribution with event ``x_shape``."""

    #: inclusive range of valid data; 8-bit images are divided by 255 first
    support: tuple[float, float] = (-float("inf"), float("inf"))
    #: what 8-bit data are divided by: images become numbers in [0, 1], counts and codes stay
    eight_bit = 255
    #: number of decoder outputs per entry of x
    parameters_per_entry = 1
    #: how many numbers encoders read for each entry of x
    features_per_entry = 1
    #: whether entries are alike and independent given z, so that any can be left out
    entrywise = True
    #: whether NaN marks a missing entry rather than an error
    takes_missing = False
    #: whether it gives probabilities of values rather than a density
    discrete = False
    #: whether data may be rows of a sparse matrix, of which most entries are 0
    takes_sparse = False

    def prepare(self, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Convert a batch to the form that the density expects; a second call changes nothing.

        8-bit images become values in [0, 1] of type ``dtype``; other data are unchanged.
        """
        return x.to(dtype) / self.eight_bit if x.dtype == torch.uint8 else x

    def features(self, x: Tensor) -> Tensor:
        """A prepared batch ``[B, *x_shape]`` as encoders read it, ``[B, *features_shape]``: x
        itself, or numbers instead of missing entries, categories and counts.
        """
        return x

    def features_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of what encoders read of one datum."""
        return (self.features_per_entry * x_shape[0], *x_shape[1:])

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the decoder's output for one datum."""
        return (self.parameters_per_entry * x_shape[0], *x_shape[1:])

    @property
    def placeholder(self) -> float | Tensor:
        """A value within the support, to stand for a missing one while it is left out."""
        low, high = self.support
        return min(max(0.0, low), high)

    def fitted(self, values: Tensor) -> Likelihood:
        """The likelihood, with what was not given chosen from observed values ``[N]``."""
        return self

    def misfit(self, p: dist.TorchDistribution, x: Tensor) -> Tensor:
        """How far a batch is from what was decoded, a scalar: to train a decoder before the bound
        is. Here the mean squared distance from the means, in squared units of x.
        """
        return (p.mean - x).square().mean()

    @abstractmethod
    def forward(self, output: Tensor, event_dim: int) -> dist.TorchDistribution:
        """Distribution over x from the decoder's output, whose last axes are the event.

        With several parameters per entry, the first event axis is as many times longer.
        """

    def check(self, x: Tensor) -> None:
        """Reject data outside the support.

        :raises ValueError: naming the range found, the range needed and the likely fix.
        """
        low, high = (float(bound) for bound in torch.aminmax(x))
        if x.dtype == torch.uint8:
            if high <= 1:
                raise ValueError(
                    f"x is uint8 with values up to {high:.0f}, and 8-bit data are divided by 255: "
                    "give binary data as bool or float"
                )
            low, high = low / 255, high / 255
        if low < self.support[0] or high > self.support[1]:
            raise ValueError(
                f"x has values in [{low:.4g}, {high:.4g}], but the {type(self).__name__} "
                f"likelihood needs {list(self.support)}\n"
                "  Try one of:\n"
                "  - scale the data, for example x / x.max()\n"
                "  - give 8-bit images as uint8: they are divided by 255 for you\n"
                "  - use a likelihood for real values, such as Normal(scale=...)"
            )

    def check_sparse(self, x: SparseRows) -> None:
        """As :meth:`check`, by the entries that sparse data store."""
        for _, _, values in x.blocks():
            self.check(values)


class Located(Likelihood):
    """Base of likelihoods of numbers that have a place and a unit: what networks see and return is
    standardized; densities, draws and means are in the units of x.

    The location of :meth:`link` of x is ``loc + unit * output``; without both, the output itself.
    """

    loc: Tensor
    unit: Tensor

    def __init__(self, loc: float | None, unit: float | None) -> None:
        """:raises ValueError: if ``loc`` is not finite or ``unit`` not positive."""
        super().__init__()
        self.located = loc is not None or unit is not None
        loc, unit = 0.0 if loc is None else loc, 1.0 if unit is None else unit
        if not abs(number(loc)) < inf:
            raise ValueError(f"loc is where the output is 0 and must be finite, got {loc!r}")
        check_positive("unit", unit)
        # Buffers stay on the device; numbers would be copied there in every step.
        self.register_buffer("loc", torch.tensor(float(loc)), persistent=False)
        self.register_buffer("unit", torch.tensor(float(unit)), persistent=False)

    def link(self, x: Tensor) -> Tensor:
        """x on the scale of the location parameter."""
        return x

    def placed(self, output: Tensor) -> Tensor:
        """The location parameter."""
        return self.loc + self.unit * output if self.located else output

    @property
    def placeholder(self) -> float | Tensor:
        straight = self.located and type(self).link is Located.link
        return self.loc if straight else super().placeholder

    def features(self, x: Tensor) -> Tensor:
        linked = self.link(x)
        return (linked - self.loc) / self.unit if self.located else linked

    def fitted(self, values: Tensor) -> Likelihood:
        """With the values' mean and deviation as ``loc`` and ``unit``, if neither was given."""
        if self.located or not len(values):
            return self
        linked = self.link(values.double())
        deviation = float(linked.std(correction=0))
        return rebuilt(self, loc=float(linked.mean()), unit=deviation if deviation > 0 else 1.0)

    def extra_repr(self) -> str:
        return f"loc={self.loc.item():.4g}, unit={self.unit.item():.4g}" if self.located else ""


class Scaled(Located):
    """Base of those with a scale beside the location: one for all entries, or for each its own.

    A scale of ``None`` is learned: it begins at half of the unit, and stays above a tenth.
    """

    def __init__(
        self, scale: Any, loc: float | None, unit: float | None, learned: bool = False
    ) -> None:
        """:raises ValueError: if ``scale`` is not positive, or ``learned`` not a bool."""
        super().__init__(loc, unit)
        check_kind("learned", learned, bool, "True or False")
        first = FIRST_SHARE * self.unit if scale is None else _scales(scale)
        self._least = LEAST_SHARE * float(self.unit) if scale is None else 0.0
        self.learned = learned or scale is None
        if self.learned:
            self.log_scale = nn.Parameter((first - self._least).log())
        else:
            self.register_buffer("fixed_scale", first, persistent=False)

    @property
    def scale(self) -> Tensor:
        """The scale: a scalar, or ``[*x_shape]``."""
        if not self.learned:
            return cast(Tensor, self.fixed_scale)
        return self.log_scale.exp() + self._least if self._least else self.log_scale.exp()

    def output_shape(self, x_shape: Sequence[int]) -> tuple[int, ...]:
        """:raises ValueError: if there is a scale for each entry of data of another shape."""
        given = tuple(self.scale.shape)
        if given not in ((), tuple(x_shape)):
            raise ValueError(
                f"scale has the shape {given}, but x has {tuple(x_shape)}: give one number, or one "
                "for each entry of x"
            )
        return super().output_shape(x_shape)

    def extra_repr(self) -> str:
        learned = ", learned=True" if self.learned else ""
        where = super().extra_repr()
        ends = dict.fromkeys(f"{each.item():.4g}" for each in self.scale.aminmax())
        return f"scale={' to '.join(ends)}{learned}" + (f", {where}" if where else "")


def _scales(scale: Any) -> Tensor:
    """:raises ValueError: if a scale is not positive."""
    given = scale if isinstance(scale, list | tuple | np.ndarray | Tensor) else number(scale)
    try:
        found = torch.as_tensor(given, dtype=torch.get_default_dtype(), device="cpu").detach()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = torch.zeros(())
    if not (found.numel() and 0 < found.min() <= found.max() < inf):
        raise ValueError(f"scale is a standard deviation and must be positive, got {scale!r}")
    return found.clone()


def rebuilt(part: Built, **changes: Any) -> Built:
    """A new one with the same arguments but for ``changes``."""
    return type(part)(**(part.__dict__["_arguments"] | changes))
