"""Training that diverged, said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from guides import FacetGuide
from inference.estimators.data import LARGEST

__all__ = ["blaming_divergence", "check_trained"]


def check_trained(guide: FacetGuide, x: np.ndarray, learning_rate: float, **given: Any) -> None:
    """Check that the latents of training data are finite.

    :raises FloatingPointError: if they are not.
    """
    try:
        latents = guide.embed(x, **given).values()
        trained = all((np.abs(z) < LARGEST).all() for z in latents)
    except ValueError:  # of torch's distributions, whose parameters must be finite
        trained = False
    if not trained:
        raise FloatingPointError(
            f"training diverged: the latents of the training data are not finite after steps with "
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
