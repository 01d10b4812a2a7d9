"""For checks of the process's state: what may draw from the caller's random streams, set apart, and
layers that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import nn

from ppl_models import FacetModel, Prior

# Whose networks a test builds.
PACKAGES = ("torch.nn.", "ppl_models.", "guides.", "inference.", "tests.")
# Methods that are documented to draw from the caller's stream, in classes and their subclasses.
DRAWING = {
    FacetModel: ("generate", "draw_given"),
    Prior: ("sample",),
    # Networks draw their initial weights.
    nn.Module: ("__init__",),
}


def subclasses(base: type) -> Iterator[type]:
    for each in base.__subclasses__():
        yield each
        yield from subclasses(each)


def restoring(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which puts torch's stream back."""

    @wraps(function)
    def restored(*args: Any, **kwargs: Any) -> Any:
        state = torch.get_rng_state()
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_rng_state(state)

    return restored


@contextmanager
def draws_apart() -> Iterator[None]:
    """Within this context, what is documented to draw leaves torch's stream as it was."""
    with ExitStack() as patches:
        for base, names in DRAWING.items():
            for owner in {base, *subclasses(base)} - {nn.Module}:
                for name in names if owner.__module__.startswith(PACKAGES) else ():
                    if callable(own := vars(owner).get(name)):
                        patches.enter_context(mock.patch.object(owner, name, restoring(own)))
        yield


class Injected(RuntimeError):
    """The failure of a layer."""


@contextmanager
def failing_layers(nth: int | None = None) -> Iterator[list[int]]:
    """Within this context the ``nth`` call of a layer fails; yields the number of calls."""
    calls = [0]

    def counted(forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def count(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == nth:
                raise Injected(f"layer call {nth}")
            return forward(*args, **kwargs)

        return count

    with ExitStack() as patches:
        for layer in (nn.Linear, nn.Conv2d, nn.ConvTranspose2d):
            patches.enter_context(mock.patch.object(layer, "forward", counted(layer.forward)))
        yield calls
