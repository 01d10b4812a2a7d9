"""Baselines of the score function: predictions of a draw's cost, which reduce the variance of its
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

# Of a mean of past costs, by each step.
DECAY = 0.9


class NoBaseline(nn.Module):
    """No baseline: predicts 0.

    :param x_shape: shape of one sample.
    """

    def __init__(self, x_shape: Sequence[int]) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """The predicted cost of each sample of ``[B, *x_shape]``: ``[B]``, or a scalar for all."""
        return x.new_zeros(())

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        """A loss that trains the prediction ``guess`` on the actual costs ``[B]``."""
        return cost.new_zeros(())


class DecayingAverage(NoBaseline):
    """Exponentially decaying mean of past costs, independent of x."""

    def __init__(self, x_shape: Sequence[int]) -> None:
        super().__init__(x_shape)
        self.register_buffer("average", torch.zeros(()))
        self.average: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.average

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        if self.training:  # evaluation must not change the guide
            self.average.mul_(DECAY).add_((1 - DECAY) * cost.mean())
        return cost.new_zeros(())


class LearnedBaseline(NoBaseline):
    """A network of x, trained by squared error; the gradient reaches no other parameters."""

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


#: Baselines by name, as :class:`~guides.ScoreFunction` takes them.
BASELINES: dict[str, type[NoBaseline]] = {
    "none": NoBaseline,
    "average": DecayingAverage,
    "learned": LearnedBaseline,
}
