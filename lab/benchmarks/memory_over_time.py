"""Memory of a long run: resident megabytes, sampled while a run trains, logs, evaluates and writes
checkpoints.

    python -m lab.benchmarks.memory_over_time --minutes 60 --out runs/memory

MFCVAE on scikit-learn's digits with everything on that may keep something: records, callbacks,
checkpoints each ten seconds, a loader's passes in between. After a tenth of the time a line is
fitted to the samples; its slope, with an error from blocks of samples (they are not independent),
is what a longer run would gain.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pyro
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from guides import VaDEGuide
from inference import Checkpoints, SVIRunner, mutual_information
from inference.callbacks import Evaluate, JSONLines
from inference.training.loop import DeadFacetWarning
from ppl_models import MFCVAE, GaussianMixture, MLPLadder

BLOCKS = 10


class Sampler(threading.Thread):
    """Resident megabytes of this process each second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        self.started = time.monotonic()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(1.0):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append((time.monotonic() - self.started, pages * 4096 / 2**20))


def slope(samples: np.ndarray) -> tuple[float, float]:
    """MiB an hour, and its standard error by leaving out one block of the time after the other."""
    seconds, megabytes = samples[len(samples) // 10 :].T
    blocks = np.array_split(np.arange(len(seconds)), BLOCKS)
    whole = np.polyfit(seconds / 3600, megabytes, 1)[0]
    without = [
        np.polyfit(np.delete(seconds, b) / 3600, np.delete(megabytes, b), 1)[0] for b in blocks
    ]
    return float(whole), float(np.sqrt((BLOCKS - 1) * np.var(without)))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=Path("runs/memory"))
    args = parser.parse_args(argv)
    if any(args.out.glob("checkpoints-*")):
        parser.error(f"--out {args.out} has the checkpoints of a run: remove it, or give another")
    args.out.mkdir(parents=True, exist_ok=True)
    pyro.set_rng_seed(0)
    warnings.simplefilter(
        "ignore", DeadFacetWarning
    )  # without a warm start facets die here, which costs no memory
    x = torch.as_tensor(load_digits().data / 16, dtype=torch.float32)
    facets = {"style": GaussianMixture(5, 5), "digit": GaussianMixture(20, 5)}
    model = MFCVAE((64,), facets, network=MLPLadder((64, 128)))
    runner = SVIRunner(model, VaDEGuide(model), lr=1e-3)
    calls = [
        Evaluate(
            lambda r: {f"all_{name}": nats for name, nats in mutual_information(r.guide, x).items()}
        ),
        JSONLines(args.out / "metrics.jsonl"),
    ]
    sampler = Sampler()
    sampler.start()
    turn = 0
    while time.monotonic() - sampler.started < 60 * args.minutes:
        turn += 1
        kept = Checkpoints(args.out / f"checkpoints-{turn}", epochs=None, seconds=10)
        runner.fit(
            x,
            epochs=200,
            batch_size=128,
            log_every=10,
            callbacks=calls,
            progress=False,
            checkpoints=kept,
        )
        loader = DataLoader(TensorDataset(x), batch_size=128, shuffle=True)
        runner.fit(loader, epochs=20, log_every=10, callbacks=calls, progress=False)
    sampler.over.set()
    samples = np.array(sampler.samples)
    (args.out / "memory.json").write_text(json.dumps(samples.tolist()))
    gained, error = slope(samples)
    warm = samples[len(samples) // 10 :, 1]
    print(
        f"{samples[-1, 0] / 60:.1f} minutes, {runner.step} steps, {len(runner.history)} records, "
        f"{turn} checkpoints"
    )
    print(
        f"resident: {samples[0, 1]:.1f} MiB at first, {warm.min():.1f} to {warm.max():.1f} after "
        "a tenth of the time"
    )
    print(f"slope after a tenth of the time: {gained:.2f} ({error:.2f}) MiB an hour")


if __name__ == "__main__":
    main()
