"""Two labelings in tables of numbers, categories and counts, of which one shows in categories and
counts alone.

    pip install 'facetvae[benchmarks]'
    OMP_NUM_THREADS=1 python -m lab.benchmarks.mixed_tables --seeds 10 20 --out runs/mixed.jsonl

MultiFacetClustering, given nothing, beside scikit-learn's GaussianMixture and KMeans on
standardized numbers, log1p of counts, one-hot categories and means in gaps, and k-prototypes
(kmodes), which takes categories as they are. These are told the number of clusters of each
labeling in turn; the best fit of ten starts counts. Lace (CrossCat; pip install pylace) is given
nothing either: the likeliest of four chains of 600 sweeps. A labeling's score is its normalized
mutual information with the facet that it shares most with. "known" is that of the drawn table's
own distributions: no method can expect more.

One line of JSON a table; tables that the file has are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.stats import norm, poisson
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from facetvae.estimators import MultiFacetClustering
from lab.run_lines import parser_of, run_all
from lab.summarize import print_tables

# Clusters of the labeling in numbers, and of that in categories and counts.
IN_NUMBERS, IN_KINDS = 4, 3
# Distance of neighboring means, in deviations; probability of a cluster's own category; ratio of
# neighboring rates; share of gaps.
APART, OWN, RATIO, GAPS = 5.0, 0.8, 2.5, 0.03
GRADES = ("low", "middle", "high")
LEVELS = {
    "city": ("Bath", "Cork", "Graz", "Lyon", "Oslo"),
    "plan": ("basic", "plus", "pro"),
    "device": ("desktop", "phone", "tablet", "tv"),
    "grade": GRADES,
    "member": (False, True),
}
# How often a method is started that finds local optima.
STARTS = 10
# Chains of Lace, their sweeps, and fewer for more rows than so many.
CHAINS, SWEEPS, FEWER, MANY = 4, 600, 200, 5000
NUMBERS = ("age", "income", "ratio", "balance")


@dataclass(frozen=True)
class DrawnNumbers:
    """Normals of equal weight and variance 1, rotated and in units of their own.

    :ivar means: of the clusters in the first coordinates ``[K, m]``; the others' are 0.
    :ivar rotation: of all coordinates ``[D, D]``.
    :ivar loc: of each column ``[D]``.
    :ivar unit: of each column ``[D]``.
    """

    means: np.ndarray
    rotation: np.ndarray
    loc: np.ndarray
    unit: np.ndarray

    def of(self, label: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of standard normal ``noise`` ``[N, D]`` in the clusters ``label`` ``[N]``, and
        the log-densities of each row in all clusters ``[N, K]``.
        """
        m = self.means.shape[1]
        z = noise.copy()
        z[:, :m] += self.means[label]
        log_p = norm.logpdf(z[:, None, :m], self.means).sum(-1)
        return self.loc + self.unit * (z @ self.rotation), log_p


@dataclass(frozen=True)
class DrawnKinds:
    """Clusters of equal weight, in which columns are independent.

    :ivar categories: by column, their probabilities in each cluster ``[K, L]``.
    :ivar rates: by column of counts, Poisson's in each cluster ``[K]``.
    """

    categories: Mapping[str, np.ndarray]
    rates: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MixedTable:
    """A drawn table.

    :ivar columns: by name: numbers, strings, bools or counts ``[N]``, ``None`` or NaN in gaps.
    :ivar labels: by name, ``"numbers"`` and ``"kinds"``: ``[N]``.
    :ivar known: the most probable labels given the distributions that were drawn from.
    :ivar numbers: the distribution of the columns in ``NUMBERS``.
    :ivar kinds: that of the categories and counts.
    """

    columns: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]
    known: Mapping[str, np.ndarray]
    numbers: DrawnNumbers
    kinds: DrawnKinds

    def frame(self) -> Any:
        """As a data frame of pandas: floats, categories, an ordered category, bools, counts."""
        import pandas as pd

        frame = pd.DataFrame({name: values.copy() for name, values in self.columns.items()})
        for name in ("city", "plan", "device", "noise"):
            frame[name] = frame[name].astype("category")
        frame["grade"] = pd.Categorical(frame["grade"], GRADES, ordered=True)
        return frame


