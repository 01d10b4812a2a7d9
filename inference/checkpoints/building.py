"""Building what a description names, in no more memory than its weights take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ppl_models.configurable import CLASS

# Functions that take sizes, and so can take any amount of memory.
FACTORIES = (
    torch.arange,
    torch.empty,
    torch.eye,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.rand,
    torch.randint,
    torch.randn,
    torch.zeros,
)
# What building may take beside the weights, in numbers and in calls of torch.
NUMBERS, CALLS = 2**22, 10_000
# How many times as many numbers a weight takes while it is built, and how many calls a weight, or a
# part that the description names, takes: fixed columns have no weights, but are checked by calls.
TIMES, CALLS_EACH = 8, 200


class BuildingLimit(TorchFunctionMode):
    """Within this context networks larger than the given weights are refused before they take
    memory.

    A description of a few bytes can ask for any size; weights cannot hide theirs, and as many
    parts take a description as long.

    :param description: what is built, in JSON types.
    :raises ValueError: from the call that would go beyond the limit.
    """

    def __init__(self, weights: Mapping[str, Tensor], description: Any) -> None:
        super().__init__()
        self.numbers = NUMBERS + TIMES * sum(tensor.numel() for tensor in weights.values())
        self.calls = CALLS + CALLS_EACH * (len(weights) + _parts(description))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        self.calls -= 1
        if func in FACTORIES:
            outline = {name: kwargs[name] for name in kwargs if name not in ("out", "generator")}
            self.numbers -= func(*args, **outline | {"device": "meta"}).numel()
        self._check()
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.numel() > self.numbers:  # a view, so far
            self.numbers = -1
            self._check()
        return result

    def _check(self) -> None:
        if self.numbers < 0 or self.calls < 0:
            raise ValueError(
                "the description names networks that are far larger than the weights beside it: "
                "restore the files that were written together"
            )


def _parts(description: Any) -> int:
    """How many objects a description names."""
    if isinstance(description, dict):
        return (CLASS in description) + sum(map(_parts, description.values()))
    return sum(map(_parts, description)) if isinstance(description, list) else 0
