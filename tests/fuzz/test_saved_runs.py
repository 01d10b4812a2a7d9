"""Saved runs and checkpoints that are damaged: each is used as it is, or refused.

Case N damages one file, as N alone decides: a value of a JSON file, or bytes. The description of a
run may be edited by hand; of every other file the digest is known, so that any change is found.
``FACETVAE_FUZZ_RUNS`` says how many cases there are, and ``FACETVAE_FUZZ_CASE`` repeats one.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from guides import VaDEGuide
from inference import Checkpoints, Guard, SVIRunner, WarmUp
from inference.callbacks import Evaluate, ReduceOnPlateau, StopEarly
from inference.checkpoints.periodic import CheckpointWarning
from inference.randomness import seeded
from ppl_models import MFCVAE, Bernoulli, GaussianMixture, MLPLadder
from tests.global_state import unchanged

CASES = int(os.environ.get("FACETVAE_FUZZ_RUNS", "50"))
ONLY = os.environ.get("FACETVAE_FUZZ_CASE")
X = (255 * torch.rand(12, 4, generator=torch.Generator().manual_seed(1))).round() / 255
SIZES: dict[str, Any] = {"batch_size": 6, "progress": False}


def runner() -> SVIRunner:
    with seeded(0, torch.device("cpu")):
        facets = {"style": GaussianMixture(2, 2), "digit": GaussianMixture(3, 2)}
        guide = VaDEGuide(MFCVAE((4,), facets, Bernoulli(), MLPLadder((6, 7))))
    options: dict[str, Any] = {"schedule": WarmUp(6), "guard": Guard("skip", max_norm=5.0)}
    return SVIRunner(guide.model, guide, lr=1e-2, seed=3, **options)


def fit(folder: Path, resume: bool, epochs: int) -> SVIRunner:
    callbacks = [Evaluate(lambda run: {"one": 1.0}), StopEarly("elbo", 5), ReduceOnPlateau(0.5, 1)]
    checkpoints = Checkpoints(folder, epochs=None if resume else 1, resume=resume)
    return runner().fit(X, epochs, callbacks=callbacks, checkpoints=checkpoints, **SIZES)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run, and the checkpoints of calls that have ended and that have not."""
    folder = tmp_path_factory.mktemp("originals")
    fit(folder / "ended", resume=False, epochs=3).save(folder / "run")
    fit(folder / "going_on", resume=False, epochs=3)
    shutil.rmtree(folder / "going_on" / "step-0000000006")
    second = folder / "going_on" / "step-0000000004"
    shutil.copytree(second, folder / "going_on" / "step-0000000002")  # an older one to fall back on
    return folder


# What is done to a value of JSON.

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 7, 1000, 2**63, 10**400, 0.5, -0.5, 1e-300, 1e300),
    *(float("nan"), float("inf"), "", "a", "\ud800", "../../etc/passwd", "os.system"),
    *([], {}, [1, 2], [[]], {"a": 1}, {"@class": "inference.Constant"}, {"@class": []}),
    {"@class": "ppl_models.GaussianMixture", "num_components": 2, "dim": 2},
    {"@class": "ppl_models.SharedMLP", "widths": [9]},
]


def places(value: Any, way: tuple = ()) -> Iterator[tuple]:
    """The ways to every value within one."""
    yield way
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*way, key))


def altered(value: Any, random: random.Random) -> Any:
    """A copy with one thing changed, and what that is."""
    value = copy.deepcopy(value)
    way = random.choice(list(places(value)))
    if not way:
        return random.choice(VALUES), "the whole is replaced"
    *before, last = way
    part = value
    for key in before:
        part = part[key]
    kind = random.choice(["replace", "replace", "replace", "scale", "remove", "add", "twice"])
    new = random.choice(VALUES)
    if kind == "remove":
        del part[last]
    elif kind == "add" and isinstance(part, dict):
        part[random.choice(["extra", "@class", "@tensor", "0", ""])] = new
    elif kind in ("add", "twice") and isinstance(part, list):
        part.insert(last, copy.deepcopy(part[last]) if kind == "twice" else new)
    elif kind == "scale" and isinstance(part[last], int | float):
        part[last] *= random.choice([-1, 2, 10, 0.5])
    else:
        part[last] = new
    return value, f"{kind} at {'/'.join(map(str, way))}: {str(new)[:60]}"


def alter_json(path: Path, random: random.Random) -> str:
    value, what = altered(json.loads(path.read_text()), random)
    path.write_text(json.dumps(value))
    return what


def alter_bytes(path: Path, random: random.Random) -> str:
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content))
    kind = random.choice(["cut", "flip", "add", "header"])
    if kind == "cut":
        content = content[:place]
    elif kind == "add":
        content += b"\0" * random.choice([1, 100_000])
    else:
        place = place if kind == "flip" else random.randrange(min(8, len(content)))
        content[place] ^= 1 << random.randrange(8)
    path.write_bytes(bytes(content))
    return f"{kind} at byte {place}"


def alter(path: Path, random: random.Random) -> str:
    by_value = path.suffix == ".json" and random.random() < 0.9
    return f"{path.name}: {(alter_json if by_value else alter_bytes)(path, random)}"


# What is done with it.


def use_run(folder: Path) -> None:
    loaded = SVIRunner.load(folder / "run")
    loaded.guide.predict(X[:2])
    assert repr(loaded)
    loaded.save(folder / "again")


def use_ended(folder: Path) -> None:
    fit(folder / "ended", resume=True, epochs=3).guide.predict(X[:2])


def use_going_on(folder: Path) -> None:
    fit(folder / "going_on", resume=True, epochs=3).guide.predict(X[:2])


CHECKPOINT = ("state.json", "tensors.safetensors", "digests.json")
USES: list[tuple[Callable[[Path], None], str, tuple[str, ...]]] = [
    (use_run, "run", ("weights.safetensors", "history.jsonl")),
    (use_run, "run", ("config.json",)),
    (use_run, "run", ("config.json",)),
    (use_ended, "ended/step-0000000006", CHECKPOINT),
    (use_going_on, "going_on/step-0000000004", CHECKPOINT),
]


def files(folder: Path) -> set[Path]:
    """Files that a refusal leaves: none but the locks."""
    return {path for path in folder.rglob("*") if path.name != ".lock"}


def attempt(case: int, originals: Path, folder: Path) -> None:
    choice = random.Random(case)
    use, where, names = choice.choice(USES)
    shutil.copytree(originals / where.split("/")[0], folder / where.split("/")[0])
    path = folder / where / choice.choice(names)
    written = path.read_bytes()
    what = alter(path, choice)
    same = path.name in ("config.json", "digests.json") or path.read_bytes() == written
    before, refused = files(folder), False
    try:
        with unchanged(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")  # of skipped checkpoints; Pyro's, of numbers
            use(folder)
        refused = any(each.category is CheckpointWarning for each in said)
    except (ValueError, FileNotFoundError) as error:
        assert files(folder) == before, f"{what}: files are left"
        refused = bool(str(error))
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error
    assert refused or same, f"{what}: used all the same"


@pytest.mark.slow(5)
def test_what_is_altered_is_used_or_refused(originals: Path, tmp_path: Path) -> None:
    failed = []
    for case in [int(ONLY)] if ONLY else range(CASES):
        folder = tmp_path / str(case)
        folder.mkdir()
        try:
            attempt(case, originals, folder)
        except AssertionError as error:
            if ONLY:
                raise
            failed.append(f"case {case}: {error}")
        shutil.rmtree(folder)
    assert not failed, f"{len(failed)} of {CASES} cases:\n" + "\n".join(failed)
