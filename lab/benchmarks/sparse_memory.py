"""What training on a large sparse matrix takes: memory beyond the matrix's own, and seconds a pass.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.sparse_memory --rows 1000000 \
        --columns 10000 --out runs

A child process makes a CSR matrix of counts with 50 entries a row, and fits the network that
MultiFacetClustering takes for counts by default, with two facets, for some steps of 512 rows; a
pass is extrapolated from these. It then predicts all rows or some of them. "peak" is the largest
resident memory from then on (VmHWM, which Linux lets a process set back), less that after the
matrix was made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyro
from scipy.sparse import csr_array

from facetvae.estimators.counts import WIDTHS
from guides import VaDEGuide
from inference import SVIRunner
from inference.training.loop import DeadFacetWarning
from ppl_models import MFCVAE, MLP, DirichletMultinomial, GaussianMixture
from ppl_models.given.sparse import sparse_rows

__all__ = ["counts_matrix", "measure"]

ENTRIES, BATCH = 50, 512
ROWS_AT_ONCE = 50_000
MIB = 2**20


def counts_matrix(rows: int, columns: int, entries: int = ENTRIES) -> csr_array:
    """A matrix of counts with equally many entries a row, made a block at a time."""
    rng = np.random.default_rng(0)
    indices = np.empty((rows, entries), np.int32)
    values = np.empty((rows, entries), np.float32)
    gaps = columns // entries
    for start in range(0, rows, ROWS_AT_ONCE):
        part = indices[start : start + ROWS_AT_ONCE]
        part[:] = gaps * np.arange(entries) + rng.integers(gaps, size=part.shape, dtype=np.int32)
        values[start : start + ROWS_AT_ONCE] = 1 + rng.poisson(0.3, part.shape)
    bounds = np.arange(0, rows * entries + 1, entries, dtype=np.int32)
    return csr_array((values.ravel(), indices.ravel(), bounds), shape=(rows, columns))


def measure(rows: int, columns: int, steps: int, predicted: int) -> dict[str, float]:
    """Megabytes and seconds of fitting and predicting, in this process."""
    warnings.simplefilter("ignore", DeadFacetWarning)  # a few steps teach nothing
    matrix = counts_matrix(rows, columns)
    own = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    before = _memory("VmRSS")
    _forget_peak()
    pyro.set_rng_seed(0)
    x = sparse_rows(matrix)
    facets = {"first": GaussianMixture(4, 3), "second": GaussianMixture(3, 2)}
    likelihood = DirichletMultinomial().fitted(x)
    model = MFCVAE((columns,), facets, likelihood, MLP(WIDTHS, dropout=0))
    runner = SVIRunner(model, VaDEGuide(model), lr=1e-3)
    runner.fit(x[:BATCH], 1, BATCH, progress=False)  # what is done once
    seconds = []
    for count in (steps, 2 * steps):  # the difference is free of what is done once a call
        started = time.perf_counter()
        runner.fit(x[: count * BATCH], 1, BATCH, progress=False)
        seconds.append(time.perf_counter() - started)
    trained = _memory("VmHWM")
    step = (seconds[1] - seconds[0]) / steps
    _forget_peak()
    started = time.perf_counter()
    runner.guide.predict(x[:predicted])
    predicting = time.perf_counter() - started
    return {
        "matrix_mib": own / MIB,
        "peak_training_mib": trained - before,
        "peak_predicting_mib": _memory("VmHWM") - before,
        "step_seconds": step,
        "pass_seconds": step * -(-rows // BATCH),
        "predict_seconds": predicting * rows / min(predicted, rows),
        "predicted_rows": min(predicted, rows),
    }


def _memory(name: str) -> float:
    """MiB of this process, by the name that Linux has for it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=50, help="of training that are measured")
    parser.add_argument("--predicted", type=int, default=1_000_000, help="rows that are predicted")
    parser.add_argument("--out", type=Path, required=True, help="a folder for memory.json")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    sizes = (args.rows, args.columns, args.steps, args.predicted)
    if args.child:
        print(json.dumps(measure(*sizes)))
        return
    names = ("--rows", "--columns", "--steps", "--predicted")
    options = [text for pair in zip(names, map(str, sizes), strict=True) for text in pair]
    command = [
        sys.executable,
        "-m",
        "lab.benchmarks.sparse_memory",
        "--child",
        "--out",
        str(args.out),
    ]
    done = subprocess.run([*command, *options], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "memory.json").write_text(json.dumps(found, indent=1))
    for name, value in found.items():
        print(f"{name:22s} {value:12.2f}")


if __name__ == "__main__":
    main()
