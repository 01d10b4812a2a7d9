"""k-means on pixels, with as many clusters as a facet has: what a model has to be ahead of.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.kmeans_images --data-root DATA --out runs/kmeans

Centers are found in the training images. Test images get the nearest one, and a cluster's label is
the most common one of its test images, as in the facets' accuracies.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from inference.metrics import cluster_accuracy
from lab.protocols.datasets import load
from lab.run_lines import described_by

# Labels, and as many clusters as the facet has that should match them.
CLUSTERS = {
    "mnist": {"digit": 25},
    "fashion-mnist": {"article": 25},
    "shapes3d-1": {"shape": 60, "floor": 20},
}


def accuracies(name: str, root: Path | None, seed: int) -> dict[str, float]:
    """Of each label's clusters on the test images, in percent."""
    data = load(name, root)
    train, test = (np.float32(x.reshape(len(x), -1)) / 255 for x in (data.train, data.test))
    found = {}
    for label, number in CLUSTERS[name].items():
        kmeans = KMeans(number, random_state=seed).fit(train)
        found[label] = 100 * cluster_accuracy(data.test_labels[label], kmeans.predict(test))
    return found


def main(argv: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--data", choices=CLUSTERS, nargs="+", default=list(CLUSTERS))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    scores = {name: accuracies(name, args.data_root, args.seed) for name in args.data}
    print(json.dumps(scores))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scores.json").write_text(json.dumps(scores, indent=2))


if __name__ == "__main__":
    main()
