"""Every example runs, leaves what it should, and none is left out."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from examples import compare_guides, mfcvae, vade_ivae, vlac
from facetvae.datasets import digits
from facetvae.explorer.data import open_run
from inference import SVIRunner
from lab.protocols.datasets import colored
from lab.protocols.sources import time_contrastive
from tests import fresh

pytestmark = [
    pytest.mark.slow(60),
    # Runs of seconds fade facets in at once.
    pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning"),
]

ROOT = Path(__file__).parents[2]
LONGEST = {"quickstart": 110, "common": 150, "compare_guides": 200, "compare_priors": 200}
ONE_RUN = ("quickstart", "mfcvae", "vlac", "mlvae", "nvae")
MANY_RUNS = ("vade_ivae", "compare_guides", "compare_priors")
# Pyro's SVI instead of the runner, in the manner of Pyro's own examples: size flags instead of
# --smoke, numbers printed, and nothing written.
PLAIN_PYRO = {"pyro_mfcvae", "pyro_mlvae", "pyro_nvae", "pyro_vade_ivae", "pyro_vlac"}


def test_none_is_unlisted_and_each_is_read_in_a_sitting() -> None:
    lengths = {
        path.stem: len(path.read_text().splitlines()) for path in (ROOT / "examples").glob("*.py")
    }
    assert lengths.keys() == {"__init__", "common", *ONE_RUN, *MANY_RUNS} | PLAIN_PYRO
    for name, lines in lengths.items():
        assert lines <= LONGEST.get(name, 80 if name in PLAIN_PYRO else 120), name


def smoke(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Path:
    """The folder of a finished smoke run, beside which nothing was written or read."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FACETVAE_DATA", str(folder / "nowhere"))
    importlib.import_module(f"examples.{name}").main(["--smoke", "--out", "run", *flags])
    assert [path.name for path in folder.iterdir()] == ["run"]
    return folder / "run"


@pytest.mark.parametrize("name", ONE_RUN)
def test_a_run_is_left_that_the_explorer_finds_with_its_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = smoke(name, tmp_path, monkeypatch)
    assert "look at it: facetvae explore run" in capsys.readouterr().out
    figures = [*(out / "figures").glob("*.png")]
    assert len(figures) >= 5
    assert all(figure.stat().st_size > 3000 for figure in figures)
    assert json.loads((out / "scores.json").read_text(), parse_constant=pytest.fail), "finite"
    own = out / "test.npy"
    assert own.exists() == (name == "vlac"), "data that cannot be loaded by their name"
    opened = open_run(out, data=own if own.exists() else None, image_shape=(3, 32, 32))
    assert opened.count >= 120


def test_sources_are_scored_and_their_runs_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = smoke("vade_ivae", tmp_path, monkeypatch)
    scores, said = json.loads((out / "scores.json").read_text()), capsys.readouterr().out
    for model in ("VaDE", "iVAE"):
        assert re.search(rf"^{model} +0\.\d", said, re.M)
        for size in (20, 30):
            assert len(scores[model][f"{size} rows"]) == 2
            assert all(0 < value < 1 for value in scores[model][f"{size} rows"])
            SVIRunner.load(out / f"{model}-{size}" / "seed-1")
    assert np.load(out / "test-20.npy").shape == (200, 5)


@pytest.mark.parametrize(("name", "seeds"), [("compare_guides", "0"), ("compare_priors", "01")])
def test_a_comparison_leaves_its_table(
    name: str,
    seeds: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "compare_guides":  # 300 steps for each of two baselines
        monkeypatch.setattr(compare_guides.teach_baseline, "__defaults__", (3,))
    out = smoke(name, tmp_path, monkeypatch, "--seeds", *seeds)
    said = capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    if name == "compare_guides":
        assert [len(results[each]) for each in ("posteriors", "estimators")] == [11, 6]
        titles = ("fitted posterior", "estimator")
        rows = results["posteriors"] | results["estimators"]
        assert all(f"\n{row} " in said for row in rows)
    else:
        assert re.search(r"^warm start: \d+\.\d s of processor time a seed$", said, re.M)
        assert results["diagonal"]["gain"] == [0, 0]
        assert "digit nmi" in results["VampPrior"]
        assert "digit nmi" not in results["standard normal"]
        titles, rows = ("mean (sample deviation)",), results
    assert all(f"\n{title} " in said for title in titles)
    for row, scores in rows.items():
        for score, values in scores.items():
            assert len(values) == (1 if score == "seconds" else len(seeds)), row
            assert all(isinstance(value, int | float) for value in values), row


@pytest.mark.parametrize("name", [*ONE_RUN, *MANY_RUNS])
def test_flags(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(f"examples.{name}").main
    (tmp_path / "notes").write_text("mine")
    seed = "--seeds" if name in MANY_RUNS else "--seed"
    for flags, words in (
        (["--sed", "1"], "unrecognized arguments: --sed"),
        ([seed, "-1"], "seed must be"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--out", str(tmp_path / "notes" / "run")], "it, or a folder above it, is a file"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(flags)
        assert words in capsys.readouterr().err


def test_missing_data_is_said_before_anything_is_written(tmp_path: Path) -> None:
    flags = ["--data-root", str(tmp_path), "--out", str(tmp_path / "run")]
    with pytest.raises(FileNotFoundError, match="no MNIST in"):
        mfcvae.main(flags)
    assert not (tmp_path / "run").exists()


def test_data_are_drawn_as_the_whole_protocols_draw_them() -> None:
    x, sources = vade_ivae.mixed_sources(7)
    theirs = time_contrastive(7, vade_ivae.NUM_SEGMENTS, vade_ivae.DIM, seed=1)
    np.testing.assert_allclose(x.reshape(-1, 5), theirs.x, rtol=1e-12)
    np.testing.assert_array_equal(sources.reshape(-1, 5), theirs.sources)
    ours, known = vlac.colored(digits()), colored(digits(), "color-digits")
    np.testing.assert_equal(vars(ours), vars(known))


@pytest.mark.parametrize("name", sorted(PLAIN_PYRO))
def test_examples_of_plain_pyro_stand_alone_and_end_in_numbers(name: str, tmp_path: Path) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert not re.search(r"^(from|import) examples|SVIRunner", text, re.M)
    sizes = ["--num-epochs", "1", "--batch-size", "256"]
    others = ["--learning-rate", "0.002", "--seed", "1", "--device", "cpu"]
    done = fresh.run("-m", f"examples.{name}", *sizes, *others, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not fresh.noise(done.stderr)
    assert re.search(r"ELBO.* -?\d+\.\d+ nats per image", done.stdout)
    assert re.search(r"\d%", done.stdout)
    assert "nan" not in done.stdout
    assert not list(tmp_path.iterdir())
