"""A step as one CUDA graph: captured once, and launched without its single kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def captured(
    take: Callable[[Sequence[Tensor]], object], batch: Sequence[Tensor]
) -> Callable[[Sequence[Sequence[Tensor]]], None]:
    """A function that repeats ``take`` on each of several batches like this one; nothing is
    computed yet.

    :param take: changes tensors in place, whose addresses a graph has fixed.
    :raises RuntimeError: if CUDA cannot capture it.
    """
    own, graph = [each.clone() for each in batch], torch.cuda.CUDAGraph()
    device = own[0].device
    # Other threads, such as those that pin a loader's batches, may continue meanwhile.
    with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        take(own)

    def replay(batches: Sequence[Sequence[Tensor]]) -> None:
        with torch.cuda.device(device):
            for given in batches:
                for ours, theirs in zip(own, given, strict=True):
                    ours.copy_(theirs)
                graph.replay()

    return replay
