"""A disk that is really full: what was written before stays whole, training goes on, and so does a
resumed run.

The disk is a tmpfs of 256 KiB, which a process of its own mounts where no other process sees it,
and which is gone with that process. This takes root, or user namespaces that anyone may make; where
there is neither, the test is skipped.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inference import Checkpoints, SVIRunner
from inference.checkpoints.periodic import CheckpointWarning
from inference.checkpoints.training_state import read
from inference.training.loop import DeadFacetWarning
from tests.catalog import two_facets
from tests.inference.test_resuming import same, start

pytestmark = pytest.mark.slow(10)

ROOT = Path(__file__).parents[2]
# What is left of the disk while a checkpoint is written: nothing, room for a part of its first
# file, for that and a part of the second, and for all but the digests that would make it whole.
# Files take whole pages of 4 KiB: the first one, which grows with the history, takes two at last,
# the second five.
ROOMS = [0, 4096, 4 * 4096, 7 * 4096]
SIZES: dict[str, Any] = {"batch_size": 5, "progress": False}  # three steps an epoch


class Fill:
    """Fill the disk from the third epoch on, by a file of somebody else's.

    :param folder: on that disk; ``None`` for a callback that does nothing, as the run that is
        compared has it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        if self.folder is not None and runner.epoch > 2:
            fill(self.folder, ROOMS[runner.epoch - 3])


def fill(folder: Path, room: int) -> None:
    """Fill the disk but for so many bytes."""
    make_room(folder)
    state = os.statvfs(folder)
    with (folder / "filler").open("wb", buffering=0) as file:
        file.write(b"\1" * (state.f_bavail * state.f_frsize - room))
    state = os.statvfs(folder)
    assert state.f_bavail * state.f_frsize == room


def make_room(folder: Path) -> None:
    (folder / "filler").unlink(missing_ok=True)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoints(disk: Path) -> None:
    """Two epochs are written; four more are not, and training goes on; with room again, a resumed
    run ends the same.
    """
    folder = disk / "checkpoints"

    def fit(epochs: int, fill: Fill, **options: Any) -> SVIRunner:
        runner, x, _ = start(two_facets)
        return runner.fit(x, epochs, callbacks=[fill], **SIZES, **options)

    epochs = 2 + len(ROOMS)
    unbroken = fit(epochs, Fill())
    with warnings.catch_warnings(record=True, action="always") as given:
        runner = fit(epochs, Fill(disk), checkpoints=Checkpoints(folder))
    same(unbroken, runner)
    said = [str(each.message) for each in given if each.category is CheckpointWarning]
    assert len(said) == len(ROOMS), said
    for step, message in zip(range(9, 3 * epochs + 1, 3), said, strict=True):
        assert message.startswith(
            f"no checkpoint was written at step {step} ([Errno {errno.ENOSPC}]"
        ), message
    others = {path.name for path in folder.iterdir() if not path.name.startswith("step-")}
    assert others == {".lock"}, "none half written"
    names = [path.name for path in Checkpoints(folder, resume=True).written()]
    assert names == ["step-0000000003", "step-0000000006"]
    for name in names:
        assert read(folder / name)["runs"][0]["run"]["step"] == int(name.removeprefix("step-"))

    make_room(disk)
    with warnings.catch_warnings(action="error", category=CheckpointWarning):
        resumed = fit(epochs, Fill(), checkpoints=Checkpoints(folder, resume=True))
    same(unbroken, resumed)
    assert [path.name for path in Checkpoints(folder, resume=True).written()][
        -1
    ] == f"step-{3 * epochs:010d}"


def resumed_when_full(disk: Path) -> None:
    """A run that is taken up on a full disk reads what is there, trains, and leaves it."""
    runner, x, _ = start(two_facets)
    folder = disk / "checkpoints"
    runner.fit(x, 2, **SIZES, checkpoints=Checkpoints(folder))
    shutil.rmtree(folder / "step-0000000006")
    fill(disk, 0)
    kept = contents(folder)
    with warnings.catch_warnings(record=True, action="always") as given:
        again, _, _ = start(two_facets)
        again.fit(x, 2, **SIZES, checkpoints=Checkpoints(folder, resume=True))
    same(runner, again)
    assert any(each.category is CheckpointWarning for each in given)
    assert contents(folder) == kept


def saved_runs(disk: Path) -> None:
    """Where a run cannot be saved over an earlier one, that stays whole."""
    runner, x, _ = start(two_facets)
    folder = disk / "run"
    runner.fit(x, 1, **SIZES).save(folder)
    kept, weights = (
        contents(folder),
        {name: t.clone() for name, t in runner.guide.state_dict().items()},
    )
    runner.fit(x, 1, **SIZES)
    for room in ROOMS[:2]:  # none; for a part of the weights
        fill(disk, room)
        with pytest.raises(OSError, match=rf"Errno {errno.ENOSPC}\b"):
            runner.save(folder)
        assert contents(folder) == kept
    loaded = SVIRunner.load(folder).guide.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())
    make_room(disk)
    runner.save(folder)
    assert SVIRunner.load(folder).step == runner.step


WHAT: list[Callable[[Path], None]] = [checkpoints, resumed_when_full, saved_runs]


def on_a_disk(unshare: list[str], folder: Path, command: list[str]) -> subprocess.CompletedProcess:
    """Run a command while a small disk is mounted over the folder, for it alone."""
    script = (
        f"mount -t tmpfs -o size=256k none {shlex.quote(str(folder))} && exec {shlex.join(command)}"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*unshare, "sh", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def unshare(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How a process gets mounts of its own here."""
    if shutil.which("unshare") is None:
        pytest.skip("a disk of the test's own takes unshare(1), of Linux")
    tried = []
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        done = on_a_disk(command, tmp_path_factory.mktemp("disk"), ["true"])
        if done.returncode == 0:
            return command
        tried.append(done.stderr.strip())
    pytest.skip(
        f"a disk of the test's own takes root, or user namespaces for all: {'; '.join(tried)}"
    )


@pytest.mark.thorough
def test_what_was_written_stays_whole_and_what_follows_is_the_same(
    unshare: list[str], tmp_path: Path
) -> None:
    """All in one process, whose start takes most of the time; its errors name the part."""
    done = on_a_disk(
        unshare, tmp_path, [sys.executable, "-m", "tests.inference.test_full_disk", str(tmp_path)]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [what.__name__ for what in WHAT]
    assert list(tmp_path.iterdir()) == [], "the disk was seen by that process alone"


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeadFacetWarning)  # so short a run leaves facets dead
    for what in WHAT:
        disk = Path(sys.argv[1]) / what.__name__
        disk.mkdir()
        what(disk)
        shutil.rmtree(disk)
        print(what.__name__)
