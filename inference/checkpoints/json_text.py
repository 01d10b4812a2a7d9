"""JSON that may have been damaged or written by anybody."""

from __future__ import annotations

import json
from typing import Any

# Levels of lists and objects within each other; what the library writes has about twenty.
DEEPEST = 100


def parsed(text: bytes | str) -> Any:
    """What JSON says.

    :raises ValueError: if it is not JSON, or nested more deeply than anything that is saved.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
    else:
        if not _deeper_than(value, DEEPEST):
            return value
    raise ValueError(f"its lists and objects are nested more than {DEEPEST} deep")


def shortened(error: BaseException) -> str:
    """What an error says, without most of what a file may make it quote."""
    text = str(error)
    return text if len(text) < 1000 else f"{text[:500]} ... {text[-300:]}"


def _deeper_than(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        inside = [item for item in level if isinstance(item, dict | list)]
        level = [i for item in inside for i in (item.values() if isinstance(item, dict) else item)]
        if not inside:
            return False
    return True
