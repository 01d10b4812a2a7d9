"""The records in lab/results/: what was measured, with which command, at which commit.

A record is one measured experiment, lab/results/NAME.toml. RESULTS.md and the tables of README.md
and docs/results.md are written from records, so that a number stands in one place. What is wrong
with a record is an error that names its file and the field.
"""

from __future__ import annotations

import datetime
import re
import statistics
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
# Beside the records in the same folder: what they share.
SHORT_RUNS, MACHINES = "short_runs.toml", "machines.toml"
PLACEHOLDER = re.compile(r"\{(?P<name>[a-z]\w*)(?::(?P<part>[a-z_]+)?(?:\.(?P<digits>\d+))?)?\}")
Parsed = TypeVar("Parsed")


class RecordError(ValueError):
    """A record that cannot be used; the message names its file and field."""


class Written(float):
    """A number that is printed as its record spells it, so that 0.10 does not become 0.1."""

    text: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text)
        number.text = text
        return number


def spell(number: float) -> str:
    """The number as its record has it."""
    return number.text if isinstance(number, Written) else str(number)


def last_digit(number: float) -> int:
    """The power of ten of the last digit that the record gives: -2 for 0.10."""
    exponent = Decimal(spell(number)).as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def round_to(number: float, digits: int) -> str:
    """With so many digits; a half is rounded away from zero, as readers expect of 85.35."""
    step = Decimal(1).scaleb(-digits)
    return format(Decimal(repr(float(number))).quantize(step, ROUND_HALF_UP), "f")


@dataclass(frozen=True)
class Paper:
    """What the paper reports for a figure.

    :ivar where: table or figure of the paper.
    """

    mean: float
    deviation: float | None = None
    runs: int | None = None
    where: str = ""

    def show(self, digits: int | None = None) -> str:
        """Mean and deviation with so many digits, or as the paper spells them."""
        numbers = [n for n in (self.mean, self.deviation) if n is not None]
        shown = [spell(n) if digits is None else round_to(n, digits) for n in numbers]
        return shown[0] + (f" ({shown[1]})" if len(shown) > 1 else "")

    def cell(self) -> str:
        """All of it, for a table."""
        runs = f"{self.runs} seeds" if self.runs else ""
        return ", ".join(part for part in (self.show(), runs, self.where) if part)


