"""Warnings that name a line of the user's."""

from __future__ import annotations

import sys
import warnings

OURS = {"ppl_models", "guides", "inference", "facetvae"}
# What may stand between a user's line and this library: decorators, modules and SVI.
BETWEEN = {"contextlib", "torch", "pyro"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this library, however deep within it this is."""
    packages, frame = [], sys._getframe()
    while frame is not None:
        packages.append(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back  # type: ignore[assignment]
    level = max(i for i, package in enumerate(packages) if package in OURS) + 1
    while level < len(packages) - 1 and packages[level] in BETWEEN:
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)
