"""What the papers claim, and what was found of it here: lab/results/claims/, a file for each paper.

`lab.write_results` writes docs/claims.md from them. Figures stand in records, and claims
refer to them by name, so that the page follows when a record is measured again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.records import PLACEHOLDER, ROOT, Record, RecordError, build, fill, markdown_table, parse

VERDICTS = {
    "agrees": "what the paper says is found here",
    "in part": "some of it is, or under other conditions",
    "differs": "it is not found here; the last column says what was tried",
    "no data": "its data cannot be had offline; the command is ready where there is one",
}
# What nobody can say without a measurement.
MEASURED = ("agrees", "in part", "differs")
# A figure of another record.
ELSEWHERE = re.compile(r"\{(?P<record>[a-z]\w*)\.(?P<figure>[a-z]\w*(?::[a-z_.\d]+)?)\}")
COLUMNS = ("where", "what the paper says", "here", "what was found")


@dataclass(frozen=True)
class Claim:
    """One claim.

    :ivar where: its place in the paper, such as ``"Table 2"``.
    :ivar says: what the paper says there.
    :ivar verdict: one of ``VERDICTS``.
    :ivar found: what was found, with figures of the record by name, and of others as
        ``{record.figure}``.
    :ivar record: the record's name; none where nothing was measured.
    """

    where: str
    says: str
    verdict: str
    found: str = ""
    record: str = ""


@dataclass(frozen=True)
class Claims:
    """Those of one paper.

    :ivar title: the heading.
    :ivar order: its place among the papers.
    :ivar about: a sentence on what was run, before the table.
    """

    title: str
    order: int
    about: str = ""
    claims: tuple[Claim, ...] = ()


def load_claims(records: Sequence[Record], root: Path = ROOT) -> list[Claims]:
    """Every paper's claims, checked against the records, in the order of the page.

    :raises RecordError: if a field is unknown or missing, a verdict or record is unknown, or one
        says what was measured without a record.
    """
    papers = [_load(path) for path in sorted((root / "lab/results/claims").glob("*.toml"))]
    names = {record.name for record in records}
    for paper in papers:
        for claim in paper.claims:
            where = f"lab/results/claims: {paper.title}, {claim.where}"
            if claim.verdict not in VERDICTS:
                known = f"must be one of {', '.join(VERDICTS)}"
                raise RecordError(f"{where}: verdict: {known}, got {claim.verdict!r}")
            if claim.record and claim.record not in names:
                raise RecordError(f"{where}: record: there is no lab/results/{claim.record}.toml")
            if claim.verdict in MEASURED and not (claim.record or "`tests/" in claim.found):
                raise RecordError(
                    f"{where}: record: {claim.verdict!r} needs the record of what was measured, or "
                    "the tests' file in `found`"
                )
            if not claim.record and PLACEHOLDER.search(claim.found):
                raise RecordError(f"{where}: record: is needed, as `found` names a figure")
    return sorted(papers, key=lambda paper: paper.order)


def _load(path: Path) -> Claims:
    content, where = parse(path), f"lab/results/claims/{path.name}"
    entries = content.pop("claim", [])
    claims = tuple(
        build(Claim, each, f"{where}: claim {number}") for number, each in enumerate(entries, 1)
    )
    return build(Claims, {**content, "claims": claims}, where)


def claims_page(papers: Iterable[Claims], records: Sequence[Record], introduction: str) -> str:
    """The page: what the verdicts mean, how often each was given, then a table for each paper."""
    papers = list(papers)
    of = {record.name: record for record in records}
    verdicts = [claim.verdict for paper in papers for claim in paper.claims]
    counts = [(name, str(verdicts.count(name)), VERDICTS[name]) for name in VERDICTS]
    blocks = [introduction.strip(), markdown_table(("here", "claims", "meaning"), counts)]
    for paper in papers:
        rows = [(c.where, c.says, c.verdict, _found(c, of)) for c in paper.claims]
        about = fill_elsewhere(paper.about.strip(), of)
        blocks += [f"## {paper.title}", about, markdown_table(COLUMNS, rows)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _found(claim: Claim, of: dict[str, Record]) -> str:
    """What was found, and the title of the record that has its figures."""
    found = fill_elsewhere(claim.found, of)
    if not claim.record:
        return found
    record = of[claim.record]
    return f"{fill(found, record)} (*{record.title}*)"


def fill_elsewhere(text: str, of: dict[str, Record]) -> str:
    """The text with figures that it names with their records.

    :raises RecordError: if there is no such record or figure.
    """

    def shown(at: re.Match[str]) -> str:
        if at["record"] not in of:
            raise RecordError(f"{at[0]}: there is no lab/results/{at['record']}.toml")
        return fill(f"{{{at['figure']}}}", of[at["record"]])

    return ELSEWHERE.sub(shown, text)
