"""A fit to a million rows: seconds of each phase, and memory, beside MiniBatchKMeans.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.million_rows --seeds 0 3 --out runs/million.jsonl

A table with two labelings, of 3 and 5 clusters (`lab.protocols.sources.labelings`), is drawn and
written as float32. MultiFacetClustering is given nothing; scikit-learn's MiniBatchKMeans is told
the number of clusters of one labeling after the other. Each fit has a process of its own, which
reads the table first. "copies" is the process's peak of resident memory, less that of a process
that only imports the same and less the table itself, as a share of the table. A process that reads
the table alone is shown beside, and one that fits 25,000 of its rows, which "copies that grow" are
without. Seconds are those of the processor, with one thread, whatever else runs.

One line of JSON a table; tables that the file has are left out.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import normalized_mutual_info_score

from facetvae.estimators import MultiFacetClustering
from lab.protocols.sources import labelings
from lab.run_lines import parser_of, run_all
from lab.summarize import print_tables

# Not four: the sides of a square are two labelings.
CLUSTERS = (3, 5)
# Rows of the table whose fit tells what does not depend on their number.
FEW = 25_000
# How processes start: from one that has imported what they need, and holds no data.
START = "forkserver"
# Bytes of what getrusage counts in (Linux).
KIB = 1024


class Timed(MultiFacetClustering):
    """Notes when each phase begins."""

    def _say(self, phase: str) -> None:
        vars(self).setdefault("phases", []).append((phase, time.process_time()))
        super()._say(phase)


def draw(folder: Path, rows: int, columns: int, seed: int) -> dict[str, float]:
    drawn = labelings(rows, CLUSTERS, width=columns, seed=seed)
    np.save(folder / "x.npy", drawn.x.astype(np.float32))
    np.save(folder / "labels.npy", np.stack(drawn.labels, 1))
    return {}


def nothing(folder: Path, seed: int) -> dict[str, float]:
    return {}


def read(folder: Path, seed: int) -> dict[str, float]:
    np.load(folder / "x.npy")
    return {}


def ours(folder: Path, seed: int) -> dict[str, float]:
    x = np.load(folder / "x.npy")
    fit = Timed(random_state=seed)
    seconds = _seconds(lambda: fit.fit(x))
    ends = [*(at for _, at in fit.phases[1:]), fit.phases[0][1] + seconds]
    phases = {
        f"{phase}, seconds": end - at for (phase, at), end in zip(fit.phases, ends, strict=True)
    }
    predicted = {"predict, seconds": _seconds(lambda: fit.predict(x))}
    found = {"facets": fit.labels_.shape[1], "outliers": int(fit.outliers_.sum())}
    return {"seconds": seconds} | phases | predicted | found | _scores(folder, fit.labels_)


def few(folder: Path, seed: int) -> dict[str, float]:
    whole = np.load(folder / "x.npy", mmap_mode="r")
    x = whole[: _few_of(len(whole))].copy()
    fit = MultiFacetClustering(random_state=seed)
    return {"seconds": _seconds(lambda: fit.fit(x).predict(x))}


def _few_of(rows: int) -> int:
    return min(FEW, rows // 2)


def told(folder: Path, seed: int) -> dict[str, float]:
    x = np.load(folder / "x.npy")
    found, seconds = [], {}
    for k in CLUSTERS:
        fit = MiniBatchKMeans(k, random_state=seed)
        seconds[f"told {k}, seconds"] = _seconds(lambda fit=fit: fit.fit(x))
        seconds[f"told {k}, predict, seconds"] = _seconds(lambda fit=fit: fit.predict(x))
        found.append(fit.labels_)
    return seconds | _scores(folder, np.stack(found, 1))


def _seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _scores(folder: Path, found: np.ndarray) -> dict[str, float]:
    """Of each labeling with the column that shares most with it."""
    return {
        f"NMI of {k} clusters": max(normalized_mutual_info_score(truth, each) for each in found.T)
        for k, truth in zip(CLUSTERS, np.load(folder / "labels.npy").T, strict=True)
    }


def in_child(work: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """What ``work`` returns in a new process, which has imported this file, and its peak memory."""
    context = multiprocessing.get_context(START)
    context.set_forkserver_preload(
        ["lab.protocols.sources", "facetvae.estimators", "sklearn.cluster"]
    )
    with context.Pool(1) as pool:
        return pool.apply(_measured, (work, arguments))


def _measured(work: Callable[..., dict[str, float]], arguments: Sequence[Any]) -> dict[str, float]:
    found = work(*arguments)
    return found | {"MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / 2**20}


def measure(rows: int, columns: int, seed: int) -> dict[str, dict[str, float]]:
    """Seconds, memory and scores of each method on one table."""
    fits = {"read": read, "few": few, "ours": ours, "told": told}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        in_child(draw, folder, rows, columns, seed)
        least = in_child(nothing, folder, seed)["MiB"]
        size = rows * columns * 4 / 2**20
        found = {}
        for name, work in fits.items():
            scores = in_child(work, folder, seed)
            beyond = scores["MiB"] - least
            found[name] = scores | {"MiB": beyond, "copies": beyond / size - 1}
    more = size * (1 - _few_of(rows) / rows)
    growth = found["ours"]["MiB"] - found["few"]["MiB"]
    found["ours"]["copies that grow"] = growth / more - 1
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 0, 3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    args = parser.parse_args(arguments)
    sizes = {"rows": args.rows, "columns": args.columns}
    seeds = [(seed,) for seed in range(*args.seeds)]

    def train(seed: int) -> dict[str, Any]:
        return {"found": measure(**sizes, seed=seed)}

    print_tables([line["found"] for line in run_all(args.out, seeds, ["seed"], sizes, train)])


if __name__ == "__main__":
    main()
