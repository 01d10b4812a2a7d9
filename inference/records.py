"""Records hold what JSON can hold, so that a run can always be saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["as_line", "plain"]

# Levels of lists and dictionaries within each other.
DEEPEST = 50


def check_record(record: dict[str, Any], by: Any = None) -> None:
    """Convert the entries of a record to plain Python numbers, text, lists and dictionaries, in
    place.

    :param by: the callback that was called with the record, for the message.
    :raises ValueError: if JSON cannot hold an entry, naming it.
    """
    for name, value in [*record.items()]:
        try:
            converted = {str(plain_key(name)): plain(value)}
        except (TypeError, ValueError, RecursionError) as error:
            whose = "" if by is None else f"{_named(by)} put into "
            raise ValueError(
                f"{whose}the record's {name!r}: {error}; a record holds numbers, text, and lists "
                "and dictionaries of them: give a number, such as float(value), or value.tolist()"
            ) from None
        if converted.keys() != {name}:
            del record[name]
        record |= converted


def as_line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON.

    :raises ValueError: if JSON cannot hold an entry, naming it.
    """
    copy = dict(record)
    check_record(copy)
    return json.dumps(copy) + "\n"


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` in JSON types: NumPy's and torch's numbers as Python's.

    :raises TypeError: if JSON cannot hold it.
    """
    if depth > DEEPEST:
        raise TypeError(f"lists and dictionaries within each other, more than {DEEPEST} deep")
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        json.dumps(value)  # an integer may have too many digits
        return value
    if isinstance(value, Mapping):
        return {str(plain_key(key)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    shape = getattr(value, "shape", None)
    said = f"a {type(value).__name__}" + (f" of shape {list(shape)}" if shape else "")
    raise TypeError(f"{said} cannot be written as JSON")


def plain_key(key: Any) -> str | int:
    """:raises TypeError: if it cannot name an entry."""
    if callable(getattr(key, "item", None)) and getattr(key, "shape", None) == ():
        key = key.item()
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(f"a name of type {type(key).__name__}")
    return key


def _named(callback: Any) -> str:
    return getattr(callback, "__name__", type(callback).__name__)
