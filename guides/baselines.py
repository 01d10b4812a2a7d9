"""Baselines of the score function: a guess of what a draw will cost, which takes noise out of its
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

__all__ = ["BASELINES", "DecayingAverage", "LearnedBaseline", "NoBaseline"]


class NoBaseline(nn.Module):
    """No guess at all.

    :param x_shape: shape of one datum.
    """

    def __init__(self, x_shape: Sequence[int]) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """The guess for each datum of ``[B, *x_shape]``: ``[B]``, or a scalar for all."""
        return x.new_zeros(())

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        """Learn from what the draws did cost, ``[B]``: a term whose gradient improves the guess."""
        return cost.new_zeros(())


class DecayingAverage(NoBaseline):
    """The decaying mean of past costs, over all data: follows the training, knows nothing of x."""

    def __init__(self, x_shape: Sequence[int], decay: float = 0.9) -> None:
        super().__init__(x_shape)
        self.decay = decay
        self.register_buffer("average", torch.zeros(()))
        self.average: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.average

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        if self.training:  # looking at a fitted guide must not change it
            self.average.mul_(self.decay).add_((1 - self.decay) * cost.mean())
        return cost.new_zeros(())


class LearnedBaseline(NoBaseline):
    """A network of x, trained by squared error, whose gradient reaches nothing else."""

    def __init__(self, x_shape: Sequence[int], width: int = 100) -> None:
        super().__init__(x_shape)
        self.network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(prod(x_shape), width),
            nn.ReLU(),
            nn.Linear(width, 1),
            nn.Flatten(0),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        return mse_loss(guess, cost, reduction="sum")


#: Baselines by the name that :class:`~guides.ScoreFunction` takes.
BASELINES: dict[str, type[NoBaseline]] = {
    "none": NoBaseline,
    "average": DecayingAverage,
    "learned": LearnedBaseline,
}
