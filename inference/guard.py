"""What to do when an objective or gradient is not finite, and the limit on the gradient's norm."""

from __future__ import annotations

from ppl_models.configurable import Options
from ppl_models.given.checks import check_one_of, check_positive

ACTIONS = ("stop", "skip", "halve")


class Guard(Options):
    """Checks every step before it is taken, without reading anything back to the host.

    A step whose objective or gradient is not finite is not taken: parameters, moments and running
    statistics stay as they were. What follows depends on ``action``: ``"stop"`` takes no further
    step, and ``fit`` raises at the next logging interval; ``"skip"`` continues with the next batch;
    ``"halve"`` also halves the learning rate at the logging interval. Records hold the number of
    such steps as ``skipped``; after ten or more in a row without another ``fit`` raises anyway.

    :param action: ``"stop"``, ``"skip"`` or ``"halve"``.
    :param max_norm: gradients with a larger norm, over all parameters, are scaled down to it; by
        default none are.
    :raises ValueError: if ``action`` is unknown or ``max_norm`` is not positive.

    Example:
        >>> from inference import Guard
        >>> Guard("skip", max_norm=10)
        Guard(action='skip', max_norm=10.0)
    """

    def __init__(self, action: str = "stop", max_norm: float | None = None) -> None:
        self.action = check_one_of("action", action, ACTIONS)
        self.max_norm = max_norm if max_norm is None else check_positive("max_norm", max_norm)
