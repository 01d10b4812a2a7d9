"""Checks of arguments, so that the same mistake gets the same words everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

__all__ = ["check_count", "check_one_of"]


def check_count(name: str, value: Any) -> int:
    """``value`` if it is an integer of at least 1.

    :raises ValueError: naming the argument and what was given.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or index(value) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return index(value)


def check_one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """``value`` if it is one of ``allowed``.

    :raises ValueError: naming the argument, what was given and what there is.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {tuple(allowed)}, got {value!r}")
    return value
