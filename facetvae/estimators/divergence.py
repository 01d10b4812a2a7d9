"""Training that diverged, said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import numpy as np

from guides import FacetGuide
from inference.evaluation.bounds import elbo
from inference.randomness import seeded

# Rows that are enough to see that networks diverged.
MANY = 1000
# Draws of the latents, the fewest that an estimate takes.
DRAWS = 2
# How torch's distributions begin to say that a parameter is not finite.
OF_TORCH = "Expected parameter"


def check_trained(guide: FacetGuide, x: np.ndarray, learning_rate: float, **given: Any) -> None:
    """Check that the ELBO of training data is finite.

    :raises FloatingPointError: if it is not.
    """
    some = {name: np.asarray(each)[:MANY] for name, each in given.items()}
    try:
        with seeded(0, guide.model.gates.device):
            trained = isfinite(elbo(guide.model, guide, x[:MANY], DRAWS, **some)[0])
    except ValueError as error:
        if not str(error).startswith(OF_TORCH):
            raise
        trained = False
    if not trained:
        raise FloatingPointError(
            f"training diverged: the ELBO of the training data is not finite after steps with "
            f"learning_rate={learning_rate:g}; give a lower one"
        )


@contextmanager
def blaming_divergence(guide: FacetGuide, x: np.ndarray, learning_rate: float) -> Iterator[None]:
    """Within this context, an error that divergence caused is raised as divergence."""
    try:
        yield
    except ValueError:
        check_trained(guide, x, learning_rate)
        raise
