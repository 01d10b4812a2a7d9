"""The command line as its users meet it: help, refusals in a line, and what it prints."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from _thread import interrupt_main
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch

from facetvae import command
from facetvae.datasets import DATASETS, digits
from facetvae.estimators import MultiFacetClustering
from guides import VaDEGuide
from inference import SVIRunner
from ppl_models import MFCVAE, VAE, GaussianMixture, Normal, SharedMLP

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two facets with untrained clusters, of the digits."""
    torch.manual_seed(0)
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(5, 3)}
    guide = VaDEGuide(MFCVAE((64,), facets, Normal(0.2), SharedMLP((8,))))
    folder = SVIRunner(guide.model, guide).save(tmp_path_factory.mktemp("runs") / "digits")
    (folder / "run.json").write_text(json.dumps({"data": "digits"}))
    return folder


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        command.main(list(argv))
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["demo"], ["explore"], ["describe"]], ids=str)
def test_help_says_what_there_is(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main([*argv, "--help"])
    assert stop.value.code == 0
    page = capsys.readouterr().out
    for word in ("demo", "explore", "describe") if not argv else (*argv, "--seed"):
        assert word in page


@pytest.mark.parametrize(
    "asked", ["from facetvae.command import parser", "from facetvae import command; command.parser"]
)
def test_help_needs_no_pytorch(asked: str) -> None:
    code = f"import sys; {asked}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("", "required: COMMAND"),
        ("train", "invalid choice: 'train'"),
        ("describe", "required: run"),
        ("describe run --seed -1", "--seed: must be from 0 to 4294967295, got -1"),
        ("describe run --rows x", "--rows: invalid integer value: 'x'"),
        ("describe run --rows 0", "--rows: must be"),
        ("describe run --port 1", "unrecognized arguments: --port 1"),
        ("explore run --port 70000", "--port: must be from 0 to 65535, got 70000"),
        ("explore run --image-shape -8 -8", "--image-shape"),
    ],
)
def test_flags_that_do_not_fit(argv: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, *argv.split())


def test_a_refusal_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for argv, says in {
        ("describe", str(tmp_path / "nowhere")): "there is no folder",
        ("describe", str(tmp_path)): "config.json is missing",
        ("describe", str(run), "--device", "abacus"): "abacus",
        ("explore", str(run), "--data", "x.npy"): "there is no file 'x.npy'",
        ("demo", "--out", str(tmp_path / "file")): "no run can be saved in",
    }.items():
        said = refused(capsys, *argv)
        assert said.startswith("facetvae: ")
        assert says in said
        assert said.count("\n") == 1


def test_describe_prints_markdown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["describe", str(run), "--rows", "100"])
    page = capsys.readouterr().out
    clusters = SVIRunner.load(run).guide.predict(digits().test)["digit"]
    shown = re.findall(r"^\| (\d) \|.* \| ([\d, ]+) \|$", page.split("# digit")[1], re.M)
    assert shown
    for cluster, rows in shown:
        assert set(clusters[[int(row) for row in rows.split(", ")]]) == {int(cluster)}
    for facet in ("style", "digit"):
        assert re.search(rf"^# {facet}: \d clusters of 100 rows$", page, re.MULTILINE)
    assert page.count("| digit (ARI ") == 2, "the known label, beside each facet's clusters"


def test_a_facet_without_clusters_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = VaDEGuide(VAE((6,), 2, network=SharedMLP((8,))))
    folder = SVIRunner(guide.model, guide).save(tmp_path / "run")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((9, 6)))
    command.main(["describe", str(folder), "--data", str(tmp_path / "x.npy")])
    assert capsys.readouterr().out.startswith("# layer_1\n\nlayer_1 has no clusters")


def test_data_in_other_units_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = 50 + 9 * rng.normal(size=(300, 4)) + 60 * rng.integers(2, size=(300, 1))
    found = MultiFacetClustering(1, random_state=0).fit(x)
    folder = found.runner_.save(tmp_path / "run")
    for rows, says in ((x, "are they in its units"), (found.encode(x), "")):
        np.save(tmp_path / "x.npy", rows)
        command.main(["describe", str(folder), "--data", str(tmp_path / "x.npy")])
        said = capsys.readouterr().err
        assert (says in said) if says else not said


def test_data_sets_are_found_by_name(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(DATASETS, "digits")
    assert "cannot be loaded by name" in refused(capsys, "describe", str(run))


def test_explore_serves_its_page_until_ctrl_c(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dash", reason="needs facetvae[explore]")
    from facetvae.explorer import serve

    pages: list[str] = []

    def look(address: str) -> None:
        with urlopen(address) as page:
            pages.append(page.read().decode())
        interrupt_main()

    def visit(address: str) -> None:
        threading.Thread(target=look, args=(address,)).start()

    monkeypatch.setattr(serve.webbrowser, "open", visit)
    # Shells start background jobs deaf to Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command.main(["explore", str(run), "--port", "0", "--rows", "50"])
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().out
    assert re.match(r"http://127\.0\.0\.1:\d+/ shows digits; Ctrl-C ends it", said)
    assert "<title>digits - FacetVAE</title>" in pages[0]
