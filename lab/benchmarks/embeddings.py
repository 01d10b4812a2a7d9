r"""Two labelings in embeddings: rows of length one, as encoders of texts and images give them.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.embeddings --seeds 100 110 \
        --out runs/embeddings.jsonl
    OMP_NUM_THREADS=1 python -m lab.benchmarks.embeddings --texts runs/events.npz --seeds 0 10 \
        --out runs/events.jsonl

Simulated ones (`lab.protocols.embeddings`) have 1,000 to 4,000 rows and two labelings of three to
eight clusters. Of real texts (`lab.benchmarks.embed_texts`) each seed has a sample of its own:
2,000 rows, or four fifths of fewer than 2,500.

"ours" is MultiFacetClustering, given nothing; "ours, told" given the numbers of clusters. The
others are told these as well: "residual KMeans" (k-means, the directions of its centers projected
out, k-means again) and NrKmeans (Mautz et al., 2020; of ClustPy, with a noise space, on 30
principal components) both together; KMeans, scikit-learn's GaussianMixture in 50 principal
components and clusters of neighbors (`inference.neighbor_clusters`; between rows of length one the
Euclidean order is that of cosines) each labeling's in turn. A labeling's score is its normalized
mutual information with the facet that it shares most with.

One line of JSON for each level, seed and method; those that the file has are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from facetvae.estimators import MultiFacetClustering
from inference import neighbor_clusters
from lab.benchmarks.mixed_tables import STARTS, told
from lab.protocols.embeddings import DrawnEmbeddings, drawn_embeddings
from lab.run_lines import parser_of, run_all
from lab.summarize import print_table

# Fewest and most rows that are drawn, and clusters of a labeling.
ROWS, CLUSTERS = (1000, 4000), (3, 8)
# Texts of a sample, at most, and their share of all.
TEXTS, SHARE = 2000, 0.8
# Components that some rivals are given.
COMPONENTS, FEW_COMPONENTS = 50, 30


def _drawn(seed: int, rows: int | None) -> DrawnEmbeddings:
    """As CLIP's are."""
    rng = np.random.default_rng([seed, 11])
    n = round(float(np.exp(rng.uniform(*np.log(ROWS))))) if rows is None else rows
    clusters = rng.integers(CLUSTERS[0], CLUSTERS[1] + 1, 2).tolist()
    return drawn_embeddings(n, clusters, (0.2, 0.06), width=512, common=0.5, decay=1.2, seed=seed)


def _of_file(path: Path) -> Callable[[int, int | None], DrawnEmbeddings]:
    def read(seed: int, rows: int | None) -> DrawnEmbeddings:
        with np.load(path) as stored:
            x, labels = stored["x"], stored["labels"]
        most = min(rows or TEXTS, round(SHARE * len(x)))
        some = np.random.default_rng(seed).permutation(len(x))[:most]
        return DrawnEmbeddings(x[some], list(labels[some].T))

    return read


def _ours(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    return MultiFacetClustering(random_state=seed).fit(x).labels_


def _ours_told(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    how = {"n_clusters": list(numbers), "random_state": seed}
    return MultiFacetClustering(len(numbers), **how).fit(x).labels_


def residual_kmeans(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    left, found = x - x.mean(0), []
    for k in numbers:
        fit = KMeans(k, n_init=STARTS, random_state=seed).fit(left)
        found.append(fit.labels_)
        spanned = np.linalg.svd(fit.cluster_centers_, full_matrices=False)[2][: k - 1]
        left = left - left @ spanned.T @ spanned
    return np.stack(found, 1)


def _nr_kmeans(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    fit = import_module("clustpy.alternative").NrKmeans([*numbers, 1], random_state=seed)
    return fit.fit(PCA(FEW_COMPONENTS).fit_transform(x).astype(float)).labels_[:, : len(numbers)]


def _mixture(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    components = PCA(min(COMPONENTS, *x.shape), random_state=seed).fit_transform(x).astype(float)
    return told(GaussianMixture, components, numbers, seed)


def _neighbors(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    return np.stack([neighbor_clusters(x, K, seed=seed) for K in numbers], 1)


METHODS: dict[str, Callable[[np.ndarray, Sequence[int], int], np.ndarray]] = {
    "ours": _ours,
    "ours, told": _ours_told,
    "residual KMeans": residual_kmeans,
    "NrKmeans": _nr_kmeans,
    "KMeans": partial(told, KMeans),
    "GaussianMixture of 50 components": _mixture,
    "clusters of neighbors": _neighbors,
}


def measure(drawn: DrawnEmbeddings, method: str, seed: int) -> dict[str, Any]:
    """Scores of one method with both labelings, and its seconds."""
    numbers = [len(np.unique(label)) for label in drawn.labels]
    started, busy = time.perf_counter(), time.process_time()
    found = METHODS[method](drawn.x, numbers, seed)
    took = {"seconds": time.perf_counter() - started, "of one core": time.process_time() - busy}
    scores = {
        name: max(normalized_mutual_info_score(label, column) for column in found.T)
        for name, label in zip(("strong", "weak"), drawn.labels, strict=True)
    }
    given = {"rows": len(drawn.x), "true": numbers}
    number = [len(np.unique(column)) for column in found.T]
    return given | {"scores": scores | took | {"facets": found.shape[1]}, "clusters": number}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 100, 110)
    parser.add_argument("--texts", type=Path, help="a file of lab.benchmarks.embed_texts instead")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rows", type=int, help="how many; by default drawn for each seed")
    args = parser.parse_args(arguments)
    level, draw = (args.texts.stem, _of_file(args.texts)) if args.texts else ("CLIP", _drawn)
    runs = [(level, seed, how) for seed in range(*args.seeds) for how in args.methods]
    settings = {"rows given": args.rows}
    names = ("level", "seed", "method")

    def take(level: str, seed: int, method: str) -> dict[str, Any]:
        return measure(draw(seed, args.rows), method, seed)

    lines = run_all(args.out, runs, names, settings, take)
    for method in args.methods:
        own = {"level": level, "method": method}.items()
        print(f"{level}, {method}")
        print_table([line["scores"] for line in lines if own <= line.items()])


if __name__ == "__main__":
    main()
