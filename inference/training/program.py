"""A recorded program: operations on tensors, which straight-line Python repeats."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn, ops
from torch.fx import Graph


class Program(nn.Module):
    """Operations of a graph; other tensors than the given ones, that they are called with, are
    buffers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()

    @cached_property
    def run(self) -> Callable[..., Sequence[Tensor]]:
        """The program as one function of its tensors, which drops what it needs no more: one
        operation after the other, each called without what a module of PyTorch does around it.
        """
        code = self.graph.python_code("self")
        known: dict[str, Any] = dict(code.globals)

        def bare(found: re.Match[str]) -> str:
            """The operation itself, where PyTorch has it by this name, not the object around it."""
            target, name = attrgetter(found[1])(ops), f"known_{len(known)}"
            known[name] = getattr(target, "_op", target)
            return name

        exec(re.sub(r"torch\.ops\.([\w.]+)(?=\()", bare, code.src), known)
        return partial(known["forward"], SimpleNamespace(**dict(self.named_buffers())))
