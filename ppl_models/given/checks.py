"""Argument checks, so that the same mistake gets the same message everywhere: each raises a
ValueError that names the argument, what was given and what is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan, prod
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

# No tensor axis is longer: a larger number is a mistake, reported before memory runs out.
MAX_SIZE = 100_000_000
# The largest seed of NumPy and scikit-learn.
MAX_SEED = 2**32 - 1


def check_count(name: str, value: Any, least: int = 1) -> int:
    """``value`` if it is an integer of at least 1, or ``least``."""
    found = _integer(value)
    if found is None or found < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return found


def check_size(name: str, value: Any, least: int = 1) -> int:
    """``value`` if it is an integer from 1, or ``least``, to ``MAX_SIZE``."""
    found = check_count(name, value, least)
    if found > MAX_SIZE:
        raise ValueError(
            f"{name} must be at most {MAX_SIZE}, got {value}: it would not fit in memory"
        )
    return found


def check_counts(name: str, values: Any, example: str) -> tuple[int, ...]:
    """``values`` as a tuple of sizes, if they are one or more integers of at least 1."""
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str) or not len(values):
        raise ValueError(
            f"{name} must be a sequence of integers, such as {example}, got {values!r}"
        )
    return tuple(check_size(f"each of {name}", count) for count in values)


def is_index(value: Any, n: int) -> bool:
    """Whether ``value`` is an integer from 0 to n - 1."""
    found = _integer(value)
    return found is not None and 0 <= found < n


def _integer(value: Any) -> int | None:
    """``value`` as an int; ``None`` for booleans, arrays and other numbers."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def number(value: Any) -> float:
    """``value`` as a float; NaN if it is not a number, so that every range check fails."""
    try:
        return nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return nan


def check_positive(name: str, value: Any) -> float:
    """``value`` as a float, if it is a finite number above 0."""
    if not 0 < number(value) < inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return number(value)


def check_seed(name: str, value: Any) -> int:
    """``value`` if it is a valid seed for every random generator."""
    if not is_index(value, MAX_SEED + 1):
        raise ValueError(f"{name} must be an integer from 0 to {MAX_SEED}, got {value!r}")
    return index(value)


def check_device(name: str, value: Any) -> torch.device:
    """``value`` as a device if its name is valid; the device need not exist here."""
    try:
        return torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} must be a name such as 'cpu' or 'cuda', got {value!r}") from error


def check_kind(name: str, value: Any, kind: type | tuple[type, ...], example: str) -> Any:
    """``value`` if it is an instance of ``kind``.

    :param example: what is needed and an example, for the message."""
    if not isinstance(value, kind):
        is_class = isinstance(value, type)
        given = f"the class {value.__name__} itself" if is_class else type(value).__name__
        raise ValueError(f"{name} must be {example}, got {given}")
    return value


def check_one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """``value`` if it is one of ``allowed``."""
    if value not in tuple(allowed):
        raise ValueError(f"{name} must be one of {tuple(allowed)}, got {value!r}")
    return value


def check_path(name: str, value: Any) -> Path:
    """:raises ValueError: if ``value`` is no path, naming the argument and what was given."""
    return Path(check_kind(name, value, (str, PathLike), "a path, such as 'runs/first'"))


def check_keys(name: str, value: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    """``value`` if it is a mapping with all of ``keys``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must hold {' and '.join(keys)}, got {type(value).__name__}")
    for key in keys:
        if key not in value:
            raise ValueError(f"{name} lacks {key!r}")
    return value


def check_shape(x_shape: Sequence[int]) -> tuple[int, ...]:
    """``x_shape`` as a tuple, if it is the shape of one sample."""
    try:
        shape = tuple(check_size("a size", size) for size in x_shape)
    except (TypeError, ValueError):
        shape = ()
    if not shape:
        raise ValueError(
            f"x_shape is the shape of one sample, such as (784,) or (1, 28, 28), got {x_shape!r}: "
            f"sizes are integers from 1 to {MAX_SIZE}"
        )
    return shape


def check_rows(shape: Sequence[int], x_shape: tuple[int, ...]) -> None:
    """Check that data of ``shape`` are samples of ``x_shape``; the error has the likely fix."""
    if len(shape) and tuple(shape[1:]) == x_shape:
        return
    if tuple(shape) == x_shape:
        advice = "for a single sample give x[None]"
    elif len(shape) > 1 and prod(shape[1:]) == prod(x_shape):
        advice = f"reshape it, for example x.reshape(len(x), {', '.join(map(str, x_shape))})"
    elif len(shape) > len(x_shape) + 1 and tuple(shape[-len(x_shape) :]) == x_shape:
        advice = f"stack the rows, as by x.reshape(-1, {', '.join(map(str, x_shape))})"
    else:
        advice = f"build the model with x_shape={tuple(shape[1:])}, or check the data"
    expected = ", ".join(map(str, ("N", *x_shape)))
    raise ValueError(
        f"x has shape {list(shape)}, but the model was built for [{expected}]: {advice}"
    )


def check_images(
    what: str, x_shape: Sequence[int], halvings: int, at_least: int = 1
) -> tuple[int, int]:
    """Height and width of images ``(channels, height, width)`` after ``halvings`` halvings.

    :param what: the network that needs them, for the message.
    :param at_least: smallest height and width afterwards.
    :raises ValueError: if the data are not images, or cannot be halved that often.
    """
    factor = 2**halvings
    if len(x_shape) != 3 or any(n % factor or n < at_least * factor for n in x_shape[1:]):
        left = f" and leave {at_least} or more" if at_least > 1 else ""
        raise ValueError(
            f"{what} needs images (channels, height, width) whose height and width divide by "
            f"{factor}{left}, got x_shape={tuple(x_shape)}: pad the images, or give fewer widths"
        )
    return x_shape[1] // factor, x_shape[2] // factor
