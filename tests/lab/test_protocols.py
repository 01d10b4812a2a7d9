"""Every protocol of a paper runs as a user would run it, and none is left out.

They run in processes that are forked where the libraries are imported already; see ``fresh.py``.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from torch import nn

from facetvae.datasets import Dataset, digits, some_rows
from guides import MarginalGuide, VaDEGuide
from inference import SVIRunner
from lab import short_runs
from lab.protocols import augmentation, common, nvae, scoring, vade
from lab.protocols.datasets import load
from lab.records import load_shared
from ppl_models import MFCVAE, ConvLadder, GaussianMixture, MLPLadder, SharedMLP, VaDE
from tests import fresh

pytestmark = pytest.mark.slow(110)

ROOT = Path(__file__).parents[2]
PROTOCOLS = sorted(
    path.stem
    for path in (ROOT / "lab" / "protocols").glob("*.py")
    if "\ndef main(" in path.read_text()
)
# Runs that between them go through each start, network and way to train, beside the short runs.
VARIANTS = [
    ["mfcvae", "--final-fits", "2"],
    ["vade", "--network", "convolutional", "--loss", "alternate", "--precision", "bf16"],
    ["vlac", "--model", "mfcvae", "--neighbors", "layer_3"],
]
RUN_FILES = {
    "card.md",
    "config.json",
    "history.jsonl",
    "run.json",
    "scores.json",
    "weights.safetensors",
}


def run(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    # What needs no files must run without them.
    done = fresh.run("-m", *arguments, cwd=cwd, env={"FACETVAE_DATA": None, **env})
    assert not fresh.noise(done.stderr)
    return done


def finished(folder: Path, name: str, *flags: str) -> tuple[str, Path]:
    """What a smoke run in the folder said, and where it wrote."""
    out = folder / "run"
    done = run(f"lab.protocols.{name}", "--smoke", *flags, "--out", str(out), cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, out


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def drawn(folder: Path) -> set[str]:
    """Names of the figures in a run's folder."""
    figures = [*(folder / "figures").glob("*.png")]
    assert all(figure.stat().st_size > 3000 for figure in figures)
    return {figure.name for figure in figures}


