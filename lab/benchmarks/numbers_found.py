"""How many facets and clusters are found in tables of real numbers, from linear subspaces alone.

    python -m lab.benchmarks.numbers_found --seeds 5000 5200
    python -m lab.benchmarks.numbers_found --seeds 5000 5100 --shape --none

Tables are simulated by `lab.protocols.sources.labelings`: 300 to 5,000 rows, 6 to 400 columns, one
to three labelings of two to six clusters in one to three coordinates, whose neighbors are 4 or 6
deviations apart, with equal scales or scales of 1 and 3. Four clusters on a circle are left out:
the sides of a square are two labelings. `--shape curved` mixes by a network with leaky ReLU,
`--shape heavy` draws clusters from Student's t with 4 degrees of freedom. Tables without clusters
are normal, uniform or heavy-tailed, the columns drawn apart or mixed. Labels choose nothing; told K
means the labeling's own number for the same facet. Seeds below 4000 were seen when thresholds
were chosen.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score as nmi
from sklearn.mixture import GaussianMixture

from facetvae.estimators.facets import number_of_facets
from facetvae.table_rules.counting import FacetCount
from lab.protocols.sources import Labelings, labelings
from lab.run_lines import described_by


@dataclass(frozen=True)
class Table:
    """What a table is drawn with."""

    rows: int
    clusters: list[int]
    dims: list[int]
    width: int
    separation: float
    scales: list[float]

    def draw(self, seed: int, num_layers: int = 1) -> Labelings:
        return labelings(
            self.rows,
            self.clusters,
            self.dims,
            self.width,
            self.separation,
            self.scales,
            num_layers,
            seed=seed,
        )


def _between(rng: np.random.Generator, low: float, high: float) -> int:
    """A number whose logarithm is uniform."""
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


def table(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    J = int(rng.integers(1, 4))
    dims = [int(d) for d in rng.integers(1, 4, J)]
    clusters = [int(rng.choice([2, 3, 4, 5, 6] if d == 1 else [2, 3, 5, 6])) for d in dims]
    rows, width = _between(rng, 300, 5000), max(sum(dims), _between(rng, 6, 400))
    separation = float(rng.choice([6.0, 6.0, 4.0]))
    equal = rng.random() < 0.5
    scales = [1.0] * J if equal else [float(s) for s in rng.choice([1.0, 3.0], J)]
    return Table(rows, clusters, dims, width, separation, scales)


def linear(seed: int) -> Labelings:
    return table(seed).draw(seed)


def curved(seed: int) -> Labelings:
    return table(seed).draw(seed, num_layers=2)


def heavy(seed: int) -> Labelings:
    """The same centers and mixing, with Student's t around them."""
    spec, rng = table(seed), np.random.default_rng([seed, 3])
    drawn, own = spec.draw(seed), []
    for centers, label, scale in zip(drawn.centers, drawn.labels, spec.scales, strict=True):
        shape = (spec.rows, centers.shape[1])
        stretch = np.sqrt(rng.chisquare(4, (spec.rows, 1)) / 4)
        own.append(scale * (centers[label] + rng.normal(size=shape) / stretch))
    sources = np.concatenate([*own, np.zeros((spec.rows, spec.width - sum(spec.dims)))], 1)
    x = drawn.mixing(sources) + 0.3 * rng.normal(size=sources.shape)
    return replace(drawn, x=x, sources=sources)


SHAPES: dict[str, Callable[[int], Labelings]] = {"linear": linear, "curved": curved, "heavy": heavy}


NONE: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
    "uniform": lambda rng, n, d: rng.uniform(size=(n, d)),
    "t": lambda rng, n, d: rng.standard_t(4, (n, d)),
    "normal, mixed": lambda rng, n, d: rng.normal(size=(n, d)) @ rng.normal(size=(d, d)),
    "uniform, mixed": lambda rng, n, d: rng.uniform(size=(n, d)) @ rng.normal(size=(d, d)),
    "t, mixed": lambda rng, n, d: rng.standard_t(4, (n, d)) @ rng.normal(size=(d, d)),
    "multivariate t, mixed": lambda rng, n, d: (
        (rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(4, (n, 1)) / 4)) @ rng.normal(size=(d, d))
    ),
}


