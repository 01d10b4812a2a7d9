"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    cells = [[plain(cell) for cell in row] for row in (heads, *rows)]
    lines = (" | ".join(row) for row in (cells[0], ["---"] * len(heads), *cells[1:]))
    return "\n".join(f"| {line} |" for line in lines)


def plain(text: str) -> str:
    """Text in one line of Markdown, in which nothing ends a cell of a table, or is HTML."""
    text = escape(" ".join(str(text).split()), quote=False)
    return text.replace("\\", r"\\").replace("|", r"\|")
