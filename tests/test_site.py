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
    nobody = "http://127.0.0.1:9"  # who listens there
    options = ["-q", "-W", "--keep-going", "-b", "html", "-D", "toc_object_entries=0", "-d"]
    done = fresh.run(
        *("-m", "sphinx", *options, out / "kept", "docs", out / "html"),
        env={"http_proxy": nobody, "https_proxy": nobody},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out / "html"


def test_the_site_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = build(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs")
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    known = {
        name for kind, found in inventory.data.items() if kind.startswith("py:") for name in found
    }
    assert set(importlib.import_module("api_pages").public_paths().values()) <= known
    assert {"ppl_models.MFCVAE", "inference.SVIRunner.fit"} <= known
    guides = re.sub(r"<[^>]*>", "", (site / "api/guides.html").read_text())
    assert re.search(r"class\s+guides\.AmortizedGuide\(\s*model", guides)
    models = (site / "api/models.html").read_text()
    assert "<math" in models
    assert "MathJax" not in models
    for page in site.rglob("*.html"):
        fetched = r'<(?:script|img|iframe)[^>]*src="http|<link[^>]*href="http'
        assert not re.search(fetched, page.read_text()), page.name
