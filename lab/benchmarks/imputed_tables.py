"""What is filled into gaps of mixed tables, beside the removed entries.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.imputed_tables --seeds 10 20 --out runs/imputed.jsonl

10, 30 and 50 % of the entries are removed completely at random from every column of the tables that
`mixed_tables` draws. MultiFacetClustering, given nothing, beside each
column's mean or most frequent category, scikit-learn's IterativeImputer (Bayesian ridge regression)
and KNNImputer (five neighbors). These see standardized numbers, log(1 + x) of counts and a column
of zeros and ones for each category (IterativeImputer: each but the last), of which the largest is
taken. "known" is the mean given the
observed entries under the distributions that the table was drawn from: no method can expect less.

Errors are over all removed entries: root mean squared ones of numbers, in deviations of the column,
and of log(1 + x) of counts; of categories the share that is right, in which 1 is best. Imputed
counts are whole numbers from MultiFacetClustering and means from the others.

One line of JSON a table and share; those that the file has are left out.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import norm, poisson
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from facetvae.estimators import MultiFacetClustering
from lab.benchmarks.mixed_tables import NUMBERS, MixedTable, mixed_table
from lab.run_lines import parser_of, run_all
from lab.summarize import print_tables

SHARES = (0.1, 0.3, 0.5)
COUNTS = ("visits", "orders")
# More than any count whose probability matters.
LARGEST_COUNT = 200


@dataclass(frozen=True)
class Coded:
    """A frame as numbers, for methods that take no others.

    :ivar names: of the columns.
    :ivar levels: categories, by the names of the columns that have any.
    :ivar counts: names of the columns of counts.
    :ivar left_out: how many categories of a column have no zeros and ones, 0 or 1: the last one's
        are 1 less the others'.
    """

    names: Sequence[str]
    levels: Mapping[str, Sequence[Any]]
    counts: Sequence[str]
    left_out: int = 0

    def encode(self, frame: Any) -> np.ndarray:
        """``[N, F]``, NaN in gaps."""
        return np.concatenate([self._encoded(name, frame[name]) for name in self.names], 1)

    def decode(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Values by column."""
        widths = [
            len(self.levels[name]) - self.left_out if name in self.levels else 1
            for name in self.names
        ]
        parts = np.split(x, np.cumsum(widths)[:-1], 1)
        return {
            name: self._decoded(name, part) for name, part in zip(self.names, parts, strict=True)
        }

    def _encoded(self, name: str, values: Any) -> np.ndarray:
        if name in self.levels:
            gap, there = values.isna().to_numpy(), values.notna()
            words = values.astype(object).where(there, None).to_numpy()
            shown = self.levels[name][: len(self.levels[name]) - self.left_out]
            ones = np.stack([words == level for level in shown], 1).astype(float)
            return np.where(gap[:, None], np.nan, ones)
        numbers = values.to_numpy(dtype=float, na_value=np.nan)[:, None]
        return np.log1p(numbers) if name in self.counts else numbers

    def _decoded(self, name: str, part: np.ndarray) -> np.ndarray:
        if name in self.levels:
            last = 1 - part.sum(1, keepdims=True)[:, : self.left_out]
            return np.array(self.levels[name], object)[np.concatenate([part, last], 1).argmax(1)]
        return np.expm1(part[:, 0]) if name in self.counts else part[:, 0]


def with_gaps(frame: Any, share: float, seed: int) -> tuple[Any, np.ndarray]:
    """A frame without some of its entries, and which these are ``[N, D]``."""
    gaps = np.random.default_rng([seed, round(100 * share)]).random(frame.shape) < share
    bools = {name: "boolean" for name, dtype in frame.dtypes.items() if dtype.kind == "b"}
    return frame.astype(bools).mask(gaps), gaps


def errors(
    frame: Any, filled: Mapping[str, np.ndarray], gaps: np.ndarray, coded: Coded
) -> dict[str, float]:
    """Of what was filled in: by kind of column."""
    found: dict[str, list[np.ndarray]] = {"numbers": [], "counts": [], "categories": []}
    for name, gap in zip(coded.names, gaps.T, strict=True):
        truth, values = frame[name].to_numpy()[gap], np.asarray(filled[name])[gap]
        if name in coded.levels:
            found["categories"].append(truth == values)
        elif name in coded.counts:
            found["counts"].append(np.log1p(truth) - np.log1p(values.astype(float).clip(0)))
        else:
            found["numbers"].append((truth - values.astype(float)) / frame[name].std(ddof=0))
    sizes = {kind: np.concatenate(each) for kind, each in found.items() if any(map(len, each))}
    return {
        kind: float(each.mean() if kind == "categories" else np.sqrt(np.square(each).mean()))
        for kind, each in sizes.items()
    }


