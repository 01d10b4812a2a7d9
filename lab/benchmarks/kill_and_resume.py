"""Runs that are killed at random moments, resumed, and compared bit for bit with the run that never
stopped.

python -m lab.benchmarks.kill_and_resume --kills 50 [--compile replay | xla]

Every model of the tests' catalogue in turn is trained in a process of its own, which writes a
checkpoint after each step; the process gets SIGKILL at a random moment, every other one when a
checkpoint is next being written (its unfinished folder is often found afterwards). It is then
started again, and what it ends with is compared: parameters, buffers, moments and history but for
the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess as Process
from pathlib import Path

import pyro
import torch

from inference import Checkpoints, SVIRunner
from inference.training.loop import DeadFacetWarning
from tests.catalogue import BUILDERS, given

EPOCHS, ROWS, BATCH = 40, 24, 5
# What is killed has imported everything already, which otherwise takes most of the time.
FORK = multiprocessing.get_context("fork")


def run(
    name: str, folder: Path | None, ready: Connection | None = None, mode: str | None = None
) -> str:
    """A digest of what the run ends with.

    :param mode: how steps are computed.
    :param folder: of its checkpoints, to go on from as well.
    :param ready: is told when training is about to begin.
    """
    pyro.set_rng_seed(0)
    guide = {build.__name__: build for build in BUILDERS}[name]()
    rows = 12 if "tables" in name else ROWS
    x = (255 * torch.rand(rows, *guide.model.x_shape)).round() / 255
    runner = SVIRunner(guide.model, guide, lr=1e-2, compile=mode)
    kept = None if folder is None else Checkpoints(folder, seconds=1e-9, resume=True)
    if ready is not None:
        ready.send("ready")
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


def child(name: str, folder: Path | None, mode: str | None) -> tuple[Process, Connection]:
    """A process that makes the run, and what it says: when it is about to train, and what it ended
    with.
    """
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: theirs.send(run(name, folder, theirs, mode)))
    process.start()
    theirs.close()
    ours.recv()
    return process, ours


def kill_once(
    name: str, folder: Path, mode: str | None, delay: float, while_writing: bool
) -> tuple[str, bool]:
    """How the run stood when it was killed, and whether a checkpoint was being written.

    :param while_writing: wait after the delay until one is.
    """
    process, _ = child(name, folder, mode)
    time.sleep(delay)
    while while_writing and process.is_alive() and not next(folder.glob("step-*/.*.tmp"), None):
        pass
    process.kill()
    process.join()
    written = Checkpoints(folder, resume=True).written() if folder.exists() else []
    unfinished = bool(list(folder.glob("step-*/.*.tmp")))
    return (written[-1].name if written else "before the first checkpoint"), unfinished


def finish(name: str, folder: Path | None, mode: str | None) -> tuple[str, float]:
    """What the run ends with, and the seconds of its training."""
    process, said = child(name, folder, mode)
    began = time.perf_counter()
    digest = said.recv()
    process.join()
    return digest, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--compile", choices=("replay", "xla"), help="by default not recorded")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeadFacetWarning)  # so short a run leaves most facets dead
    moments, names = random.Random(args.seed), [build.__name__ for build in BUILDERS]
    same = unfinished = 0
    for i in range(args.kills):
        name = names[i % len(names)]
        # Not in this process: JAX would leave threads in it, beside which it must not be forked.
        wanted, seconds = finish(name, None, args.compile)
        length = 2 * seconds  # about, with checkpoints
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "checkpoints"
            stood, writing = kill_once(
                name, folder, args.compile, moments.uniform(0, length), while_writing=i % 2 == 1
            )
            identical = finish(name, folder, args.compile)[0] == wanted
        same, unfinished = same + identical, unfinished + writing
        how = f"killed at {stood}{', writing' if writing else ''}"
        print(f"{i + 1:3d} {name:45s} {how}: {'the same' if identical else 'OTHER'}", flush=True)
    print(
        f"{same} of {args.kills} ended bit for bit as the unbroken run; {unfinished} were killed "
        "while writing"
    )


if __name__ == "__main__":
    main()
