"""Runs and checkpoints that an earlier version wrote load, and go on where they did.

``fixtures/format_2`` was written at 44a42d1, by the programs below: a saved run, the same run an
epoch later, a checkpoint within the third pass of five, and how one of each model was described.
``fixtures/format_3`` has that checkpoint as 1c3a0f3 wrote it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyro
import pytest
import torch
from safetensors.torch import load_file

from guides import VaDEGuide
from inference import (
    Checkpoints,
    Constant,
    CoolDown,
    Groups,
    Guard,
    ProgressiveFadeIn,
    Rows,
    SVIRunner,
    WarmUp,
)
from inference.callbacks import Evaluate, FitMixtures, ReduceOnPlateau, StopEarly
from ppl_models import MFCVAE, Bernoulli, GaussianMixture, MLPLadder
from ppl_models.configurable import Configurable, from_config, to_config, with_public_names
from tests.catalogue import BUILDERS

THEN = Path(__file__).parent / "fixtures" / "format_2"
CONFIGS = json.loads((THEN / "configs.json").read_text())
EPOCHS, SIZES = 5, {"batch_size": 7, "progress": False}


def start() -> tuple[SVIRunner, torch.Tensor]:
    pyro.set_rng_seed(0)
    facets = {"style": GaussianMixture(2, 2), "digit": GaussianMixture(3, 2)}
    model = MFCVAE((4,), facets, Bernoulli(), MLPLadder((6, 7)))
    x = (255 * torch.rand(24, 4)).round() / 255
    schedule, guard = WarmUp(6), Guard("skip", max_norm=5.0)
    guide = VaDEGuide(model)
    return SVIRunner(model, guide, lr=1e-2, seed=3, schedule=schedule, guard=guard), x


def fit(folder: Path, resume: bool) -> SVIRunner:
    runner, x = start()
    measure = Evaluate(lambda run: {"one": 1.0})
    callbacks = [measure, FitMixtures(x, 2), StopEarly("elbo", 5), ReduceOnPlateau(0.5, 1)]
    checkpoints = Checkpoints(folder, keep=9, resume=resume)
    return runner.fit(x, EPOCHS, callbacks=callbacks, checkpoints=checkpoints, **SIZES)


def check_same(found: SVIRunner, folder: Path, exactly: bool) -> None:
    """:param exactly: bit for bit; another processor rounds differently."""
    weights = load_file(folder / "weights.safetensors")
    state = found.guide.state_dict()
    tolerance = 0.0 if exactly else 1e-3
    assert state.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(state[name], value, rtol=tolerance, atol=tolerance)
    lines = (folder / "history.jsonl").read_text().splitlines()
    records = [json.loads(line) | {"seconds": 0} for line in lines]
    assert [record.keys() for record in found.history] == [then.keys() for then in records]
    for record, then in zip(found.history, records, strict=True):
        if exactly:
            assert record["objective"] == then["objective"]
        # The terms are derivatives, which are added up in another order than they were.
        assert {**record, "seconds": 0} == pytest.approx(
            then, rel=1e-4 if exactly else 0.1, abs=1e-5
        )


@pytest.fixture(scope="module")
def same_arithmetic(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this machine rounds as the one did that wrote the fixtures."""
    unbroken = fit(tmp_path_factory.mktemp("unbroken"), resume=False)
    then = load_file(THEN / "run" / "weights.safetensors")
    return all(
        torch.equal(unbroken.guide.state_dict()[name], value) for name, value in then.items()
    )


@pytest.mark.filterwarnings("ignore::inference.runner.DeadFacetWarning")
@pytest.mark.parametrize("number", [2, 3])
def test_a_checkpoint_is_resumed_to_the_same_end(
    number: int, tmp_path: Path, same_arithmetic: bool
) -> None:
    then = THEN.parent / f"format_{number}" / "checkpoints"
    shutil.copytree(then, tmp_path / "checkpoints")
    resumed = fit(tmp_path / "checkpoints", resume=True)
    check_same(resumed, THEN / "run", same_arithmetic)
    names = [p.name for p in Checkpoints(tmp_path / "checkpoints", resume=True).written()]
    assert names == ["step-0000000011", "step-0000000012", "step-0000000016", "step-0000000020"]


def test_a_saved_run_loads_and_trains_on(tmp_path: Path, same_arithmetic: bool) -> None:
    runner = SVIRunner.load(THEN / "run")
    check_same(runner, THEN / "run", exactly=True)
    _, x = start()
    runner.fit(x, 1, **SIZES)
    check_same(runner, THEN / "run_continued", same_arithmetic)
    again = SVIRunner.load(runner.save(tmp_path))
    assert repr(again) == repr(runner)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_descriptions_of_every_model_build_the_same(build: type) -> None:
    then = CONFIGS[build.__name__]
    now = to_config(build())
    assert with_public_names(then) == now
    assert to_config(from_config(then)) == now


def test_descriptions_of_schedules_and_the_like_build_the_same() -> None:
    parts: list[Configurable] = [
        Constant(2.0),
        Constant({"z_digit": 2}),
        WarmUp(3),
        CoolDown({"z_style": 20}, 5),
        ProgressiveFadeIn((2, 3), 2000),
        Guard("halve", 1.0),
        Rows(),
        Groups(3),
    ]
    assert [to_config(from_config(then)) for then in CONFIGS["others"]] == [
        to_config(part) for part in parts
    ]


def test_no_description_names_a_file() -> None:
    """Only a package and a name, so that files may move."""
    text = json.dumps([to_config(build()) for build in BUILDERS])
    names = set(text.split('"@class": "')[1:])
    paths = [name.split('"')[0] for name in names]
    assert paths
    assert all(path.count(".") == 1 for path in paths), sorted(paths)