def mixed_table(rows: int = 1000, seed: int = 0, gaps: float = GAPS) -> MixedTable:
    """Draw a table with two independent labelings: one in four numbers, mixed linearly and in
    units of their own, one in categories and counts.
    """
    rng = np.random.default_rng(seed)
    a, b = rng.integers(IN_NUMBERS, size=rows), rng.integers(IN_KINDS, size=rows)
    numbers, x, of_a = _numbers(rng, a)
    kinds, of_kinds, of_b = _kinds(rng, b)
    other = {
        "noise": rng.choice(["p", "q", "r"], rows).astype(object),
        "height": rng.normal(170, 9, rows),
    }
    columns = {**dict(zip(NUMBERS, x.T, strict=True)), **of_kinds, **other}
    _leave_out(rng, columns, gaps)
    known = {"numbers": of_a.argmax(1), "kinds": of_b.argmax(1)}
    return MixedTable(columns, {"numbers": a, "kinds": b}, known, numbers, kinds)


def _numbers(
    rng: np.random.Generator, label: np.ndarray
) -> tuple[DrawnNumbers, np.ndarray, np.ndarray]:
    """Four columns, and the log-densities of each row in the clusters."""
    # Not on a grid, whose directions would be labelings of their own.
    means = APART * np.array([[0, 0], [1, 0], [-0.5, 0.87], [-0.5, -0.87]])
    noise = rng.normal(size=(len(label), 4))
    loc, unit = np.array([40, 3e4, 0.5, -7]), np.array([5, 8e3, 0.02, 300])
    drawn = DrawnNumbers(means, np.linalg.qr(rng.normal(size=(4, 4)))[0], loc, unit)
    return drawn, *drawn.of(label, noise)


def _kinds(
    rng: np.random.Generator, label: np.ndarray
) -> tuple[DrawnKinds, dict[str, np.ndarray], np.ndarray]:
    """Categories, an ordered one, a bool and two counts, and the log-probabilities of each row in
    the clusters ``[N, K]``.
    """
    log_p = np.zeros((len(label), IN_KINDS))
    columns: dict[str, np.ndarray] = {}
    drawn = DrawnKinds({}, {})
    for name, values in LEVELS.items():
        p = np.full((IN_KINDS, len(values)), (1 - OWN) / (len(values) - 1))
        p[
            np.arange(IN_KINDS),
            rng.permutation(max(IN_KINDS, len(values)))[:IN_KINDS] % len(values),
        ] = OWN
        code = np.array([rng.choice(len(values), p=p[k]) for k in label])
        log_p += np.log(p[:, code]).T
        columns[name] = np.array(values, bool if name == "member" else object)[code]
        drawn.categories[name] = p
    for name, least in {"visits": 4.0, "orders": 1.5}.items():
        rate = least * RATIO ** rng.permutation(IN_KINDS)
        columns[name] = rng.poisson(rate[label])
        log_p += poisson.logpmf(columns[name][:, None], rate)
        drawn.rates[name] = rate
    return drawn, columns, log_p


def _leave_out(rng: np.random.Generator, columns: dict[str, np.ndarray], share: float) -> None:
    """Gaps in numbers, categories and one of the counts."""
    for name, values in columns.items():
        if share and name not in ("member", "orders"):
            gap = rng.random(len(values)) < share
            columns[name] = np.where(gap, np.nan if values.dtype != object else None, values)


def measure(rows: int, seed: int) -> dict[str, dict[str, float]]:
    """Scores of each method with each labeling, and seconds."""
    drawn = mixed_table(rows, seed)
    found = {"known": lambda: np.stack(list(drawn.known.values()), 1)}
    frame = drawn.frame()
    found["ours"] = lambda: MultiFacetClustering(random_state=seed).fit(frame).labels_
    for kind in (GaussianMixture, KMeans):
        fit = partial(told, kind, numbers=(IN_NUMBERS, IN_KINDS), seed=seed)
        found[f"{kind.__name__} told"] = lambda fit=fit: fit(one_hot(frame))
    found["k-prototypes told"] = lambda: _prototypes(frame, seed)
    if find_spec("lace"):
        found["Lace"] = lambda: by_lace(drawn.frame(), list(drawn.kinds.rates), seed)
    return scores_of(found, drawn.labels)


