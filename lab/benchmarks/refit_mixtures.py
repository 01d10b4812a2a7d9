"""What it does to a finished MFCVAE run on MNIST to fit its mixtures once more: same networks, new
clusters, no labels. It is what `lab.protocols.mfcvae --final-fits 3` does when it has trained.

python -m lab.benchmarks.refit_mixtures --data-root DATA runs/mnist-0 runs/mnist-1 runs/mnist-2
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from facetvae.datasets import mnist
from inference import SVIRunner, elbo, fit_mixtures
from lab.protocols.scoring import score_facets


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", help="run folders of lab.protocols.mfcvae, one a seed"
    )
    parser.add_argument("--data-root", type=Path, help="where MNIST lies")
    parser.add_argument(
        "--restarts", type=int, default=3, help="fits of each mixture, the likeliest taken"
    )
    args = parser.parse_args()
    data = mnist(args.data_root)
    table: dict[str, list[float]] = {}
    for run in args.runs:
        runner = SVIRunner.load(run)
        guide = runner.guide
        for when in ("trained", "fitted again"):
            if when == "fitted again":
                fit_mixtures(guide, data.train, seed=runner.seed, n_init=args.restarts)
            for facet, scores in score_facets(guide, data).items():
                for name in ("accuracy", "accuracy_train_map", "nmi"):
                    table.setdefault(f"{facet} {name}, {when}", []).append(
                        100 * scores["digit"][name]
                    )
            table.setdefault(f"ELBO, {when}", []).append(
                elbo(guide.model, guide, data.test, num_draws=3)[0]
            )
    for name, values in table.items():
        spread = f" ({statistics.stdev(values):.2f})" if len(values) > 1 else ""
        print(
            f"{name:42s} {statistics.mean(values):7.2f}{spread}   "
            f"{', '.join(f'{value:.2f}' for value in values)}"
        )


if __name__ == "__main__":
    main()
