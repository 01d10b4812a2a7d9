"""Write RESULTS.md, docs/results.md, docs/claims.md and the table of README.md from the records in
lab/results/.

    python -m lab.write_results
    python -m lab.write_results --check   # writes nothing; fails where a file differs

Numbers are not edited in these documents: a number stands in its record, and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.claims import claims_page, fill_elsewhere, load_claims
from lab.records import (
    ROOT,
    Figure,
    Record,
    RecordError,
    Table,
    fill,
    load_all,
    load_shared,
    markdown_table,
    spell,
    used_in,
)
from lab.run_lines import described_by

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
MADE = "<!-- Written by `python -m lab.write_results` from lab/results/: change those files. -->"
SHORT_COLUMNS = ("what", "measured", "start or baseline alone", "in the paper")
# How the blanks of a command are shown to a reader.
SHOWN = {"{seed}": "S", "{data_root}": "DATA"}


def documents(root: Path = ROOT) -> dict[Path, str]:
    """What each document should hold."""
    records, machines = load_all(root), load_shared(root).machines
    readme = root / "README.md"
    introduction, short, claims = (
        root / f"lab/results/{name}.md" for name in ("introduction", "short", "claims")
    )
    return {
        root / "lab/RESULTS.md": whole_page(records, machines, introduction.read_text()),
        root / "docs/results.md": short_page(records, short.read_text()),
        root / "docs/claims.md": claims_page(
            load_claims(records, root), records, f"{MADE}\n{claims.read_text()}"
        ),
        readme: with_table(readme.read_text(), short_table(records, readme=True)),
    }


def whole_page(records: Iterable[Record], machines: Mapping[str, str], introduction: str) -> str:
    """RESULTS.md: the introduction, then every record under its section's heading."""
    blocks, section = [f"{MADE}\n{introduction.strip()}"], ""
    for record in records:
        if record.section != section:
            section = record.section
            blocks.append(f"## {section}")
        if record.title != section:
            blocks.append(f"### {record.title}")
        blocks += record_blocks(record, machines)
    return "\n\n".join(blocks) + "\n"


def record_blocks(record: Record, machines: Mapping[str, str]) -> list[str]:
    """A record's paragraphs below its heading."""
    in_tables = used_in(cell for table in record.tables for row in table.rows for cell in row)
    listed = [figure for figure in record.figures if figure.name not in in_tables]
    blocks = [commands(record), provenance(record, machines), fill(record.setting.strip(), record)]
    blocks.append(figure_table(record, listed) if listed else "")
    for table in record.tables:
        blocks += table_blocks(table, record)
    blocks.append(fill(record.notes.strip(), record))
    return [block for block in blocks if block]


def commands(record: Record) -> str:
    """The command as a reader would type it."""
    shown = {**SHOWN, "{runs}": str(len(record.seeds)), "{out}": f"runs/{record.name}"}
    if any("{seed}" in command for command in record.command):
        shown["{out}"] += "-S"
    lines = []
    for command in record.command:
        for blank, text in shown.items():
            command = command.replace(blank, text)
        lines.append(f"    {command}")
    return "\n".join(lines)


def provenance(record: Record, machines: Mapping[str, str]) -> str:
    """Where the figures come from: commit, date, seeds, threads and the state of the machine."""
    threads = {None: "", 1: "one thread", 2: "two threads"}
    parts = [f"Commit {record.commit}", str(record.date), seeds_of(record.seeds)]
    parts += [f"{seeds_of(each.seeds)} at {each.commit}, {each.date}" for each in record.added]
    parts += [threads.get(record.threads, f"{record.threads} threads"), record.state]
    if record.machine != "two-core":
        parts.append(machines[record.machine])
    return "; ".join(part for part in parts if part) + "."


def seeds_of(seeds: Sequence[int]) -> str:
    """Such as ``seeds 0, 1, 2`` or ``seeds 0 to 9``."""
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else ""
    if len(seeds) > 3 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def figure_table(record: Record, figures: Sequence[Figure]) -> str:
    """A row for each figure; columns that no figure fills are left out."""
    several = any(figure.spread is not None for figure in figures)
    medians = any(figure.value is not None and figure.low is not None for figure in figures)
    measured = "mean (sd)" if several else "median (lowest to highest)" if medians else "measured"
    columns = [
        ("", [label(figure) for figure in figures]),
        (measured, [figure.show() for figure in figures]),
        (
            seeds_of(record.seeds),
            [figure.show("each") if several and figure.values else "" for figure in figures],
        ),
        ("paper", [figure.paper.cell() if figure.paper else "" for figure in figures]),
    ]
    kept = [(name, cells) for name, cells in columns if any(cells)]
    rows = zip(*(cells for _, cells in kept), strict=True)
    return markdown_table([name for name, _ in kept], rows)


def label(figure: Figure) -> str:
    """What the figure is, its unit, and its commit where the record has another one."""
    at = measured_at(figure)
    return ", ".join(filter(None, (figure.what, figure.unit))) + (f" (at {at})" if at else "")


def measured_at(part: Figure | Table) -> str:
    """Commit and date of a part of a record that has its own."""
    return ", ".join(str(each) for each in (part.commit, part.date) if each)


def table_blocks(table: Table, record: Record) -> list[str]:
    """Its caption, and itself."""
    caption, at = fill(table.caption.strip(), record), measured_at(table)
    rows = [[cell_text(cell, record) for cell in row] for row in table.rows]
    described = " ".join(filter(None, (caption, f"(At {at}.)" if at else "")))
    return [described, markdown_table(table.columns, rows)]


def cell_text(cell: Any, record: Record) -> str:
    """A cell of the record as a reader sees it."""
    match cell:
        case str():
            return fill(cell, record)
        case [mean, deviation]:
            return f"{spell(mean)} ({spell(deviation)})"
        case int() | float():
            return spell(cell)
    raise RecordError(
        f"lab/results/{record.name}.toml: table: a cell that cannot be shown: {cell!r}"
    )


def short_table(records: Iterable[Record], readme: bool = False) -> str:
    """The rows that sum records up; for README.md those that it has."""
    records = list(records)
    of = {record.name: record for record in records}
    rows = [
        [
            fill(fill_elsewhere(text, of), record)
            for text in (row.what, row.measured, row.baseline, row.paper)
        ]
        for record in records
        for row in record.summaries
        if row.readme or not readme
    ]
    return markdown_table(SHORT_COLUMNS, rows)


def short_page(records: Iterable[Record], around: str) -> str:
    """docs/results.md: the whole short table, and the words around it."""
    if BEGIN not in around:
        raise RecordError(f"lab/results/short.md: needs the line {BEGIN}, where the table goes")
    return f"{MADE}\n{around.replace(BEGIN, short_table(records)).strip()}\n"


def with_table(text: str, table: str) -> str:
    """README.md with the table between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise RecordError(
            f"README.md: needs the lines {BEGIN} and {END} around its table of results"
        )
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    parser = described_by(__doc__)
    parser.add_argument("--check", action="store_true", help="only say which documents differ")
    args = parser.parse_args()
    try:
        return write(documents(), args.check)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 1


def write(wanted: Mapping[Path, str], check: bool) -> int:
    """Write what differs, or say so and return 1."""
    there = {path: path.read_text() if path.exists() else None for path in wanted}
    differing = [path for path in wanted if there[path] != wanted[path]]
    for path in differing:
        if check:
            print(f"{path} differs from the records: run `python -m lab.write_results`")
        else:
            path.write_text(wanted[path])
            print(f"{path} written")
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
