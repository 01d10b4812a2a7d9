"""Every wrong input gets one clear error, before any training, and leaves everything as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.datasets import mnist
from guides import LadderGuide, VaDEGuide
from inference import Constant, ProgressiveFadeIn, SVIRunner, WarmUp, data_dependent_start, elbo
from inference.diagnostics import exact_objective, log_importance_weights
from inference.figures import cluster_gallery, facet_draws, facet_swaps
from inference.metrics import cluster_accuracy, mean_correlation
from ppl_models import (
    GMDGM,
    MFCVAE,
    VAE,
    VLAC,
    VLAE,
    Bernoulli,
    ConvLadder,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    StandardNormal,
    VaDE,
    VampPrior,
)

D = 6


def guide() -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
    return VaDEGuide(MFCVAE((D,), facets, network=MLPLadder((8, 9))))


def facet(prior: Any = None, name: Any = "digit") -> MFCVAE:
    return MFCVAE((D,), {name: prior or GaussianMixture(3, 2)})


def vlac() -> VLAC:
    return VLAC((D,), [2, 3], [1, 1], network=MLPLadder((8, 9)))


def holed(value: float) -> np.ndarray:
    x = np.full((5, D), 0.5)
    x[3, 2] = value
    return x


DATA: list[tuple[Any, str]] = [
    (np.zeros((5, D + 1)), r"x has shape \[5, 7\], but the model was built for \[N, 6\]"),
    (np.zeros(D), r"x has shape \[6\], .* for a single datum give x\[None\]"),
    (np.zeros((5, 2, 3)), r"reshape it, for example x.reshape\(len\(x\), 6\)"),
    (np.zeros((5, D), dtype=np.uint8), r"x is uint8 with values up to 0, .* give binary data as bool or float"),
    (np.float64(3.0), r"x has shape \[\]"),
    (np.zeros((0, D)), r"x is empty \(shape \[0, 6\]\)"),
    (holed(np.nan), r"1 values that are NaN or infinite, the first at index \[3, 2\]"),
    (holed(np.inf), r"NaN or infinite"),
    (holed(1.5), r"values in \[0.5, 1.5\], but the Bernoulli likelihood needs \[0.0, 1.0\]"),
    (holed(-0.1), r"values in \[-0.1, 0.5\]"),
    (np.full((5, D), 200, dtype=np.int64), r"give 8-bit images as uint8"),
    (np.array([["a"] * D] * 5), r"x must hold numbers, got ndarray of dtype <U1"),
    ([[None] * D], r"x must hold numbers, got list of dtype object"),
]


@pytest.mark.parametrize(("x", "message"), DATA)
@pytest.mark.parametrize("use", ["fit", "predict", "embed", "elbo"])
def test_data(x: Any, message: str, use: str) -> None:
    g = guide()
    runner = SVIRunner(g.model, g)
    before = {name: value.clone() for name, value in g.state_dict().items()}
    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: runner.fit(x, epochs=1, progress=False),
        "predict": lambda: g.predict(x),
        "embed": lambda: g.embed(x),
        "elbo": lambda: elbo(g.model, g, x),
    }
    with pytest.raises(ValueError, match=message):
        calls[use]()
    assert runner.history == []
    assert all(torch.equal(value, before[name]) for name, value in g.state_dict().items())


def test_real_values_are_fine_where_the_likelihood_takes_them() -> None:
    model = MFCVAE((D,), {"z": GaussianMixture(3, 2)}, Normal(0.5))
    assert np.isfinite(elbo(model, VaDEGuide(model), 10 * np.random.default_rng(0).normal(size=(4, D)), 2)[0])


ARGUMENTS: list[tuple[str, Callable[[], Any], str]] = [
    ("K 0", lambda: GaussianMixture(0, 2), "num_components must be an integer of at least 1, got 0"),
    ("K -1", lambda: GaussianMixture(-1, 2), "num_components must be"),
    ("K float", lambda: GaussianMixture(2.0, 2), "num_components must be an integer"),  # type: ignore[arg-type]
    ("K bool", lambda: GaussianMixture(True, 2), "num_components must be an integer"),
    ("dim 0", lambda: GaussianMixture(3, 0), "dim must be an integer of at least 1, got 0"),
    ("dim normal", lambda: StandardNormal(0), "dim must be"),
    ("covariance", lambda: GaussianMixture(3, 2, covariance="tied"), r"covariance must be one of \('diag', 'full'\)"),  # type: ignore[arg-type]
    ("weights", lambda: GaussianMixture(3, 2, weights="fixed"), "weights must be one of"),  # type: ignore[arg-type]
    ("scale", lambda: GaussianMixture(3, 2, scale=-1.0), "initial standard deviation and must exceed"),
    ("normal scale", lambda: Normal(0.0), "standard deviation and must be positive, got 0.0"),
    ("threshold", lambda: Bernoulli(threshold=1.0), r"threshold must be within \[0, 1\)"),
    ("x_shape empty", lambda: MFCVAE((), {"z": StandardNormal(2)}), "x_shape is the shape of one datum"),
    ("x_shape 0", lambda: MFCVAE((0,), {"z": StandardNormal(2)}), "x_shape is the shape of one datum"),
    ("x_shape number", lambda: MFCVAE(784, {"z": StandardNormal(2)}), "x_shape is the shape of one datum, .* got 784"),  # type: ignore[arg-type]
    ("shared prior", lambda: MFCVAE((D,), dict.fromkeys("ab", StandardNormal(2))), "share a prior object"),
    ("VaDE prior", lambda: VaDE((D,), StandardNormal(2)), "VaDE needs a mixture, such as"),
    ("weight nan", lambda: Constant(float("nan")), "weight must be a number of at least 0, got nan"),
    ("no facets", lambda: MFCVAE((D,), {}), "facets is empty: give at least one"),
    ("facet name", lambda: facet(name="my digit"), "facet names must be valid Python names, got 'my digit'"),
    ("facet name type", lambda: facet(name=1), "facet names must be valid Python names"),
    ("facet name taken", lambda: facet(name="keys"), "torch uses it itself"),
    ("facet prior", lambda: facet(prior=(10, 5)), "facet 'digit' needs a prior, such as GaussianMixture"),
    ("rungs", lambda: MFCVAE((D,), {"z": StandardNormal(2)}, network=MLPLadder((8, 9))), "the ladder has 2 rungs"),
    ("widths", lambda: MLPLadder((8, 0)), "each of widths must be an integer of at least 1"),
    ("widths empty", lambda: SharedMLP(()), "widths must be a sequence of integers, such as"),
    ("activation", lambda: MLPLadder(activation="swish"), "activation must be one of"),
    ("init", lambda: SharedMLP(init="zeros"), "init must be one of"),
    ("merge", lambda: MLPLadder(merge="add"), "merge must be one of"),
    ("VLAC K 0", lambda: VLAC((D,), [0, 2], [1, 1]), "each of num_components must be an integer of at least 1, got 0"),
    ("VLAC layers", lambda: VLAC((D,), [2, 3], [1]), r"must be equally many, got \(2, 3\) and \(1,\)"),
    ("GM-DGM dim", lambda: GMDGM((D,), 3, 0), "each of dims must be an integer of at least 1"),
    ("VAE dim", lambda: VAE((D,), 0), "each of dims must be an integer of at least 1"),
    (
        "VLAC numbers",
        lambda: VLAC((D,), 3, 2),
        r"num_components must be a sequence of integers, such as \(1, 5, 50, 1\), got 3",
    ),  # type: ignore[arg-type]
    ("VLAE number", lambda: VLAE((D,), 3), "dims must be a sequence of integers"),  # type: ignore[arg-type]
    ("widths number", lambda: ConvLadder(64), "widths must be a sequence of integers, .* got 64"),  # type: ignore[arg-type]
    ("rungs number", lambda: MLPLadder((8, 9), rungs=1), "rungs are levels of the ladder, .* got 1"),  # type: ignore[arg-type]
    ("VLAC network", lambda: LadderGuide(facet()), r"MLPLadder\(rungs=\[1\]\) for one"),
    ("components", lambda: MLPLadder((8, 9)).encoder((D,), (0, 4), (0, 3)), "all with heads"),
    ("start rows", lambda: data_dependent_start(guide(), holed(0.1), rows=0), "rows must be an integer of at least 1"),
    (
        "start row",
        lambda: data_dependent_start(guide(), holed(0.1)[:1]),
        "takes two rows or more: got rows=512 of 1 data",
    ),
    ("VLAC guide", lambda: LadderGuide(VLAC((D,), [2, 3], [1, 1]), discrete="gumbel"), "discrete must be such as"),  # type: ignore[arg-type]
    ("VLAC vamp", lambda: LadderGuide(facet(VampPrior(2, 2, (D,)))), "a VampPrior is made of q"),
    (
        "VLAC marginal",
        lambda: LadderGuide(vlac())(torch.rand(2, D), marginal=True),
        "use MarginalGuide or AmortizedGuide",
    ),
    (
        "VLAC exact",
        lambda: exact_objective(vlac(), LadderGuide(vlac()), torch.rand(2, D)),
        "facets depend on one another",
    ),
    ("VLAC weights", lambda: log_importance_weights(LadderGuide(vlac()), torch.rand(2, D), 3), "has no density of z"),
    ("num_samples", lambda: VaDEGuide(facet(), num_samples=0), "num_samples must be an integer of at least 1"),
    ("decode missing", lambda: guide().model.decode({"digit": torch.zeros(1, 2)}), r"each of the facets \['style'"),
    ("generate facet", lambda: guide().model.generate(1, "colour", 0), r"unknown facet 'colour': this model has"),
    ("generate cluster", lambda: guide().model.generate(1, "digit", 4), "facet 'digit' has the clusters 0 to 3, got 4"),
    ("generate half", lambda: guide().model.generate(1, facet="digit"), "give facet and cluster together, or neither"),
    ("lr", lambda: SVIRunner(g := guide(), g, lr=0.0), "lr must be positive"),  # type: ignore[arg-type]
    ("precision", lambda: (lambda g: SVIRunner(g.model, g, precision="fp8"))(guide()), "precision must be one of"),
    ("weight", lambda: Constant(-1.0), "weight must be a number of at least 0"),
    ("warm-up", lambda: WarmUp(0), "steps must be an integer of at least 1"),
    ("phases", lambda: ProgressiveFadeIn((0, 5)), "each phase of epochs must be an integer of at least 1"),
    ("fade", lambda: ProgressiveFadeIn((5, 5), 0), "fade_steps must be an integer of at least 1"),
    ("draws", lambda: (lambda g: elbo(g.model, g, holed(0.1), 1))(guide()), "num_draws must be at least 2"),
    ("labels short", lambda: cluster_accuracy([0, 1], [0, 1, 1]), r"one length, got shapes \(2,\) and \(3,\)"),
    ("labels none", lambda: cluster_accuracy([], []), "non-empty vectors"),
    ("method", lambda: cluster_accuracy([0], [0], "best"), 'method must be "majority" or "hungarian"'),
    ("MCC shapes", lambda: mean_correlation(np.ones((4, 2)), np.ones((4, 3))), r"got \(4, 2\) and \(4, 3\)"),
    ("MCC constant", lambda: mean_correlation(np.ones((4, 2)), np.eye(4)[:, :2]), "sources has a constant column"),
    ("MCC method", lambda: mean_correlation(np.eye(4), np.eye(4), "kendall"), 'method must be "pearson"'),
    ("figure", lambda: cluster_gallery(guide(), holed(0.1), "digit"), "cannot be drawn as images of shape"),
    ("swap facet", lambda: facet_swaps(guide(), holed(0.1), "hue", (2, 3)), "unknown facet 'hue'"),
    ("draw facet", lambda: facet_draws(guide(), holed(0.1), "hue", (2, 3)), "unknown facet 'hue'"),
    ("figure facet", lambda: cluster_gallery(guide(), holed(0.1), "hue", (2, 3)), "unknown facet 'hue'"),
]


@pytest.mark.parametrize(("call", "message"), [row[1:] for row in ARGUMENTS], ids=[row[0] for row in ARGUMENTS])
def test_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ["epochs", "batch_size", "log_every"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "10"])
def test_counts_of_fit(name: str, value: Any) -> None:
    g = guide()
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        SVIRunner(g.model, g).fit(holed(0.1), **{"epochs": 1, "progress": False, name: value})


SCHEDULES: list[tuple[Any, str]] = [
    (ProgressiveFadeIn((2, 2), 1000), "a facet's fade-in would end at step 1000, but its phase has 4 steps"),
    (ProgressiveFadeIn((2, 3), 5), "the last phase would end at step 10, but the run has 8 steps"),
    (ProgressiveFadeIn((4,), 2), "has 1 phases, but the model has 2 facets"),
    (WarmUp(9), "the warm-up would end at step 9, but the run has 8 steps"),
]


@pytest.mark.parametrize(("schedule", "message"), SCHEDULES)
def test_schedules_that_cannot_finish(schedule: Any, message: str) -> None:
    g = guide()
    with pytest.raises(ValueError, match=message):
        SVIRunner(g.model, g, schedule=schedule).fit(holed(0.1), epochs=4, batch_size=3, progress=False)


def test_an_abrupt_fade_in_is_warned_of() -> None:
    g = guide()
    with pytest.warns(UserWarning, match="fade_steps=3 is abrupt"):
        SVIRunner(g.model, g, schedule=ProgressiveFadeIn((2, 2), 3)).fit(holed(0.1), 4, 3, progress=False)


def test_missing_data_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)no MNIST in .*--data-root FOLDER"):
        mnist(tmp_path / "nowhere")


def saved(folder: Path) -> Path:
    g = guide()
    return SVIRunner(g.model, g).fit(holed(0.1), epochs=1, progress=False).save(folder)


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(keep * len(content))])

    return damage


def rewrite(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        change(config)
        (run / "config.json").write_text(json.dumps(config))

    return damage


CHECKPOINTS: list[tuple[str, Callable[[Path], Any], type[Exception], str]] = [
    ("weights cut", cut("weights.safetensors", 0.5), ValueError, "truncated or damaged"),
    ("weights empty", cut("weights.safetensors", 0.0), ValueError, "truncated or damaged"),
    ("config cut", cut("config.json", 0.7), ValueError, "truncated or damaged"),
    ("history cut", cut("history.jsonl", 0.7), ValueError, "truncated or damaged"),
    (
        "no weights",
        lambda run: (run / "weights.safetensors").unlink(),
        FileNotFoundError,
        "weights.safetensors is miss",
    ),
    ("no config", lambda run: (run / "config.json").unlink(), FileNotFoundError, "config.json is missing"),
    (
        "foreign json",
        lambda run: (run / "config.json").write_text('{"a": 1}'),
        ValueError,
        "not a checkpoint of format",
    ),
    ("json list", lambda run: (run / "config.json").write_text("[1]"), ValueError, "not a checkpoint of format"),
    (
        "other format",
        rewrite(lambda c: c.update(format=99)),
        ValueError,
        "not a checkpoint of format 2: its format is 99",
    ),
    ("no guide", rewrite(lambda c: c.pop("guide")), ValueError, "config.json lacks 'guide'"),
    (
        "foreign class",
        rewrite(lambda c: c["guide"].update({"@class": "os.system"})),
        ValueError,
        "'os.system', which is not part of this library, so it is not imported",
    ),
    (
        "not buildable",
        rewrite(lambda c: c["guide"].update({"@class": "ppl_models.data.as_data"})),
        ValueError,
        "not something a checkpoint may build",
    ),
    (
        "renamed class",
        rewrite(lambda c: c["guide"].update({"@class": "guides.vade.Gone"})),
        ValueError,
        "which this version of the library lacks",
    ),
    (
        "other arguments",
        rewrite(lambda c: c["guide"].update({"temperature": 1})),
        ValueError,
        "does not fit this version",
    ),
    (
        "other sizes",
        rewrite(lambda c: c["guide"]["model"]["facets"]["digit"].update(num_components=5)),
        ValueError,
        r"do not fit the guide; they differ in \['model.facets.digit.loc'",
    ),
]


@pytest.mark.parametrize(("damage", "error", "message"), [r[1:] for r in CHECKPOINTS], ids=[r[0] for r in CHECKPOINTS])
def test_checkpoints(damage: Callable, error: type[Exception], message: str, tmp_path: Path) -> None:
    run = saved(tmp_path / "run")
    damage(run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(error, match=message):
        SVIRunner.load(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        SVIRunner.load(tmp_path / "nowhere")


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failed_save_leaves_the_earlier_one(nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}

    calls = []

    def full_disk(handle: int) -> None:
        calls.append(handle)
        if len(calls) == nth:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        saved(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
