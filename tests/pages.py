"""The programs in the documents: all Python blocks of a page, in order, are one program.

python -m tests.pages docs/tour.md     # at the page's own sizes; the tests cut them
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
# Lengths and sizes, and what makes a program end in seconds instead.
CUTS = {
    r"\bepochs=\d+": "epochs=2",
    r"\bepochs=\(\d+, \d+\)": "epochs=(1, 1)",
    r"\bfade_steps=\d+": "fade_steps=10",
    r"\bn_init=\d+": "n_init=2",
    r"\blabelings\(1000\b": "labelings(240",
    r"\bdrawn_embeddings\(2000\b": "drawn_embeddings(300",
    r"\bwidth=512\b": "width=64",
    # Estimators that choose their own length, each called on one line.
    r"\b(MultiFacetClustering|SemiSupervisedClassifier|ContentStyleTransformer)"
    r"\((?!.*epochs=)": r"\1(epochs=1, ",
}
# What a reader types to run a module of ours, up to the end of the line or of the inline code.
MODULE = re.compile(r"-m ((?:lab|examples|tests|facetvae)[.\w]+)([^\n`]*)")
# The command line, which is a module too.
COMMAND = re.compile(r"(?<![\w/.])facetvae (?=(?:demo|explore|describe)\b)")


def documents() -> list[Path]:
    """Every Markdown file of the repository that people read: those beside the code, and the
    site's.
    """
    return sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))


def program(page: Path) -> str:
    """The page's Python blocks on the lines where they stand, so that an error names the page's
    line.
    """
    text = page.read_text()
    lines = [""] * text.count("\n")
    for block in FENCE.finditer(text):
        first = text[: block.start(1)].count("\n")
        code = block.group(1).splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def shortened(code: str) -> str:
    """The same program with sizes cut so that it ends in seconds; all else is the reader's."""
    for size, cut in CUTS.items():
        code = re.sub(size, cut, code)
    return code


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Our modules that the page has a reader run, and the arguments shown, without what the shell
    reads.
    """
    found = []
    text = COMMAND.sub("-m facetvae.command ", page.read_text())
    for module, rest in MODULE.findall(text):
        arguments = re.split(r"\s#|[;|&]|, ", rest)[0].split()
        found.append((module, arguments))
    return found


if __name__ == "__main__":
    code = program(page := Path(sys.argv[1]))
    os.chdir(mkdtemp())  # what a page writes has no place in a checkout
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
