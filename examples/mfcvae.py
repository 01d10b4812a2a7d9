"""MFCVAE on MNIST, as in the paper (Falck et al., 2021; Tables 3 and 4), or on the bundled 8x8 digits.

python -m examples.mfcvae --dataset mnist --data-root DATA
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pyro

from examples.common import TRAINING_FLAGS, add_setting_flags, build_parser, fit_and_report, open_run_folder, resolve
from examples.datasets import Dataset, load
from guides import VaDEGuide
from inference import ProgressiveFadeIn, SVIRunner, cold_start
from inference.callbacks import FitMixtures
from ppl_models import MFCVAE, Bernoulli, GaussianMixture, MLPLadder


@dataclass(frozen=True)
class Settings:
    """Table 3 and 4, and how long to train."""

    num_components: int = 25
    dim: int = 5
    widths: tuple[int, int] = (500, 2000)
    init: str = "pytorch"  # what the authors' code does; the paper says Glorot normal
    merge: str = "concatenate"  # what the paper says; the authors' code adds a tenth of the rung
    batch_size: int = 512
    lr: float = 5e-4
    epochs: tuple[int, int] = (201, 201)
    fade_steps: int = 15_000
    waiting_weight: float = 0.0  # of the second facet's KL terms before it is let in
    restarts: int = 0  # fits of the digit's mixture when the second facet is let in; the paper has none
    precision: str = "float32"  # of the networks
    evaluate_every: int = 20


SMOKE = Settings(10, 5, (64, 128), batch_size=256, epochs=(2, 3), fade_steps=12, evaluate_every=5)


def build(data: Dataset, settings: Settings) -> VaDEGuide:
    priors = {name: GaussianMixture(settings.num_components, settings.dim) for name in ("style", "digit")}
    network = MLPLadder(settings.widths, init=settings.init, merge=settings.merge)
    return VaDEGuide(MFCVAE(data.train.shape[1:], priors, Bernoulli(), network))


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "mfcvae")
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    phases = {
        "epochs": {"help": "of each phase, deep facet first"},
        "fade_steps": {"help": "to let the second facet in"},
        "waiting_weight": {"help": "of the second facet's KL terms before that"},
        "restarts": {"help": "fits of the digit's mixture at that time"},
        "merge": {"help": "of the decoder's rungs", "choices": ("concatenate", "gated_add"), "metavar": None},
    }
    add_setting_flags(parser, Settings(), **TRAINING_FLAGS, **phases)
    args = parser.parse_args(argv)
    return args, resolve(args, Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load("digits" if args.smoke else args.dataset, args.data_root)  # before anything is written
    out = open_run_folder(args, settings, data)
    pyro.set_rng_seed(args.seed)
    guide = build(data, settings)
    cold_start(guide, data.train, seed=args.seed)
    runner = SVIRunner(
        guide.model,
        guide,
        lr=settings.lr,
        schedule=ProgressiveFadeIn(settings.epochs, settings.fade_steps, settings.waiting_weight),
        seed=args.seed,
        device=args.device,
        precision=settings.precision,
    )
    refit = [FitMixtures(data.train, settings.epochs[0], ["digit"], settings.restarts)] if settings.restarts else []
    fit_and_report(runner, data, out, sum(settings.epochs), settings.batch_size, settings.evaluate_every, refit)


if __name__ == "__main__":
    main()
