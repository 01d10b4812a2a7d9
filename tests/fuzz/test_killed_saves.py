"""A save that is killed leaves the earlier run or the new one, and never parts of both."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inference import SVIRunner
from tests.catalogue import two_facets

# 50 kills at random moments where thousands of altered runs are tried as well.
KILLS = 50 if int(os.environ.get("FACETVAE_FUZZ_RUNS", "0")) >= 1000 else 8
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def runs() -> list[SVIRunner]:
    """Two runs of one model, with other weights, histories and numbers of steps."""
    x = torch.rand(12, 6)
    guides = [two_facets(), two_facets()]
    return [
        SVIRunner(guide.model, guide, seed=i).fit(x, i + 1, batch_size=6, progress=False)
        for i, guide in enumerate(guides)
    ]


def content(run: SVIRunner) -> tuple[Any, ...]:
    weights = {name: t.tolist() for name, t in run.guide.state_dict().items()}
    return run.seed, run.epoch, run.step, run.history, weights


def killed(work: Callable[[], None], moment: Callable[[], None]) -> None:
    """Do the work in a process of its own, which is killed after a moment, unless it has ended."""
    process = FORK.Process(target=work)
    process.start()
    moment()
    if process.is_alive():
        process.kill()
    process.join(timeout=60)
    assert process.exitcode == -signal.SIGKILL


def alternate(runs: list[SVIRunner], folder: Path) -> None:
    while True:
        for run in runs:
            run.save(folder)


def test_saves_killed_at_random_moments(runs: list[SVIRunner], tmp_path: Path) -> None:
    runs[0].save(tmp_path)
    found, choice = [], random.Random(0)
    for _ in range(KILLS):
        killed(lambda: alternate(runs, tmp_path), lambda: time.sleep(0.03 + 0.07 * choice.random()))
        found.append(content(SVIRunner.load(tmp_path)))
    wholes = [content(run) for run in runs]
    assert all(each in wholes for each in found)
    runs[1].save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4, "nothing of those killed is left"


def killed_at(call: int, run: SVIRunner, folder: Path) -> None:
    """Save, and be killed before the system is called for this time to flush, rename or remove."""
    left = [call]
    for name in ("fsync", "replace", "unlink"):
        original = getattr(os, name)

        def counted(*args: Any, original: Callable[..., Any] = original) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        setattr(os, name, counted)
    run.save(folder)
    os._exit(3)


@pytest.mark.parametrize("before", [True, False])
def test_saves_killed_at_every_call(before: bool, runs: list[SVIRunner], tmp_path: Path) -> None:
    """:param before: whether the folder holds an earlier run."""
    ends: list[int | None] = []
    wholes = [content(run) for run in runs]
    for call in range(1, 20):
        folder = tmp_path / str(call)
        if before:
            runs[0].save(folder)
        process = FORK.Process(target=killed_at, args=(call, runs[1], folder))
        process.start()
        process.join(timeout=60)
        if before or (folder / "config.json").exists():
            ends.append(wholes.index(content(SVIRunner.load(folder))))
        else:
            with pytest.raises(FileNotFoundError, match="is missing"):
                SVIRunner.load(folder)
            ends.append(None)
        if process.exitcode == 3:
            break
    first, last = (0 if before else None), 1
    assert process.exitcode == 3
    assert ends[0] == first
    assert ends[-1] == last
    assert ends == [first] * ends.count(first) + [last] * ends.count(last)
    assert ends.count(last) > 2, "killed after the run was there, but not yet under all its names"
