"""How large the repository is at a commit, beside the limits that it keeps to.

    python -m lab.sizes             # the working tree
    python -m lab.sizes v0.1.0      # a commit

Lines are all lines of Python files; code lines are those with code, without docstrings. Names are
the library's different ones in any ``__all__``. The closure of a module is every file of the
repository that importing it reads, by the import statements outside ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = ("ppl_models", "guides", "inference", "facetvae")
#: The most lines of folders, together.
LIMITS = {
    ("ppl_models", "guides"): 10_500,
    ("inference",): 10_600,
    ("facetvae",): 9_330,
    LIBRARY: 30_380,
    ("packages",): 4_220,
    ("examples",): 1_600,
    ("lab",): 13_830,
    ("",): 80_535,
}
MOST_NAMES = 400
CLOSURES = ("facetvae.table_rules.counting", "inference.schedules")
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def files_of(commit: str | None) -> dict[str, str]:
    """The Python files of a commit, or of the working tree, by path."""
    if commit is None:
        listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True)
        paths = [path for path in listed.splitlines() if (ROOT / path).is_file()]
        return {path: (ROOT / path).read_text() for path in paths}
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [each for each in tar if each.isfile() and each.name.endswith(".py")]
        opened = ((each.name, tar.extractfile(each)) for each in members)
        return {name: file.read().decode() for name, file in opened if file is not None}


def code_lines(text: str) -> int:
    """Lines with code outside docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def exported(text: str) -> set[str]:
    """The names in a file's ``__all__``, if it is written out."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value)) if isinstance(node.value, ast.List) else set()
    return set()


def imported(path: str, text: str) -> Iterator[str]:
    """Modules that a file imports, as they are written."""
    tree = ast.parse(text)
    typing = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for below in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def closure(module: str, files: Mapping[str, str]) -> tuple[set[str], bool]:
    """The files that importing a module reads, and whether one of them imports torch."""
    found: set[str] = set()
    waiting, torch = [module], False
    while waiting:
        name = waiting.pop()
        torch |= name.split(".")[0] == "torch"
        parents = [".".join(name.split(".")[:end]) for end in range(1, name.count(".") + 2)]
        for each in parents:  # importing a module imports the packages that it is in
            for path in (f"{each.replace('.', '/')}.py", f"{each.replace('.', '/')}/__init__.py"):
                if path in files and path not in found:
                    found.add(path)
                    waiting += imported(path, files[path])
    return found, torch


def report(files: Mapping[str, str]) -> str:
    """All sizes, a line each, beside the limits."""
    lines = []
    for folders, most in LIMITS.items():
        chosen = [text for path, text in files.items() if _within(path, folders)]
        number = sum(text.count("\n") for text in chosen)
        code = sum(map(code_lines, chosen))
        name = " + ".join(folders) or "all Python"
        lines.append(f"{name:42s}{number:8,d} lines (at most {most:,d}), {code:,d} of code")
    tests = sum(text.count("\n") for path, text in files.items() if path.startswith("tests/"))
    library = (text for path, text in files.items() if _within(path, LIBRARY))
    names = set().union(*map(exported, library))
    lines += [f"{'tests':42s}{tests:8,d} lines"]
    lines += [f"{'names of the library':42s}{len(names):8,d} (at most {MOST_NAMES})"]
    for module in CLOSURES:
        found, torch = closure(module, files)
        number = sum(files[path].count("\n") for path in found)
        said = "torch" if torch else "no torch"
        lines.append(f"{'closure of ' + module:42s}{number:8,d} lines, {len(found)} files, {said}")
    return "\n".join(lines)


def _within(path: str, folders: tuple[str, ...]) -> bool:
    return folders == ("",) or path.split("/")[0].removesuffix(".py") in folders


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m lab.sizes", description=__doc__)
    parser.add_argument("commit", nargs="?", help="default: the working tree")
    print(report(files_of(parser.parse_args(argv).commit)))


if __name__ == "__main__":
    main()
