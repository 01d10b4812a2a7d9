r"""Two labelings in embeddings: rows of length one, as encoders of texts and images give them.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.embeddings --seeds 100 110 \
        --out runs/embeddings.jsonl
    OMP_NUM_THREADS=1 python -m lab.benchmarks.embeddings --levels docstrings --seeds 100 103 \
        --out runs/docstrings.jsonl

Simulated ones (`lab.protocols.embeddings`) have 1,000 to 4,000 rows and two labelings of three to
eight clusters; "docstrings" are of real texts: docstrings of classes and functions of three
packages, as latent semantic analysis embeds them (tf-idf, truncated SVD), with two labelings,
the package and whether it is a class.

"ours" is MultiFacetClustering, given nothing; "ours, as a table" the same for rows of length two,
which are no embeddings: columns standardized one by one. The others are told the number of clusters
of each labeling in turn: scikit-learn's KMeans and GaussianMixture (in 50 principal components),
spherical k-means, and clusters of neighbors (`inference.neighbor_clusters`; between rows of length
one the Euclidean order is that of cosines). A labeling's score is its normalized mutual
information with the facet that it shares most with.

One line of JSON for each level, seed and method; those that the file has are left out.
"""

from __future__ import annotations

import argparse
import ast
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from facetvae.estimators import MultiFacetClustering
from inference import neighbor_clusters
from lab.protocols.embeddings import DrawnEmbeddings, drawn_embeddings
from lab.run_lines import run_all
from lab.summarize import print_table

__all__ = ["LEVELS", "METHODS", "docstrings", "measure"]

# Fewest and most rows that are drawn, and clusters of a labeling.
ROWS, CLUSTERS = (1000, 4000), (3, 8)
# How often a method is started that finds local optima, and steps of spherical k-means.
STARTS, STEPS = 10, 100
# Components that some rivals are given.
COMPONENTS = 50
# What texts are taken from: packages that the library needs, kinds, words, texts of each.
PACKAGES = ("scipy", "sklearn", "torch")
KINDS = (ast.ClassDef, ast.FunctionDef)
FEWEST_WORDS, TEXTS, WIDTH = 15, 300, 384


def _drawn(**how: Any) -> Callable[[int, int | None], DrawnEmbeddings]:
    def draw(seed: int, rows: int | None) -> DrawnEmbeddings:
        rng = np.random.default_rng([seed, 11])
        n = round(float(np.exp(rng.uniform(*np.log(ROWS))))) if rows is None else rows
        clusters = rng.integers(CLUSTERS[0], CLUSTERS[1] + 1, 2).tolist()
        return drawn_embeddings(n, clusters, seed=seed, **how)

    return draw


def docstrings(seed: int, rows: int | None = None) -> DrawnEmbeddings:
    """Embeddings of docstrings, as many classes as functions of each package, and their package and
    kind.
    """
    rng, each = np.random.default_rng(seed), TEXTS if rows is None else rows // 6
    texts, labels = [], []
    for i, package in enumerate(PACKAGES):
        found = _texts(package)
        for j, kind in enumerate(KINDS):
            own = sorted(text for text, node in found.items() if node is kind)
            some = rng.permutation(len(own))[:each]
            texts += [own[place] for place in some]
            labels += [(i, j)] * len(some)
    words = TfidfVectorizer(min_df=3, max_df=0.5, sublinear_tf=True).fit_transform(texts)
    width = min(WIDTH, len(texts) - 1, words.shape[1])
    x = TruncatedSVD(width, random_state=seed).fit_transform(words)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    order = rng.permutation(len(x))
    return DrawnEmbeddings(x[order].astype(np.float32), list(np.array(labels)[order].T))


@cache
def _texts(package: str) -> dict[str, type]:
    return dict(_documented(package))


def _documented(package: str) -> Iterator[tuple[str, type]]:
    """Docstrings of a package's classes and functions, with their kind."""
    folder = Path(str(find_spec(package).origin)).parent
    for path in sorted(folder.rglob("*.py")):
        if "tests" in path.parts:
            continue
        try:
            nodes = ast.parse(path.read_bytes()).body
        except SyntaxError:  # of a later Python
            continue
        for node in nodes:
            text = ast.get_docstring(node) if isinstance(node, KINDS) else None
            if text and len(text.split()) >= FEWEST_WORDS:
                yield text, type(node)


