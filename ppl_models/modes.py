"""Temporary evaluation or training mode, with each submodule's own mode restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ppl_models.turns import exclusive


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout, no batch statistics) inside; previous modes restored after."""
    with _in_mode(module, training=False):
        yield


@contextmanager
def training(module: nn.Module) -> Iterator[None]:
    """Training mode inside; previous modes restored after."""
    with _in_mode(module, training=True):
        yield


@contextmanager
def _in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    with exclusive():
        kept = {part: part.training for part in module.modules()}
        module.train(training)
        try:
            yield
        finally:
            for part, was_training in kept.items():
                part.training = was_training
