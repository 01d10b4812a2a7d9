"""What the documents say, run."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Container
from pathlib import Path

import pytest

from tests import fresh
from tests.pages import FENCE, ROOT, commands, documents, program, shortened

pytestmark = pytest.mark.slow(50)

PAGES = [page for page in documents() if FENCE.search(page.read_text())]
AS_A_USER = "README.md"  # whose program runs in a new interpreter
RESULTS = ("README.md", "docs/results.md")
COMMANDS = sorted(
    {(module, *arguments) for page in documents() for module, arguments in commands(page)}
)


def test_every_program_is_seen() -> None:
    for page in documents():
        opened = re.findall(r"^ *```(\S+)", page.read_text(), re.M)
        others = set(opened) - {"python", "{toctree}", "{include}"}
        assert not others, f"{page.name} has a block that nothing runs"
        closed = len(FENCE.findall(page.read_text()))
        assert opened.count("python") == closed, f"a block of {page.name} is not closed"
    assert {page.name for page in PAGES} >= {"README.md", "tour.md", "own_data.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_run(page: Path, tmp_path: Path) -> None:
    code = shortened(program(page))
    script = tmp_path / page.with_suffix(".py").name
    script.write_text(code)
    done = fresh.run(script, cwd=tmp_path, forked=page.name != AS_A_USER)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not fresh.noise(done.stderr)


class Found(Exception):
    """Carries a parser out of the program that was about to use it."""


def parser_of(module: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    def found(self: argparse.ArgumentParser, *arguments: object) -> None:
        raise Found(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", found)
    with pytest.raises(Found) as carried:
        importlib.import_module(module).main()
    return carried.value.args[0]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_exist_with_their_flags(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, *arguments = command
    if module.endswith(".NAME"):
        return
    flags = [argument for argument in arguments if argument.startswith("--")]
    known: Container[str] = ()
    if flags:
        parser = parser_of(module, monkeypatch)
        if module == "facetvae.command":
            parser = parser._subparsers._group_actions[0].choices[arguments[0]]
        known = parser._option_string_actions
    assert (ROOT / f"{module.replace('.', '/')}.py").exists()
    assert all(flag in known for flag in flags)


def test_links_and_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in documents():
        text = document.read_text()
        for link in re.findall(r"\]\(((?!http)[^)#]+)", text):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
        assert set(re.findall(r"(?:^    |`)make ([\w-]+)", text, re.M)) <= targets


def test_the_results_in_short_are_those_of_the_readme() -> None:
    rows, whole = (
        [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
        for page in RESULTS
    )
    rows = [row for row in rows if row.count("|") == 5]  # not those of folders
    assert rows
    assert set(rows) <= set(whole)