def known_values(drawn: MixedTable, holed: Any) -> dict[str, np.ndarray]:
    """Means of the numbers and of log(1 + x) of the counts, and the most probable categories, given
    what is observed of each row and the distributions that were drawn from.
    """
    # In a cluster all columns are independent, also the numbers, as their noise is rotated.
    numbers, kinds = drawn.numbers, drawn.kinds
    m = numbers.means.shape[1]
    means = numbers.loc + numbers.unit * (numbers.means @ numbers.rotation[:m])
    x = holed[list(NUMBERS)].to_numpy(dtype=float)
    log_p = np.nan_to_num(norm.logpdf(x[:, None], means, numbers.unit)).sum(2)
    found = dict(zip(NUMBERS, (softmax(log_p, 1) @ means).T, strict=True))

    coded = coded_drawn(drawn)
    log_p = np.zeros((len(holed), len(next(iter(kinds.rates.values())))))
    for name, p in kinds.categories.items():
        log_p += np.nan_to_num(coded._encoded(name, holed[name])) @ np.log(p.T)
    for name, rate in kinds.rates.items():
        count = holed[name].to_numpy(dtype=float, na_value=np.nan)
        log_p += np.nan_to_num(poisson.logpmf(count[:, None], rate))
    cluster = softmax(log_p, 1)
    for name, p in kinds.categories.items():
        found[name] = np.array(coded.levels[name], object)[(cluster @ p).argmax(1)]
    n = np.arange(LARGEST_COUNT)[:, None]
    for name, rate in kinds.rates.items():
        found[name] = np.expm1(cluster @ (np.log1p(n) * poisson.pmf(n, rate)).sum(0))
    alone = {"noise": "p", "height": 170.0}  # independent of all others
    return found | {name: np.full(len(holed), value) for name, value in alone.items()}


def coded_drawn(drawn: MixedTable) -> Coded:
    frame = drawn.frame()
    levels = {
        str(name): list(values.cat.categories) if values.dtype == "category" else [False, True]
        for name, values in frame.items()
        if values.dtype == "category" or values.dtype.kind == "b"
    }
    return Coded([str(name) for name in frame.columns], levels, COUNTS)


def _by_scikit_learn(
    imputer: Any, left_out: int, holed: Any, coded: Coded
) -> dict[str, np.ndarray]:
    """Of standardized columns."""
    coded = replace(coded, left_out=left_out)
    x = coded.encode(holed)
    loc, unit = np.nanmean(x, 0), np.nanstd(x, 0)
    unit[unit == 0] = 1
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return coded.decode(loc + unit * imputer.fit_transform((x - loc) / unit))


def _by_ours(holed: Any, seed: int) -> dict[str, np.ndarray]:
    filled = MultiFacetClustering(random_state=seed).fit(holed).impute(holed)
    return {str(name): values.to_numpy() for name, values in filled.items()}


def methods(seed: int) -> dict[str, Callable[[Any, Coded], dict[str, np.ndarray]]]:
    """Each from a frame with gaps to its columns without."""
    # A regression on the other ones of the same gap, which sum to 1, would stay where it began.
    imputers = {
        "column means": (SimpleImputer(), 0),
        "IterativeImputer": (IterativeImputer(random_state=seed), 1),
        "KNNImputer": (KNNImputer(), 0),
    }
    theirs = {name: partial(_by_scikit_learn, *each) for name, each in imputers.items()}
    return {"ours": lambda holed, _: _by_ours(holed, seed), **theirs}


def measure(rows: int, seed: int, share: float) -> dict[str, dict[str, float]]:
    """Errors of each method by kind of column, and seconds."""
    drawn = mixed_table(rows, seed, gaps=0)
    frame, coded = drawn.frame(), coded_drawn(drawn)
    holed, gaps = with_gaps(frame, share, seed)
    known = {"known": lambda holed, _: known_values(drawn, holed)}
    scores = {}
    for name, fill in (methods(seed) | known).items():
        started = time.perf_counter()
        filled = fill(holed, coded)
        seconds = time.perf_counter() - started
        scores[name] = errors(frame, filled, gaps, coded) | {"seconds": seconds}
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 10, 20)
    parser.add_argument("--rows", type=int, default=1000, help="of simulated tables")
    args = parser.parse_args(arguments)
    runs = [(seed, share) for share in SHARES for seed in range(*args.seeds)]
    settings = {"table": "drawn", "rows": args.rows}

    def measured(seed: int, share: float) -> dict[str, Any]:
        return {"scores": measure(args.rows, seed, share)}

    lines = run_all(args.out, runs, ["seed", "share"], settings, measured)
    for share in SHARES:
        found = [line["scores"] for line in lines if line["share"] == share]
        print_tables(found, f"{share:.0%} removed, ")


if __name__ == "__main__":
    main()
