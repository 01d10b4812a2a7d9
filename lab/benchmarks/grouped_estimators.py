"""ML-VAE's estimators: one draw of the content a member or a group, and what looking at parts of a
group does.

python -m lab.benchmarks.grouped_estimators --seed 0

A model of the bundled 8x8 digits, grouped by digit; then, on 100 training data of each of five
digits: the variance of loss and gradient of both choices of draws, by our diagnostics, for products
and mixtures of normals; and the ELBO of the same data when groups are looked at in parts
(supplement 6), against whole groups.
"""

from __future__ import annotations

import argparse

import numpy as np
import pyro
import torch

from facetvae.datasets import digits
from guides import Evidence, GroupedGuide, MixtureOfNormals, ProductOfNormals
from inference import Groups, Loss, SVIRunner, elbo
from inference.diagnostics import gradient_moments, loss_draws
from ppl_models import MLP, MLVAE, Normal


def fitted(evidence: Evidence, epochs: int, seed: int) -> GroupedGuide:
    data = digits()
    pyro.set_rng_seed(seed)
    guide = GroupedGuide(
        MLVAE((64,), 5, 5, Normal(0.2), MLP((200,), "tanh", dropout=0)), evidence=evidence
    )
    runner = SVIRunner(guide.model, guide, lr=1e-3, seed=seed)
    group = data.train_labels["digit"]
    runner.fit(
        data.train, epochs, 100, log_every=epochs, batches=Groups(20), progress=False, group=group
    )
    return guide


def variances(
    guide: GroupedGuide, x: torch.Tensor, group: torch.Tensor, draws: int, seed: int
) -> None:
    for content in ("member", "group"):
        twin = GroupedGuide(guide.model, evidence=guide.evidence, content=content)
        twin.encoder = guide.encoder
        loss = Loss(guide.model, twin).eval()
        values = loss_draws(loss, x, draws, seed, group=group)
        moments = gradient_moments(loss, x, draws // 10, seed, chunk=20, group=group)
        error = float(values.std()) / draws**0.5
        print(
            f"{guide.evidence!r:20s} a draw a {content:7s} loss {float(values.mean()):9.4f} +- "
            f"{error:.4f}, variance "
            f"{float(values.var()):.3g}, of the gradient {moments.trace:.4g}"
        )


def bias(guide: GroupedGuide, x: torch.Tensor, label: torch.Tensor, draws: int) -> None:
    whole, whole_error = elbo(guide.model, guide, x, draws, group=label)
    print(
        f"{guide.evidence!r:20s} whole groups of 100: ELBO {whole:.3f} +- {whole_error:.3f} nats "
        "per datum"
    )
    for members in (50, 20, 10, 5, 2, 1):
        parts = label * 1000 + torch.arange(len(label)) % 100 // members
        value, error = elbo(guide.model, guide, x, draws, group=parts)
        print(
            f"{'':20s} parts of {members:3d}: {value - whole:+8.3f} +- "
            f"{np.hypot(error, whole_error):.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument(
        "--draws", type=int, default=2000, help="of a loss; a tenth as many of its gradient"
    )
    args = parser.parse_args()
    data = digits()
    rows = np.concatenate([np.flatnonzero(data.train_labels["digit"] == c)[:100] for c in range(5)])
    x, label = torch.as_tensor(data.train[rows]), torch.as_tensor(data.train_labels["digit"][rows])
    for evidence in (ProductOfNormals(), MixtureOfNormals()):
        guide = fitted(evidence, args.epochs, args.seed)
        variances(guide, x, label, args.draws, args.seed)
        bias(guide, x, label, 100)


if __name__ == "__main__":
    main()
