"""What is handed on: a wheel that works elsewhere, an sdist that it can be built from, and what
they say they need.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.pages import ROOT, documents

pytestmark = pytest.mark.slow(20)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = ("ppl_models", "guides", "inference")
RELEASE = f"facetvae-{PROJECT['version']}"

# Run where nothing of the repository is at hand.
ELSEWHERE = """
import importlib, pkgutil, sys
import torch

for name in ("ppl_models", "guides", "inference"):
    package = importlib.import_module(name)
    found = [name, *(info.name for info in pkgutil.walk_packages(package.__path__, f"{name}."))]
    for module in map(importlib.import_module, found):
        assert module.__file__.startswith(sys.argv[1]), module.__file__

import inference
from guides import VaDEGuide
from inference import SVIRunner
from ppl_models import GaussianMixture, SharedMLP, VaDE

model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8, 8)))
runner = SVIRunner(model, VaDEGuide(model))
runner.fit(torch.rand(20, 6), epochs=2, batch_size=20, progress=False)
assert runner.step == 2
print(inference.__version__)
"""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it, of a copy: building leaves
    things behind.
    """
    copy, out = tmp_path_factory.mktemp("copy") / "facetvae", tmp_path_factory.mktemp("dist")
    left_out = [Path(line).name for line in (ROOT / ".gitignore").read_text().split()]
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", *left_out))
    run("-m", "build", "--no-isolation", "--outdir", out, copy)
    return out


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(built / f"{RELEASE}-py3-none-any.whl") as wheel:
        found = set(wheel.namelist())
    code = {
        p.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for p in (ROOT / package).rglob("*.py")
    }
    typed = {f"{package}/py.typed" for package in PACKAGES}
    beside = {"METADATA", "WHEEL", "RECORD", "top_level.txt", "licenses/LICENSE"}
    assert found == code | typed | {f"{RELEASE}.dist-info/{name}" for name in beside}


def test_the_sdist_can_be_tested_and_has_its_pages(built: Path) -> None:
    with tarfile.open(built / f"{RELEASE}.tar.gz") as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = [
        path
        for folder in ("tests", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    wanted += [
        *documents(),
        *(ROOT / "docs").glob("*.py"),
        *(ROOT / "docs").glob("*.png"),
        ROOT / "docs/batch.svg",
    ]
    wanted += (ROOT / "results").iterdir()
    wanted += [ROOT / name for name in ("LICENSE", "Makefile", "pyproject.toml", "constraints.txt")]
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= found
    assert not [
        name
        for name in found
        if "_build" in name or name.startswith("docs/api/") or name.endswith(".pyc")
    ]


def test_the_wheel_works_where_nothing_else_of_ours_is(built: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    wheel = built / f"{RELEASE}-py3-none-any.whl"
    run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    said = run("-P", "-c", ELSEWHERE, target, cwd=elsewhere, env=environment)
    assert said.split() == [PROJECT["version"]]


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", each)[0] for each in requirements}


def test_every_dependency_has_its_reason_in_the_changelog() -> None:
    section = (
        (ROOT / "CHANGELOG.md")
        .read_text()
        .partition("### Dependencies, and why each is there\n")[2]
    )
    told: dict[str, set[str]] = {}
    for listed, extra, reason in re.findall(
        r"^- ([^:(]*)(?:\(extra `(\w+)`\))?:\s*(.*)", section, re.M
    ):
        assert reason
        told.setdefault(extra, set()).update(re.findall(r"`([\w-]+)`", listed))
    assert told == {
        "": names(PROJECT["dependencies"]),
        **{extra: names(each) for extra, each in EXTRAS.items()},
    }


def test_every_dependency_has_a_tested_version() -> None:
    pinned = {
        line.partition("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert (
        names([*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)])
        <= pinned
    )


def test_extras_that_are_named_exist() -> None:
    installed = re.search(r"--editable '\.\[(.*)\]'", (ROOT / "Makefile").read_text())
    assert installed
    assert installed[1].split(",") == sorted(EXTRAS)
    for page in documents():
        text = page.read_text()
        named = [
            name
            for each in re.findall(r"(?:facetvae|\.)\[([a-z,]+)\]", text)
            for name in each.split(",")
        ]
        named += re.findall(r"\bextra `(\w+)`", text)
        assert set(named) <= set(EXTRAS), f"{page.name} names an extra that there is not"


def test_the_table_of_extras_is_whole() -> None:
    table = (ROOT / "docs/parts.md").read_text().partition("| extra | for |")[2]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(EXTRAS)
