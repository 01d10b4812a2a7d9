"""MultiFacetClustering as it comes, on small tables, beside scikit-learn's GaussianMixture and
KMeans.

    python -m benchmarks.estimator_defaults --seeds 10

Those two are told the number of classes and see standardised columns; MultiFacetClustering is told
nothing. Scores are normalised mutual information with each labelling; labels choose nothing. Drawn
data differ from seed to seed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import normalized_mutual_info_score as nmi
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from benchmarks.summarize import print_table
from examples.sources import labellings
from inference.estimators import MultiFacetClustering


def bundled(load: Callable) -> Callable[[int], tuple[np.ndarray, dict[str, np.ndarray]]]:
    data = load()
    return lambda seed: (data.data, {"class": data.target})


def drawn(seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    data = labellings(1000, seed=1000 + seed)
    return data.x, {f"labelling {j}": label for j, label in enumerate(data.labels)}


DATA = {
    "wine": bundled(load_wine),
    "breast cancer": bundled(load_breast_cancer),
    "iris": bundled(load_iris),
    "drawn": drawn,
}


def measure(x: np.ndarray, labels: dict[str, np.ndarray], seed: int) -> dict[str, float]:
    started = time.perf_counter()
    found = MultiFacetClustering(random_state=seed).fit(x)
    row = {"seconds": time.perf_counter() - started}
    last = found.runner_.history[-1]
    standard = StandardScaler().fit_transform(x)
    for j, name in enumerate(found.facet_names_):
        row[f"clusters of {name}"] = len(found.clusters_[j])
        row[f"information of {name}"] = last[f"mutual_information_{name}"]
    for name, label in labels.items():
        for j, facet in enumerate(found.facet_names_):
            row[f"{name}: {facet}"] = nmi(label, found.labels_[:, j])
        k = len(np.unique(label))
        mixture = GaussianMixture(k, n_init=10, random_state=seed).fit_predict(standard)
        row[f"{name}: GaussianMixture({k})"] = nmi(label, mixture)
        row[f"{name}: KMeans({k})"] = nmi(
            label, KMeans(k, n_init=10, random_state=seed).fit_predict(standard)
        )
    if len(labels) > 1:  # which facet has found which is not known beforehand
        a, b = ([row[f"{name}: {facet}"] for facet in found.facet_names_] for name in labels)
        straight = a[0] + b[1] >= a[1] + b[0]
        row["labelling 0: its own facet"], row["labelling 1: its own facet"] = (
            (a[0], b[1]) if straight else (a[1], b[0])
        )
        row["labelling 0: the other"], row["labelling 1: the other"] = (
            (a[1], b[0]) if straight else (a[0], b[1])
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many, counted from 0")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    args = parser.parse_args()
    for name in args.data:
        rows = [measure(*DATA[name](seed), seed) for seed in range(args.seeds)]
        print(f"\n{name}", flush=True)
        print_table(rows)


if __name__ == "__main__":
    main()
