"""VaDE: MFCVAE with one facet (Falck et al., 2021; D.5), without pre-training.

    python -m lab.protocols.vade --dataset mnist --data-root DATA
    python -m lab.protocols.vade --dataset svhn --data-root DATA

On MNIST the sizes are those of appendix C.3, which compares the objective's two forms (Fig. 7);
`--loss alternate` is the other one. `--num-components 25 --dim 5 --widths 500 2000 --lr 0.001` has
the sizes of MFCVAE's digit facet (Table 3).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyro

from facetvae.datasets import Dataset
from guides import FacetGuide
from inference import SVIRunner, data_dependent_start
from lab.protocols.common import (
    INIT_FLAG,
    LOSS_FLAG,
    LOSSES,
    START_FLAGS,
    TRAINING_FLAGS,
    add_setting_flags,
    as_images,
    build_parser,
    check_start,
    fit_and_report,
    load_data,
    open_run_folder,
    resolve,
    runner_options,
    start_mixtures,
)
from ppl_models import Bernoulli, ConvLadder, GaussianMixture, Normal, SharedMLP, VaDE
from ppl_models.networks import Architecture


@dataclass(frozen=True)
class Settings:
    """Table 6's network with the sizes of Table 3; the rate and the number of epochs are ours."""

    facet: str = "digit"
    num_components: int = 25
    dim: int = 5
    widths: tuple[int, ...] = (500, 2000)
    network: str = "shared"  # Table 6's, or "convolutional": Table 5's, with the deep facet alone
    scale: float = 0.0  # of a Normal likelihood; 0 stands for Bernoulli
    bounded: bool = False  # whether a Normal's mean is a sigmoid
    weights: str = "learned"
    init: str = "pytorch"
    loss: str = "primary"  # the objective's form (C.3)
    start: str = "draws"  # what the mixture is fitted to before the first step
    start_rows: int = 20_000  # most rows that it is fitted to; 0 for all
    batch_size: int = 512
    lr: float = 1e-3
    epochs: int = 100
    precision: str = "float32"  # of the networks
    evaluate_every: int = 10


# Appendix C.3 (Fig. 7), which is close to VaDE's own; with a start from draws one run fell into one
# cluster.
MNIST = Settings(
    num_components=50, dim=10, widths=(500, 500, 2000), lr=2e-3, start="means", start_rows=0
)
# The facet of Table 3 that has the classes; covariances are diagonal, as VaDE's are.
SHAPES = Settings(
    "shape", 60, 20, (64, 128), "convolutional", scale=0.6, weights="uniform", batch_size=150
)
SVHN = replace(SHAPES, facet="digit", num_components=200, dim=22, scale=0.3, bounded=True, lr=5e-4)
SETTINGS = {
    "digits": Settings(),
    "mnist": MNIST,
    "fashion-mnist": replace(MNIST, facet="article"),
    "shapes3d-1": SHAPES,
    "shapes3d-2": SHAPES,
    "svhn": SVHN,
    "color-digits": SVHN,
    "color-mnist": SVHN,
}
SMOKE = replace(MNIST, num_components=10, dim=5, batch_size=64, epochs=3, evaluate_every=3)
# Of each network, where it is not the data set's own, and in a smoke run.
WIDTHS = {"shared": (500, 2000), "convolutional": (64, 128)}
SMOKE_WIDTHS = {"shared": (64, 128), "convolutional": (8, 16)}
NETWORKS: dict[str, Callable[[Settings], Architecture]] = {
    "shared": lambda s: SharedMLP(s.widths, init=s.init),
    "convolutional": lambda s: ConvLadder(s.widths, init=s.init, rungs=(len(s.widths) - 1,)),
}


def build(data: Dataset, settings: Settings) -> FacetGuide:
    prior = GaussianMixture(settings.num_components, settings.dim, weights=settings.weights)  # type: ignore[arg-type]
    likelihood = Normal(settings.scale, settings.bounded) if settings.scale else Bernoulli()
    network = NETWORKS[settings.network](settings)
    return LOSSES[settings.loss](
        VaDE(data.train.shape[1:], prior, likelihood, network, name=settings.facet)
    )


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "vade")
    parser.add_argument("--dataset", choices=SETTINGS, default="mnist")
    flags = {
        "num_components": {"help": "of the mixture"},
        "dim": {"help": "of the latents"},
        "network": {
            "help": "fully connected (Table 6) or convolutional (Table 5)",
            "choices": tuple(NETWORKS),
        },
        "widths": {"help": "of the network, from the data inwards", "nargs": "+"},
        "init": INIT_FLAG,
        "loss": LOSS_FLAG,
        "epochs": {"help": "passes over the data"},
    }
    add_setting_flags(parser, Settings(), **TRAINING_FLAGS, **START_FLAGS, **flags)
    args = parser.parse_args(argv)
    if args.smoke:
        args.dataset = "digits"
    settings = resolve(args, SETTINGS[args.dataset], SMOKE)
    other = settings.network != SETTINGS[args.dataset].network
    if "widths" not in args and (args.smoke or other):
        widths = SMOKE_WIDTHS if args.smoke else WIDTHS
        settings = replace(settings, widths=widths[settings.network])
    return args, settings


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load_data(args.dataset, args)  # before anything is written
    if settings.network == "convolutional":
        data = as_images(data)
    check_start(data, settings, [settings.num_components])
    out = open_run_folder(args, settings, data)
    pyro.set_rng_seed(args.seed)
    guide = build(data, settings)
    if settings.network == "convolutional":
        data_dependent_start(guide, data.train, seed=args.seed)
    start_mixtures(guide, data, settings, args.seed)
    runner = SVIRunner(guide.model, guide, **runner_options(settings, args.seed, args.device))
    fit_and_report(runner, data, out, settings, settings.epochs)


if __name__ == "__main__":
    main()