LEVELS: dict[str, Callable[[int, int | None], DrawnEmbeddings]] = {
    "sentences": _drawn(shares=(0.2, 0.06)),
    "CLIP": _drawn(shares=(0.2, 0.06), width=512, common=0.5, decay=1.2),
    "faint": _drawn(shares=(0.1, 0.03)),
    "docstrings": docstrings,
}
DRAWN = ("sentences", "CLIP", "faint")


def _ours(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    return MultiFacetClustering(random_state=seed).fit(x).labels_


def _as_table(x: np.ndarray, numbers: Sequence[int], seed: int) -> np.ndarray:
    return _ours(2 * x, numbers, seed)


def _told(fit: Callable[[np.ndarray, int, int], np.ndarray]) -> Callable[..., np.ndarray]:
    """A fit for each number of clusters, side by side."""
    return lambda x, numbers, seed: np.stack([fit(x, K, seed) for K in numbers], 1)


def _kmeans(x: np.ndarray, K: int, seed: int) -> np.ndarray:
    return KMeans(K, n_init=STARTS, random_state=seed).fit_predict(x)


def _kmeans_of_components(x: np.ndarray, K: int, seed: int) -> np.ndarray:
    return _kmeans(_components(x, seed), K, seed)


def _mixture(x: np.ndarray, K: int, seed: int) -> np.ndarray:
    mixture = GaussianMixture(K, n_init=STARTS, random_state=seed)
    return mixture.fit_predict(_components(x, seed))


def _components(x: np.ndarray, seed: int) -> np.ndarray:
    return PCA(min(COMPONENTS, *x.shape), random_state=seed).fit_transform(x).astype(float)


def _neighbors(x: np.ndarray, K: int, seed: int) -> np.ndarray:
    return neighbor_clusters(x, K, seed=seed)


def _spherical(x: np.ndarray, K: int, seed: int) -> np.ndarray:
    """Spherical k-means (Dhillon and Modha, 2001): the largest sum of cosines to the directions of
    cluster means.
    """
    rng = np.random.default_rng(seed)
    fits = [_spherical_once(x, x[rng.choice(len(x), K, replace=False)]) for _ in range(STARTS)]
    return max(fits, key=lambda fit: fit[0])[1]


def _spherical_once(x: np.ndarray, directions: np.ndarray) -> tuple[float, np.ndarray]:
    label = np.zeros(0)
    for _ in range(STEPS):
        cosines = x @ directions.T
        former, label = label, cosines.argmax(1)
        if np.array_equal(former, label):
            break
        sums = np.eye(len(directions))[label].T @ x
        directions = sums / np.linalg.norm(sums, axis=1, keepdims=True).clip(1e-12)
    return float(cosines.max(1).sum()), label


METHODS: dict[str, Callable[[np.ndarray, Sequence[int], int], np.ndarray]] = {
    "ours": _ours,
    "KMeans": _told(_kmeans),
    "KMeans of 50 components": _told(_kmeans_of_components),
    "spherical k-means": _told(_spherical),
    "GaussianMixture of 50 components": _told(_mixture),
    "clusters of neighbors": _told(_neighbors),
    "ours, as a table": _as_table,
}


def measure(level: str, seed: int, method: str, rows: int | None = None) -> dict[str, Any]:
    """Scores of one method with both labelings, and its seconds."""
    drawn = LEVELS[level](seed, rows)
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=DRAWN)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rows", type=int, help="how many; by default drawn for each seed")
    parser.add_argument(
        "--seeds", nargs=2, type=int, default=[100, 110], help="the first, and one after the last"
    )
    parser.add_argument("--out", type=Path, required=True, help="a file of lines of JSON")
    args = parser.parse_args(arguments)
    seeds = range(*args.seeds)
    runs = [(one, seed, how) for seed in seeds for one in args.levels for how in args.methods]
    settings = {"rows given": args.rows}
    names = ("level", "seed", "method")
    lines = run_all(args.out, runs, names, settings, lambda **run: measure(**run, rows=args.rows))
    for level in args.levels:
        for method in args.methods:
            own = {"level": level, "method": method}.items()
            print(f"{level}, {method}")
            print_table([line["scores"] for line in lines if own <= line.items()])


if __name__ == "__main__":
    main()
