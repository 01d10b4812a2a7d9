"""Every example runs as a user would run it, and none is left out."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ["quickstart", "mfcvae", "vade"]
# Modules that examples share; they are not run.
HELPERS = {"__init__", "common", "datasets"}
RUN_FILES = {"config.json", "history.jsonl", "run.json", "scores.json", "weights.safetensors"}


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)}
    environment.pop("FACETVAE_DATA", None)  # what needs no files must run without them
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def test_none_is_unlisted() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} - HELPERS == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs_and_writes_its_run_folder(name: str, tmp_path: Path) -> None:
    done = run(f"examples.{name}", "--smoke", "--out", str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {path.name for path in (tmp_path / "run").iterdir()} >= RUN_FILES
    figures = list((tmp_path / "run" / "figures").glob("*.png"))
    assert len(figures) >= 3
    assert all(figure.stat().st_size > 5000 for figure in figures)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    for facet, values in scores.items():
        assert 0 <= values["accuracy"] <= 1
        assert f"{facet} " in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"run"}, "an example writes into its run folder only"


@pytest.mark.parametrize("name", EXAMPLES)
def test_flags(name: str) -> None:
    help_text = run(f"examples.{name}", "--help").stdout
    for flag in ("--smoke", "--data-root", "--seed", "--device", "--out"):
        assert flag in help_text
    assert run(f"examples.{name}", "--sed", "1").returncode == 2, "an unknown flag is an error"


@pytest.mark.parametrize("name", EXAMPLES)
def test_smoke_sets_sizes_only(name: str) -> None:
    """The smoke run goes through the same code: sizes and lengths differ from the full run's, and flags still count."""
    example = importlib.import_module(f"examples.{name}")
    full, smoke, asked = (example.parse(argv)[1] for argv in ([], ["--smoke"], ["--smoke", "--lr", "0.5"]))
    differing = {name for name, value in asdict(full).items() if asdict(smoke)[name] != value}
    assert differing <= {
        "num_components", "dim", "widths", "batch_size", "warm_epochs", "epochs", "fade_steps", "evaluate_every"
    }  # fmt: skip
    assert asked == replace(smoke, lr=0.5)


def test_trains_on_mnist_where_it_is_found(mnist_root: Path, tmp_path: Path) -> None:
    flags = ["--data-root", str(mnist_root), "--epochs", "1", "--batch-size", "2048", "--precision", "bf16"]
    done = run("examples.vade", *flags, "--evaluate-every", "1", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-2000:]
    run_json = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run_json["data"] == "mnist"
    assert run_json["settings"]["batch_size"] == 2048
    assert run_json["settings"]["precision"] == "bf16"


def test_missing_data_is_said_before_anything_is_written(tmp_path: Path) -> None:
    done = run("examples.mfcvae", "--dataset", "mnist", "--data-root", str(tmp_path), "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "no MNIST in" in done.stderr
    assert not (tmp_path / "run").exists()
