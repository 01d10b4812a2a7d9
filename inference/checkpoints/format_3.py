"""What an earlier version wrote of a call of ``fit``, to be compared with the current call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["as_format_3"]


def as_format_3(call: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a call as checkpoints of formats 2 and 3 have it: data by a digest of some
    rows, and callbacks by their type.
    """
    data = {
        name: {key: value for key, value in found.items() if key != "all"}
        for name, found in call["data"].items()
    }
    callbacks = [[name for name, _ in of] for of in call["callbacks"]]
    then = {name: value for name, value in call.items() if name != "steps"}
    return then | {"data": data, "callbacks": callbacks}
