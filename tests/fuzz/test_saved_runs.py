"""Saved runs and checkpoints that somebody has altered: each is used as it is, or refused.

Case N alters one thing, which N alone decides: a value of a JSON file, a tensor, or bytes, with the
digests made to agree or not. ``FACETVAE_FUZZ_RUNS`` says how many cases there are, and
``FACETVAE_FUZZ_CASE`` repeats one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from guides import VaDEGuide
from inference import Checkpoints, Guard, SVIRunner, WarmUp
from inference.callbacks import Evaluate, FitMixtures, ReduceOnPlateau, StopEarly
from inference.randomness import seeded
from ppl_models import MFCVAE, Bernoulli, GaussianMixture, MLPLadder
from tests.global_state import unchanged

CASES = int(os.environ.get("FACETVAE_FUZZ_RUNS", "100"))
ONLY = os.environ.get("FACETVAE_FUZZ_CASE")
SECONDS = 2.0
X = (255 * torch.rand(12, 4, generator=torch.Generator().manual_seed(1))).round() / 255
SIZES: dict[str, Any] = {"batch_size": 6, "progress": False}


def runner() -> SVIRunner:
    with seeded(0, torch.device("cpu")):
        facets = {"style": GaussianMixture(2, 2), "digit": GaussianMixture(3, 2)}
        guide = VaDEGuide(MFCVAE((4,), facets, Bernoulli(), MLPLadder((6, 7))))
    options: dict[str, Any] = {"schedule": WarmUp(6), "guard": Guard("skip", max_norm=5.0)}
    return SVIRunner(guide.model, guide, lr=1e-2, seed=3, **options)


def fit(folder: Path, resume: bool, epochs: int) -> SVIRunner:
    callbacks = [
        Evaluate(lambda run: {"one": 1.0}),
        FitMixtures(X, 2, restarts=1),
        StopEarly("elbo", 5),
        ReduceOnPlateau(0.5, 1),
    ]
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
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    1000,
    10**6,
    99_999_999,
    2**31,
    2**63,
    10**400,
    0.5,
    -0.5,
    1e-300,
    1e300,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "a",
    "x" * 100_000,
    "\ud800",
    "../../etc/passwd",
    "os.system",
    [],
    {},
    [1, 2],
    [[]],
    {"a": 1},
    {"@class": "ppl_models.GaussianMixture", "num_components": 2, "dim": 2},
    {"@class": "inference.Constant"},
    {"@class": "ppl_models.SharedMLP", "widths": [9]},
    {"@class": []},
    {"@tensor": "/runs/0/run/weights/model.gates"},
    {"@tensor": []},
    {"@tensor": "none"},
    [0] * 5000,
]
DEEP = ["deep", "rather deep"]


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
        part[last] *= random.choice([-1, 2, 10, 1e5, 0.5])
    else:
        part[last] = new
    return value, f"{kind} at {'/'.join(map(str, way))}: {str(new)[:60]}"


def as_json(value: Any, random: random.Random) -> str:
    """Sometimes nested more deeply than can be read, or with a key twice."""
    text = json.dumps(value)
    odd = random.random()
    if odd < 0.02:
        depth = random.choice([150, 900, 5000, 200_000])
        opening, closing = random.choice([("[", "]"), ('{"a":', "}")])
        return text.replace("1", opening * depth + "1" + closing * depth, 1)
    if odd < 0.04:
        return text.replace("{", '{"format": 2, "epoch": [], ', 1)
    return text


def alter_json(path: Path, random: random.Random) -> str:
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        i = random.randrange(len(lines))
        value, what = altered(json.loads(lines[i]), random)
        lines[i] = as_json(value, random)
        path.write_text("\n".join(lines) + "\n")
        return what
    value, what = altered(json.loads(path.read_text()), random)
    path.write_text(as_json(value, random))
    return what


TYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8]
SHAPES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t[None],
    lambda t: t.flatten(),
    lambda t: torch.cat([t.flatten(), t.flatten()]),
    lambda t: t.flatten()[:0],
    lambda t: t.mT if t.ndim > 1 else t[..., None],
]
FILLS = [float("nan"), float("inf"), -1.0, 0.0, 1e30, -1e30]


def alter_tensor(path: Path, random: random.Random) -> str:
    tensors = load_file(path)
    name = random.choice(sorted(tensors))
    kind = random.choice(["type", "shape", "fill", "one number", "missing", "renamed", "more"])
    if kind == "type":
        tensors[name] = tensors[name].to(random.choice(TYPES))
    elif kind == "shape":
        tensors[name] = random.choice(SHAPES)(tensors[name]).contiguous()
    elif kind == "fill":
        tensors[name] = torch.full_like(tensors[name].float(), random.choice(FILLS)).to(
            tensors[name].dtype
        )
    elif kind == "one number" and tensors[name].numel():
        tensors[name].view(-1)[random.randrange(tensors[name].numel())] = random.choice([9, 200])
    elif kind == "more":
        tensors["extra"] = torch.zeros(3)
    else:
        tensor = tensors.pop(name)
        if kind == "renamed":
            tensors[f"{name}."] = tensor
    save_file(tensors, path)
    return f"{kind} of {name}"


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
    if random.random() < 0.1:
        return f"{path.name}: {alter_bytes(path, random)}"
    alter_content = alter_tensor if path.suffix == ".safetensors" else alter_json
    return f"{path.name}: {alter_content(path, random)}"


def digests_agree(folder: Path) -> None:
    """Make the digests in a folder those of its files, where there still are such digests."""
    digests = folder / "digests.json"
    path = digests if digests.exists() else folder / "config.json"
    try:
        described = json.loads(path.read_text())
        files = described if path == digests else described["files"]
        for name in files:
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        path.write_text(json.dumps(described))
    except (ValueError, TypeError, KeyError, RecursionError, OSError):
        pass


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


USES: list[tuple[Callable[[Path], None], str, tuple[str, ...]]] = [
    (use_run, "run", ("config.json", "weights.safetensors", "history.jsonl")),
    (use_run, "run", ("config.json",)),
    (use_ended, "ended/step-0000000006", ("state.json", "tensors.safetensors")),
    (use_going_on, "going_on/step-0000000004", ("state.json", "tensors.safetensors")),
    (use_going_on, "going_on/step-0000000004", ("state.json", "tensors.safetensors")),
    (use_going_on, "going_on/step-0000000004", ("digests.json",)),
]


def files(folder: Path) -> set[Path]:
    """Files that a refusal leaves: none but the locks."""
    return {path for path in folder.rglob("*") if path.name != ".lock"}


def check_refusal(what: str, message: str, left: set[Path]) -> None:
    assert not left, f"{what}: files are left: {left}"
    assert 0 < len(message) < 2000, f"{what}: a message of {len(message)} characters"


def attempt(case: int, originals: Path, folder: Path) -> None:
    choice = random.Random(case)
    use, where, names = choice.choice(USES)
    shutil.copytree(originals / where.split("/")[0], folder / where.split("/")[0])
    what = alter(folder / where / choice.choice(names), choice)
    if choice.random() < 0.8:
        digests_agree(folder / where)
    before, started = files(folder), time.perf_counter()
    try:
        with unchanged(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of skipped checkpoints; Pyro's, of numbers
            use(folder)
    except (ValueError, FileNotFoundError) as error:
        check_refusal(what, str(error), files(folder) - before)
    except FloatingPointError:  # numbers of the right kind that no run can go on with
        assert use is use_going_on, what
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error
    taken = time.perf_counter() - started
    assert taken < SECONDS, f"{what}: {taken:.1f} s"


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
