"""What is handed on: a wheel that works elsewhere, an sdist that it can be built from, and what
they say they need.
"""

from __future__ import annotations

import importlib
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

from tests import fresh
from tests.pages import ROOT, documents

pytestmark = pytest.mark.slow(20)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = ("ppl_models", "guides", "inference", "facetvae")
RELEASE = f"facetvae-{PROJECT['version']}"

# Run where nothing of the repository is at hand.
ELSEWHERE = """
import importlib, pkgutil, sys
import torch

for name in ("ppl_models", "guides", "inference", "facetvae"):
    package = importlib.import_module(name)
    found = [name, *(info.name for info in pkgutil.walk_packages(package.__path__, f"{name}."))]
    for module in map(importlib.import_module, found):
        assert module.__file__.startswith(sys.argv[1]), module.__file__

import facetvae
from facetvae import GaussianMixture, MultiFacetClustering, SharedMLP, SVIRunner, VaDE, VaDEGuide

model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8, 8)))
runner = SVIRunner(model, VaDEGuide(model))
runner.fit(torch.rand(20, 6), epochs=2, batch_size=20, progress=False)
assert runner.step == 2
print(facetvae.__version__)
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
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    files += (ROOT / "facetvae/explorer/assets").iterdir()
    files += [ROOT / package / "py.typed" for package in PACKAGES]
    beside = ("METADATA", "WHEEL", "RECORD", "top_level.txt", "licenses/LICENSE")
    info = {f"{RELEASE}.dist-info/{name}" for name in (*beside, "entry_points.txt")}
    assert found == {path.relative_to(ROOT).as_posix() for path in files} | info


def test_the_sdist_can_be_tested_and_has_its_pages(built: Path) -> None:
    with tarfile.open(built / f"{RELEASE}.tar.gz") as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = [*documents(), *(ROOT / "lab/results").iterdir(), ROOT / "docs/batch.svg"]
    wanted += [
        path for name in ("tests", "examples", "lab") for path in (ROOT / name).rglob("*.py")
    ]
    wanted += [path for kind in ("*.py", "*.png") for path in (ROOT / "docs").glob(kind)]
    wanted += [ROOT / name for name in ("LICENSE", "Makefile", "pyproject.toml", "constraints.txt")]
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= found
    left_out = re.compile(r"_build|^docs/api/|\.pyc$")
    assert not [name for name in found if left_out.search(name)]


def test_the_wheel_works_where_nothing_else_of_ours_is(built: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    wheel = built / f"{RELEASE}-py3-none-any.whl"
    install(wheel, target)
    done = imported(str(target), ELSEWHERE, elsewhere, target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [PROJECT["version"]]


def install(wheel: Path, target: Path) -> None:
    run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel)


def namesake(target: Path) -> Path:
    """Another distribution's package ``inference``, as pip would have left it in a folder."""
    info = target / "namesake-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: namesake\nVersion: 1.0\n")
    (info / "RECORD").write_text("inference/__init__.py,,\ninference/models.py,,\n")
    package = target / "inference"
    package.mkdir(exist_ok=True)
    (package / "models.py").write_text("")
    return package


def imported(
    where: str, program: str, folder: Path, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """What the program says that finds our packages in ``where`` alone."""
    path = folder / "alone" / "program.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(program)
    return fresh.run(path, *arguments, cwd=folder, env={"PYTHONPATH": where})


def test_another_distribution_with_a_package_of_our_name(built: Path, tmp_path: Path) -> None:
    """It may lie in the same folder, installed before us or after us, or in one that is found
    first."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    install(built / f"{RELEASE}-py3-none-any.whl", ours)
    whole = f"import facetvae; assert facetvae.__file__.startswith({str(ours)!r}); facetvae.MFCVAE"
    assert imported(str(ours), whole, tmp_path).stderr == ""

    (namesake(theirs) / "__init__.py").write_text("")
    program = "from facetvae import SVIRunner"
    hidden = imported(f"{theirs}{os.pathsep}{ours}", program, tmp_path)
    said = (
        "ImportError: the package 'inference' at {}/inference is another distribution's and hides"
    )
    assert said.format(theirs) in hidden.stderr

    package = namesake(ours)
    assert imported(str(ours), whole, tmp_path).returncode == 0, "it has other modules"
    (package / "__init__.py").write_text("")
    assert said.format(ours) in imported(str(ours), program, tmp_path).stderr


def test_importing_facetvae_or_a_rule_for_tables_imports_no_torch() -> None:
    for module in ("facetvae", "facetvae.table_rules.counting"):
        run("-c", f"import {module}, sys; assert 'torch' not in sys.modules", cwd=ROOT)


def test_one_name_gives_all_that_the_packages_export() -> None:
    import facetvae

    exports = [importlib.import_module(package).__all__ for package in facetvae._HOMES]
    assert facetvae.__all__ == sorted(name for each in exports for name in each), "none twice"
    assert all(hasattr(facetvae, name) for name in facetvae.__all__)


def test_no_import_needs_names_of_pytorch_that_are_not_public() -> None:
    """They may go with any version: where they are used, there is another way."""
    private = re.compile(r"^(?:from|import) torch[.\w]*\._\w+|^from torch\S* import _", re.M)
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {path.name for path in files if private.search(path.read_text())}
    assert found <= {"xla.py", "tape.py"}, "without them steps are replayed, or run through Pyro"


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", each)[0] for each in requirements}


def test_every_dependency_has_its_reason_in_the_changelog() -> None:
    section = (ROOT / "CHANGELOG.md").read_text().partition("## Dependencies")[2]
    told: dict[str, set[str]] = {}
    for line in re.findall(r"^\| (`.*) \|$", section, re.M):
        *extra, listed, reason = line.split(" | ")
        assert reason
        told.setdefault("".join(extra).strip("`"), set()).update(re.findall(r"[\w-]+", listed))
    asked = {"": PROJECT["dependencies"], **EXTRAS}
    assert told == {extra: names(each) for extra, each in asked.items()}


def test_every_dependency_has_a_tested_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    asked = names(sum(EXTRAS.values(), start=PROJECT["dependencies"]))
    assert asked <= {line.partition("==")[0].lower() for line in lines}


def test_extras_that_are_named_exist() -> None:
    installed = re.search(r"--editable '\.\[([^]]*)\]'", (ROOT / "Makefile").read_text())
    assert installed
    # Rivals that steps are compared with are installed by those who compare.
    assert installed[1].split(",") == sorted(EXTRAS.keys() - {"benchmarks"})
    for page in documents():
        text = page.read_text()
        named = ",".join(re.findall(r"(?:facetvae|\.)\[([a-z,]+)\]", text)).split(",")
        named += re.findall(r"\bextra `(\w+)`", text)
        assert set(named) - {""} <= set(EXTRAS), f"{page.name} names an extra that there is not"
    table = (ROOT / "docs/parts.md").read_text().partition("| extra | for |")[2]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(EXTRAS)
