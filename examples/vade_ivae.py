"""Are the true sources found? VaDE infers what iVAE is given (Willetts and Paige, I Don't
Need u: Identifiable Non-Linear ICA Without Side Information, 2021).

    python -m examples.vade_ivae        # the data are drawn; needs no files

Five independent sources have other means and deviations in each of 20 segments, and an invertible
network mixes them. Posterior means and true sources of held-out rows are matched on one half and
correlated on the other. The paper's 70,000 steps, and a flow: `lab.protocols.identifiability`.

    facetvae explore runs/vade_ivae/VaDE-2000/seed-0 --data runs/vade_ivae/test-2000.npy
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyro
from torch.nn.init import xavier_uniform_

from examples.common import Table, format_table, parse, write_json
from facetvae import (
    IVAE,
    MLP,
    ConditionalGuide,
    FacetGuide,
    GaussianMixture,
    MarginalGuide,
    Normal,
    SVIRunner,
    VaDE,
    fit_together,
)
from inference.callbacks import ReduceOnPlateau
from inference.metrics import held_out_correlation

NUM_SEGMENTS, DIM = 20, 5


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the steps; the layers, which it leaves open, are the iVAE authors'."""

    per_segment: tuple[int, ...] = (100, 200, 500, 1000, 2000)
    widths: tuple[int, ...] = (10, 10)
    num_components: int = 40
    steps: int = 15_000
    batch_size: int = 256
    lr: float = 1e-3
    held_out: int = 200  # rows of each segment


SMOKE = Settings((20, 30), (8,), steps=60, held_out=10)


def mixed_sources(per_segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Mixed sources and the sources, both ``[NUM_SEGMENTS, per_segment, DIM]``."""
    rng = np.random.default_rng(1)
    matrices = [np.linalg.qr(rng.normal(size=(DIM, DIM))) for _ in range(4)]
    mean = rng.uniform(-3, 3, (NUM_SEGMENTS, 1, DIM))
    scale = rng.uniform(0.01, 3, (NUM_SEGMENTS, 1, DIM))
    x = sources = mean + scale * rng.normal(size=(NUM_SEGMENTS, per_segment, DIM))
    for layer, (q, r) in enumerate(matrices):  # leaky ReLU between orthogonal matrices
        bent = np.where(x > 0, x, 0.2 * x) if layer else x
        x = bent @ (q * np.sign(np.diag(r))).T
    return x, sources


def build(name: str, s: Settings, seed: int) -> FacetGuide:
    """Networks, and means of the mixture, are drawn by Glorot's rule."""
    pyro.set_rng_seed(seed)
    parts = Normal(0.1), MLP(s.widths, init="glorot_uniform", dropout=0)
    if name == "iVAE":
        return ConditionalGuide(IVAE((DIM,), NUM_SEGMENTS, DIM, *parts, scale=1.0, name="source"))
    prior = GaussianMixture(s.num_components, DIM, scale=1.0)
    guide = MarginalGuide(VaDE((DIM,), prior, *parts, name="source"))
    xavier_uniform_(prior.loc.data)
    return guide


def train(
    name: str, x: np.ndarray, segment: np.ndarray, s: Settings, seeds: list[int], device: str
) -> list[SVIRunner]:
    """A run for each seed, side by side; its rate falls where its ELBO stands still."""
    runners = []
    for seed in seeds:
        guide = build(name, s, seed)
        runners.append(SVIRunner(guide.model, guide, lr=s.lr, seed=seed, device=device))
    epochs = max(1, round(s.steps / -(-len(x) // s.batch_size)))
    how = {"batch_size": s.batch_size, "log_every": max(1, epochs // 60)}
    how["callbacks"] = lambda runner: [ReduceOnPlateau(0.1, 10)]
    fit_together(runners, x, epochs, **how, **dict.fromkeys(guide.takes, segment))
    return runners


def main(argv: list[str] | None = None) -> None:
    args = parse("vade_ivae", __doc__, argv, seeds=tuple(range(10)))
    s = SMOKE if args.smoke else Settings()
    found: Table = {"VaDE": {}, "iVAE": {}}
    for size in s.per_segment:
        mixed, sources = mixed_sources(size + s.held_out)
        x, segment = mixed[:, :size].reshape(-1, DIM), np.arange(NUM_SEGMENTS).repeat(size)
        order = np.random.default_rng(0).permutation(NUM_SEGMENTS * s.held_out)
        test, true = (each[:, size:].reshape(-1, DIM)[order] for each in (mixed, sources))
        given = order // s.held_out  # segments of the test rows
        for name, row in found.items():
            scores = row[f"{size} rows"] = []
            for run in train(name, x, segment, s, args.seeds, args.device):
                z = run.guide.embed(test, **dict.fromkeys(run.guide.takes, given))["source"]
                scores.append(held_out_correlation(true, z).out_of_sample)
                run.save(args.out / f"{name}-{size}" / f"seed-{run.seed}")
        np.save(args.out / f"test-{size}.npy", test)
    write_json(args.out / "run.json", {"data": "mixed-sources"})
    write_json(args.out / "scores.json", found)
    print(f"\n{format_table('correlation, mean (deviation)', found)}")


if __name__ == "__main__":
    main()
