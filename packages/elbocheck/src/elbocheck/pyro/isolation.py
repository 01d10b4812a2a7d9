"""Nothing global changes: the parameter store, random streams, Pyro's checks, gradients and the
modules' training mode are afterwards what they were before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyro
import torch
from torch import Tensor

from elbocheck.pytorch import drawing, leaves


@contextmanager
def isolated(seed: int, device: torch.device, *programs: Callable) -> Iterator[None]:
    """Within this context torch, NumPy and Python draw from ``seed``, modules are in evaluation
    mode, and the store and gradients can change without a trace. Parameters that the store does not
    have yet are gone afterwards.
    """
    store = pyro.get_param_store()
    state = store.get_state()
    known = [*state["params"].values(), *leaves(programs)]
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    with drawing(seed, device, *programs), own_gradients(known):
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy)  # noqa: NPY002
            random.setstate(python)
            held = {id(p) for p in known}
            for p in store.get_state()["params"].values():
                if id(p) not in held:
                    p.grad = None
            store.clear()
            store.set_state(state)


@contextmanager
def own_gradients(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients start empty inside; afterwards they are what they were."""
    kept = list(tensors)
    before = [p.grad for p in kept]
    for p in kept:
        p.grad = None
    try:
        yield kept
    finally:
        for p, gradient in zip(kept, before):
            p.grad = gradient
