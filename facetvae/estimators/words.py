"""What a column of text holds: categories, or numbers, dates and names that a fit cannot use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from facetvae.table_rules.levels import FEW_VALUES

# More different strings are names or ids; so are more than rows over this, unless there are few.
MOST_LEVELS, ROWS_PER_LEVEL = 100, 2
# Different entries that a message names.
NAMED = 3
# A number with a decimal comma or with thousands apart, and at most a currency before or a unit
# after it; 1st, 2nd and so on are none.
WRITTEN = re.compile(
    r"(?P<before>[$€£¥]?) ?[-+]?(\d{1,3}([,.' ]\d{3})+|\d+)([.,]\d+)?"
    r" ?(?!(st|nd|rd|th)$)(?P<after>[^\d\s.,;:()_+-]{0,10})"
)
MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
CLOCK = r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[ap]m)?"
DAYS = (
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?",
    r"\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4})",
    rf"\d{{1,2}}[ -]{MONTH}[ -](\d{{2}}|\d{{4}})",
    rf"{MONTH} (\d{{1,2}},? )?\d{{4}}",
)
DATE = re.compile(rf"({'|'.join(DAYS)})([ T]{CLOCK}.*)?|{CLOCK}", re.IGNORECASE)


def reads_as_number(text: str) -> bool:
    """Whether it is a finite number and nothing else."""
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def check_words(name: str, words: Sequence[str]) -> None:
    """Refuse a column whose strings ``words`` are no categories, but numbers, dates or names."""
    counts = Counter(words)
    categories = f'give columns={{"{name}": Categorical()}} if they are categories'
    numbers = {word for word in counts if reads_as_number(word)}
    if _are_most(numbers, counts):
        others = [word for word, _ in counts.most_common() if word not in numbers]
        but = f", but for {_some(others)}" if others else f", such as {words[0]!r}"
        mark = "mark what is no number as missing, and " if others else ""
        raise ValueError(
            f"column {name!r} holds strings that read as numbers{but}: {mark}convert it to numbers "
            f"(astype(float)), or {categories}"
        )
    dates = {word for word in counts if DATE.fullmatch(word.strip())}
    for written, kind in (
        (numbers | _written(counts), "numbers with a comma, a currency or a unit"),
        (dates, "dates or times as text"),
    ):
        if len(counts) > FEW_VALUES and _are_most(written, counts):
            raise ValueError(
                f"column {name!r} holds {kind}, such as {_some(sorted(written - numbers))}: "
                "convert it to plain numbers (1.5 for '1,5', or days since the first), or "
                f"{categories}"
            )
    if len(counts) > min(MOST_LEVELS, max(FEW_VALUES, len(words) / ROWS_PER_LEVEL)):
        raise ValueError(
            f"column {name!r} has {len(counts)} different strings in {len(words)} rows, which are "
            "names or ids rather than categories: drop it, or make it a category (of pandas or "
            f"polars), or {categories}"
        )


def plain_values(values: Iterable[Any]) -> list[Any]:
    """Values as JSON has them: numbers, text and truth values as they are, others in words."""
    plain = [getattr(value, "item", lambda value=value: value)() for value in values]
    return [v if isinstance(v, str | int | float | bool) else str(v) for v in plain]


def _are_most(some: set[str], counts: Counter[str]) -> bool:
    """Whether they are more than half of the rows, or of the different entries."""
    rows = sum(counts[word] for word in some)
    return 2 * rows > counts.total() or 2 * len(some) > len(counts)


def _written(words: Iterable[str]) -> set[str]:
    """Those that are numbers in another form, all with no unit or the one that most have."""
    matches = {word: match for word in words if (match := WRITTEN.fullmatch(word.strip()))}
    units = {word: match["before"] + match["after"] for word, match in matches.items()}
    most = Counter(unit for unit in units.values() if unit).most_common(1)
    return {word for word, unit in units.items() if not unit or unit == most[0][0]}


def _some(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:NAMED])) + (" and others" if len(words) > NAMED else "")