def scores_of(
    fits: Mapping[str, Callable[[], np.ndarray]], labels: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Of each method, for each labeling ``[N]`` the normalized mutual information with the column
    of what it finds ``[N, J]`` that shares most with it; its number of columns, and its seconds.
    """
    scores = {}
    for name, fit in fits.items():
        started = time.perf_counter()
        found = fit()
        seconds = time.perf_counter() - started
        scores[name] = {
            each: max(normalized_mutual_info_score(truth, column) for column in found.T)
            for each, truth in labels.items()
        } | {"facets": found.shape[1], "seconds": seconds}
    return scores


def one_hot(frame: Any) -> np.ndarray:
    """What is done by hand before a method for numbers: ``[N, F]``."""
    columns = []
    for _, values in frame.items():
        if str(values.dtype) == "category":
            code = values.cat.codes.to_numpy()
            columns += [(code == k).astype(float) for k in range(len(values.cat.categories))]
        else:
            numbers = values.to_numpy(dtype=float, na_value=np.nan)
            whole = (numbers[~np.isnan(numbers)] % 1 == 0).all()
            numbers = np.log1p(numbers) if whole else numbers
            numbers = np.where(np.isnan(numbers), np.nanmean(numbers), numbers)
            columns.append((numbers - numbers.mean()) / numbers.std())
    return np.stack(columns, 1)


def told(kind: type, x: Any, numbers: Iterable[int], seed: int) -> np.ndarray:
    """For each number of clusters a fit of scikit-learn's, side by side: ``[N, J]``."""
    fits = [kind(k, n_init=STARTS, random_state=seed) for k in numbers]
    return np.stack([fit.fit_predict(x) for fit in fits], 1)


def _prototypes(frame: Any, seed: int) -> np.ndarray:
    """A fit for each number of clusters; gaps are the column's mean, or a category of their own."""
    from kmodes.kprototypes import KPrototypes

    is_category = [str(dtype) == "category" for dtype in frame.dtypes]
    numbers = one_hot(frame.loc[:, [not each for each in is_category]])
    categories = frame.loc[:, is_category].apply(lambda each: each.cat.codes).to_numpy()
    x = np.concatenate([numbers.astype(object), categories.astype(object)], 1)
    places = list(range(numbers.shape[1], x.shape[1]))
    fits = [KPrototypes(k, n_init=STARTS, random_state=seed) for k in (IN_NUMBERS, IN_KINDS)]
    return np.stack([fit.fit_predict(x, categorical=places) for fit in fits], 1)


def by_lace(frame: Any, counts: Sequence[str], seed: int) -> np.ndarray:
    """Rows' categories in each view of the likeliest of Lace's chains ``[N, J]``."""
    import lace

    for name, values in frame.items():
        if name in counts:
            frame[name] = values.astype("Int64" if values.isna().any() else "uint32")
        elif values.dtype in ("category", "bool"):
            frame[name] = values.astype(str).where(values.notna(), None).astype(object)
    frame.index = [f"row {i}" for i in range(len(frame))]
    engine = lace.Engine.from_df(frame, n_states=CHAINS, rng_seed=seed)
    engine.update(FEWER if len(frame) > MANY else SWEEPS)
    best = int(np.argmax(engine.diagnostics("score").to_numpy()[-1]))
    return np.array(engine.row_assignments(best)).T


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, 10, 20)
    parser.add_argument("--rows", type=int, default=1000)
    args = parser.parse_args(arguments)
    seeds = [(seed,) for seed in range(*args.seeds)]

    def measured(seed: int) -> dict[str, Any]:
        return {"scores": measure(args.rows, seed)}

    lines = run_all(args.out, seeds, ["seed"], {"rows": args.rows}, measured)
    print_tables([line["scores"] for line in lines])


if __name__ == "__main__":
    main()
