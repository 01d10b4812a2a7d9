"""The fixture, as a session uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUITE = """
import numpy as np
import pytest

def draw(seed):
    return 1 + np.random.default_rng(seed).standard_normal()

@pytest.mark.parametrize("mean", [1.0, 1.0, 1.5])
def test_mean(unbiased, mean):
    unbiased(draw, mean, bias=0.2)

def test_another():
    pass
"""


def test_a_session_shares_its_level_and_ends_with_a_table(tmp_path: Path) -> None:
    """Two right estimators pass, a wrong one fails with its report."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "-p", "no:dash"]
    options += ["--elbocheck-level", "3e-4"]
    command = [sys.executable, "-m", "pytest", *options, "test_suite.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "elbocheck: 3 checks at a level of 0.0003 together" in done.stdout
    assert "probability 0.0001, a bias" in done.stdout  # a third of the level
    rows = [line.split()[0] for line in done.stdout.splitlines() if " draws  " in line]
    assert sorted(rows) == ["biased", "unbiased", "unbiased"]
