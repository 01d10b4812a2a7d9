"""Two clusterings of scikit-learn's bundled handwritten digits: what is written, and how.

    python -m examples.quickstart

Needs no files, and no labels. On so few data a mixture that is trained from random initial values
collapses into one cluster. So the digit facet first learns the clusters of a graph of nearest
neighbors, while the style facet is faded in for the remaining variation. Then its clusters are its
own, under a prior that expects neighbors to share them. Each image comes with four copies, turned
or sheared a little: what these have in common is not style.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyro

from examples.common import format_scores, load_data, parse, save_run, score_facets
from facetvae import (
    MFCVAE,
    GaussianMixture,
    MLPLadder,
    NeighborGraph,
    NeighborMixture,
    Normal,
    ProgressiveFadeIn,
    SVIRunner,
    VaDEGuide,
    fit_mixtures,
    fit_neighbors,
    image_variants,
)
from facetvae.datasets import Dataset


@dataclass(frozen=True)
class Settings:
    """Sizes and lengths; the digit facet is deep, the style facet shallow."""

    num_components: tuple[int, int] = (8, 25)  # style, digit
    dim: int = 5
    widths: tuple[int, int] = (200, 400)
    scale: float = 0.15  # of the likelihood; pixels are within [0, 1]
    batch_size: int = 64
    lr: float = 1e-3
    # with the graph's clusters: the digit facet alone, and both
    start_epochs: tuple[int, int] = (10, 20)
    fade_steps: int = 1000
    epochs: int = 30


# Deviation of the digit facet's components, which then begin far apart and learn clusters soon.
FAR_APART = 0.05
SMOKE = Settings((2, 3), 2, (16, 16), batch_size=128, start_epochs=(1, 2), fade_steps=20, epochs=1)


def train(
    data: Dataset, settings: Settings, seed: int, device: str, progress: bool = True
) -> SVIRunner:
    """The whole recipe; returns the runner, its history holding both stages."""
    pyro.set_rng_seed(seed)
    num_styles, num_digits = settings.num_components
    style = GaussianMixture(num_styles, settings.dim)
    digit = GaussianMixture(num_digits, settings.dim, scale=FAR_APART)
    model = MFCVAE(
        data.train.shape[1:],
        {"style": style, "digit": NeighborMixture(digit)},
        likelihood=Normal(settings.scale),
        network=MLPLadder(settings.widths, merge="gated_add", layers_after_merge=1),
    )
    guide = VaDEGuide(model)
    x = with_copies(data.train, data.image_shape)
    graph = NeighborGraph(x, seed=seed)
    schedule = ProgressiveFadeIn(settings.start_epochs, settings.fade_steps)
    first = SVIRunner(model, guide, lr=settings.lr, schedule=schedule, seed=seed, device=device)
    fit_mixtures(guide, x, seed=seed, facets=["style"])
    clusters = {"digit": graph.clusters(num_digits, seed)}
    options = {"batch_size": settings.batch_size, "log_every": 5, "progress": progress}
    first.fit(x, sum(settings.start_epochs), label=clusters, **options)
    runner = SVIRunner(model, guide, lr=settings.lr, seed=seed, device=device)
    runner.history = first.history
    return fit_neighbors(runner, x, graph, settings.epochs, **options)


def with_copies(x: np.ndarray, image_shape: tuple[int, ...]) -> np.ndarray:
    """The images ``[N, D]``, and after them four copies of all, turned and sheared."""
    images = x.reshape(-1, *image_shape)
    return np.concatenate([x, *(each.numpy().reshape(x.shape) for each in image_variants(images))])


def main(argv: list[str] | None = None) -> None:
    args = parse("quickstart", __doc__, argv)
    data = load_data(args)
    runner = train(data, SMOKE if args.smoke else Settings(), args.seed, args.device)
    scores = score_facets(runner.guide, data)
    for facet, of in scores.items():
        of["digit"]["mutual_information"] = runner.history[-1][f"mutual_information_{facet}"]
    print(f"{len(data.test)} test images; how well each facet's clusters match the written digit:")
    print(format_scores(scores))
    save_run(runner, data, scores, args.out)


if __name__ == "__main__":
    main()
