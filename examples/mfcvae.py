"""MFCVAE: two clusterings of the same images at once, each in a facet of its own (Falck et al.,
Multi-Facet Clustering Variational Autoencoders, 2021).

    python -m examples.mfcvae --data-root DATA                           # MNIST; hours on a CPU
    python -m examples.mfcvae --dataset fashion-mnist --data-root DATA
    python -m examples.mfcvae --dataset digits                           # 8x8 digits; no files

Sizes are the paper's for MNIST (Tables 3 and 4), the decoder and the start those of the authors'
code. The deep facet is trained first, then the shallow one is faded in. No label is used but for
the scores. Every flag of the paper's tables and figures: `python -m lab.protocols.mfcvae --help`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyro

from examples.common import format_scores, load_data, parse, save_run, score_facets
from facetvae import (
    MFCVAE,
    Bernoulli,
    GaussianMixture,
    MLPLadder,
    ProgressiveFadeIn,
    SVIRunner,
    VaDEGuide,
    cold_start,
)
from facetvae.datasets import Dataset


@dataclass(frozen=True)
class Settings:
    """Pairs are the shallow facet's and the deep one's; phases are the deep facet's first."""

    facets: tuple[str, str] = ("style", "class")
    num_components: tuple[int, int] = (25, 25)
    dim: tuple[int, int] = (5, 5)
    widths: tuple[int, int] = (500, 2000)
    batch_size: int = 512
    lr: float = 5e-4
    epochs: tuple[int, int] = (201, 201)
    fade_steps: int = 15_000  # in which the shallow facet comes in


DIGITS = Settings(batch_size=64, epochs=(60, 240), fade_steps=4000)
SMOKE = replace(DIGITS, num_components=(10, 10), widths=(64, 128), epochs=(2, 3), fade_steps=12)


def build(data: Dataset, settings: Settings) -> VaDEGuide:
    """A mixture for each facet, one ladder of networks, and responsibilities as q(c given x)."""
    facets = {
        name: GaussianMixture(K, d)
        for name, K, d in zip(settings.facets, settings.num_components, settings.dim, strict=True)
    }
    network = MLPLadder(settings.widths, merge="gated_add", layers_after_merge=1)
    return VaDEGuide(MFCVAE(data.train.shape[1:], facets, Bernoulli(), network))


def main(argv: list[str] | None = None) -> None:
    args = parse("mfcvae", __doc__, argv, ("mnist", "fashion-mnist", "digits"))
    settings = SMOKE if args.smoke else DIGITS if args.dataset == "digits" else Settings()
    data = load_data(args)
    pyro.set_rng_seed(args.seed)
    guide = build(data, settings)
    cold_start(guide, data.train, seed=args.seed)  # mixtures, fitted to the first latents
    runner = SVIRunner(
        guide.model,
        guide,
        lr=settings.lr,
        schedule=ProgressiveFadeIn(settings.epochs, settings.fade_steps),
        seed=args.seed,
        device=args.device,
    )
    runner.fit(data.train, sum(settings.epochs), settings.batch_size, log_every=5)
    scores = score_facets(runner.guide, data)
    print(format_scores(scores))
    save_run(runner, data, scores, args.out)


if __name__ == "__main__":
    main()
