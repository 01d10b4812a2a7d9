"""Entries removed at random: left out of the likelihood, or filled with their column's mean
beforehand.

    python -m lab.benchmarks.missing_entries --seeds 3

The same MultiFacetClustering in both cases, on the handwritten digits (facets style and digit;
accuracy of the digit facet by majority, the map fitted on the training split) and on wine (NMI of
the deepest facet with the cultivar).
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.metrics import normalized_mutual_info_score as nmi

from facetvae.datasets import digits
from facetvae.estimators import MultiFacetClustering
from inference.metrics import cluster_accuracy
from lab.summarize import print_table

SHARES = (0.1, 0.3, 0.5)


def holed(x: np.ndarray, share: float, seed: int) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(x.shape) < share, np.nan, x)


def on_digits(share: float, seed: int) -> dict[str, float]:
    data = digits()
    train, test = (
        holed(np.asarray(x), share, 2 * seed + i) for i, x in enumerate((data.train, data.test))
    )
    filler = SimpleImputer(keep_empty_features=True).fit(train)
    row = {}
    for way, fill in (("left out", lambda x: x), ("mean", filler.transform)):
        found = MultiFacetClustering(("style", "digit"), random_state=seed).fit(
            fill(train).astype(np.float32)
        )
        clusters = found.predict(fill(test).astype(np.float32))[:, 1]
        known = data.train_labels["digit"], found.labels_[:, 1]
        row[f"accuracy, {way}"] = cluster_accuracy(
            data.test_labels["digit"], clusters, map_from=known
        )
        row[f"NMI, {way}"] = nmi(data.test_labels["digit"], clusters)
        if way == "left out":
            missing = np.isnan(test)
            filled = found.impute(test.astype(np.float32))
            whole = np.asarray(data.test)
            row["error of what was filled in"] = float(np.abs(filled - whole)[missing].mean())
            row["error of the column's mean"] = float(
                np.abs(filler.transform(test) - whole)[missing].mean()
            )
    return row


def on_wine(share: float, seed: int) -> dict[str, float]:
    data = load_wine()
    x = holed(data.data, share, seed)
    filled = SimpleImputer(keep_empty_features=True).fit_transform(x)
    return {
        f"NMI, {way}": nmi(
            data.target, MultiFacetClustering(random_state=seed).fit(each).labels_[:, -1]
        )
        for way, each in (("left out", x), ("mean", filled))
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many, counted from 0")
    parser.add_argument("--data", nargs="+", choices=("digits", "wine"), default=["digits", "wine"])
    args = parser.parse_args()
    for name in args.data:
        for share in SHARES:
            measure = on_digits if name == "digits" else on_wine
            rows = [measure(share, seed) for seed in range(args.seeds)]
            print(f"\n{name}, {share:.0%} missing", flush=True)
            print_table(rows)


if __name__ == "__main__":
    main()
