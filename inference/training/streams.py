"""The random streams that a pass over a loader draws from."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator

from ppl_models.turns import exclusive


class Stream:
    """Random streams of torch, NumPy and Python that each context continues."""

    def __init__(self, seed: int, generators: Iterable[Generator]) -> None:
        self.generators = list(generators)
        self.state = self._seeded(seed)

    @contextmanager
    def on(self) -> Iterator[None]:
        with exclusive():
            kept = self._get()
            self._set(self.state)
            try:
                yield
            finally:
                self.state = self._get()
                self._set(kept)

    def _seeded(self, seed: int) -> tuple[Any, ...]:
        own = Generator().manual_seed(seed).get_state()
        numpy = np.random.RandomState(seed % 2**32).get_state()
        return own, numpy, random.Random(seed).getstate(), [own for _ in self.generators]

    def _get(self) -> tuple[Any, ...]:
        numpy = np.random.get_state()  # noqa: NPY002, a data set may use it
        return (
            torch.get_rng_state(),
            numpy,
            random.getstate(),
            [g.get_state() for g in self.generators],
        )

    def _set(self, state: tuple[Any, ...]) -> None:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])  # noqa: NPY002
        random.setstate(state[2])
        for generator, own in zip(self.generators, state[3], strict=True):
            generator.set_state(own)
