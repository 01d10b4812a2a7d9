"""The site builds without a warning and without a network, and its reference has every public
name.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

from tests import fresh
from tests.pages import ROOT

pytestmark = pytest.mark.slow(20)


def build(out: Path) -> Path:
    """The site as `make docs` builds it, but for the lists beside the reference, which take a
    quarter of the time.
    """
    proxies = {
        name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")
    }  # nobody listens there
    options = [
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-d",
        out / "kept",
        "-D",
        "toc_object_entries=0",
    ]
    done = fresh.run("-m", "sphinx", *options, "docs", out / "html", cwd=ROOT, env=proxies)
    assert done.returncode == 0, done.stderr[-3000:]
    return out / "html"


def test_the_site_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = build(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs")
    check_reference(site, set(importlib.import_module("api_pages").public_paths().values()))
    check_arguments(site)
    check_formulas(site)
    check_nothing_is_fetched(site)


def check_reference(site: Path, public: set[str]) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    known = {
        name for kind, found in inventory.data.items() if kind.startswith("py:") for name in found
    }
    assert public - known == set()
    assert {
        "ppl_models.MFCVAE",
        "inference.SVIRunner.fit",
        "inference.metrics.cluster_accuracy",
    } <= known


def check_arguments(site: Path) -> None:
    page = re.sub(r"<[^>]*>", "", (site / "api/guides.html").read_text())
    assert re.search(r"class\s+guides\.AmortizedGuide\(\s*model", page)


def check_formulas(site: Path) -> None:
    page = (site / "api/models.html").read_text()
    assert "<math" in page
    assert "MathJax" not in page


def check_nothing_is_fetched(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|iframe)[^>]*src="http|<link[^>]*href="http', page.read_text()
        )
        assert not fetched, page.name
