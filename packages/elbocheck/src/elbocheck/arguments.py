"""Checks of arguments."""

from __future__ import annotations

import math
import numbers
from typing import Any


def check_count(name: str, value: Any, least: int = 1) -> int:
    """:raises ValueError: if it is no whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_positive(name: str, value: Any) -> float:
    """:raises ValueError: if it is no positive number."""
    return check_between(name, value, 0, math.inf)


def check_between(name: str, value: Any, least: float, most: float, closed: bool = False) -> float:
    """:raises ValueError: if it is not between these; ``closed`` allows the least."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not (least < value < most or (closed and value == least)):
        inside = "positive" if (least, most, closed) == (0, math.inf, False) else None
        raise ValueError(
            f"{name} must be {inside or f'between {least:g} and {most:g}'}, got {value!r}"
        )
    return float(value)
