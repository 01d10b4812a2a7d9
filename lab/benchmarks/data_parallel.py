"""One, two and four processes that train the same run: the gradient, how runs end, what each reads,
and the memory of one whose data do not fit.

    python -m lab.benchmarks.data_parallel --seeds 20

1. At fixed noise, how far the gradient of several processes, of one array's parts or with loaders
  of their own rows (as many each, or a half, a quarter and so on), is from that of one (MFCVAE,
  Table 4, MNIST's size, float64): the largest difference of any entry, relative to the largest
  entry.
2. Runs of 5 epochs on scikit-learn's digits, each process with its own rows: held-out ELBO at the
  end, mean and sample deviation over the seeds by the number of processes, and the mean of the
  seeds' differences from one process, with its standard error.
3. Bytes that each process reads in an epoch of a folder of files, of which it has its share.
4. The same folder under a limit of memory (a control group, which needs root): the most memory
  after a tenth of the epoch and at its end, and rows a second, beside the loader alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyro
import torch
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, IterableDataset

from guides import VaDEGuide
from inference import SVIRunner, elbo
from lab.run_lines import described_by
from ppl_models import MFCVAE, VAE, GaussianMixture, MLPLadder, Normal, SharedMLP

SIZES, ROWS, WIDTH, FILES, GIGABYTES = (1, 2, 4), 512, 784, 64, 4
CGROUP = Path("/sys/fs/cgroup/memory/facetvae")


def parts(rows: int, size: int, ragged: bool) -> list[slice]:
    """Rows of each process: as many each, or each half of what is left, the last one all of it."""
    shares = (
        [rows >> min(i + 1, size - 1) for i in range(size)] if ragged else [rows // size] * size
    )
    ends = np.cumsum([*shares[:-1], rows - sum(shares[:-1])])
    return [slice(end - share, end) for end, share in zip(ends, np.diff([0, *ends]), strict=True)]


def gradient(fabric: Fabric, folder: Path, how: str) -> None:
    """Adam's first step is the gradient but for its scale: what is compared is the first moment
    that it keeps.
    """
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    model = MFCVAE((WIDTH,), {"style": GaussianMixture(25, 5), "digit": GaussianMixture(25, 5)})
    runner = SVIRunner(model, VaDEGuide(model).double())
    x: Any = torch.rand(ROWS, WIDTH, dtype=torch.float64)
    if how != "parts":
        own = parts(ROWS, fabric.world_size, how == "ragged shards")[fabric.global_rank]
        x = DataLoader(x[own], ROWS)
    sizes = {"batch_size": ROWS} if how == "parts" else {}
    with patch("torch.randn", lambda shape, **options: torch.full(tuple(shape), 0.3, **options)):
        runner.fit(x, epochs=1, progress=False, fabric=fabric, **sizes)
    moments = [state["exp_avg"].flatten() for state in runner.optimizer.state.values()]
    if fabric.is_global_zero:
        np.save(folder / "gradient.npy", torch.cat(moments).numpy())


def ends(fabric: Fabric, folder: Path, seeds: int) -> None:
    torch.set_num_threads(1)
    x = torch.as_tensor(load_digits().data / 16, dtype=torch.float32)
    own = parts(1436, fabric.world_size, ragged=False)[fabric.global_rank]
    found = []
    for seed in range(seeds):
        pyro.set_rng_seed(seed)
        facets = {"style": GaussianMixture(5, 5), "digit": GaussianMixture(20, 5)}
        model = MFCVAE((64,), facets, Normal(0.2), MLPLadder((64, 128)))
        runner = SVIRunner(model, VaDEGuide(model), lr=3e-3, seed=seed)
        loader = DataLoader(x[own], 32 // fabric.world_size, shuffle=True)
        runner.fit(loader, epochs=5, log_every=5, progress=False, fabric=fabric)
        if fabric.is_global_zero:
            found.append(elbo(model, runner.guide, x[1436:], 20)[0])
    if fabric.is_global_zero:
        (folder / "ends.json").write_text(json.dumps(found))


class Files(IterableDataset):
    """Rows of every ``size``-th file of a folder, shuffled within a file."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.files = sorted(folder.glob("*.npy"))[rank::size]
        self.rows = sum(np.load(file, mmap_mode="r").shape[0] for file in self.files)

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[np.ndarray]:
        for file in self.files:
            x = np.load(file)
            for i in torch.randperm(len(x)).tolist():
                yield x[i]


