"""MultiFacetClustering beside methods made for several clusterings of the same data, and beside
two that find one.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.rivals --seeds 10 --out rivals

NR-Kmeans (Mautz et al. 2018), AutoNR (Leiber et al. 2022) and ENRC (Miklautz et al. 2020) are
ClustPy's; GaussianMixture and KMeans are scikit-learn's. What has "told" in its name is given the
number of labelings and of each one's classes; "ours", AutoNR and Lace
(`lab.benchmarks.mixed_tables`) are given nothing. GaussianMixture and KMeans, which find one
clustering, are always told: they get a fit for each number of classes, and the best of these
counts. Residual KMeans is that of `lab.benchmarks.embeddings`. NR-Kmeans, GaussianMixture and
KMeans have ten starts, and NR-Kmeans a noise space; all else is as the methods have it by default.
ENRC is slow and has to be named. For simulated data "Bayes rule" is no method but what the best one
could do: the likeliest clusters given all that the data were drawn with.

Rivals see standardized columns where units differ (wine, breast cancer, iris) and others as they
are, as in ClustPy's examples; MultiFacetClustering always sees the data as they are. A labeling's
score is its normalized mutual information with the facet that it shares most with; two labelings
may share a facet, and the scores with every facet are kept. Labels choose nothing else. Such data
differ from seed to seed; none has four clusters on a circle, the sides of which are two labelings.
"tables" are of 300 to 5,000 rows and 6 to 400 columns (`numbers_found`), and the same without a
tenth of their entries, in whose place rivals see the column's mean.

In the folder of --out, fits.jsonl has a line for each fit, and rivals.json every seed's figures.
Called again, fits that are there are not run again: not those that failed either, unless their
lines are taken out.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count, islice, product
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks.embeddings import residual_kmeans
from lab.benchmarks.mixed_tables import STARTS, by_lace, told
from lab.benchmarks.numbers_found import linear, standardized, table, timed_count
from lab.protocols.datasets import torchvision_datasets
from lab.protocols.sources import Labelings, labelings
from lab.run_lines import described_by, run_all, whole_lines
from lab.summarize import print_table

FOUND = 0.5  # normalized mutual information with a facet that has found a labeling
NAMES = {
    "sklearn": "scikit-learn",
    "lace": "pylace",
}  # of packages, where they are not those of imports


@dataclass(frozen=True)
class Data:
    """A table and what its rows are known to be.

    :ivar x: ``[N, D]``.
    :ivar labels: integers ``[N]`` of each labeling.
    :ivar mixed_units: whether columns have units of their own, which rivals see standardized.
    :ivar likeliest: clusters ``[N, J]`` by the Bayes rule, where data are drawn.
    """

    x: np.ndarray
    labels: Mapping[str, np.ndarray]
    mixed_units: bool = False
    likeliest: np.ndarray | None = None

    @property
    def numbers(self) -> list[int]:
        """Of classes, one of each labeling."""
        return [len(np.unique(each)) for each in self.labels.values()]

    @property
    def for_rivals(self) -> np.ndarray:
        gaps = np.isnan(self.x)
        x = np.where(gaps, np.nanmean(self.x, 0), self.x) if gaps.any() else self.x
        return StandardScaler().fit_transform(x) if self.mixed_units else x


@dataclass(frozen=True)
class Source:
    """Where data come from: ``load(seed)``, and the package that this takes."""

    load: Callable[[int], Data]
    package: str = "sklearn"


@dataclass(frozen=True)
class Method:
    """What finds clusters.

    :ivar fit: gives clusters ``[N]`` or, of several facets, ``[N, J]``, of data and a seed.
    :ivar package: that it takes.
    :ivar only: the data that it is for, if not all.
    :ivar slow: whether it has to be named.
    """

    fit: Callable[[Data, int], np.ndarray]
    package: str = "sklearn"
    only: tuple[str, ...] | None = None
    slow: bool = False


def clustpy(module: str) -> ModuleType:
    # ClustPy imports torchvision, which some installations refuse at first.
    torchvision_datasets()
    # It sets Python's limit of recursion to a billion, with which deep calls end the process.
    limit = sys.getrecursionlimit()
    try:
        return import_module(f"clustpy.{module}")
    finally:
        sys.setrecursionlimit(limit)


def drawn(clusters: Sequence[int], width: int, first_seed: int, seed: int) -> Data:
    found = labelings(1000, clusters, dims=[2] * len(clusters), width=width, seed=first_seed + seed)
    return with_bayes_rule(found, [f"of {k} clusters" for k in clusters])


def of_any_size(first_seed: int, seed: int) -> Data:
    """Tables with two or three labelings, of all sizes that `numbers_found` draws."""
    several = (each for each in count(first_seed) if len(table(each).clusters) > 1)
    found = linear(next(islice(several, seed, None)))
    return with_bayes_rule(found, [f"labeling {j}" for j in range(len(found.labels))])


def of_any_size_with_gaps(first_seed: int, seed: int) -> Data:
    """The same without a tenth of their entries."""
    found = of_any_size(first_seed, seed)
    gone = np.random.default_rng(seed).random(found.x.shape) < 0.1
    return replace(found, x=np.where(gone, np.nan, found.x))


def with_bayes_rule(found: Labelings, names: Sequence[str]) -> Data:
    labels = dict(zip(names, found.labels, strict=True))
    return Data(found.x, labels, likeliest=np.stack(found.likeliest(), 1))


def of_scikit_learn(load: Callable, scale: float, mixed_units: bool, seed: int) -> Data:
    found = load()
    return Data(found.data / scale, {"class": found.target}, mixed_units)


def standardized_digits(seed: int) -> Data:
    found = load_digits()
    return Data(StandardScaler().fit_transform(found.data), {"class": found.target})


def of_clustpy(load: str, names: Sequence[str], seed: int) -> Data:
    found = getattr(clustpy("data"), load)()
    return Data(found.data, dict(zip(names, found.target.T, strict=True)))


# ClustPy has more data sets with several labelings. They are left alone, so that they can judge
# what is chosen in view of these.
DATA = {
    "two drawn": Source(partial(drawn, (3, 5), 10, 1000)),
    "three drawn": Source(partial(drawn, (2, 3, 5), 12, 2000)),
    "tables": Source(partial(of_any_size, 9000)),
    "tables with gaps": Source(partial(of_any_size_with_gaps, 9000)),
    "fruit": Source(partial(of_clustpy, "load_fruit", ("first", "second")), "clustpy"),
    "nrLetters": Source(
        partial(of_clustpy, "load_nrletters", ("letter", "color", "corner")), "clustpy"
    ),
    "digits": Source(partial(of_scikit_learn, load_digits, 16.0, False)),
    "standardized digits": Source(standardized_digits),
    "wine": Source(partial(of_scikit_learn, load_wine, 1.0, True)),
    "breast cancer": Source(partial(of_scikit_learn, load_breast_cancer, 1.0, True)),
    "iris": Source(partial(of_scikit_learn, load_iris, 1.0, True)),
}
DRAWN = ("two drawn", "three drawn", "tables", "tables with gaps")


def ours(data: Data, seed: int) -> np.ndarray:
    return MultiFacetClustering(random_state=seed).fit(data.x).labels_


def start_alone(data: Data, seed: int) -> np.ndarray:
    """Clusters of the linear subspaces that our networks start from, without any network."""
    found, latents, _ = timed_count(standardized(data.x))
    if not found.number:
        return np.zeros(len(data.x), int)
    parts = zip(found.facets, latents, found.numbers, strict=True)
    return np.stack([facet.tree.labels(z, number) for facet, z, number in parts], 1)


def ours_told(data: Data, seed: int) -> np.ndarray:
    numbers = data.numbers
    found = MultiFacetClustering(len(numbers), n_clusters=numbers, random_state=seed)
    return found.fit(data.x).labels_


def nr_kmeans(data: Data, seed: int) -> np.ndarray:
    # A space of a single cluster takes what belongs to no labeling.
    found = clustpy("alternative").NrKmeans([*data.numbers, 1], n_init=STARTS, random_state=seed)
    return found.fit(data.for_rivals).labels_


def auto_nr(data: Data, seed: int) -> np.ndarray:
    return clustpy("alternative").AutoNR(random_state=seed).fit(data.for_rivals).labels_


def enrc(data: Data, seed: int) -> np.ndarray:
    x = data.for_rivals
    x = (x - x.mean()) / x.std()  # as in ClustPy's examples: its network wants values around 1
    return clustpy("deep").ENRC(data.numbers, device="cpu", random_state=seed).fit(x).labels_


def residual(data: Data, seed: int) -> np.ndarray:
    return residual_kmeans(data.for_rivals, data.numbers, seed)


def one_clustering(kind: type, data: Data, seed: int) -> np.ndarray:
    return told(kind, data.for_rivals, dict.fromkeys(data.numbers), seed)


def lace(data: Data, seed: int) -> np.ndarray:
    import pandas as pd

    frame = pd.DataFrame(data.for_rivals).rename(columns="column {}".format)
    return by_lace(frame, [], seed)


def bayes_rule(data: Data, seed: int) -> np.ndarray:
    assert data.likeliest is not None, "only simulated data have it"
    return data.likeliest


METHODS = {
    "ours": Method(ours),
    "ours, told": Method(ours_told),
    "start alone": Method(start_alone),
    "NR-Kmeans, told": Method(nr_kmeans, "clustpy"),
    "residual KMeans, told": Method(residual),
    "AutoNR": Method(auto_nr, "clustpy"),
    # It refuses a single labeling.
    "ENRC, told": Method(enrc, "clustpy", only=(*DRAWN, "fruit", "nrLetters"), slow=True),
    "Lace": Method(lace, "lace"),
    "GaussianMixture": Method(partial(one_clustering, GaussianMixture)),
    "KMeans": Method(partial(one_clustering, KMeans)),
    "Bayes rule": Method(bayes_rule, only=DRAWN),
}


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """:raises TimeoutError: once the time is over; not within a call of compiled code."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure(method: Method, data: Data, seed: int, limit: float) -> dict[str, Any]:
    """One fit: its seconds, each facet's number of clusters, and each labeling's normalized mutual
    information with each facet; or how it failed.

    :param limit: in seconds, for the fit.
    """
    started = time.perf_counter()
    try:
        with at_most(limit):
            found = method.fit(data, seed)
    except Exception as error:  # a rival that fails is a result, and the others go on
        return {"failed": f"{type(error).__name__}: {error}"}
    seconds = time.perf_counter() - started
    facets = np.reshape(found, (len(data.x), -1)).T
    return {
        "seconds": seconds,
        "clusters": [len(np.unique(facet)) for facet in facets],
        "classes": data.numbers,
        "nmi": {
            name: [normalized_mutual_info_score(label, facet) for facet in facets]
            for name, label in data.labels.items()
        },
    }