def test_a_finished_run_is_not_trained_again_and_one_without_resume_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three calls: the second goes on from the end, the third from the beginning; both leave the
    same weights.
    """
    monkeypatch.delenv("FACETVAE_DATA", raising=False)
    arguments = ["--smoke", "--epochs", "1", "--out", str(tmp_path / "run")]
    weights = tmp_path / "run" / "weights.safetensors"
    vade.main(arguments)
    assert "objective=" in capsys.readouterr().err
    first = weights.read_bytes()
    vade.main([*arguments, "--resume"])
    assert "objective=" not in capsys.readouterr().err, "nothing was left to train"
    assert weights.read_bytes() == first
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="called with another epochs: call it as it was called"):
        vade.main([*arguments, "--resume", "--epochs", "7"])
    assert {
        path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    } == kept
    vade.main(arguments)
    assert "objective=" in capsys.readouterr().err
    assert weights.read_bytes() == first


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_cannot_be_written_is_named(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ("notes", "figures/mine.png", "checkpoints/step-000000001/weights")
    for name in mine:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    for out in (tmp_path / "notes", tmp_path / "notes" / "run"):
        with pytest.raises(SystemExit, match="it, or a folder above it, is a file"):
            common.begin(out, resume)
    with pytest.raises(SystemExit, match=r"it cannot be written \(File name too long\)"):
        common.begin(tmp_path / ("long" * 100), resume)

    def refuse(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir / "tmp1234"))

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(SystemExit, match=r"it cannot be written \(Permission denied\): give a"):
            common.begin(tmp_path, resume)
    assert all((tmp_path / name).is_file() for name in mine)
    common.begin(tmp_path, resume)  # a folder of no run keeps what it has, but for checkpoints
    assert all((tmp_path / name).is_file() for name in mine[:2])


def test_of_another_run_in_the_folder_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stops while it trains must not look finished, with the scores of the one before."""
    for flags in ([], ["--model", "vae"]):
        nvae.main(["--smoke", "--epochs", "1", "--out", str(tmp_path), *flags])
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures == {"kl.png", "scatter.png", "training.png"}
    for kept in ("cells/a.json", "vade-100/results.json", "mine.txt"):
        (tmp_path / kept).parent.mkdir(exist_ok=True)
        (tmp_path / kept).write_text("{}")

    def stop(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SVIRunner, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        nvae.main(["--smoke", "--lr", "5e-2", "--out", str(tmp_path)])
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in left if "checkpoints" not in path} == {
        "run.json",
        "cells/a.json",
        "vade-100/results.json",
        "mine.txt",
    }


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_flag_takes_what_it_has_without_being_given(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, flags = importlib.import_module(f"lab.protocols.{name}"), []
    add = module.add_setting_flags

    def listed(parser: argparse.ArgumentParser, settings: object, **options: object) -> None:
        flags.extend((each, getattr(settings, each)) for each in options)
        add(parser, settings, **options)

    monkeypatch.setattr(module, "add_setting_flags", listed)
    module.parse([])
    for flag, default in list(flags):
        values = default if isinstance(default, tuple) else (default,)
        _, settings = module.parse([f"--{flag.replace('_', '-')}", *map(str, values)])
        assert getattr(settings, flag) == default
    with pytest.raises(SystemExit, match="0"):
        module.parse(["--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    for flag in ("--smoke", "--data-root", "--seed", "--device", "--out", "--resume"):
        assert flag in help_text
    with pytest.raises(SystemExit, match="2"):  # an unknown flag is an error
        module.parse(["--sed", "1"])
    if offered := re.search(r"--dataset \{([^}]*)\}", help_text):
        for dataset in offered[1].split(","):
            assert module.parse(["--dataset", dataset])


SHORT_RUNS = load_shared().short_runs


def test_each_is_run() -> None:
    modules = {run.command.split()[0] for run in SHORT_RUNS.values()}
    assert modules >= {f"lab.protocols.{name}" for name in PROTOCOLS}


@pytest.mark.parametrize("name", SHORT_RUNS)
def test_short_runs_give_what_is_noted(name: str, tmp_path: Path) -> None:
    """If one does not and should not, note its numbers by `python -m lab.short_runs --update`."""
    module, *flags = SHORT_RUNS[name].command.split()
    said = short_runs.run(SHORT_RUNS[name].command, tmp_path / "run")
    now, noted = short_runs.numbers_in(tmp_path / "run"), SHORT_RUNS[name]
    assert not short_runs.differ(now, noted), (now, noted)
    if name in {"mfcvae", "mfcvae_shared", "vade", "vlac", "mlvae"}:
        check_run_folder(module.rpartition(".")[2], flags, said, tmp_path / "run")


def test_a_formula_changes_the_short_runs_that_it_has_a_part_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Components that are two hundredths too wide change VaDE's numbers, and no plain VAE's."""
    exact = GaussianMixture.scale.fget
    wider = property(lambda prior: 1.02 * exact(prior))
    monkeypatch.setattr(GaussianMixture, "scale", wider)
    for name, changes in (("vade_alternate", True), ("mlvae_vae", False)):
        short_runs.run(SHORT_RUNS[name].command, tmp_path / name)
        now = short_runs.numbers_in(tmp_path / name)
        assert short_runs.differ(now, SHORT_RUNS[name]) == changes, name


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_runs_and_writes_its_run_folder(variant: list[str], tmp_path: Path) -> None:
    name, *flags = variant
    said, out = finished(tmp_path, name, *flags)
    check_run_folder(name, flags, said, out)
    assert names(tmp_path) == {"run"}, "a protocol writes into its run folder only"


def check_run_folder(name: str, flags: list[str], said: str, out: Path) -> None:
    assert names(out) >= RUN_FILES
    if name in {"mfcvae", "vade", "vlac"}:
        start = json.loads((out / "start.json").read_text())
        assert all(value >= 1 for value in start.values())
        assert len(start) >= 2
    lines = (out / "metrics.jsonl").read_text().splitlines()
    scored = ["accuracy_" in line for line in lines]
    if name == "mlvae":
        assert scored == [False, True, False]
    if name in {"mfcvae", "vade"}:  # at times
        assert any(scored)
        assert not all(scored)
    assert len(drawn(out)) >= 3
    scores = json.loads((out / "scores.json").read_text())
    for facet, labels in scores.items():
        for label, values in labels.items():
            # The adjusted Rand index is below 0 where chance does better; mutual information is at
            # most log K. A classifier's cross-entropy has no bound.
            bounds = {
                "ari": (-0.5, 1.0),
                "mutual_information": (0.0, 4.0),
                "conditional_entropy": (0.0, 100.0),
            }
            for score, value in values.items():
                low, high = bounds.get(score, (0.0, 1.0))
                assert low <= value <= high, score
            assert re.search(rf"^{facet} +{label} ", said, re.M)


NVAE_RUNS = [
    ([], 10),
    (["--objective", "dirichlet", "--labels", "100"], 10),
    (["--model", "cvae"], 5),
]


@pytest.mark.parametrize(
    ("flags", "figures"), NVAE_RUNS, ids=["-".join(flags) for flags, _ in NVAE_RUNS]
)
def test_nvae_leaves_error_nats_and_figures(flags: list[str], figures: int, tmp_path: Path) -> None:
    said, out = finished(tmp_path, "nvae", *flags)
    assert names(out) >= RUN_FILES
    scores = json.loads((out / "scores.json").read_text())
    assert ("error" in scores) == ("--model" not in flags)
    assert ("error_of_a_classifier_alone" in scores) == ("--labels" in flags)
    for kind, nats in scores["kl"].items():
        assert f"KL of {kind}" in said
        assert len(nats) == (2 if "--model" not in flags else 4)
        assert min(nats) >= 0
    assert len(drawn(out)) == figures


def test_images_are_replaced_anew_in_every_epoch_or_once() -> None:
    def draw(seed: int) -> np.ndarray:
        return np.random.default_rng(seed).random(3)

    anew = list(augmentation.SUBSTITUTIONS["anew"](draw, 0, 4))
    assert len(np.unique(anew, axis=0)) == 4
    once = list(augmentation.SUBSTITUTIONS["once"](draw, 0, 4))
    assert len(once) == 4
    assert len(np.unique(once, axis=0)) == 1


def test_augmentation_measures_every_cell_once(tmp_path: Path) -> None:
    said, out = finished(tmp_path, "augmentation", "--repeats", "1")
    results = json.loads((out / "results.json").read_text())
    assert len(results) == 1 + 2 * 2 * 2
    assert all(0 <= error <= 1 for errors in results.values() for error in errors)
    again, _ = finished(tmp_path, "augmentation", "--repeats", "1")
    assert again.count("made with the same settings") == len(results)
    assert again[again.index("images of") :] == said[said.index("images of") :]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_smoke_sets_sizes_only(name: str) -> None:
    """The smoke run goes through the same code: sizes and lengths differ from the full run's, and
    flags still count.
    """
    example = importlib.import_module(f"lab.protocols.{name}")
    full, smoke = (example.parse(flags)[1] for flags in ([], ["--smoke"]))
    for setting, value in asdict(full).items():
        if asdict(smoke)[setting] != value and setting != "scales":  # how many are generated at
            values = value if isinstance(value, tuple) else (value,)
            assert {type(each) for each in values} == {int}, setting
    flag = "lr" if hasattr(full, "lr") else "epochs"
    asked = example.parse(["--smoke", f"--{flag}", "7"])[1]
    assert asked == replace(smoke, **{flag: type(getattr(full, flag))(7)})


def test_a_run_can_train_on_some_of_the_images() -> None:
    mfcvae = importlib.import_module("lab.protocols.mfcvae")
    args, _ = mfcvae.parse(["--smoke", "--train-rows", "50"])
    few, all_of_them = (common.load_data("digits", args, rows) for rows in (args.train_rows, 0))
    assert (len(few.train), len(all_of_them.train)) == (50, common.SMOKE_ROWS[0])
    assert len(few.test) == len(all_of_them.test)


def digits_guide(data: Dataset) -> VaDEGuide:
    facets = {"style": GaussianMixture(4, 2), "digit": GaussianMixture(5, 3)}
    return VaDEGuide(MFCVAE(data.train.shape[1:], facets, network=MLPLadder((16, 20))))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_probes_read_draws_as_in_table_1_and_means_of_each_facet_and_of_both() -> None:
    """The classifier of the table, on latents that the test computes."""
    data = some_rows(digits(), 400)
    guide = digits_guide(data)
    found = scoring.probe_facets(guide, data, seed=3)
    assert list(found) == ["style", "digit", "joint"]
    train, test = guide.embed(data.train), guide.embed(data.test)
    train, test = ({**z, "joint": np.hstack([z["style"], z["digit"]])} for z in (train, test))
    y = data.train_labels["digit"], data.test_labels["digit"]
    for name in found:
        probe = MLPClassifier(random_state=3).fit(train[name], y[0])
        assert found[name]["digit"]["probe_means"] == pytest.approx(probe.score(test[name], y[1]))
        # An untrained posterior is wide: its draws say less than its means.
        assert found[name]["digit"]["probe"] < found[name]["digit"]["probe_means"]
    model = VaDE(data.train.shape[1:], GaussianMixture(5, 3), network=SharedMLP((16,)))
    assert list(scoring.probe_facets(VaDEGuide(model), data, 0)) == ["cluster"]


def test_clusters_in_use_are_noted_at_the_start_early_and_at_times() -> None:
    data = digits()
    guide = digits_guide(data)
    proba = guide.predict_proba(data.train)
    counts = scoring.count_clusters(guide, data.train)
    for name, p in proba.items():
        assert counts[f"clusters_in_use_{name}"] == len(set(p.argmax(-1)))
        mean = p.mean(0)
        assert counts[f"effective_clusters_{name}"] == pytest.approx(
            np.exp(-(mean * np.log(mean.clip(1e-30))).sum()), rel=1e-4
        )
    runner = SVIRunner(guide.model, guide)
    runner.fit(
        data.train[:100], 14, callbacks=[scoring.WatchClusters(data.train, 6)], progress=False
    )
    noted = [r["epoch"] for r in runner.history if "clusters_in_use_digit" in r]
    assert noted == [1, 6, 9, 12]


def test_mnist_has_the_authors_decoder_and_start_and_flags_give_the_papers_words() -> None:
    mfcvae = importlib.import_module("lab.protocols.mfcvae")
    _, settings = mfcvae.parse(["--dataset", "mnist"])
    how = ("start", "start_rows", "merge", "layers_after_merge")
    assert [getattr(settings, name) for name in how] == ["means", 0, "gated_add", 1]
    words = ["--start", "draws", "--merge", "concatenate", "--layers-after-merge", "0"]
    _, by_words = mfcvae.parse(["--dataset", "mnist", *words, "--start-rows", "500"])
    assert [getattr(by_words, name) for name in how] == ["draws", 500, "concatenate", 0]
    data = replace(digits(), train=np.zeros((2, 784)))
    network = mfcvae.build(data, settings).model.network
    assert (network.merge, network.layers_after_merge) == ("gated_add", 1)
    for other in ("digits", "shapes3d-1", "svhn"):
        _, kept = mfcvae.parse(["--dataset", other])
        assert [getattr(kept, name) for name in how] == ["draws", 20_000, "concatenate", 0]


LAYERS = "the layers with clusters are layer_2, layer_3, layer_4"
REFUSED = [
    ("mfcvae --dataset svhn --network shared", "svhn has a convolutional ladder"),
    ("mfcvae --schedule together --restarts 2", "leave one out, or give --warm-epochs"),
    ("mfcvae --loss alternate --neighbors digit --neighbor-epochs 1 1", "teach responsibilities"),
    ("mfcvae --neighbors digit", "such as --neighbors digit --neighbor-epochs 2 6"),
    ("mfcvae --neighbors shape --neighbor-epochs 1 1", "mnist are style and digit"),
    ("mfcvae --warm-epochs 1 1 --neighbor-epochs 1 1", "two starts: give one of them"),
    ("vlac --model gmdgm --neighbors layer_1", LAYERS),
    ("vlac --neighbors layer_1", LAYERS),
    ("vlac --dataset digits", "invalid choice: 'digits'"),  # which its ladder cannot read
    ("nvae --labels 50 --model cvae", "--labels is for --model nvae"),
    ("identifiability_images --seeds 1", "two runs or more are compared with each other"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[call for call, _ in REFUSED])
def test_flags_that_do_not_go_together_are_refused(
    call: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *flags = call.split()
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"lab.protocols.{name}").parse(flags)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mlvae", "vlac"])
def test_every_model_that_is_offered_is_built(name: str) -> None:
    module = importlib.import_module(f"lab.protocols.{name}")
    _, settings = module.parse(["--smoke"])
    data = load("color-digits" if name == "vlac" else "digits")
    more = [data.train_labels["digit"]] if name == "mlvae" else []
    for build in module.MODELS.values():
        guide = build(data, settings, *more)
        assert guide.model.x_shape == data.train.shape[1:]


def test_network_and_schedule_of_fig_10() -> None:
    """Table 6's network, and weights and gates at 1 from the first step."""
    mfcvae = importlib.import_module("lab.protocols.mfcvae")
    flags = ["--dataset", "mnist", "--network", "shared", "--schedule", "together"]
    _, settings = mfcvae.parse(flags)
    data = replace(digits(), train=np.zeros((2, 784)))
    model = mfcvae.build(data, settings).model
    assert isinstance(model.network, SharedMLP)
    assert model.network.widths == (500, 2000)
    schedule = mfcvae.SCHEDULES[settings.schedule]((201, 201), settings)
    weights, gates = schedule.bind(model, 118, 402 * 118)(torch.tensor(0.0))
    assert (weights == 1).all()
    assert (gates == 1).all()


@pytest.mark.parametrize(("loss", "kind"), [("primary", VaDEGuide), ("alternate", MarginalGuide)])
def test_sizes_of_appendix_c3_in_both_forms(loss: str, kind: type) -> None:
    """One facet, K = 50, d = 10, encoder 500, 500, 2000 and decoder 2000, 500, 500."""
    sizes = "--num-components 50 --dim 10 --widths 500 500 2000 --lr 0.002"
    _, settings = vade.parse(["--dataset", "mnist", *sizes.split(), "--loss", loss])
    assert (settings.batch_size, settings.lr) == (512, 2e-3)
    guide = vade.build(replace(digits(), train=np.zeros((2, 784))), settings)
    assert type(guide) is kind
    prior = guide.model.priors["digit"]
    assert (prior.num_components, prior.dim, prior.covariance) == (50, 10, "diag")
    layers = [
        [(m.in_features, m.out_features) for m in part.modules() if isinstance(m, nn.Linear)]
        for part in (guide.encoder, guide.model.decoder)
    ]
    assert layers[0] == [(784, 500), (500, 500), (500, 2000), (2000, 20)]
    assert layers[1] == [(10, 2000), (2000, 500), (500, 500), (500, 784)]


def test_vade_is_convolutional_on_images_of_color_and_where_it_is_asked_for() -> None:
    for flags, widths in (
        (["--dataset", "svhn"], (64, 128)),
        (["--dataset", "mnist", "--network", "convolutional"], (64, 128)),
        (["--network", "convolutional", "--widths", "8", "16"], (8, 16)),
        (["--dataset", "mnist"], (500, 500, 2000)),
        (["--smoke"], (64, 128)),
    ):
        assert vade.parse(flags)[1].widths == widths
    _, settings = vade.parse(["--dataset", "mnist", "--network", "convolutional"])
    flat = {"train": np.zeros((2, 784)), "test": np.zeros((3, 784)), "image_shape": (28, 28)}
    data = vade.as_images(replace(digits(), **flat))
    assert data.train.shape == (2, 1, 28, 28)
    network = vade.build(data, settings).model.network
    assert isinstance(network, ConvLadder)
    assert network.rungs == (1,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("vlac --smoke --model gmdgm --schedule progressive", "has 4 phases, but the model has 1"),
        ("mfcvae --smoke --fade-steps 600", "a facet's fade-in would end at step 600"),
        ("nvae --smoke --labels 5", "--labels must be from 10, the number of classes, to"),
        ("mfcvae --dataset mnist --data-root .", "no MNIST in"),
        ("vade --smoke --start-rows 3", "3 rows are too few to start 10 components from"),
        ("identifiability --smoke --device cuda:99", "device 'cuda:99' cannot be used here"),
    ],
)
def test_what_does_not_fit_is_said_before_a_run_that_was_there_is_touched(
    call: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "step-000000001").mkdir(parents=True)
    (tmp_path / "run.json").write_text("{}")
    done = run(*f"lab.protocols.{call} --out .".split(), cwd=tmp_path)
    assert done.returncode != 0
    assert words in done.stderr
    assert {path.name for path in tmp_path.rglob("*")} == {
        "checkpoints",
        "run.json",
        "step-000000001",
    }


def test_torchrun_makes_one_run_of_several_processes(tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric", reason="needs facetvae[parallel]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # What torchrun sets; it starts new interpreters itself, which takes half a minute.
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": "0"}

    def ranked(rank: str) -> subprocess.CompletedProcess[str]:
        flags = ["--smoke", "--out", str(tmp_path / "run")]
        env = shared | {"RANK": rank, "LOCAL_RANK": rank}
        return run("lab.protocols.vade", *flags, cwd=tmp_path, env=env)

    fresh.start_server()
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(ranked, "01"))
    for done in both:
        assert done.returncode == 0, done.stderr[-2000:]
    others = {"figures", "checkpoints", "metrics.jsonl", "start.json"}
    assert names(tmp_path / "run") == RUN_FILES | others
    reports = [done.stdout.count("accuracy_hungarian") for done in both]
    assert reports == [1, 0], "one process reports"
    assert names(tmp_path) == {"run"}


@pytest.mark.parametrize("name", ["augmentation", "identifiability", "identifiability_images"])
def test_protocols_of_many_runs_take_one_process(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    protocol = importlib.import_module(f"lab.protocols.{name}")
    with pytest.raises(SystemExit, match="start it without torchrun"):
        protocol.main(["--smoke", "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()
