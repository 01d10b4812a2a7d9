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
        assert set(opened) <= {"python", "{toctree}", "{include}"}, (
            f"{page.name} has a block that nothing runs"
        )
        assert opened.count("python") == len(FENCE.findall(page.read_text())), (
            f"a block of {page.name} is not closed"
        )
    tutorials = {
        "tour.md",
        "own_data.md",
        "swap_a_guide.md",
        "own_prior.md",
        "own_estimator.md",
        "long_runs.md",
    }
    assert {page.name for page in PAGES} >= {"README.md", *tutorials}


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


def test_links_of_the_documents_exist() -> None:
    for document in documents():
        for target in re.findall(r"\]\(((?!http)[^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in documents():
        assert set(re.findall(r"(?:^    |`)make ([\w-]+)", document.read_text(), re.M)) <= targets


def test_the_results_in_short_are_those_of_the_readme() -> None:
    rows, whole = (
        [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
        for page in RESULTS
    )
    assert rows
    assert set(rows) <= set(whole)
