"""ClustPy's VaDE on MNIST, to stand beside `lab.protocols.vade`.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.clustpy_vade --data-root DATA --seed 0

With ClustPy's defaults: 784-500-500-2000-10, 100 epochs as an autoencoder and 150 with the mixture,
in batches of 256. Accuracies on the test images are of clusters mapped to digits one to one, which
10 clusters allow and most reports give, and by majority, as for `lab.protocols.vade`.
"""

from __future__ import annotations

import time

from sklearn.metrics import normalized_mutual_info_score

from facetvae.datasets import some_rows
from inference.metrics import cluster_accuracy
from lab.benchmarks.rivals import clustpy
from lab.protocols.datasets import load
from lab.protocols.nvae import flat
from lab.run_lines import described_by


def main(arguments: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("--data-root", help="where MNIST is")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    data = load("mnist", args.data_root)
    data = some_rows(data, len(data.train))  # in the order that was measured
    started = time.perf_counter()
    found = clustpy("deep").VaDE(
        10, pretrain_epochs=100, clustering_epochs=150, device="cpu", random_state=args.seed
    )
    found.fit(flat(data.train))
    print(f"seconds: {time.perf_counter() - started:.0f}")
    clusters = found.predict(flat(data.test))
    label = data.test_labels["digit"]
    for method in ("hungarian", "majority"):
        print(f"accuracy, {method}: {cluster_accuracy(label, clusters, method):.4f}")
    print(f"NMI: {normalized_mutual_info_score(label, clusters):.4f}")


if __name__ == "__main__":
    main()
