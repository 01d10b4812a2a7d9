"""The programs that measure what steps cost: their comparison of objectives, and what they count
and fit.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor

from facetvae.datasets import Dataset, digits
from guides import FacetGuide, VaDEGuide
from inference import Groups, Loss, SVIRunner
from inference.randomness import seeded
from lab.benchmarks import (
    few_labels,
    kmeans_images,
    lost_rows,
    neighbor_prior,
    recovery,
    rivals,
    start_at_truth,
    step_time,
)
from lab.benchmarks.model_cases import CASES, SMALL, Case
from lab.benchmarks.model_costs import Settings, measure, report_times, seconds_by_mode
from lab.benchmarks.model_steps import FitSteps, check_same_objective, in_turns, ratios, spread
from lab.benchmarks.step_time import SIZES, ours, plain_copy
from ppl_models.given.observed import Observed

CPU = torch.device("cpu")
BRIEFLY = Settings(SMALL, CPU, steps=1)


@pytest.mark.parametrize("name", list(CASES))
def test_objectives_written_by_hand_are_the_librarys(name: str) -> None:
    check_same_objective(name, CASES[name], SMALL, CPU)


def scaled(case: Case, factor: float) -> Case:
    def plain(guide: FacetGuide, x: Tensor, **given: Tensor) -> Tensor:
        return factor * case.plain(guide, x, **given)

    return replace(case, plain=plain)


def with_gradient_halved(case: Case) -> Case:
    def plain(guide: FacetGuide, x: Tensor, **given: Tensor) -> Tensor:
        value = case.plain(guide, x, **given)
        return value.detach() + 0.5 * (value - value.detach())

    return replace(case, plain=plain)


@pytest.mark.parametrize("name", ["MFCVAE", "NVAE"])
def test_another_objective_ends_the_program_before_it_is_timed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_same_objective(name, scaled(CASES[name], 1.0), SMALL, CPU)
    faults = {
        "with the same noise": scaled(CASES[name], 1.001),
        "gradient": with_gradient_halved(CASES[name]),
    }
    for message, case in faults.items():
        monkeypatch.setitem(CASES, name, case)
        with pytest.raises(ValueError, match=f"{name}: .*{message}"):
            report_times([name], BRIEFLY)


@pytest.mark.slow(2)
def test_a_table_has_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(["VAE", "VQVAE"], BRIEFLY)
    assert all(
        seconds > 0 for name in ("VAE", "VQVAE") for seconds in found["seconds"][name].values()
    )
    assert {"VAE", "VQVAE"} <= {line.split(" ")[0] for line in capsys.readouterr().out.splitlines()}


def unequal(self: Groups, data: Observed, batch_size: int) -> None:
    """Stands for ``Groups.full`` where groups have different sizes."""


@pytest.mark.parametrize(
    ("name", "recorded"), [("VAE", True), ("MLVAE", True), ("MLVAE", False)], ids=str
)
def test_ways_to_take_a_step_are_compared_or_why_they_are_not(
    name: str, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recorded:
        monkeypatch.setattr(Groups, "full", unequal)
    found = seconds_by_mode(CASES[name], BRIEFLY)
    modes = {"replay", "xla"} if find_spec("jax") and name == "VAE" else {"replay"}
    assert set(found["seconds"]) == {"handlers", *(modes if recorded else ())}
    assert set(found["ratios"]) == (modes if recorded else set())
    assert ("groups" in found["refused"].get("replay", "")) != recorded


@pytest.mark.parametrize("mode", [None, "replay"])
def test_steps_one_at_a_time_are_those_of_fit(mode: str | None) -> None:
    size = SIZES["table"]
    (x, _), (fitted, stepped) = size.data(), (size.guide(), size.guide())
    runner = SVIRunner(fitted.model, fitted, seed=3, compile=mode)
    runner.fit(x[:48], epochs=2, batch_size=16, progress=False)
    own = SVIRunner(stepped.model, stepped, seed=3, compile=mode)
    step = FitSteps(own, Observed(x[:48], {}), batch_size=16)
    own.epoch -= 1  # the first call begins a pass
    with own.while_training():
        for _ in range(6):
            step()
    assert own.step == runner.step
    for name, value in fitted.state_dict().items():
        assert torch.equal(value, stepped.state_dict()[name]), name


def test_turns_go_round_and_the_first_is_not_counted() -> None:
    taken: list[str] = []
    steps = {name: (lambda name=name: taken.append(name)) for name in "ab"}
    found = in_turns(steps, turns=2, length=3, clock=lambda: float(len(taken)))
    assert "".join(taken) == 3 * (4 * "a" + 4 * "b")
    assert found == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert spread([1.0, 2.0, 3.0]) == {"median": 2.0, "low": 1.5, "high": 2.5}
    assert ratios([1.0, 4.0], [1.0, 2.0]) == {"median": 1.5, "low": 1.25, "high": 1.75}


def objective_draws(name: str, guide: VaDEGuide, draws: int) -> np.ndarray:
    """This library's objective on the first batch."""
    size, (x, label) = SIZES[name], SIZES[name].data()
    loss, x = Loss(guide.model, guide), x[: size.batch]
    given = {} if label is None else {"label": {"digit": label[: size.batch]}}
    data = guide.observed(x, given)
    with seeded(1, CPU), torch.no_grad(), pyro.validation_enabled(False):
        return np.array([float(loss(data.x, **data.given)) for _ in range(draws)])


