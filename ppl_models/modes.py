"""Temporary states of networks: evaluation or training mode, and the precision they run at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from ppl_models.turns import exclusive


def evaluating(module: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode (no dropout, no batch statistics) inside; previous modes restored after."""
    return _in_mode(module, training=False)


def training(module: nn.Module) -> AbstractContextManager[None]:
    """Training mode inside, as by :func:`train_unfrozen`; previous modes restored after."""
    return _in_mode(module, training=True)


def train_unfrozen(module: nn.Module) -> None:
    """Training mode, but for parts whose parameters are all frozen: dropout would draw in them,
    and batch statistics change.
    """
    module.train()
    for part in module.modules():
        learning = [p.requires_grad for p in part.parameters()]
        if learning and not any(learning):
            part.eval()


@contextmanager
def temporarily(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of ``owner`` have these values inside; previous ones restored after."""
    kept = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(owner, name, value)


@contextmanager
def _in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    with exclusive():
        kept = {part: part.training for part in module.modules()}
        (train_unfrozen if training else nn.Module.eval)(module)
        try:
            yield
        finally:
            for part, was_training in kept.items():
                part.training = was_training


_dtype: ContextVar[torch.dtype | None] = ContextVar("network dtype", default=None)


@contextmanager
def network_precision(dtype: torch.dtype | None) -> Iterator[None]:
    """All encoders and decoders run under autocast to ``dtype`` inside; ``None``: no autocast."""
    token = _dtype.set(dtype)
    try:
        yield
    finally:
        _dtype.reset(token)


def run_network(network: Callable[..., Any], device: torch.device, *inputs: Any) -> Any:
    """Call ``network`` at the current precision; float32, or float64 if it computed in that.

    This is the only boundary between reduced precision and the densities: in bfloat16, a
    log-density of 784 pixels would have no accurate digits.
    """
    dtype = _dtype.get()
    if dtype is None:
        return network(*inputs)
    # A cache of converted weights would outlive a step if the caller is within autocast as well.
    with torch.autocast(device.type, dtype=dtype, cache_enabled=False):
        output = network(*inputs)
    return output.float() if isinstance(output, Tensor) else [item.float() for item in output]
