"""Do runs from different seeds find the same latents? VaDE, iVAE and others on images (Willetts and
Paige, 2021; 4.2).

python -m lab.protocols.identifiability_images --dataset mnist --data-root DATA --models VaDE iVAE

Several seeds of each model are trained; then the posterior means of the test images are compared
between every two of them. The measure, chosen before any run: mean correlation (Pearson's) after
alignment by CCA; the linear map is found on one half of the test images and scored on the other.
Results already in the run folder, made with the same settings, are reused.

How a run is made is its protocol: as the paper says, or as its authors' code does where that is
more, or other, than the paper says (section 4.2 and appendix C; appendix B):

python -m lab.protocols.identifiability_images --protocol authors --network mlp --dim 50
python -m lab.protocols.identifiability_images --protocol authors --dataset cifar-10 \\
    --models VaDE "hashed u" --num-components 128
python -m lab.protocols.identifiability_images --protocol authors-grid --dataset cifar-10
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import combinations
from math import prod
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyro
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from facetvae.datasets import Dataset
from guides import CodebookGuide, ConditionalGuide, FacetGuide, MarginalGuide, PointGuide
from inference import SVIRunner
from inference.callbacks import JSONLines, ReduceOnPlateau
from inference.metrics import held_out_correlation
from lab.figures.comparisons import grouped_boxes, grouped_curves
from lab.identifiability import KeepIdentifiable
from lab.protocols.common import (
    TRAINING_FLAGS,
    add_setting_flags,
    as_images,
    build_parser,
    checkpointing,
    load_data,
    once,
    open_run_folder,
    refuse_several,
    resolve,
    runner_options,
    write_json,
)
from lab.protocols.image_protocols import (
    ALL_VARIATES,
    FIRST,
    PROTOCOLS,
    SMOKE,
    VARIATES,
    Settings,
    left_out,
    varying_pixels,
)
from ppl_models import (
    IVAE,
    MLP,
    VQVAE,
    Autoencoder,
    ConvGrid,
    ConvNet,
    GaussianMixture,
    Likelihood,
    ResNet,
    VaDE,
)
from ppl_models.networks import Architecture

DATASETS = ("mnist", "svhn", "cifar-10", "digits", "color-digits", "color-mnist")
NETWORKS: dict[str, type[Architecture]] = {"mlp": MLP, "convnet": ConvNet, "resnet": ResNet}

# A guide to train, and what it is given beside x.
Built = tuple[FacetGuide, Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]]


def vade(shape: tuple[int, ...], likelihood: Likelihood, settings: Settings, seed: int) -> Built:
    prior = GaussianMixture(settings.num_components, settings.dim, scale=1.0)
    return MarginalGuide(
        VaDE(shape, prior, likelihood, NETWORKS[settings.network](), name="z")
    ), nothing


def ivae(
    shape: tuple[int, ...],
    likelihood: Likelihood,
    settings: Settings,
    seed: int,
    reads_label: bool = True,
) -> Built:
    model = IVAE(
        shape, 10, settings.dim, likelihood, NETWORKS[settings.network](), scale=1.0, name="z"
    )
    return ConditionalGuide(model, reads_label=reads_label), lambda x, digit: {"label": digit}


class RademacherHash:
    r"""u as the orthant of random signs' projection: :math:`u(x) = \sum_i 2^i \, [(A x)_i > 0]`.

    Eq. C.1 to C.3. The posterior of u is one-hot and has no parameters, so a model with this u is
    an :class:`~ppl_models.ivae.IVAE` trained with these labels: ``runner.fit(x, epochs=10,
    label=hash_of(x))``.

    :param x_shape: shape of one sample.
    :param num_bits: N, which gives 2 ** N labels; 7 in the paper.
    :param seed: seed of A.
    """

    def __init__(self, x_shape: tuple[int, ...], num_bits: int, seed: int = 0) -> None:
        signs = torch.Generator().manual_seed(seed)
        self.num_labels = 2**num_bits
        self.projection = (
            torch.randint(0, 2, (num_bits, prod(x_shape)), generator=signs).double() * 2 - 1
        )

    def __call__(self, x: ArrayLike | Tensor) -> np.ndarray:
        """Labels ``[N]`` of data ``[N, *x_shape]``."""
        powers = 2 ** torch.arange(len(self.projection))
        parts = torch.as_tensor(x).split(4096)
        positive = (part.cpu().flatten(1).double() @ self.projection.T > 0 for part in parts)
        return torch.cat([(each * powers).sum(1) for each in positive]).numpy()


def hashed(shape: tuple[int, ...], likelihood: Likelihood, settings: Settings, seed: int) -> Built:
    """VaDE's factorization, q(z given x) q(u given x), the latter given: the encoder sees no u."""
    labels = RademacherHash(shape, settings.hash_bits, seed)
    network = NETWORKS[settings.network]()
    model = IVAE(shape, labels.num_labels, settings.dim, likelihood, network, scale=1.0, name="z")
    return ConditionalGuide(model, reads_label=False), lambda x, digit: {"label": labels(x)}