def status(name: str, key: str) -> int:
    """A number of this process's, by the kernel."""
    lines = Path(f"/proc/self/{name}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def small_run(fabric: Fabric | None, loader: DataLoader, **options: Any) -> None:
    pyro.set_rng_seed(0)
    model = VAE((WIDTH,), 5, Normal(0.2), SharedMLP((64,)))
    runner = SVIRunner(model, VaDEGuide(model))
    runner.fit(loader, 1, progress=False, fabric=fabric, **options)


def reading(fabric: Fabric, files: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    before = status("io", "rchar")
    rank, size = fabric.global_rank, fabric.world_size
    small_run(fabric, DataLoader(Files(files, rank, size), ROWS))
    (folder / f"{rank}.json").write_text(json.dumps(status("io", "rchar") - before))


def limited(files: Path) -> None:
    """A tenth of an epoch, an epoch, and one of the loader alone."""
    torch.set_num_threads(1)
    data = Files(files, 0, 1)
    loader, peaks = DataLoader(data, ROWS), []
    for steps in (len(loader) // 10, len(loader)):
        started = time.perf_counter()
        small_run(None, loader, steps_per_epoch=steps)
        took = time.perf_counter() - started
        peaks.append(status("status", "VmHWM") / 2**10)
    started = time.perf_counter()
    for _ in loader:
        pass
    alone = time.perf_counter() - started
    print(
        f"most memory {peaks[0]:.0f} MiB after a tenth, {peaks[1]:.0f} at the end; "
        f"{data.rows / took:.0f} rows a second, {data.rows / alone:.0f} by the loader alone"
    )


def launched(size: int, work: Callable[..., None], *arguments: Any) -> None:
    strategy = "ddp_fork" if size > 1 else "auto"
    Fabric(accelerator="cpu", devices=size, strategy=strategy).launch(work, *arguments)


def show_gradients(folder: Path) -> None:
    launched(1, gradient, folder, "parts")
    alone = np.load(folder / "gradient.npy")
    for size in SIZES[1:]:
        for how in ("parts", "shards", "ragged shards"):
            launched(size, gradient, folder, how)
            apart = np.abs(np.load(folder / "gradient.npy") - alone).max() / np.abs(alone).max()
            print(f"{size} processes, {how}: gradient apart by {apart:.1e}", flush=True)


def show_ends(folder: Path, seeds: int) -> None:
    elbos = {}
    for size in SIZES:
        launched(size, ends, folder, seeds)
        elbos[size] = np.array(json.loads((folder / "ends.json").read_text()))
        less, mean = elbos[size] - elbos[1], elbos[size].mean()
        print(
            f"{size} processes: ELBO {mean:.2f} ({elbos[size].std(ddof=1):.2f}); less one's "
            f"{less.mean():.2f} (SE {less.std(ddof=1) / seeds**0.5:.2f})",
            flush=True,
        )


def show_reading(folder: Path) -> None:
    files = folder / "files"
    files.mkdir()
    rows = GIGABYTES * 2**30 // (4 * WIDTH * FILES)
    for i in range(FILES):
        x = np.random.default_rng(i).standard_normal((rows, WIDTH), dtype=np.float32)
        np.save(files / f"{i:02}.npy", x)
    for size in SIZES:
        launched(size, reading, files, folder)
        read = [json.loads((folder / f"{rank}.json").read_text()) / 2**20 for rank in range(size)]
        print(f"{size} processes read {', '.join(f'{each:.0f}' for each in read)} MiB", flush=True)
    CGROUP.mkdir(exist_ok=True)
    limit = GIGABYTES * 2**30 // 4
    (CGROUP / "memory.limit_in_bytes").write_text(str(limit))
    print(f"{GIGABYTES * 2**10} MiB of data, limit {limit / 2**20:.0f} MiB", flush=True)
    subprocess.run(
        [sys.executable, "-m", "lab.benchmarks.data_parallel", "--limited", files],
        preexec_fn=lambda: (CGROUP / "cgroup.procs").write_text(str(os.getpid())),
        check=True,
    )


def main() -> None:
    parser = described_by(__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="of the runs on digits; 0 for none")
    parser.add_argument("--limited", type=Path, help="a folder of files: only an epoch of them")
    args = parser.parse_args()
    if args.limited:
        return limited(args.limited)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        show_gradients(folder)
        if args.seeds:
            show_ends(folder, args.seeds)
        show_reading(folder)


if __name__ == "__main__":
    main()
