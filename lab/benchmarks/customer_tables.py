"""Tables as customers' are: two groupings, each in columns of its own, of numbers, amounts, counts
and categories whose clusters overlap; columns of noise, and gaps.

    pip install pylace
    OMP_NUM_THREADS=1 python -m lab.benchmarks.customer_tables --seeds 100 130 --out runs/c.jsonl

MultiFacetClustering, given nothing, beside Lace (CrossCat), given nothing either: the likeliest of
four chains of 600 sweeps, or 200 of more than 5,000 rows. A grouping's score is its normalized
mutual information with the facet or view that shares most with it. "Bayes rule" is that of the most
probable groups by the distributions that a table was drawn from. Each table has its own numbers of
rows (500 to 20,000) and columns (6 to 40), of groups (2 to 5), of columns of noise (up to a half)
and gaps (none, 2 or 10 %). Views of columns were developed on seeds 0 to 29.

One line of JSON a table; tables that the file has are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.stats import norm, poisson

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks.mixed_tables import by_lace, scores_of
from lab.run_lines import parser_of, run_all
from lab.summarize import print_tables

KINDS = ("number", "whole", "amount", "count", "category")


@dataclass(frozen=True)
class CustomerTable:
    """A drawn table.

    :ivar columns: by name ``[N]``, with NaN or ``None`` in gaps.
    :ivar labels: of both groupings ``[N]``.
    :ivar known: the most probable ones by the distributions that were drawn from.
    """

    columns: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    known: Mapping[str, np.ndarray]

    def frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(dict(self.columns))


def customer_table(seed: int, rows: int | None = None, columns: int | None = None) -> CustomerTable:
    """Draw a table; rows and columns too, if they are not given."""
    rng = np.random.default_rng([seed, 55])
    drawn = np.exp(rng.uniform(np.log([500, 6]), np.log([20_000, 41]))).astype(int)
    n, width = int(rows or drawn[0]), int(columns or drawn[1])
    noise = min(int(rng.uniform(0, 0.5) * width), width - 6)
    gaps, least = rng.choice([0, 0, 0.02, 0.1]), max(3, (width - noise) // 4)
    first = rng.integers(least, width - noise - least + 1)
    made: dict[str, np.ndarray] = {}
    labels, known = {}, {}
    for name, size in (("first", first), ("second", width - noise - first)):
        K = int(rng.integers(2, 6))
        weights = rng.dirichlet(np.full(K, 8.0))
        labels[name] = label = rng.choice(K, n, p=weights)
        log_p = np.log(weights) + np.zeros((n, 1))
        strength = rng.uniform(0.7, 1) * (3 / size) ** 0.35
        for i in range(size):
            kind = rng.choice(KINDS)
            column, own = DRAWN[kind](rng, label, rng.permutation(K), strength)
            gap = rng.random(n) < gaps
            missing = None if kind == "category" else np.nan
            made[f"{name}_{kind}_{i}"] = np.where(gap, missing, column)
            log_p += np.where(gap[:, None], 0, own)
        known[name] = log_p.argmax(1)
    for i in range(noise):
        kind = rng.choice(KINDS)
        column, _ = DRAWN[kind](rng, np.zeros(n, int), np.zeros(4, int), 0.0)
        made[f"noise_{kind}_{i}"] = column
    order = rng.permutation(len(made))
    return CustomerTable({list(made)[i]: made[list(made)[i]] for i in order}, labels, known)


# A column of the clusters ``label`` ``[N]``, and its log-density in each cluster ``[N, K]``.
Drawn = Callable[[np.random.Generator, np.ndarray, np.ndarray, float], tuple[np.ndarray, Any]]


def _number(convert: Callable[[np.ndarray], np.ndarray]) -> Drawn:
    def drawn(rng: Any, label: Any, order: Any, strength: float) -> tuple[np.ndarray, Any]:
        z = 2 * strength * order[label] + rng.normal(size=len(label))
        return convert(z), norm.logpdf(z[:, None], 2 * strength * order)

    return drawn


def _count(rng: Any, label: Any, order: Any, strength: float) -> tuple[np.ndarray, Any]:
    rate = rng.uniform(2, 4) + rng.uniform(3, 5) * strength * order
    column = rng.poisson(rate[label])
    return column.astype(float), poisson.logpmf(column[:, None], rate)


def _category(rng: Any, label: Any, order: Any, strength: float) -> tuple[np.ndarray, Any]:
    L = max(len(order), int(rng.integers(2, 6)))
    own = 0.5 + 0.42 * strength if strength else 1 / L
    p = np.full((len(order), L), (1 - own) / (L - 1))
    p[np.arange(len(order)), order] = own
    code = (p.cumsum(1)[label] < rng.random((len(label), 1))).sum(1).clip(0, L - 1)
    return np.array(list("abcdefgh"), object)[code], np.log(p[:, code]).T


DRAWN: dict[str, Drawn] = {
    "number": _number(lambda z: 50 + 9 * z),
    "whole": _number(lambda z: np.round(40 + 5 * z)),
    "amount": _number(lambda z: np.exp(10 + 0.3 * z)),
    "count": _count,
    "category": _category,
}


def measure(seed: int) -> dict[str, dict[str, float]]:
    """Scores of each method with each grouping, and seconds."""
    drawn = customer_table(seed)
    found = {
        "Bayes rule": lambda: np.stack(list(drawn.known.values()), 1),
        "ours": lambda: MultiFacetClustering(random_state=seed).fit(drawn.frame()).labels_,
    }
    if find_spec("lace"):
        counts = [name for name in drawn.columns if "count" in name]
        found["Lace"] = lambda: by_lace(drawn.frame(), counts, seed)
    return scores_of(found, drawn.labels)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 100, 130)
    args = parser.parse_args(arguments)
    seeds = [(seed,) for seed in range(*args.seeds)]
    lines = run_all(args.out, seeds, ["seed"], {}, lambda seed: {"scores": measure(seed)})
    print_tables([line["scores"] for line in lines])


if __name__ == "__main__":
    main()
