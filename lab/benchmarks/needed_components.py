"""How many of forty components stay in use, by the rule for their weights, on the bundled digits.

python -m lab.benchmarks.needed_components --seeds 3
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import pyro

from facetvae.datasets import Dataset, digits
from guides import VaDEGuide
from inference import SVIRunner, elbo, warm_start
from lab.protocols.scoring import score_facets
from ppl_models import DirichletWeights, GaussianMixture, Normal, SharedMLP, VaDE


def fit(data: Dataset, weights: str | DirichletWeights, seed: int) -> dict[str, float]:
    """One run of VaDE: the recipe of `examples.compare_guides` with forty components."""
    pyro.set_rng_seed(seed)
    prior = GaussianMixture(40, 5, weights=weights)
    model = VaDE(data.train.shape[1:], prior, Normal(0.15), SharedMLP((200, 400)), name="digit")
    guide = VaDEGuide(model)
    options = {"batch_size": 64, "progress": False}
    warm_start(
        SVIRunner(model, guide, lr=1e-3, seed=seed),
        data.train,
        60,
        seed=seed,
        restarts=3,
        **options,
    )
    SVIRunner(model, guide, lr=1e-3, seed=seed).fit(data.train, 120, **options)
    shares = np.bincount(guide.predict(data.train)["digit"], minlength=40) / len(data.train)
    scores = score_facets(guide, data)["digit"]["digit"]
    return {
        "components with 1 % of the data or more": float((shares >= 0.01).sum()),
        "components with any": float((shares > 0).sum()),
        "accuracy": scores["accuracy_train_map"],
        "NMI": scores["nmi"],
        "ELBO": elbo(model, guide, data.test, num_draws=10)[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="0 to this number")
    args = parser.parse_args()
    data = digits()
    N = len(data.train)
    rules = {
        "learned": "learned",
        f"Dirichlet, N = {N}": DirichletWeights(N),
        f"Dirichlet, N = {N // 8}": DirichletWeights(N // 8),
        f"Dirichlet, N = {N // 32}": DirichletWeights(N // 32),
    }
    for name, weights in rules.items():
        runs = [fit(data, weights, seed) for seed in range(args.seeds)]
        print(name)
        for measure in runs[0]:
            values = [run[measure] for run in runs]
            spread = f" ({statistics.stdev(values):.3g})" if len(values) > 1 else ""
            print(f"  {measure:42s}{statistics.mean(values):8.4g}{spread}", flush=True)


if __name__ == "__main__":
    main()
