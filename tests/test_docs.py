"""What the documents say, run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_readme_has_a_program() -> None:
    assert PYTHON_BLOCKS


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.strip().splitlines()[0])
def test_readme_programs_run(block: str, tmp_path: Path) -> None:
    # Sizes are cut so that the program ends in seconds; the code is the reader's.
    program = re.sub(r"epochs=\d+", "epochs=2", block)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_links_of_the_documents_exist() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(((?!http)[^)#]+)", document.read_text()):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    for document in ROOT.glob("*.md"):
        assert set(re.findall(r"\bmake (\w+)", document.read_text())) <= targets
