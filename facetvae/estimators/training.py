"""How long a fit takes, when a phase of it ends by itself, and whether training diverged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch

from guides import FacetGuide
from inference.evaluation.bounds import elbo
from inference.randomness import seeded, synchronize
from inference.run import Run
from inference.training.data_source import data_source_for
from ppl_models.warn import warn

#: Optimizer steps between two looks, about.
STEPS_PER_LOOK = 100
# Looks that a line is drawn through, and draws of the latents at each look at held-out data.
LOOKS, DRAWS = 5, 5
# Rows that are enough to see that networks diverged, and draws, the fewest that an estimate takes.
ROWS, FEWEST_DRAWS = 1000, 2
# Seconds of training from which a fit says how many it takes, and steps that are timed for it.
LONG, TIMED = 180, 3
# How torch's distributions begin to say that a parameter is not finite.
OF_TORCH = "Expected parameter"


def bound(guide: FacetGuide, x: np.ndarray, draws: int, **given: Any) -> float:
    """The ELBO of ``x``, from the same draws at each call."""
    with seeded(0, guide.model.gates.device):
        return elbo(guide.model, guide, x, draws, **given)[0]


def converged(looks: Sequence[float]) -> bool:
    """Whether the least-squares line through the last five looks no longer rises."""
    last = np.array(looks[-LOOKS:])
    return len(last) == LOOKS and float((np.arange(LOOKS) - (LOOKS - 1) / 2) @ last) <= 0


class StopConverged:
    """A callback that ends a call of ``fit`` that has converged, and restores the state that is
    best for held-out data, if there are any; it may be the first one.

    :param run: the run that is about to train.
    :param held_out: rows to measure the ELBO of; ``None`` for the objective of training.
    """

    def __init__(self, run: Run, held_out: np.ndarray | None) -> None:
        self.run, self.held_out = run, held_out
        self.looks: list[float] = []
        if held_out is not None:
            value = bound(run.guide, held_out, DRAWS)
            self._keep(-np.inf if np.isnan(value) else value)
            self.first = self.best

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        value = -record["objective"]
        if self.held_out is not None:
            value = record["held_out_elbo"] = bound(self.run.guide, self.held_out, DRAWS)
            if value > self.best:
                self._keep(value)
        self.looks.append(value)
        runner.should_stop = converged(self.looks)

    def restore(self) -> int:
        """Restore the state with the best held-out ELBO, if there is one; returns its epoch."""
        if self.held_out is None:
            return self.run.epoch
        self.run.loss.load_state_dict(self.state)
        return self.epoch

    def _keep(self, value: float) -> None:
        self.best, self.epoch = value, self.run.epoch
        self.state = {name: state.clone() for name, state in self.run.loss.state_dict().items()}


def warn_if_long(run: Run, x: np.ndarray, batch_size: int, epochs: int) -> None:
    """Warn if so many passes over the data take minutes, by the time of an objective and its
    gradient; the run and the random streams stay as they are.
    """
    source, taken = data_source_for(run.guide, run.device, x, {}, batch_size, None), []
    batch = source.subset(batch_size)
    leaves = [p for p in run.loss.parameters() if p.requires_grad]
    with seeded(0, run.device):
        for _ in range(TIMED):
            started = time.perf_counter()
            torch.autograd.grad(run.loss(batch.x), leaves, allow_unused=True)
            synchronize(run.device)
            taken.append(time.perf_counter() - started)
    seconds = min(taken) * epochs * source.steps
    if seconds > LONG:
        warn(
            f"training takes up to {seconds / 60:.0f} minutes on this machine: {epochs} passes "
            f"over {len(x)} rows; for a first look give epochs={max(1, int(epochs * 60 / seconds))}"
            " (about a minute), or fewer rows"
        )


def check_trained(guide: FacetGuide, x: np.ndarray, learning_rate: float, **given: Any) -> None:
    """:raises FloatingPointError: if the ELBO of training data is not finite."""
    some = {name: np.asarray(values)[:ROWS] for name, values in given.items()}
    try:
        trained = isfinite(bound(guide, x[:ROWS], FEWEST_DRAWS, **some))
    except ValueError as error:
        if not str(error).startswith(OF_TORCH):
            raise
        trained = False
    if not trained:
        raise FloatingPointError(
            f"training diverged: the ELBO of the training data is not finite after steps with "
            f"learning_rate={learning_rate:g}; give a lower one"
        )
