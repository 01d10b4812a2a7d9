"""ML-VAE: what the members of a group share, and what is particular to each (Bouchacourt et al.,
Multi-Level Variational Autoencoder, 2018).

    python -m examples.mlvae --data-root DATA      # MNIST
    python -m examples.mlvae --dataset digits      # 8x8 digits; no files

Images are grouped by digit. The encoder's beliefs about the members of a group are multiplied into
one content; each member has its own style. A classifier then reads the digit from either, of test
images alone and in groups of ten: content should tell it, style should not. Other ways to combine
evidence, unseen groups and the paper's figures: `python -m lab.protocols.mlvae --help`.

    facetvae explore runs/mlvae --data-root DATA
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyro

from examples.common import format_table, load_data, parse, save_run
from facetvae import (
    MLP,
    MLVAE,
    Bernoulli,
    CoolDown,
    GroupedGuide,
    Groups,
    ProductOfNormals,
    SVIRunner,
)
from facetvae.datasets import Dataset
from inference.metrics import probe_accuracy

TOGETHER = (1, 10)  # images of a digit that are read together
PROBED = 10_000  # training images, at most, that the classifier learns from


@dataclass(frozen=True)
class Settings:
    """The paper's network and sizes for MNIST, where it has a Normal likelihood and 2,000 epochs.

    Batches, Bernoulli and the cooling are our choice: within a hundred epochs the style, which
    tells of each image what no other latent does, learns the digit as well and is slow to forget
    it, unless it is dear at first.
    """

    content_dim: int = 10
    style_dim: int = 10
    widths: tuple[int, ...] = (500,)
    batch_size: int = 256
    max_members: int = 26  # rows of a group that are looked at together
    lr: float = 1e-3
    epochs: int = 100
    style_weight: float = 20.0  # of its KL at first; it falls to 1 over four fifths of the run


SMOKE = replace(Settings(), widths=(32,), epochs=3)


def in_groups(label: np.ndarray, size: int) -> np.ndarray:
    """Groups ``[N]`` of at most so many rows that share a label."""
    place = np.empty(len(label), int)  # of each row among those of its label
    for each in np.unique(label):
        place[label == each] = np.arange((label == each).sum())
    return np.unique(np.stack([label, place // size]), axis=1, return_inverse=True)[1].ravel()


def score(guide: GroupedGuide, data: Dataset, seed: int) -> dict[str, dict[str, float]]:
    """How well a classifier reads the digit from content and style: accuracy on test images, by
    how many images are read together.
    """
    label, test_label = data.train_labels["digit"][:PROBED], data.test_labels["digit"]
    found: dict[str, dict[str, float]] = {"content": {}, "style": {}}
    for size in TOGETHER:
        z = guide.embed(data.train[:PROBED], group=in_groups(label, size))
        test_z = guide.embed(data.test, group=in_groups(test_label, size))
        for latent, row in found.items():
            accuracy = probe_accuracy(z[latent], label, test_z[latent], test_label, seed)
            row[f"accuracy, {size} together"] = accuracy
    return found


def main(argv: list[str] | None = None) -> None:
    args = parse("mlvae", __doc__, argv, ("mnist", "digits"))
    s = SMOKE if args.smoke else Settings()
    data = load_data(args)
    pyro.set_rng_seed(args.seed)
    network = MLP(s.widths, "tanh", dropout=0)
    model = MLVAE(data.train.shape[1:], s.content_dim, s.style_dim, Bernoulli(), network)
    guide = GroupedGuide(model, evidence=ProductOfNormals())
    given, batches = {"group": data.train_labels["digit"]}, Groups(s.max_members)
    steps = s.epochs * batches.steps(guide.observed(data.train, given), s.batch_size)
    schedule = CoolDown({"z_style": s.style_weight}, max(1, 4 * steps // 5))
    options = {"lr": s.lr, "seed": args.seed, "device": args.device}
    runner = SVIRunner(model, guide, schedule=schedule, **options)
    runner.fit(data.train, s.epochs, s.batch_size, batches=batches, log_every=5, **given)
    scores = score(guide, data, args.seed)
    table = {name: {k: [value] for k, value in row.items()} for name, row in scores.items()}
    print(format_table("the digit, read from", table))
    save_run(runner, data, scores, args.out, group=data.test_labels["digit"])


if __name__ == "__main__":
    main()
