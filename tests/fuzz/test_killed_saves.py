"""A save that is killed leaves the earlier run or the new one, and never parts of both."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inference import SVIRunner
from tests.catalog import two_facets

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


@pytest.mark.thorough
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