@dataclass(frozen=True)
class Figure:
    """One measured number: every seed's ``values``, or else what is known of them.

    :ivar name: by which texts refer to it; ``what`` is what readers see.
    :ivar value: a single number, such as a median; ``low`` and ``high`` say its range.
    :ivar read: how a rerun's figure is found: ``FILE: path.of.keys`` of a JSON file in the run's
        folder (``*`` for every element; in JSON lines the epoch is the first key; of ``these.keys
        or those.keys`` the higher number counts), or ``stdout: REGEX`` (one group, every match
        being a seed's; or groups ``mean`` and ``deviation``). Of several values a ``value`` is the
        median.
    :ivar runs: that mean and deviation are of, where the record's seeds do not say it.
    :ivar scale: the figure is so many times what is read (100 for percent).
    :ivar tolerance: by how much a rerun may differ where seeds tell no error.
    :ivar commit: where it is not the record's; ``date`` likewise.
    """

    name: str
    what: str
    unit: str = ""
    values: tuple[float, ...] = ()
    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    value: float | None = None
    digits: int | None = None
    paper: Paper | None = None
    runs: int | None = None
    read: str = ""
    scale: float = 1
    tolerance: float | None = None
    commit: str = ""
    date: datetime.date | None = None

    @cached_property
    def center(self) -> float:
        """The mean over seeds, or the single number."""
        if self.values:
            return statistics.mean(map(float, self.values))
        found = self.value if self.mean is None else self.mean
        assert found is not None
        return found

    @cached_property
    def spread(self) -> float | None:
        """The sample deviation over seeds (n - 1)."""
        if self.values:
            return statistics.stdev(map(float, self.values)) if len(self.values) > 1 else None
        return self.deviation

    @property
    def places(self) -> int:
        """Digits after the point, as many as the record gives."""
        if self.digits is not None:
            return self.digits
        return max(0, -self.last_digit)

    @property
    def last_digit(self) -> int:
        """The power of ten of the last digit that the record gives."""
        numbers = self.values or [n for n in (self.mean, self.value) if n is not None]
        return min(map(last_digit, numbers))

    def show(self, part: str = "", digits: int | None = None) -> str:
        """A part of the figure as text; without one, mean and deviation, or value and range.

        :raise KeyError: the figure has no such part.
        """
        parts: dict[str, Callable[[int], str | None]] = {
            "": self._whole,
            "mean": lambda n: round_to(self.center, n),
            "sd": lambda n: None if self.spread is None else round_to(self.spread, n),
            "each": lambda n: ", ".join(round_to(v, n) for v in self.values) or None,
            "low": self._lowest,
            "paper_runs": lambda _: str(self.paper.runs) if self.paper else None,
        }
        if part == "paper":
            found = self.paper.show(digits) if self.paper else None
        else:
            found = parts[part](self.places if digits is None else digits)
        if found is None:
            raise KeyError(part)
        return found

    def _whole(self, digits: int) -> str:
        if self.value is not None and "e" in spell(self.value):
            return spell(self.value)
        center = round_to(self.center, digits)
        if self.value is not None and self.low is not None and self.high is not None:
            return f"{center} ({round_to(self.low, digits)} to {round_to(self.high, digits)})"
        return center if self.spread is None else f"{center} ({round_to(self.spread, digits)})"

    def _lowest(self, digits: int) -> str | None:
        low = min(self.values, default=self.low)
        return None if low is None else round_to(low, digits)


@dataclass(frozen=True)
class Table:
    """Numbers that are read in rows and columns. A cell is a number, ``[mean, deviation]`` or text,
    in which figures stand by name.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    caption: str = ""
    commit: str = ""
    date: datetime.date | None = None


@dataclass(frozen=True)
class Summary:
    """A row of the short table: texts in which figures stand by name.

    :ivar baseline: what the start or a simpler method reaches alone; a figure of another record is
        named as ``{record.figure}``.
    :ivar readme: README.md has the row too.
    """

    what: str
    measured: str
    baseline: str = ""
    paper: str = ""
    readme: bool = False


@dataclass(frozen=True)
class Added:
    """Seeds of a record that were measured at another commit than the others."""

    seeds: tuple[int, ...]
    commit: str
    date: datetime.date


@dataclass(frozen=True)
class Record:
    """One measured experiment.

    :ivar section: the heading it stands under; ``title`` is its own, or the same.
    :ivar order: its place among all records.
    :ivar command: what was run, in turn; ``{seed}``, ``{runs}`` (how many seeds), ``{data_root}``
        and ``{out}`` are filled in. None where it was a script that is not kept.
    :ivar short_runs: those of lab/results/short_runs.toml that go through the code of its command;
        none where seconds or bytes are what is measured.
    :ivar threads: how many the command has; ``state`` is how the machine was.
    :ivar setting: what was done, before the figures; ``notes``, what they say, after them.
    """

    name: str
    title: str
    section: str
    order: int
    commit: str
    date: datetime.date
    short_runs: tuple[str, ...]
    command: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    machine: str = "two-core"
    threads: int | None = None
    state: str = ""
    setting: str = ""
    notes: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    summaries: tuple[Summary, ...] = ()
    added: tuple[Added, ...] = ()

    def figure(self, name: str) -> Figure:
        """By name."""
        return next(figure for figure in self.figures if figure.name == name)

    @property
    def commits(self) -> list[str]:
        """Of all its seeds."""
        return list(dict.fromkeys([self.commit, *(each.commit for each in self.added)]))


@dataclass(frozen=True)
class ShortRun:
    """A command, the numbers that it gives, and the commit since which it gives them.

    :ivar relative: by how much of them machines that round differently may differ.
    """

    command: str
    since: str
    numbers: tuple[float, ...]
    relative: float = 1e-4


@dataclass(frozen=True)
class Shared:
    """What records refer to by name: short runs, and machines in words."""

    short_runs: Mapping[str, ShortRun]
    machines: Mapping[str, str]


def fill(text: str, record: Record) -> str:
    """The text with the record's figures instead of ``{name}``, ``{name:mean}``,
    ``{name:sd.1}`` (one digit), ``{name:each}`` and so on; ``{runs}`` is the number of seeds.
    """

    def shown(found: re.Match[str]) -> str:
        name, part, digits = found["name"], found["part"] or "", found["digits"]
        if name == "runs":
            return str(len(record.seeds))
        try:
            return record.figure(name).show(part, int(digits) if digits else None)
        except (StopIteration, KeyError):
            raise RecordError(f"lab/results/{record.name}.toml: no figure for {found[0]}") from None

    return PLACEHOLDER.sub(shown, text)


def used_in(texts: Iterable[Any]) -> set[str]:
    """Names of figures that the cells refer to."""
    return {found["name"] for text in texts for found in PLACEHOLDER.finditer(str(text))}


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; empty cells are empty."""
    lines = [columns, ["---"] * len(columns), *rows]
    spaced = [[f" {cell} " if cell else " " for cell in line] for line in lines]
    return "\n".join(f"|{'|'.join(line)}|" for line in spaced)


