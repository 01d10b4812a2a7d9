"""One, two and four processes that train the same run: the gradient, how runs end, and how long a
step takes.

    python -m lab.benchmarks.data_parallel --seeds 20 --steps 40

1. At fixed noise, how far the summed gradient of several processes is from that of one (MFCVAE,
  Table 4, MNIST's size, float64): the largest difference of any entry, relative to the largest
  entry.
2. Runs on scikit-learn's digits with one seed after the other: held-out ELBO at the end, mean and
  sample deviation by the number of processes, and Welch's test against one process.
3. Mean time of a step (batches of 512 by all together, each process with one thread), and of one
  process with as many threads. More processes than cores share them, so nothing is gained by these
  here.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyro
import torch
from lightning_fabric import Fabric
from scipy.stats import ttest_ind
from sklearn.datasets import load_digits

from guides import VaDEGuide
from inference import SVIRunner, WarmUp, elbo
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, Normal

SIZES = (1, 2, 4)


def mnist_sized(dtype: torch.dtype = torch.float32) -> tuple[SVIRunner, torch.Tensor]:
    pyro.set_rng_seed(0)
    model = MFCVAE((784,), {"style": GaussianMixture(25, 5), "digit": GaussianMixture(25, 5)})
    return SVIRunner(model, VaDEGuide(model).to(dtype)), torch.rand(2048, 784, dtype=dtype)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.as_tensor(load_digits().data / 16, dtype=torch.float32)
    return x[:1437], x[1437:]


def gradient(fabric: Fabric, folder: Path) -> None:
    """Adam's first step is the gradient but for its scale: what is compared is the first moment
    that it keeps.
    """
    torch.set_num_threads(1)
    runner, x = mnist_sized(torch.float64)
    with patch("torch.randn", lambda shape, **options: torch.full(tuple(shape), 0.3, **options)):
        runner.fit(x[:510], epochs=1, batch_size=510, progress=False, fabric=fabric)
    moments = [state["exp_avg"].flatten() for state in runner.optimizer.state.values()]
    if fabric.is_global_zero:
        np.save(folder / "gradient.npy", torch.cat(moments).numpy())


def ends(fabric: Fabric, folder: Path, seeds: int) -> None:
    torch.set_num_threads(1)
    found, (train, test) = [], digits()
    for seed in range(seeds):
        pyro.set_rng_seed(seed)
        facets = {"style": GaussianMixture(5, 5), "digit": GaussianMixture(20, 5)}
        model = MFCVAE((64,), facets, Normal(0.2), MLPLadder((64, 128)))
        runner = SVIRunner(model, VaDEGuide(model), lr=1e-3, seed=seed, schedule=WarmUp(400))
        runner.fit(train, epochs=40, batch_size=128, log_every=40, progress=False, fabric=fabric)
        if fabric.is_global_zero:
            found.append(elbo(model, runner.guide, test, 20)[0])
    if fabric.is_global_zero:
        (folder / "ends.json").write_text(json.dumps(found))


def step_times(fabric: Fabric, folder: Path, steps: int, threads: int) -> None:
    """A call of twice as many steps less one of as many: what a call costs beside its steps is gone
    from that.
    """
    torch.set_num_threads(threads)
    runner, x = mnist_sized()
    passes, took = max(1, steps // 4), []
    for times in (1, 1, 2):  # the first one is not counted
        started = time.perf_counter()
        runner.fit(x, times * passes, 512, log_every=2 * passes, progress=False, fabric=fabric)
        took.append(time.perf_counter() - started)
    if fabric.is_global_zero:
        (folder / "seconds.json").write_text(json.dumps((took[2] - took[1]) / (4 * passes)))


def launched(size: int, work: Callable[..., None], *arguments: Any) -> None:
    Fabric(accelerator="cpu", devices=size, strategy="ddp_fork" if size > 1 else "auto").launch(
        work, *arguments
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, nargs="+", default=SIZES, help="beside one (default: 1 2 4)"
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    sizes, gradients, elbos = sorted({1, *args.processes}), {}, {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for size in sizes:
            launched(size, gradient, folder)
            gradients[size] = np.load(folder / "gradient.npy")
            apart = np.abs(gradients[size] - gradients[1]).max() / np.abs(gradients[1]).max()
            print(
                f"{size} processes: gradient at fixed noise, largest difference from one process "
                f"{apart:.1e}"
            )
        for size in sizes if args.seeds else ():
            launched(size, ends, folder, args.seeds)
            elbos[size] = json.loads((folder / "ends.json").read_text())
            p = ttest_ind(elbos[size], elbos[1], equal_var=False).pvalue if size > 1 else 1.0
            mean, deviation = np.mean(elbos[size]), np.std(elbos[size], ddof=1)
            print(
                f"{size} processes: ELBO of {args.seeds} runs {mean:.2f} ({deviation:.2f}); Welch "
                f"p {p:.2f}"
            )
        print(f"{os.cpu_count()} cores; milliseconds of a step of 512 rows:")
        for size, threads in ((1, 1), (2, 1), (4, 1), (1, 2)) if args.steps else ():
            launched(size, step_times, folder, args.steps, threads)
            seconds = json.loads((folder / "seconds.json").read_text())
            print(f"{size} processes of {threads} threads: {1e3 * seconds:.1f}")


if __name__ == "__main__":
    main()
