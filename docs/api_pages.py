"""The reference's pages: what a module's ``__all__`` names or, where it has none, what it defines
of its packages' is public, and in the reference.

Each name stands once, under the shortest path that it can be imported by.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.pycode import ModuleAnalyzer

PACKAGES = ("ppl_models", "guides", "inference", "facetvae")

# Title and modules of each page, in the order to read them in. What is named nowhere stands on the
# last page.
PAGES: dict[str, tuple[str, list[str]]] = {
    "estimators": (
        "In scikit-learn's terms",
        ["facetvae.estimators.clustering", "facetvae.estimators"],
    ),
    "looking": ("Describing and exploring", ["facetvae.describing", "facetvae.explorer"]),
    "models": (
        "Models",
        [
            f"ppl_models.{name}"
            for name in ("base", "mfcvae", "vade", "vlac", "ivae", "mlvae", "nvae", "flow", "vqvae")
        ],
    ),
    "priors": ("Priors", ["ppl_models.priors.base", "ppl_models.priors"]),
    "likelihoods_and_networks": (
        "Likelihoods and networks",
        ["ppl_models.likelihoods", "ppl_models.networks"],
    ),
    "guides": (
        "Guides",
        ["guides.base", "guides.vade", "guides.amortized", "guides.discrete", "guides"],
    ),
    "fitting": (
        "Fitting",
        [
            f"inference.{name}"
            for name in (
                "runner",
                "run",
                "training",
                "schedules",
                "initialization",
                "callbacks",
                "checkpoints",
                "export",
                "distributed",
            )
        ],
    ),
    "objectives": ("Objectives", ["inference.objectives.loss", "inference.objectives"]),
    "measuring": ("Measuring", ["inference.evaluation", "inference.metrics", "inference.figures"]),
    "inside": ("What else there is", list(PACKAGES)),
}


def modules() -> dict[str, ModuleType]:
    """Every module with public names by its own name, a package before what is in it."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        found[package.__name__] = package
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            found[info.name] = importlib.import_module(info.name)
    # Of `facetvae` itself all names are at home elsewhere.
    return {name: each for name, each in found.items() if public_names(each)}


def public_names(module: ModuleType) -> list[str]:
    """What a module makes public."""
    if "__all__" in vars(module):
        return list(module.__all__)
    parts = module.__name__.split(".")
    packages = [sys.modules[".".join(parts[:end])] for end in range(len(parts) - 1, 0, -1)]
    names = {name for each in packages for name in vars(each).get("__all__", ())}
    own = (name for name in sorted(names) if hasattr(module, name))
    return [name for name in own if getattr(module, name).__module__ == module.__name__]


def own_names(module: ModuleType) -> list[str]:
    """What a module makes public and defines: data are told by the comment above them, which begins
    with ``#:``.
    """
    told = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    return [
        name
        for name in public_names(module)
        if getattr(getattr(module, name), "__module__", None) == module.__name__
        or ("", name) in told
    ]


def public_paths() -> dict[str, str]:
    """The path under which each public name stands in the reference, by every path that it can be
    imported by.
    """
    found = modules()
    own = {f"{module}.{name}" for module in found for name in own_names(found[module])}
    paths = {
        f"{module}.{name}": getattr(found[module], name)
        for module in found
        for name in public_names(found[module])
    }
    shortest: dict[int, str] = {}
    for path in sorted(paths, key=lambda path: (path.count("."), path not in own)):
        if path in own or _has_docstring(paths[path]):
            shortest.setdefault(id(paths[path]), path)
    return {path: shortest[id(value)] for path, value in paths.items()}


def _has_docstring(value: Any) -> bool:
    """Whether a name tells of itself wherever it is imported; the comment above data stands in
    their module alone.
    """
    return inspect.isclass(value) or inspect.isroutine(value)


def resolved(target: str, paths: dict[str, str]) -> str | None:
    """Where the reference has what a docstring names by another of its paths, such as a method of
    it.
    """
    if path := paths.get(target):
        return path
    owner, _, member = target.rpartition(".")
    if owner not in paths:
        return None
    # A member that is inherited stands with the class that has it.
    module, _, name = paths[owner].rpartition(".")
    classes = getattr(getattr(sys.modules[module], name), "__mro__", ())
    having = [f"{c.__module__}.{c.__name__}" for c in classes if member in vars(c)] or [owner]
    return f"{paths.get(having[0], paths[owner])}.{member}"


def write_pages(folder: Path) -> None:
    """Write the pages; one that is as it was is left alone, so that it is not read again."""
    folder.mkdir(exist_ok=True)
    paths, left = public_paths(), modules()
    for page, (title, names) in PAGES.items():
        chosen = [
            left.pop(m) for m in list(left) if any(m == n or m.startswith(f"{n}.") for n in names)
        ]
        chosen.sort(
            key=lambda module: _place(module, names)
        )  # which keeps the files' own order else
        text = "\n".join([title, "=" * len(title), "", *_lines(chosen, paths)])
        path = folder / f"{page}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _place(module: ModuleType, names: list[str]) -> tuple[bool, int]:
    """What a package says of itself comes first, then modules in the order in which they, or
    theirs, are named.
    """
    within = [i for i, name in enumerate(names) if f"{module.__name__}.".startswith(f"{name}.")]
    return not hasattr(module, "__path__"), within[0]


def _lines(chosen: list[ModuleType], paths: dict[str, str]) -> Iterator[str]:
    for module in chosen:
        name = module.__name__
        if hasattr(module, "__path__"):
            yield from (f".. automodule:: {name}", "   :no-members:", "")
            continue
        yield from (
            f"``{name}``",
            "-" * (len(name) + 4),
            "",
            f".. automodule:: {name}",
            "   :no-members:",
            "",
        )
        for own in own_names(module):
            yield from (f".. {_directive(getattr(module, own))}:: {paths[f'{name}.{own}']}", "")


def _directive(value: Any) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, Exception) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"
