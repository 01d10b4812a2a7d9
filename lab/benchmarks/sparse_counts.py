"""Rows of counts with two labelings, beside other methods.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.sparse_counts --seeds 10 20 --out runs/counts.jsonl

Two independent labelings, of four and of three clusters, each change the rates of columns of its
own among a thousand; totals vary by a log-normal. Drawn from the model ("multinomial": counts given
their total), and from a misfit ("misfit": probabilities vary by a Dirichlet distribution, a fifth
of the entries is lost, and three batches have rates of their own).

MultiFacetClustering, given the sparse matrix, and for the misfit with the batches and without,
beside scikit-learn's KMeans on log(1 + counts at a common total) and on 50 principal directions of
it. These are told the number of clusters of each labeling in turn. A labeling's score is its
normalized mutual information with the facet that shares most with it. "known" is that of the
multinomial probabilities that were drawn from.

One line of JSON a drawn matrix; those that the file has are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks.mixed_tables import scores_of, told
from lab.run_lines import parser_of, run_all
from lab.summarize import print_tables
from ppl_models import DirichletMultinomial

# Clusters of the two labelings; the share of the columns that each changes; the deviation of the
# changes of their log-rates, and that of the columns' own log-rates.
CLUSTERS, SHARE, CHANGE, RATES = (4, 3), 0.3, 1.0, 1.0
# Median of the totals, and the deviation of their logarithm.
TOTAL, SPREAD = 75.0, 0.4
# Of the misfit: sum of the Dirichlet's parameters, share of entries that are lost, number of
# batches and the deviation of their log-rates.
CONCENTRATION, LOST, BATCHES, SHIFT = 300.0, 0.2, 3, 0.5


@dataclass(frozen=True)
class DrawnCounts:
    """Drawn rows.

    :ivar x: counts, a sparse matrix ``[N, D]``.
    :ivar labels: by name, ``"first"`` and ``"second"``: ``[N]``.
    :ivar known: the most probable labels given the probabilities that were drawn from.
    :ivar batch: of each row ``[N]``; all 0 where there is one.
    """

    x: csr_array
    labels: Mapping[str, np.ndarray]
    known: Mapping[str, np.ndarray]
    batch: np.ndarray


def drawn_counts(
    rows: int = 2000, columns: int = 1000, seed: int = 0, misfit: bool = False
) -> DrawnCounts:
    """Draw rows of counts with two labelings."""
    rng = np.random.default_rng(seed)
    labels = [rng.integers(k, size=rows) for k in CLUSTERS]
    batch = rng.integers(BATCHES, size=rows) if misfit else np.zeros(rows, int)
    shifts = SHIFT * rng.normal(size=(BATCHES, columns)) * misfit
    own = RATES * rng.normal(size=columns) + shifts[:, None, None]
    first, second = (_changes(rng, k, columns) for k in CLUSTERS)
    logits = own + first[:, None] + second
    log_p = logits - logsumexp(logits, axis=-1, keepdims=True)
    totals = np.maximum(1, rng.lognormal(np.log(TOTAL), SPREAD, rows)).astype(int)
    p = np.exp(log_p[batch, labels[0], labels[1]])
    if misfit:
        p = rng.gamma(CONCENTRATION * p) + 1e-30
        p /= p.sum(1, keepdims=True)
    x = rng.multinomial(totals, p)
    if misfit:
        x = x * (rng.random(x.shape) > LOST)
    x = csr_array(x.astype(np.float32))
    names = ("first", "second")
    known = _known(x, log_p, batch)
    return DrawnCounts(x, dict(zip(names, labels, strict=True)), known, batch)


def _changes(rng: np.random.Generator, clusters: int, columns: int) -> np.ndarray:
    """Of the log-rates in each cluster ``[K, D]``."""
    changed = rng.random(columns) < SHARE
    return CHANGE * rng.normal(size=(clusters, columns)) * changed


def _known(x: csr_array, log_p: np.ndarray, batch: np.ndarray) -> dict[str, np.ndarray]:
    """The most probable clusters of each labeling, the other one summed out."""
    joint = np.stack([x @ each.reshape(-1, x.shape[1]).T for each in log_p])
    joint = joint[batch, np.arange(x.shape[0])].reshape(-1, *CLUSTERS)
    return {"first": logsumexp(joint, 2).argmax(1), "second": logsumexp(joint, 1).argmax(1)}


def measure(rows: int, columns: int, kind: str, seed: int) -> dict[str, dict[str, float]]:
    """Scores of each method with each labeling, and seconds."""
    drawn = drawn_counts(rows, columns, seed, misfit=kind == "misfit")
    return scores_of(_methods(drawn, seed), drawn.labels)


def _methods(drawn: DrawnCounts, seed: int) -> dict[str, Callable[[], np.ndarray]]:
    """Labels ``[N, J]`` of each."""
    x, logs = drawn.x, log_counts(drawn.x)
    ours = MultiFacetClustering(random_state=seed)
    found = {
        "known": lambda: np.stack(list(drawn.known.values()), 1),
        "ours": lambda: ours.fit(x).labels_,
    }
    if drawn.batch.any():
        coded = hstack([x, csr_array(drawn.batch[:, None].astype(np.float32))])
        given = clone(ours).set_params(likelihood=DirichletMultinomial(num_batches=BATCHES))
        found["ours, batches given"] = lambda: given.fit(coded).labels_
    return found | {
        "KMeans told": lambda: told(KMeans, logs, CLUSTERS, seed),
        "SVD, KMeans told": lambda: told(KMeans, _directions(logs, seed), CLUSTERS, seed),
    }


def log_counts(x: csr_array) -> csr_array:
    """log(1 + counts at the median total), sparse."""
    totals = x.sum(1).clip(1)
    seen = csr_array(x.multiply((np.median(totals) / totals)[:, None]))
    seen.data = np.log1p(seen.data)
    return seen


def _directions(x: csr_array, seed: int) -> np.ndarray:
    return TruncatedSVD(min(50, x.shape[1] - 1), random_state=seed).fit_transform(x)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 10, 20)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--columns", type=int, default=1000)
    args = parser.parse_args(arguments)
    runs = [(kind, seed) for kind in ("multinomial", "misfit") for seed in range(*args.seeds)]
    settings = {"rows": args.rows, "columns": args.columns}

    def train(kind: str, seed: int) -> dict[str, Any]:
        return {"scores": measure(args.rows, args.columns, kind, seed)}

    lines = run_all(args.out, runs, ["kind", "seed"], settings, train)
    for kind in ("multinomial", "misfit"):
        print_tables([line["scores"] for line in lines if line["kind"] == kind], f"{kind}: ")


if __name__ == "__main__":
    main()