def vqvae(shape: tuple[int, ...], likelihood: Likelihood, settings: Settings, seed: int) -> Built:
    model = VQVAE(
        shape,
        settings.num_codes,
        settings.code_dim,
        likelihood,
        ConvGrid(settings.grid_widths),
        name="z",
    )
    return CodebookGuide(model), nothing


def autoencoder(
    shape: tuple[int, ...], likelihood: Likelihood, settings: Settings, seed: int
) -> Built:
    model = Autoencoder(
        shape, settings.point_dim, likelihood, ConvGrid(settings.grid_widths), name="z"
    )
    return PointGuide(model), nothing


def nothing(x: np.ndarray, digit: np.ndarray) -> dict[str, np.ndarray]:
    return {}


MODELS: dict[str, Callable[..., Built]] = {
    "VaDE": vade,
    "iVAE": ivae,
    "iVAE, q(z|x)": partial(ivae, reads_label=False),
    "hashed u": hashed,
    "VQ-VAE": vqvae,
    "autoencoder": autoencoder,
}
# Models on a grid, and the setting that is the length of z at each of its places.
ON_GRID = {"VQ-VAE": "code_dim", "autoencoder": "point_dim"}


def folder_of(name: str) -> str:
    """A model's name as that of a folder."""
    return re.sub(r"\W+", "-", name).strip("-")


def first_label(labels: Mapping[str, np.ndarray]) -> np.ndarray:
    """The digit, or the object: the label that is u, where it is known."""
    return next(iter(labels.values()))