def load_all(root: Path = ROOT) -> list[Record]:
    """Every record under ``root``, in the order of the document."""
    shared = load_shared(root)
    paths = [
        p for p in (root / "lab/results").glob("*.toml") if p.name not in (SHORT_RUNS, MACHINES)
    ]
    records = sorted((load(path, shared) for path in paths), key=lambda record: record.order)
    for before, after in pairwise(records):
        if before.order == after.order:
            where = f"lab/results/{after.name}.toml: order"
            raise RecordError(f"{where}: {after.order} is that of {before.name}.toml too")
    return records


def load_shared(root: Path = ROOT) -> Shared:
    """Short runs and machines."""
    folder = root / "lab/results"
    runs = {
        name: build(ShortRun, content, f"lab/results/{SHORT_RUNS}: {name}")
        for name, content in parse(folder / SHORT_RUNS).items()
    }
    return Shared(runs, parse(folder / MACHINES))


def load(path: Path, shared: Shared) -> Record:
    """One record, checked."""
    where = f"lab/results/{path.name}"
    content = parse(path)
    # TOML has singular headings, [[figure]] by [[figure]].
    for many, one, kind in (
        ("figures", "figure", _figure),
        ("tables", "table", _table),
        ("summaries", "summary", partial(build, Summary)),
        ("added", "added", partial(build, Added)),
    ):
        entries = content.pop(one, [])
        places = [f"{where}: {one} {number}" for number in range(1, len(entries) + 1)]
        content[many] = tuple(map(kind, entries, places))
    if isinstance(content.get("command"), str):
        content["command"] = [content["command"]]
    record = build(Record, {"name": path.stem, **content}, where)
    _check(record, shared, where)
    return record


def parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(), parse_float=Written)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RecordError(f"lab/results/{path.name}: {error}") from None


KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "datetime.date": (datetime.date,),
    "Paper": (Paper,),
}


def build(cls: type[Parsed], content: Mapping[str, Any], where: str) -> Parsed:
    """The dataclass from a TOML table: no key unknown, none missing, each of its type."""
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(content.keys() - known.keys()):
        raise RecordError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(known)}")
    for name, field in known.items():
        if name not in content and field.default is MISSING:
            raise RecordError(f"{where}: field {name!r} is missing")
    return cls(
        **{
            name: _value(each, str(known[name].type), f"{where}: {name}")
            for name, each in content.items()
        }
    )