def figures(fit: Mapping[str, Any]) -> dict[str, float]:
    """What is shown of a fit."""
    best = {name: max(each) for name, each in fit["nmi"].items()}
    found = [
        abs(fit["clusters"][int(np.argmax(each))] - classes) <= 1
        for each, classes in zip(fit["nmi"].values(), fit["classes"], strict=True)
        if max(each) >= FOUND
    ]
    several = sum(k > 1 for k in fit["clusters"])
    return {
        **best,
        "mean of the labelings": float(np.mean([*best.values()])),
        "facets of two clusters or more": several,
        "as many facets as labelings": float(several == len(best)),
        "labelings found": float(len(found)),
        "of these, clusters within one": float(sum(found)),
        "seconds": fit["seconds"],
    }


def run(
    methods: Mapping[str, Method],
    sources: Mapping[str, Source],
    seeds: Sequence[int],
    limit: float,
    path: Path,
) -> None:
    """Every fit of every seed; printed as soon as a method is through.

    :param limit: of each fit, in seconds.
    :param path: of the fits that are there and of those that are added.
    """

    def fit(data: str, method: str, seed: int) -> dict[str, Any]:
        return measure(methods[method], sources[data].load(seed), seed, limit)

    for source, name in product(sources, methods):
        if methods[name].only is None or source in methods[name].only:
            runs = [(source, name, seed) for seed in seeds]
            show(f"{source}: {name}", run_all(path, runs, ("data", "method", "seed"), {}, fit))


