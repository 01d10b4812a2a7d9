"""VLAC: a clustering in each layer of a convolutional ladder, from colors to shapes (Willetts et
al., Disentangling to Cluster: Gaussian Mixture Variational Ladder Autoencoders, 2019).

    python -m examples.vlac --data-root DATA       # MNIST in colors, which stands in for SVHN
    python -m examples.vlac --dataset digits       # the same of 8x8 digits; no files

Digits are drawn in ink of one hue on a ground of another: three groupings, all known. The networks
are first trained with a standard normal instead of every mixture, then mixtures are fitted to the
latents, then the model's own objective is trained. Clusters are given by networks, and relaxed. The
paper gives neither sizes nor lengths: these are ours. Baselines, and SVHN itself:
`python -m lab.protocols.vlac --help`.

    facetvae explore runs/vlac --data runs/vlac/test.npy
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyro
from matplotlib.colors import hsv_to_rgb

from examples.common import format_scores, load_data, parse, save_run, score_facets
from facetvae import (
    VLAC,
    ConvLadder,
    GumbelSoftmax,
    LadderGuide,
    Normal,
    SVIRunner,
    data_dependent_start,
    warm_start,
)
from facetvae.datasets import Dataset, Labels, some_rows

HUES = 6  # of ink, and of the background


@dataclass(frozen=True)
class Settings:
    """Four layers, shallow to deep, the first one plain."""

    num_components: tuple[int, ...] = (1, 20, 50, 20)
    dim: tuple[int, ...] = (5, 5, 10, 5)
    widths: tuple[int, ...] = (16, 32, 64, 128)
    scale: float = 0.2  # of the likelihood; pixels are within [0, 1]
    temperature: float = 0.5  # of the relaxed clusters
    train_rows: int = 6000
    batch_size: int = 50
    lr: float = 1e-3
    warm_epochs: int = 23
    epochs: int = 8
    restarts: int = 3  # of each fit of a mixture


SMOKE = Settings(
    (1, 4, 5, 4), widths=(4, 4, 4, 4), train_rows=80, batch_size=16, warm_epochs=2, epochs=1
)


def colored(data: Dataset, seed: int = 0) -> Dataset:
    """The digits in colors, 32x32 as uint8, with the labels ``ink`` and ``background``."""
    rng = np.random.default_rng(seed)
    inks, grounds = (
        hsv_to_rgb([(k / HUES, saturation, value) for k in range(HUES)]).astype(np.float32)
        for saturation, value in ((0.45, 1.0), (0.9, 0.5))
    )
    side = data.image_shape[0]
    zoom = 32 // side
    margin = (32 - zoom * side) // 2

    def painted(x: np.ndarray, known: Labels) -> tuple[np.ndarray, Labels]:
        gray = x.reshape(-1, side, side) / (255 if x.dtype == np.uint8 else 1)
        gray = np.kron(gray, np.ones((1, zoom, zoom)))
        gray = np.pad(gray, [(0, 0), (margin, margin), (margin, margin)]).astype(np.float32)
        ink, ground = (rng.integers(HUES, size=len(x)) for _ in range(2))
        colors = inks[ink][..., None, None] * gray[:, None]
        colors += grounds[ground][..., None, None] * (1 - gray[:, None])
        return (255 * colors).round().astype(np.uint8), known | {"ink": ink, "background": ground}

    train, train_labels = painted(data.train, data.train_labels)
    test, test_labels = painted(data.test, data.test_labels)
    return Dataset(f"color-{data.name}", train, test, train_labels, test_labels, (3, 32, 32))


def main(argv: list[str] | None = None) -> None:
    args = parse("vlac", __doc__, argv, ("mnist", "digits"))
    s = SMOKE if args.smoke else Settings()
    data = some_rows(colored(load_data(args)), s.train_rows)
    pyro.set_rng_seed(args.seed)
    network = ConvLadder(s.widths)
    model = VLAC(data.image_shape, s.num_components, s.dim, Normal(s.scale), network)
    guide = LadderGuide(model, discrete=GumbelSoftmax(s.temperature))
    data_dependent_start(guide, data.train, seed=args.seed)
    options = {"lr": s.lr, "seed": args.seed, "device": args.device}
    first, runner = (SVIRunner(model, guide, **options) for _ in range(2))
    how = {"batch_size": s.batch_size, "log_every": 4}
    warm_start(first, data.train, s.warm_epochs, seed=args.seed, restarts=s.restarts, **how)
    runner.history = first.history
    runner.fit(data.train, s.epochs, **how)
    scores = score_facets(guide, data)
    print(format_scores(scores))
    save_run(runner, data, scores, args.out)


if __name__ == "__main__":
    main()
