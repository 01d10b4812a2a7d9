"""How far a guide's posterior is from that of Hamiltonian Monte Carlo: a VAE and a two-facet MFCVAE
on the bundled digits.

    python -m lab.benchmarks.hmc_reference

Each model is trained briefly. Then Pyro's NUTS draws the latents of ten held-out digits with the
decoder fixed and clusters summed out, from four starts for each digit, drawn from the prior. All
are rows of one NUTS chain: rows do not depend on one another in the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyro
import torch
from arviz_stats.base import array_stats
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide import init_to_sample
from torch import Tensor

from facetvae.datasets import Dataset, digits
from guides import FacetGuide, VaDEGuide
from inference import SVIRunner, warm_start
from inference.evaluation import log_importance_weights
from lab.run_lines import described_by
from ppl_models import MFCVAE, VAE, Bernoulli, FacetModel, GaussianMixture, SharedMLP

STARTS, BLOCKS = 4, 20
# Of each start: draws, after the steps of the warm-up.
DRAWS, WARMUP = 400, 300
COMPILED = {"jit_compile": True, "ignore_jit_warnings": True}


def vae(x_shape: tuple[int, ...]) -> FacetModel:
    return VAE(x_shape, 4, Bernoulli(threshold=0.5), SharedMLP((128, 64)))


def mfcvae(x_shape: tuple[int, ...]) -> FacetModel:
    facets = {"style": GaussianMixture(5, 2), "digit": GaussianMixture(10, 4)}
    return MFCVAE(x_shape, facets, Bernoulli(threshold=0.5), SharedMLP((128, 64)))


MODELS = {"VAE": vae, "MFCVAE": mfcvae}


def fitted(build: Callable[[tuple[int, ...]], FacetModel], data: Dataset, seed: int) -> FacetGuide:
    """A guide after a short training, in double precision and with its parameters fixed."""
    pyro.set_rng_seed(seed)
    guide = VaDEGuide(build(data.train.shape[1:]))
    options = {"batch_size": 64, "progress": False}
    if guide.model.mixtures:
        runner = SVIRunner(guide.model, guide, lr=2e-3, seed=seed)
        warm_start(runner, data.train, 30, seed=seed, **options)
    SVIRunner(guide.model, guide, lr=2e-3, seed=seed).fit(data.train, 60, **options)
    return guide.double().eval().requires_grad_(False)


def held_out(data: Dataset) -> Tensor:
    """The first test image of each digit: ``[10, 64]``."""
    labels = data.test_labels["digit"]
    rows = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]
    return torch.as_tensor(data.test[rows], dtype=torch.float64)


def nuts_draws(model: FacetModel, x: Tensor) -> np.ndarray:
    """Draws of all facets' latents, side by side: ``[data, coordinates, starts, draws]``."""
    rows = model.prepare(x).repeat(STARTS, 1)
    options = {"marginal": True} if model.mixtures else {}
    kernel = NUTS(model, max_plate_nesting=1, init_strategy=init_to_sample, **COMPILED)
    chain = MCMC(kernel, DRAWS, WARMUP, disable_progbar=True)
    chain.run(rows, **options)
    latents = chain.get_samples()
    z = torch.cat([latents[f"z_{name}"] for name in model.priors], -1)  # [draws, rows, d]
    return z.unflatten(1, (STARTS, len(x))).permute(2, 3, 1, 0).numpy()


def moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means ``[N, d]`` and covariances ``[N, d, d]`` of draws ``[N, d, ...]``."""
    flat = draws.reshape(*draws.shape[:2], -1)
    return flat.mean(-1), np.stack([np.atleast_2d(np.cov(each)) for each in flat])


def kl_to_fitted(loc: np.ndarray, scale: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """KL(guide's Normal, Normal fitted to the draws) of each datum, nats: ``[N]``."""
    mean, covariance = moments(draws)
    away = loc - mean
    trace = np.einsum("nii,ni->n", np.linalg.inv(covariance), scale**2)
    distance = np.einsum("ni,nij,nj->n", away, np.linalg.inv(covariance), away)
    log_volumes = np.linalg.slogdet(covariance)[1] - 2 * np.log(scale).sum(-1)
    return 0.5 * (trace + distance - loc.shape[1] + log_volumes)


def jackknife(
    estimate: Callable[[np.ndarray], np.ndarray], draws: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """An estimate without its bias of first order, and its standard error, leaving out one of 20
    successive blocks of draws at a time.
    """
    blocks = np.array_split(np.arange(draws.shape[-1]), BLOCKS)
    without = np.stack([estimate(np.delete(draws, block, -1)) for block in blocks])
    mean = without.mean(0)
    error = np.sqrt((BLOCKS - 1) * ((without - mean) ** 2).mean(0))
    return BLOCKS * estimate(draws) - (BLOCKS - 1) * mean, error


def gap(guide: FacetGuide, x: Tensor, num_draws: int) -> tuple[float, float]:
    """KL(guide, posterior) of a datum from importance weights, nats, and its standard error: log
    p(x) - ELBO.
    """
    log_w = log_importance_weights(guide, x, num_draws)
    weights = (log_w - log_w.logsumexp(0)).exp() * num_draws
    error = (weights - log_w).std(0) / num_draws**0.5  # of log(mean w) - mean(log w)
    found = log_w.logsumexp(0) - np.log(num_draws) - log_w.mean(0)
    return float(found.mean()), float((error**2).sum().sqrt() / len(error))


def compare(guide: FacetGuide, x: Tensor) -> dict[str, float]:
    """The figures of one fitted guide, each with its Monte-Carlo error where it has one."""
    posterior = guide.posterior(x).values()
    loc = np.concatenate([q.mean.numpy() for q in posterior], -1)
    scale = np.concatenate([q.stddev.numpy() for q in posterior], -1)
    begun = time.perf_counter()
    draws = nuts_draws(guide.model, x)
    seconds = time.perf_counter() - begun
    mean, covariance = moments(draws)
    sd = np.sqrt(np.einsum("nii->ni", covariance))
    mcse = np.array([[array_stats.mcse(row) for row in datum] for datum in draws])
    sd_mcse = np.array([[array_stats.mcse(row, method="sd") for row in datum] for datum in draws])
    ess = np.array([[array_stats.ess(row) for row in datum] for datum in draws])
    rhat = np.array([[array_stats.rhat(row) for row in datum] for datum in draws])
    kl, kl_error = jackknife(lambda part: kl_to_fitted(loc, scale, part), draws)
    found_gap, gap_error = gap(guide, x, 20_000)
    ratio = scale / sd
    return {
        "difference_of_means": float(np.sqrt((((loc - mean) / sd) ** 2).mean())),
        "difference_of_means_error": float((mcse / sd).mean()),
        "ratio_of_deviations": float(np.exp(np.log(ratio).mean())),
        "ratio_of_deviations_error": float((sd_mcse / sd).mean()),
        "lowest_ratio": float(ratio.min()),
        "highest_ratio": float(ratio.max()),
        "kl_of_normals": float(kl.mean()),
        "kl_of_normals_error": float(np.sqrt((kl_error**2).sum()) / len(kl)),
        "kl_of_normals_highest": float(kl.max()),
        "gap": found_gap,
        "gap_error": gap_error,
        "least_effective_draws": float(ess.min()),
        "median_effective_draws": float(np.median(ess)),
        "highest_rhat": float(rhat.max()),
        "data_with_rhat_above_1.05": float((rhat.max(-1) > 1.05).sum()),
        "seconds": seconds,
    }


def main() -> None:
    parser = described_by(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="0 to this number")
    args = parser.parse_args()
    data = digits()
    for name, build in MODELS.items():
        for seed in range(args.seeds):
            found = compare(fitted(build, data, seed), held_out(data))
            for measure, value in found.items():
                print(f"{name} seed {seed} {measure} {value:.4f}", flush=True)


if __name__ == "__main__":
    main()
