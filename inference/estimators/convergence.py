"""When a phase of a fit ends by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from inference.evaluation.bounds import elbo
from inference.run import Run

__all__ = ["STEPS_PER_LOOK", "Convergence", "StopConverged"]

#: Optimiser steps between two looks, about.
STEPS_PER_LOOK = 100
# Looks that a line is drawn through.
LOOKS = 5
# Draws of the latents at each look at held-out data.
DRAWS = 5


class Convergence:
    """A phase ends once the least-squares line through its last five looks no longer rises.

    A drift keeps it going, however slow; noise alone ends it within a few looks.

    :ivar values: what was measured so far; larger is better.
    """

    def __init__(self) -> None:
        self.values: list[float] = []

    def reached(self, value: float) -> bool:
        """Add a look, and say whether the phase ends."""
        self.values.append(value)
        last = np.array(self.values[-LOOKS:])
        return len(last) == LOOKS and float((np.arange(LOOKS) - (LOOKS - 1) / 2) @ last) <= 0


class StopConverged:
    """A callback that ends a call of ``fit`` by :class:`Convergence`.

    :param held_out: rows to measure the ELBO of; ``None`` for the objective of training.
    """

    def __init__(self, held_out: np.ndarray | None) -> None:
        self.held_out, self.convergence = held_out, Convergence()

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        value = -record["objective"]
        if self.held_out is not None:
            value = elbo(runner.model, runner.guide, self.held_out, DRAWS)[0]
            record["held_out_elbo"] = value
        runner.should_stop = self.convergence.reached(value)
