"""Runs that are killed at random moments, resumed, and compared bit for bit with the run that never stopped.

python -m benchmarks.kill_and_resume --kills 50

Every model of the tests' catalogue in turn is trained in a process of its own, which writes a checkpoint after each
step; the process gets SIGKILL at a random moment, some of them while a checkpoint is being written (its unfinished
folder is found afterwards). It is then started again until it ends, and what it ends with is compared: parameters,
buffers, moments and history but for the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pyro
import torch

from inference import Checkpoints, SVIRunner
from inference.training import DeadFacetWarning
from tests.catalogue import BUILDERS, given

EPOCHS, ROWS, BATCH = 40, 24, 5


def run(name: str, folder: Path | None) -> str:
    """A digest of what the run ends with.

    :param folder: of its checkpoints, to go on from as well.
    """
    pyro.set_rng_seed(0)
    guide = {build.__name__: build for build in BUILDERS}[name]()
    rows = 12 if "tables" in name else ROWS
    x = (255 * torch.rand(rows, *guide.model.x_shape)).round() / 255
    runner = SVIRunner(guide.model, guide, lr=1e-2)
    kept = None if folder is None else Checkpoints(folder, seconds=1e-9, resume=True)
    print("ready", flush=True)
    beside = given(guide, rows)
    runner.fit(x, EPOCHS, BATCH, log_every=10, progress=False, checkpoints=kept, **beside)
    digest = hashlib.sha256()
    states = [*runner.loss.state_dict().values()]
    for _, moments in sorted(runner.optimizer.state_dict()["state"].items()):
        states += [torch.as_tensor(moment) for _, moment in sorted(moments.items())]
    for tensor in states:
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    digest.update(json.dumps([{**record, "seconds": 0} for record in runner.history]).encode())
    return digest.hexdigest()


def child(name: str, folder: Path) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "benchmarks.kill_and_resume", "--child", name, str(folder)]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)


def kill_once(name: str, folder: Path, delay: float) -> tuple[str, bool]:
    """How the run stood when it was killed, and whether a checkpoint was being written."""
    with child(name, folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    written = Checkpoints(folder, resume=True).written() if folder.exists() else []
    unfinished = bool(list(folder.glob(".step-*.tmp")))
    return (written[-1].name if written else "before the first checkpoint"), unfinished


def finish(name: str, folder: Path) -> str:
    with child(name, folder) as process:
        out, _ = process.communicate()
    return out.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeadFacetWarning)  # so short a run leaves most facets dead
    if args.child:
        print(run(args.child[0], Path(args.child[1])))
        return
    moments, names = random.Random(args.seed), [build.__name__ for build in BUILDERS]
    same = unfinished = 0
    for i in range(args.kills):
        name = names[i % len(names)]
        began = time.perf_counter()
        wanted = run(name, None)
        length = 2 * (time.perf_counter() - began)  # about, with checkpoints
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "checkpoints"
            stood, writing = kill_once(name, folder, moments.uniform(0, length))
            identical = finish(name, folder) == wanted
        same, unfinished = same + identical, unfinished + writing
        how = f"killed at {stood}{', writing' if writing else ''}"
        print(f"{i + 1:3d} {name:45s} {how}: {'the same' if identical else 'OTHER'}", flush=True)
    print(f"{same} of {args.kills} ended bit for bit as the unbroken run; {unfinished} were killed while writing")


if __name__ == "__main__":
    main()
