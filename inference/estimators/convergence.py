"""When a phase of a fit ends: one rule for all phases."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import linregress

from inference.evaluation.bounds import elbo
from inference.run import Run

__all__ = ["STEPS_PER_LOOK", "Convergence", "StopConverged", "ended"]

# Optimiser steps between two looks at whether a phase has converged.
STEPS_PER_LOOK = 50
# Looks at a phase's measure that one line is drawn through.
LOOKS = 6
# Draws of the latents at each look at held-out data.
DRAWS = 5


def _still_rising(values: list[float]) -> bool:
    """Whether the line through the values rises by more than its standard error."""
    line = linregress(np.arange(len(values)), values)
    return bool(line.slope > line.stderr)


class Convergence:
    """A phase ends once the line through the last six looks at its measure does not rise by more
    than the line's own standard error.

    The measure is taken on held-out data, or on the training data if none are held out.

    :ivar values: what was measured so far; larger is better.
    """

    def __init__(self) -> None:
        self.values: list[float] = []

    def reached(self, value: float) -> bool:
        """Add a look, and say whether the phase ends."""
        self.values.append(value)
        return len(self.values) >= LOOKS and not _still_rising(self.values[-LOOKS:])


class StopConverged:
    """A callback that ends a call of ``fit`` by :class:`Convergence`.

    :param held_out: rows to measure the ELBO of; ``None`` for the objective of training.
    :param after: the step from which on to look.
    """

    def __init__(self, held_out: np.ndarray | None, after: int = 0) -> None:
        self.held_out, self.after, self.convergence = held_out, after, Convergence()

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        if record["step"] <= self.after:
            return
        value = -record["objective"]
        if self.held_out is not None:
            value = elbo(runner.model, runner.guide, self.held_out, DRAWS)[0]
            record["held_out_elbo"] = value
        runner.should_stop = self.convergence.reached(value)


def ended(epochs: int, most: int) -> str:
    """How a phase ended, in words."""
    return (
        f"converged in {epochs} of {most} epochs" if epochs < most else f"{most} epochs, its most"
    )