@pytest.mark.parametrize("name", list(SIZES))
def test_the_plain_loop_has_the_librarys_objective(name: str) -> None:
    size = SIZES[name]
    plain, (x, label) = plain_copy(size.guide(), size), size.data()
    labels = None if label is None else label[: size.batch]
    with seeded(1, CPU), torch.no_grad():
        by_hand = float(plain(x[: size.batch], labels, None))
    assert by_hand == pytest.approx(objective_draws(name, size.guide(), 1)[0], rel=1e-5)


def test_a_mode_that_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **options: object) -> FitSteps:
        step = ours(SIZES["table"], "float32", "replay")
        step.next_pass()
        assert step.steps.recorder is not None
        step.steps.recorder.refused["xla"] = "there is no compiler"
        return step

    monkeypatch.setitem(step_time.VARIANTS, "ours, xla", refused)
    settings = step_time.Settings(SIZES["table"], ["ours, xla"], ["float32"], 1, 1)
    assert step_time.measure(settings)["left_out"] == {"ours, xla, float32": "there is no compiler"}


def test_step_time_prints_and_writes_medians_and_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = torch.get_num_threads(), tmp_path / "found.json"
    flags = ["--size", "table", "--steps", "2", "--out", str(out), "--precisions"]
    try:
        step_time.main([*flags, "float32", "bf16", "--variants", "plain loop", "ours"])
    finally:
        torch.set_num_threads(before)
    found, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert found["seconds"].keys() == found["first_step"].keys()
    assert set(found["ratios"]) == {
        *(f"ours / plain loop, {precision}" for precision in ("float32", "bf16")),
        *(f"{program} bf16 / {program} float32" for program in ("ours", "plain loop")),
    }
    assert set(found["ratios"]["ours / plain loop, bf16"]) == {"median", "low", "high"}
    assert found["about"]["size"] == "table"
    assert "\nours, float32 " in printed
    assert "\nours / plain loop, float32: " in printed


@pytest.mark.slow(10)
@pytest.mark.parametrize(("name", "draws"), [("mnist", 20), ("quickstart", 400), ("table", 1000)])
def test_numpyro_has_the_same_objective(name: str, draws: int) -> None:
    """On the same weights, up to Monte Carlo error: a difference of 1 % would show.

    Components are wide, as narrow ones make the objective vary by half between draws.
    """
    pytest.importorskip("numpyro")
    guide = SIZES[name].guide()
    with torch.no_grad():
        for prior in guide.model.priors.values():
            prior.raw_scale.fill_(2.0)
    step = step_time.numpyro_loop(SIZES[name], "float32", guide)
    x, label = (None if each is None else each[: step.batch] for each in step.data)
    theirs, own = step.losses(x, label, draws), objective_draws(name, guide, draws)
    error = np.hypot(theirs.std(ddof=1), own.std(ddof=1)) / np.sqrt(draws)
    assert 5 * error < 0.01 * abs(own.mean())
    assert abs(theirs.mean() - own.mean()) < 5 * error
    step()
    step.wait()
    assert np.isfinite(float(step.loss))


