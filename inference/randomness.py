"""Random streams that are ours for a while and the caller's again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["cuda_index", "random_state", "seeded", "set_random_state"]


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within this context draws on the CPU and on ``device`` start from ``seed``; other devices are not touched."""
    index = cuda_index(device)
    with torch.random.fork_rng(devices=[] if index is None else [index]):
        torch.random.default_generator.manual_seed(seed)
        if index is not None:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def cuda_index(device: torch.device) -> int | None:
    """Which CUDA device this is; ``None`` for any other kind."""
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def random_state(device: torch.device) -> list[Tensor]:
    """The streams of the CPU and of ``device``."""
    index = cuda_index(device)
    return [torch.random.get_rng_state()] + ([] if index is None else [torch.cuda.get_rng_state(index)])


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Let the streams go on from what :func:`random_state` gave."""
    torch.random.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)