def _value(value: Any, kind: str, where: str) -> Any:
    if kind.startswith("tuple["):
        if not isinstance(value, list | tuple):
            raise RecordError(f"{where}: must be a list, got {value!r}")
        inner = kind.removeprefix("tuple[").partition(",")[0]
        return tuple(_value(each, inner, where) for each in value)
    kinds = KINDS.get(kind.removesuffix(" | None"))
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        raise RecordError(f"{where}: must be {kind}, got {value!r}")
    return value


def _figure(content: dict[str, Any], where: str) -> Figure:
    content = dict(content)
    where = f"{where} ({content.get('name', 'without a name')})"
    if "paper" in content:
        if not isinstance(content["paper"], dict):
            raise RecordError(f"{where}: paper: must be a table, got {content['paper']!r}")
        content["paper"] = build(Paper, content["paper"], f"{where}: paper")
    figure = build(Figure, content, where)
    if not re.fullmatch(r"[a-z]\w*", figure.name) or figure.name in ("runs", "seed"):
        raise RecordError(f"{where}: name: letters, digits and underscores, got {figure.name!r}")
    given = [n for n in ("values", "mean", "value") if getattr(figure, n) not in (None, ())]
    if len(given) != 1:
        raise RecordError(f"{where}: needs one of values, mean and value, got {given or 'none'}")
    if figure.values and (figure.deviation, figure.low, figure.high) != (None, None, None):
        raise RecordError(f"{where}: deviation, low and high are computed where values are given")
    if figure.read:
        _check_read(figure, where)
    return figure


def _check_read(figure: Figure, where: str) -> None:
    source, colon, path = figure.read.partition(": ")
    if not colon or not path:
        known = "'FILE: keys' or 'stdout: REGEX'"
        raise RecordError(f"{where}: read: needs {known}, got {figure.read!r}")
    if source == "stdout":
        try:
            pattern = re.compile(path)
        except re.error as error:
            raise RecordError(f"{where}: read: {path!r}: {error}") from None
        if pattern.groups != 1 and pattern.groupindex.keys() != {"mean", "deviation"}:
            raise RecordError(f"{where}: read: needs one group, or groups mean and deviation")
    if not figure.spread and figure.tolerance is None:
        raise RecordError(f"{where}: tolerance: is needed, as seeds tell no error of this figure")


def _table(content: dict[str, Any], where: str) -> Table:
    table = build(Table, content, where)
    for number, row in enumerate(table.rows):
        if len(row) != len(table.columns):
            raise RecordError(
                f"{where}: row {number + 1} has {len(row)} cells for {len(table.columns)} columns"
            )
    return table


def _check(record: Record, shared: Shared, where: str) -> None:
    """What needs more than one field."""
    for name in record.short_runs:
        if name not in shared.short_runs:
            raise RecordError(f"{where}: short_runs: {name!r} is not in lab/results/{SHORT_RUNS}")
    if record.machine not in shared.machines:
        raise RecordError(f"{where}: machine: {record.machine!r} is not in lab/results/{MACHINES}")
    names = [figure.name for figure in record.figures]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RecordError(f"{where}: two figures have the name {min(twice)!r}")
    for figure in record.figures:
        if figure.values and len(figure.values) != max(len(record.seeds), 1):
            raise RecordError(
                f"{where}: figure {figure.name}: {len(figure.values)} values for "
                f"{len(record.seeds)} seeds"
            )
    for seed in (seed for each in record.added for seed in each.seeds):
        if seed not in record.seeds:
            raise RecordError(f"{where}: added: {seed} is none of seeds")
    for command in record.command:
        if "{seed}" in command and not record.seeds:
            raise RecordError(f"{where}: seeds: the command needs one")