def test_kmeans_is_scored_on_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shades, of which the lightest has two labels in the test images."""
    shade = np.arange(30) % 3
    x = (100 * shade[:, None] + np.random.default_rng(0).integers(9, size=(30, 4))).astype(np.uint8)
    label = {"digit": np.where(np.arange(30) == 2, 0, shade)}
    few = Dataset("mnist", x, x, label, label, (2, 2))
    monkeypatch.setattr(kmeans_images, "load", lambda name, root: few)
    monkeypatch.setattr(kmeans_images, "CLUSTERS", {"mnist": {"digit": 3}})
    kmeans_images.main(["--data", "mnist", "--out", str(tmp_path)])
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores == {"mnist": {"digit": pytest.approx(100 * 29 / 30)}}


def knows_first(data: rivals.Data, seed: int) -> np.ndarray:
    """A facet that is the first labeling, and one with a single cluster."""
    first = next(iter(data.labels.values()))
    return np.stack([first, np.zeros_like(first)], 1)


def test_rivals_are_scored_and_go_on_where_they_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[int] = []

    def stopped(data: rivals.Data, seed: int) -> np.ndarray:
        taken.append(seed)
        if taken == [0, 1]:
            raise KeyboardInterrupt
        return knows_first(data, seed)

    def fails(data: rivals.Data, seed: int) -> np.ndarray:
        raise ArithmeticError("not positive definite")

    def waits(data: rivals.Data, seed: int) -> np.ndarray:
        while True:
            time.sleep(0.001)

    methods = {
        "stopped": rivals.Method(stopped),
        "fails": rivals.Method(fails),
        "elsewhere": rivals.Method(fails, only=("digits",)),
        "missing": rivals.Method(fails, "no_such_package"),
        "slow": rivals.Method(fails, slow=True),
    }
    monkeypatch.setattr(rivals, "METHODS", methods)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    flags = ["--data", "two drawn", "--seeds", "2", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        rivals.main(flags)
    kept = tmp_path / "fits.jsonl"
    (line,) = kept.read_text().splitlines()
    with kept.open("a") as lines:
        lines.write(line[:20])  # as if the process had been killed while it wrote
    rivals.main(flags)
    assert taken == [0, 1, 1]
    assert len(kept.read_text().splitlines()) == 4 + 1
    found = json.loads((tmp_path / "rivals.json").read_text())["two drawn"]
    assert set(found) == {"stopped", "fails"}
    own = found["stopped"]
    assert own["seeds"] == [0, 1]
    assert own["of 3 clusters"] == [pytest.approx(1.0)] * 2
    assert max(own["of 5 clusters"]) < 0.05  # labelings are drawn independently
    assert own["facets of two clusters or more"] == [1, 1]
    assert found["fails"]["failed"]["1"] == "ArithmeticError: not positive definite"
    printed = capsys.readouterr().out
    assert "missing is left out: no_such_package is not installed" in printed
    assert "\ntwo drawn: stopped\n  of 3 clusters   " in printed
    assert "\ntwo drawn: fails\n  seed 0 failed: ArithmeticError" in printed
    late = rivals.measure(rivals.Method(waits), rivals.DATA["iris"].load(0), seed=0, limit=0.05)
    assert late == {"failed": "TimeoutError: not done within 0.05 s"}


def test_rivals_see_what_their_names_say() -> None:
    names = [name for name, source in rivals.DATA.items() if source.package == "sklearn"]
    data = {name: rivals.DATA[name].load(0) for name in names}
    assert data["three drawn"].numbers == [2, 3, 5]
    assert data["wine"].for_rivals.std(0) == pytest.approx(np.ones(13))
    assert data["digits"].for_rivals is data["digits"].x
    assert data["digits"].x.max() == 1
    assert not np.allclose(data["two drawn"].x, rivals.DATA["two drawn"].load(1).x)
    for name in ("GaussianMixture", "KMeans"):  # a clustering for each number
        found = rivals.measure(rivals.METHODS[name], data["two drawn"], seed=0, limit=60)
        assert found["clusters"] == [3, 5]
        assert max(found["nmi"]["of 5 clusters"]) > 0.1


def test_what_the_best_possible_method_is_ahead_of_is_said() -> None:
    means = {"ours": [0.5, 0.8], "Bayes rule": [0.9, 0.795], "KMeans": [0.6, 0.6]}
    found = {name: {"seeds": [0, 1], "mean of the labelings": m} for name, m in means.items()}
    assert list(rivals.ahead({"tables": found})) == [
        "tables: ours at least as high as Bayes rule in 1 of 2, within 0.01 or higher in 1",
        "tables: ours at least as high as KMeans in 1 of 2, within 0.01 or higher in 1",
        "tables: Bayes rule at least as high as ours in 1 of 2, within 0.01 or higher in 2",
        "tables: Bayes rule at least as high as KMeans in 2 of 2, within 0.01 or higher in 2",
    ]
    data = rivals.DATA["tables"].load(0)
    best = rivals.measure(rivals.METHODS["Bayes rule"], data, seed=0, limit=60)
    assert min(max(each) for each in best["nmi"].values()) > 0.9


@pytest.mark.slow(60)
@pytest.mark.filterwarnings("ignore")  # ClustPy's own
def test_clustpy_finds_what_it_is_told_to() -> None:
    pytest.importorskip("clustpy")
    limit = sys.getrecursionlimit()
    fruit, letters = (rivals.DATA[name].load(0) for name in ("fruit", "nrLetters"))
    assert (fruit.x.shape, fruit.numbers) == ((105, 6), [3, 3])
    assert (letters.x.shape, letters.numbers) == ((10_000, 189), [6, 3, 4])
    for name in ("NR-Kmeans, told", "AutoNR", "ENRC, told"):
        found = rivals.measure(rivals.METHODS[name], fruit, seed=0, limit=600)
        if name == "ENRC, told" and "failed" in found:  # so it does on some processors
            assert "Number of clusterings is 1" in found["failed"]
        else:
            assert max(found["nmi"]["first"]) > 0.5, name
    assert sys.getrecursionlimit() == limit


BRIEF = {"first_epochs": 2, "fade_steps": 1, "epochs": 2, "every": 1, "batch_size": 100}


def few_digits() -> Dataset:
    data = digits()
    labels = {"digit": data.train_labels["digit"][:200]}
    return replace(data, train=data.train[:200], train_labels=labels)


@pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning")
@pytest.mark.parametrize("way", neighbor_prior.WAYS)
def test_accuracy_is_followed_with_neighbors_and_without(way: str, tmp_path: Path) -> None:
    watch = neighbor_prior.Watch(tmp_path)
    run = neighbor_prior.train(
        few_digits(), neighbor_prior.Setting(way=neighbor_prior.WAYS[way], **BRIEF), watch
    )
    scores = neighbor_prior.scores(few_digits(), run, watch)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    assert scores["first"]["seconds"] < scores["last"]["seconds"]
    assert 0.1 < scores["test_with_neighbors"] <= 1
    assert 0.1 < scores["test_with_own"] <= 1
    assert scores["graph"] > 0.7


@pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning")
def test_each_change_is_compared_with_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_rows, "images", lambda *_: few_digits())
    monkeypatch.setitem(lost_rows.LENGTHS, "digits", BRIEF)
    monkeypatch.setattr(lost_rows, "IMPROVED", 5)
    changes = ["as it is", "no style facet", "graph rebuilt from latents"]
    out, figure = tmp_path / "lost.jsonl", tmp_path / "lost.png"
    given = ["--dataset", "digits", "--seeds", "0", "2", "--changes", *changes]
    lost_rows.main([*given, "--out", str(out), "--figure", str(figure)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["change"] for line in lines] == 2 * changes
    usual = lines[0]["scores"]
    assert usual["training"] == pytest.approx(usual["graph"] - usual["lost"] + usual["gained"])
    assert lines[1]["scores"]["style"] == 0
    assert figure.stat().st_size > 0


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["diagonal", "iwae"])
def test_runs_that_begin_with_the_truth_begin_there_and_go_on(way: str, tmp_path: Path) -> None:
    out = tmp_path / "truth.jsonl"
    flags = ["--ways", way, "--scales", "0.1", "--mixings", "0", "--per-segment", "50"]
    flags += ["--first-steps", "300", "--steps", "8", "--records", "2", "--components", "21"]
    start_at_truth.main([*flags, "--width", "32", "--out", str(out)])
    truth, cold = (json.loads(line) for line in out.read_text().splitlines())
    assert [each["start"] for each in (truth, cold)] == ["truth", "cold"]
    assert truth["first"]["mcc"] > cold["curve"][-1]["mcc"] + 0.1
    assert truth["first"]["log_p"] >= truth["first"]["test_elbo"]
    assert len(truth["curve"]) == 2
    start_at_truth.main([*flags, "--width", "32", "--out", str(out)])
    assert len(out.read_text().splitlines()) == 2, "nothing is run twice"


@pytest.mark.parametrize("protocol", recovery.PROTOCOLS)
def test_every_model_is_scored_on_the_same_mixing(protocol: str, tmp_path: Path) -> None:
    out = tmp_path / "recovery.jsonl"
    flags = ["--protocol", protocol, "--mixings", "3", "4", "--per-segment", "20", "--seeds", "2"]
    flags += ["--steps", "4", "--flow-steps", "2", "--flow-layers", "1", "--out", str(out)]
    recovery.main(flags)
    found = {each["model"]: each for each in map(json.loads, out.read_text().splitlines())}
    assert set(found) == {*recovery.FLOORS, *recovery.MODELS}
    for name in recovery.MODELS:
        assert len(found[name]["mcc"]) == len(found[name]["elbo"]) == 2
        assert all(0.2 < score <= 1 for score in found[name]["mcc"]), name


def test_a_linear_mixing_is_easier_than_four_layers(tmp_path: Path) -> None:
    out = tmp_path / "recovery.jsonl"
    flags = ["--models", "FastICA", "--mixings", "0", "1", "--out", str(out)]
    for layers in ([], ["--layers", "1"], ["--layers", "1"]):
        recovery.main([*flags, *layers])
    four, one = map(json.loads, out.read_text().splitlines())
    assert one["mcc"][0] > four["mcc"][0] + 0.1
    assert "layers" not in four["settings"]
    assert one["settings"]["layers"] == 1


def test_scores_are_compared_on_the_same_mixings() -> None:
    """By hand: of mixings 0 to 5, which both have, one model is ahead by 0.1, 0.2, ..., 0.6."""
    lines = [
        {"protocol": "held out", "per_segment": 9, "model": name, "mixing": k, "mcc": [low, high]}
        for k in range(7)
        for name, low, high in (("VaDE", 0.1, 0.3), ("flow", 0.2 + 0.1 * k, 0.4 + 0.1 * k))
        if (name, k) != ("VaDE", 6)
    ]
    rows = recovery.table(lines).splitlines()
    assert rows[1] == "held out, 9 rows a segment"
    half = 2.5706 * np.std(np.arange(6) / 10, ddof=1) / 6**0.5  # a t quantile for 5 degrees
    expected = f"+0.350 ({0.35 - half:+.3f} to {0.35 + half:+.3f}), p = 0.031"  # 2 / 2 ** 6
    assert rows[3].endswith(f"{expected}, 7 mixings"), rows[3]


def test_scores_are_drawn_by_size() -> None:
    lines = [
        {"protocol": protocol, "per_segment": size, "model": "x", "mcc": [size / 1000, k]}
        for protocol in recovery.PROTOCOLS
        for size in (300, 100)
        for k in (0.2, 0.4)
    ]
    panels = recovery.figure(lines).axes
    assert [ax.get_title() for ax in panels] == [*recovery.PROTOCOLS]
    (line,) = panels[0].get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[100, 0.2], [300, 0.3]])


def test_ivaes_differ_in_the_prior_and_in_what_the_encoder_reads() -> None:
    settings = recovery.Settings()
    for name, build in recovery.MODELS.items():
        if not name.startswith("iVAE"):
            continue
        guide, x = build(settings), np.zeros((2, 5))
        first, second = (guide.embed(x, label=[k, k])["source"] for k in (0, 1))
        assert (first == second).all() == name.endswith("q(z|x)")
        loc = guide.model.priors["source"].loc
        assert (loc == 0).all() == ("mean 0" in name)
        assert loc.requires_grad != ("mean 0" in name)


@pytest.mark.thorough
@pytest.mark.slow(10)
def test_few_labels_are_measured_once_and_their_weight_is_chosen_without_test_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two weights the one with the lower error on held-out training images is taken, and on a
    tie the larger.
    """
    errors = iter([0.2, 0.2, 0.3])

    def planned(guide: FacetGuide, x: np.ndarray, label: np.ndarray) -> float:
        return next(errors) if len(x) == 4 else 0.5

    monkeypatch.setattr(few_labels, "error", planned)
    flags = ["--dataset", "digits", "--labels", "20", "--weights", "9", "1", "30"]
    flags += ["--epochs", "1", "--seeds", "0", "--out", str(tmp_path)]
    few_labels.main(flags)
    first = capsys.readouterr().out
    assert "20 labels, seed 0: weight 9, error_cold 0.5" in first
    monkeypatch.setattr(few_labels, "trained", None)
    few_labels.main(flags)
    assert first.splitlines()[-1] == capsys.readouterr().out.splitlines()[-1]
