"""What is shown of work that takes long, on the standard error if the process has one: services
and programs without a console have none.
"""

from __future__ import annotations

import sys

from tqdm.auto import tqdm


def progress_bar(steps: int, shown: bool, desc: str | None = None) -> tqdm:
    """A bar, hidden unless it is to be ``shown`` and can be."""
    hidden = not (shown and _has_standard_error())
    return tqdm(total=steps, unit="step", desc=desc, disable=hidden, dynamic_ncols=True)


def say(text: str) -> None:
    """Print a line beside progress bars."""
    if _has_standard_error():
        print(text, file=sys.stderr)


def _has_standard_error() -> bool:
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)
