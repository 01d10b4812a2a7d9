"""Things to do while a run goes on: a callback gets the runner and each new record of its history."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inference.runner import SVIRunner

__all__ = ["Evaluate", "JSONLines"]


class Evaluate:
    """Add your own measures to the record, every ``every`` epochs.

    :param measure: called with the runner; returns ``{name: number}``.
    """

    def __init__(self, measure: Callable[[SVIRunner], Mapping[str, float]], every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 epoch, got {every}")
        self.measure = measure
        self.every = every

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        if record["epoch"] % self.every == 0:
            record.update(self.measure(runner))


class JSONLines:
    """Append each record to a file, one JSON object a line; the file can be followed while the run goes on.

    :param path: emptied at the start.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.write_text("")

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