def train(
    name: str, data: Dataset, settings: Settings, seed: int, args: argparse.Namespace
) -> dict[int, np.ndarray]:
    """One run; the latents of the test images on the way and at the end, ``{epoch: [N, d]}``."""
    shape, folder = data.train.shape[1:], args.out / folder_of(name) / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    protocol = PROTOCOLS[settings.protocol]
    images = protocol.images[shape[0]]
    pixels = varying_pixels(data.train, settings.least_deviation)
    pyro.set_rng_seed(seed)
    guide, given = MODELS[name](shape, images.likelihood(), settings, seed)
    beside = given(data.train, first_label(data.train_labels))
    for prior in guide.model.mixtures.values():
        protocol.prior(prior)
    first = {label: values[:FIRST] for label, values in beside.items()}
    protocol.start(guide, left_out(data.train[:FIRST], pixels), first, seed)
    test = images.shown(data.test, pixels, seed)
    beside_test = given(data.test, first_label(data.test_labels))
    runner = SVIRunner(guide.model, guide, **runner_options(settings, seed, args.device))
    looks = 1 if name in ON_GRID else settings.looks
    every = max(1, settings.epochs // looks)

    def look(runner: SVIRunner, record: dict[str, Any]) -> None:
        if record["epoch"] % every == 0 or record["epoch"] == settings.epochs:
            z = protocol.latents(guide, test, beside_test)
            np.save(folder / f"latents-{record['epoch']}.npy", z)

    callbacks = [
        ReduceOnPlateau(0.8, 5),
        KeepIdentifiable(),
        look,
        JSONLines(folder / "metrics.jsonl"),
    ]
    runner.fit(
        epochs=settings.epochs,
        callbacks=callbacks,
        checkpoints=checkpointing(args.out, folder.parent.name, folder.name),
        **images.batches(data.train, pixels, beside, settings),
    )
    runner.save(folder)
    looked = sorted(
        {epoch for epoch in range(every, settings.epochs + 1, every)} | {settings.epochs}
    )
    return {epoch: np.load(folder / f"latents-{epoch}.npy") for epoch in looked}


def pairs(
    name: str, data: Dataset, settings: Settings, args: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Correlations between all seeds of a model, by epoch; of models on a grid, at the end only."""
    seeds = range(args.seed, args.seed + settings.seeds)
    runs = [train(name, data, settings, seed, args) for seed in seeds]
    places = (
        runs[0][settings.epochs].shape[1] // getattr(settings, ON_GRID[name])
        if name in ON_GRID
        else 1
    )
    return {str(epoch): compare([run[epoch] for run in runs], places) for epoch in runs[0]}


def compare(latents: list[np.ndarray], places: int) -> dict[str, list[float]]:
    """Correlations of every two seeds' latents, place by place for those on a grid."""
    scores: dict[str, list[float]] = {}
    for one, other in combinations(latents, 2):
        for place in range(places):
            a, b = one[:, place::places], other[:, place::places]
            variants: dict[str, dict[str, Any]] = {"aligned": {"align": True}, "as they are": {}}
            if a.shape[1] > VARIATES:
                variants[f"{VARIATES} variates"] = {"align": True, "num_variates": VARIATES}
            for name, options in variants.items():
                found = held_out_correlation(a, b, **options)
                scores.setdefault(f"{name}, in sample", []).append(found.in_sample)
                scores.setdefault(f"{name}, out of sample", []).append(found.out_of_sample)
                scores.setdefault(f"{name}, rematched", []).append(found.rematched)
    return scores


def report(
    results: Mapping[str, Mapping[str, dict[str, list[float]]]],
    out: Path,
    shown: tuple[str, str] = ALL_VARIATES,
) -> None:
    """A table of medians and means, and the figures.

    :param shown: measures to draw as boxes; of short latents, which have no best variates, all.
    """
    last = {name: list(of.values())[-1] for name, of in results.items()}
    measures = list(next(iter(last.values())))
    shown = shown if set(shown) <= set(measures) else ALL_VARIATES
    width = max(map(len, measures)) + 2
    print(f"{'median (mean)':14s}" + "".join(f"{measure:>{width}s}" for measure in measures))
    for name, scores in last.items():
        cells = (
            f"{median(scores[measure]):.3f} ({mean(scores[measure]):.3f})" for measure in measures
        )
        print(f"{name:14s}" + "".join(f"{cell:>{width}s}" for cell in cells))
    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    aligned = {name: {m.split(", ")[1]: scores[m] for m in shown} for name, scores in last.items()}
    label = "MCC of two seeds, aligned"
    grouped_boxes(aligned, "test images", label).savefig(folder / "pairs.png", dpi=150)
    held_out = [m for m in measures if m.endswith("out of sample")]
    curves = {
        name: {
            m.split(", ")[0]: (
                [int(epoch) for epoch in of],
                [median(scores[m]) for scores in of.values()],
            )
            for m in held_out
        }
        for name, of in results.items()
    }
    grouped_curves(curves, "epochs", "median MCC of two seeds, out of sample").savefig(
        folder / "training.png", dpi=150
    )


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "identifiability_images")
    parser.add_argument("--dataset", choices=DATASETS, default="mnist")
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), help="default: the protocol's two"
    )
    parser.add_argument(
        "--protocol",
        choices=list(PROTOCOLS),
        default="paper",
        help="as the paper says, or as its authors' code does (on a grid: appendix B)",
    )
    flags = {
        "network": {"help": "of the paper's appendix A", "choices": tuple(NETWORKS)},
        "dim": {"help": "length of the latent vector; 50, 90 and 200 in the paper"},
        "num_components": {"help": "of VaDE"},
        "seeds": {"help": "runs of each model, from --seed on"},
        "epochs": {"help": "passes over the data"},
        "looks": {"help": "times that the latents are compared, over a run"},
        **{name: flag for name, flag in TRAINING_FLAGS.items() if name != "evaluate_every"},
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    protocol = PROTOCOLS[args.protocol]
    args.models = args.models or list(protocol.models)
    settings = protocol.settings(args.dataset, getattr(args, "network", Settings.network))
    settings = resolve(args, settings, replace(settings, **SMOKE))
    if settings.seeds < 2:
        parser.error(f"--seeds {settings.seeds}: two runs or more are compared with each other")
    return args, settings


def main(argv: list[str] | None = None) -> None:
    refuse_several()
    args, settings = parse(argv)
    data = as_images(load_data("digits" if args.smoke else args.dataset, args))
    # Halves of MNIST's test images differ as they lie.
    data = data.rows(test=np.random.default_rng(0).permutation(len(data.test)))
    open_run_folder(args, settings, data)
    described = {**asdict(settings), "first_seed": args.seed, "data": data.name}
    results = {}
    for name in args.models:
        path = args.out / folder_of(name) / "results.json"
        results[name] = once(
            path, described, lambda name=name: {"pairs": pairs(name, data, settings, args)}
        )["pairs"]
    report(results, args.out, PROTOCOLS[settings.protocol].measures)
    write_json(args.out / "results.json", results)


if __name__ == "__main__":
    main()
