"""A recorded program as straight-line Python: its operations one after the other, each called
without what a module of PyTorch does around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from torch import Tensor, ops
from torch.fx import GraphModule


def straight(program: GraphModule) -> Callable[..., Sequence[Tensor]]:
    """The program as one function of its tensors, which drops what it needs no more."""
    code = program.graph.python_code("self")
    known: dict[str, Any] = dict(code.globals)

    def bare(found: re.Match[str]) -> str:
        """The operation itself, where PyTorch has it by this name, not the object around it."""
        target, name = attrgetter(found[1])(ops), f"known_{len(known)}"
        known[name] = getattr(target, "_op", target)
        return name

    exec(re.sub(r"torch\.ops\.([\w.]+)(?=\()", bare, code.src), known)
    return partial(known["forward"], SimpleNamespace(**dict(program.named_buffers())))
