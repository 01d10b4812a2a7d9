"""Known digits for one facet of the handwritten digits: what they give to it, and whether they
touch the other.

    python -m lab.benchmarks.known_labels --seeds 3

A MultiFacetClustering with the facets style and digit as it comes, but that the digit's number of
clusters is 10; 0, 1, 5 or 20 images of each digit, drawn at random from the training split, have a
label. ``accuracy`` is that of the digit facet on the test split: of the labels' own numbers where
there are labels, of the best match (Hungarian) where there are none.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics import normalized_mutual_info_score as nmi

from facetvae.datasets import Dataset, digits
from facetvae.estimators import MultiFacetClustering
from inference.metrics import cluster_accuracy
from lab.summarize import print_table

NUMBERS = (0, 1, 5, 20)


def some_labels(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Labels of so many data of each class; -1 for the others."""
    rng, known = np.random.default_rng(seed), np.full(len(labels), -1)
    for k in np.unique(labels):
        chosen = rng.choice(np.flatnonzero(labels == k), per_class, replace=False)
        known[chosen] = k
    return known


def measure(
    data: Dataset, per_class: int, seed: int, untouched: np.ndarray | None
) -> tuple[dict, np.ndarray]:
    """The row of one fit, and its style of every test image."""
    train, test = data.train_labels["digit"], data.test_labels["digit"]
    labels = {"digit": some_labels(train, per_class, seed)} if per_class else None
    found = MultiFacetClustering(("style", "digit"), n_clusters=(None, 10), random_state=seed)
    found.fit(data.train, labels=labels)
    style, digit = found.predict(data.test).T
    last = found.runner_.history[-1]
    row = {
        "accuracy": float((digit == test).mean())
        if per_class
        else cluster_accuracy(test, digit, "hungarian"),
        "NMI of digit facet": nmi(test, digit),
        "NMI of style facet with the digit": nmi(test, style),
        "information of digit": last["mutual_information_digit"],
        "information of style": last["mutual_information_style"],
        "KL of style's latents": last["kl_z_style"],
        "ARI of style with that of no labels": adjusted_rand_score(
            style if untouched is None else untouched, style
        ),
    }
    return row, style


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many, counted from 0")
    args = parser.parse_args()
    data = digits()
    untouched: dict[int, np.ndarray] = {}
    for per_class in NUMBERS:
        rows = []
        for seed in range(args.seeds):
            row, style = measure(data, per_class, seed, untouched.get(seed))
            untouched.setdefault(seed, style)
            rows.append(row)
        print(f"\n{per_class} labels of each digit", flush=True)
        print_table(rows)
    pairs = [(a, b) for a in range(args.seeds) for b in range(a)]
    chance = [adjusted_rand_score(untouched[a], untouched[b]) for a, b in pairs]
    print(f"\nARI of style between seeds without labels: {np.mean(chance):.3f}")


if __name__ == "__main__":
    main()