def without_clusters(kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 7])
    return NONE[kind](rng, _between(rng, 300, 5000), int(rng.integers(3, 30)))


def standardized(x: np.ndarray) -> np.ndarray:
    scale = x.std(0)
    return (x - x.mean(0)) / np.where(scale > 0, scale, 1)


def clusters(z: np.ndarray, k: int) -> np.ndarray:
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return GaussianMixture(k, n_init=5, random_state=0).fit_predict(z)


def timed_count(x: np.ndarray) -> tuple[FacetCount, list[np.ndarray], float]:
    """The facets, their latents, and the seconds."""
    started = time.perf_counter()
    found = number_of_facets(x)
    seconds = time.perf_counter() - started
    if not found.number:
        return found, [], seconds
    sources = found.subspaces.sources(x)
    return found, np.split(sources, np.cumsum(found.subspaces.dims)[:-1], 1), seconds


def measure(shape: str, seed: int) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Of one table, and of each of its labelings."""
    drawn = SHAPES[shape](seed)
    x = standardized(drawn.x)
    found, latents, seconds = timed_count(x)
    own = [clusters(z, each.tree.modes) for z, each in zip(latents, found.facets, strict=True)]
    rows = []
    for label in drawn.labels:
        K = int(label.max()) + 1
        told = [nmi(label, clusters(z, K)) for z in latents]
        if not told:
            rows.append({"found": 0.0, "NMI": 0.0, "NMI told K": 0.0})
            continue
        j = int(np.argmax(told))
        modes = found.facets[j].tree.modes
        row = {"found": float(told[j] >= 0.5), "NMI": max(nmi(label, each) for each in own)}
        row["NMI told K"] = told[j]
        if row["found"]:
            row |= {"K exact": float(modes == K), "K within 1": float(abs(modes - K) <= 1)}
        rows.append(row)
    J = len(drawn.labels)
    return {
        "J right": float(found.number == J),
        "J too few": float(found.number < J),
        "J too many": float(found.number > J),
        "seconds": seconds,
    }, rows


def report_drawn(shape: str, seeds: range) -> None:
    tables, facets = [], []
    for seed in seeds:
        one, each = measure(shape, seed)
        tables.append(one)
        facets += each
    print(f"\n{shape}: {len(tables)} tables, {len(facets)} labelings", flush=True)
    for rows in (tables, facets):
        for name in dict.fromkeys(key for row in rows for key in row):
            values = [row[name] for row in rows if name in row]
            print(f"  {name}: {np.mean(values):.3f} (lowest {min(values):.3f})")
    whole = sum(row["NMI"] for row in facets) / sum(row["NMI told K"] for row in facets)
    print(f"  NMI / NMI told K: {whole:.3f}", flush=True)


def report_none(seeds: range) -> None:
    for kind in NONE:
        counts, seconds = [], []
        for seed in seeds:
            found, _, took = timed_count(standardized(without_clusters(kind, seed)))
            counts.append(found.number)
            seconds.append(took)
        wrong = np.mean(np.array(counts) > 0)
        print(
            f"{kind}: claimed in {wrong:.3f} of {len(counts)}, {np.mean(seconds):.2f} s", flush=True
        )


def main() -> None:
    parser = described_by(__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FIRST", "END"))
    parser.add_argument("--shape", nargs="*", choices=SHAPES, default=["linear"])
    parser.add_argument("--none", action="store_true", help="tables without clusters")
    args = parser.parse_args()
    seeds = range(*args.seeds)
    for shape in args.shape:
        report_drawn(shape, seeds)
    if args.none:
        report_none(seeds)


if __name__ == "__main__":
    main()