def show(heading: str, fits: Sequence[Mapping[str, Any]]) -> None:
    """Mean, sample deviation, worst and best over the seeds."""
    print(f"\n{heading}", flush=True)
    if done := common([figures(fit) for fit in fits if "failed" not in fit]):
        print_table(done)
    for fit in fits:
        if "failed" in fit:
            print(f"  seed {fit['seed']} failed: {fit['failed']}", flush=True)


def common(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Rows with the figures that all have: some tables have three labelings, others two."""
    return [{name: row[name] for name in row if all(name in r for r in rows)} for row in rows]


def by_seed(fits: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By data and method, each figure of the fits that did not fail, a list over their seeds."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    ordered = sorted(fits, key=lambda fit: fit["seed"])
    for data, method in dict.fromkeys((fit["data"], fit["method"]) for fit in ordered):
        own = [fit for fit in ordered if (fit["data"], fit["method"]) == (data, method)]
        done = [fit for fit in own if "failed" not in fit]
        lists: dict[str, Any] = {"seeds": [fit["seed"] for fit in done]}
        rows = common([figures(fit) for fit in done])
        lists |= {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        lists["failed"] = {str(fit["seed"]): fit["failed"] for fit in own if "failed" in fit}
        found.setdefault(data, {})[method] = lists
    return found


def ahead(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """In how many data sets, of those that both fitted, "ours" scores at least as high as others,
    and how often within a hundredth; and the Bayes rule likewise, which bounds the first.
    """
    score = "mean of the labelings"
    for data, methods in found.items():
        each = {
            name: dict(zip(m["seeds"], m.get(score, ()), strict=True))
            for name, m in methods.items()
        }
        for one, other in product(("ours", "Bayes rule"), each):
            own, theirs = each.get(one, {}), each[other]
            gain = np.array([own[seed] - theirs[seed] for seed in own.keys() & theirs.keys()])
            if one != other and len(gain):
                yield (
                    f"{data}: {one} at least as high as {other} in {(gain >= 0).sum()} of "
                    f"{len(gain)}, within 0.01 or higher in {(gain >= -0.01).sum()}"
                )


Part = TypeVar("Part", Source, Method)


def installed(parts: Mapping[str, Part], names: Sequence[str]) -> dict[str, Part]:
    """Those whose packages there are; of the others it says so."""
    kept = {name: parts[name] for name in names if find_spec(parts[name].package)}
    for name in names:
        if name not in kept:
            print(f"{name} is left out: {parts[name].package} is not installed, which the extra "
                  "`benchmarks` brings")  # fmt: skip
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    parser = described_by(__doc__)
    usual = [name for name, method in METHODS.items() if not method.slow]
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=usual)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--seeds", type=int, default=10, help="how many, counted from 0")
    parser.add_argument(
        "--limit", type=float, default=3600, help="seconds after which a fit is given up"
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    args = parser.parse_args(arguments)
    if args.seeds < 1 or args.limit <= 0:
        parser.error("--seeds must be 1 or more and --limit above 0")
    torch.set_num_threads(1)
    methods, sources = installed(METHODS, args.methods), installed(DATA, args.data)
    if "clustpy" in {part.package for part in (*methods.values(), *sources.values())}:
        for module in ("alternative", "data", "deep"):
            clustpy(module)  # it takes many seconds, which are no fit's
    path = args.out / "fits.jsonl"
    run(methods, sources, range(args.seeds), args.limit, path)
    # Of earlier calls as well, such as those of a slow method with fewer seeds.
    found = by_seed([*whole_lines(path.read_text())])
    packages = {part.package for part in (*METHODS.values(), *DATA.values())}
    about = {name: version(NAMES.get(name, name)) for name in packages if find_spec(name)}
    print("", *ahead(found), sep="\n")
    content = json.dumps({"about": about, **found}, indent=1)
    (args.out / "rivals.json").write_text(content + "\n")


if __name__ == "__main__":
    main()
