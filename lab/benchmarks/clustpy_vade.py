"""ClustPy's VaDE on MNIST, to stand beside `lab.protocols.vade`.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.clustpy_vade --data-root DATA --seed 0

With ClustPy's defaults: 784-500-500-2000-10, 100 epochs as an autoencoder and 150 with the mixture,
in batches of 256. Accuracies on the test images are of clusters mapped to digits one to one, which
10 clusters allow and most reports give, and by majority, as for `lab.protocols.vade`.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from facetvae.datasets import some_rows
from inference.metrics import cluster_accuracy
from lab.benchmarks.rivals import clustpy
from lab.protocols.datasets import load
from lab.run_lines import described_by


def gray(images: np.ndarray) -> np.ndarray:
    """8-bit images as ``[N, D]`` in [0, 1]."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def main(arguments: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--data-root", help="where MNIST is")
    parser.add_argument("--epochs", type=int, default=150, help="with the mixture")
    parser.add_argument("--train-rows", type=int, help="most training images")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    data = load("mnist", args.data_root)
    data = some_rows(data, args.train_rows or len(data.train))
    started = time.perf_counter()
    found = clustpy("deep").VaDE(
        10, pretrain_epochs=100, clustering_epochs=args.epochs, device="cpu", random_state=args.seed
    )
    found.fit(gray(data.train))
    print(f"seconds: {time.perf_counter() - started:.0f}")
    clusters = found.predict(gray(data.test))
    label = data.test_labels["digit"]
    for method in ("hungarian", "majority"):
        print(f"accuracy, {method}: {cluster_accuracy(label, clusters, method):.4f}")
    print(f"NMI: {normalized_mutual_info_score(label, clusters):.4f}")


if __name__ == "__main__":
    main()
