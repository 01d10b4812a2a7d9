"""Random streams that are seeded within a context and restored afterwards, on every device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ppl_models.given.checks import check_device
from ppl_models.turns import exclusive

__all__ = [
    "derive_seed",
    "random_state",
    "seeded",
    "set_random_state",
    "synchronize",
    "undisturbed",
    "usable_device",
]


def derive_seed(*numbers: int) -> int:
    """One seed of several numbers; other numbers, or more of them, give an unrelated one."""
    words = [word for number in numbers for word in divmod(number % 2**64, 2**32)]
    return int(np.random.SeedSequence([len(numbers), *words]).generate_state(1, np.uint64)[0])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within this context draws on the CPU and on ``device`` start from ``seed``; other devices are
    not affected, and other threads wait (see :mod:`ppl_models.turns`).
    """
    with exclusive():
        kept = random_state(device)
        try:
            for generator in _generators(device):
                generator.manual_seed(seed)
            yield
        finally:
            set_random_state(kept, device)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore NumPy's and Python's random streams after the context."""
    kept = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(kept[0])  # noqa: NPY002
        random.setstate(kept[1])


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the random streams of the CPU and of ``device``."""
    return [generator.get_state() for generator in _generators(device)]


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Restore the streams to the states that :func:`random_state` returned."""
    for generator, stream in zip(_generators(device), state, strict=False):
        generator.set_state(stream)


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has finished its work, so that time can be measured."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def usable_device(device: Any) -> torch.device:
    """:raises ValueError: if the device does not exist or cannot be read from."""
    device = check_device("device", device)
    try:
        float(torch.zeros((), device=device))
    except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from error
    return device


def _generators(device: torch.device) -> list[Generator]:
    """The default generators for ``device``, the CPU's first."""
    if device.type == "cpu":
        return [torch.default_generator]
    if device.type == "mps":
        return [torch.default_generator, torch.mps._get_default_mps_generator()]
    module = torch.get_device_module(device)
    index = module.current_device() if device.index is None else device.index
    return [torch.default_generator, module.default_generators[index]]
