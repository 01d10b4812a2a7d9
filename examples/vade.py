"""VaDE without pre-training: MFCVAE with one facet on its shared architecture (Falck et al., 2021;
D.5, Table 6).

python -m examples.vade --dataset mnist --data-root DATA
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pyro

from examples.common import (
    INIT_FLAG,
    START_FLAGS,
    TRAINING_FLAGS,
    add_setting_flags,
    build_parser,
    fit_and_report,
    hold_out,
    open_run_folder,
    resolve,
    start_mixtures,
)
from examples.datasets import Dataset, load
from guides import VaDEGuide
from inference import SVIRunner
from ppl_models import Bernoulli, GaussianMixture, SharedMLP, VaDE


@dataclass(frozen=True)
class Settings:
    """Table 6's network with the sizes of Table 3; the rate and the number of epochs are ours.

    With the sizes of appendix C.3 (500-500-2000, K = 50, d = 10, rate 0.002) the one run tried fell
    into one cluster.
    """

    num_components: int = 25
    dim: int = 5
    widths: tuple[int, ...] = (500, 2000)
    init: str = "pytorch"
    start: str = "draws"  # what the mixture is fitted to before the first step
    start_rows: int = 20_000  # most rows that it is fitted to; 0 for all
    batch_size: int = 512
    lr: float = 1e-3
    epochs: int = 100
    precision: str = "float32"  # of the networks
    evaluate_every: int = 10
    held_out: int = 0  # training rows that are kept for curves by epoch


SMOKE = Settings(10, 5, (64, 128), batch_size=256, epochs=3, evaluate_every=3)


def build(data: Dataset, settings: Settings) -> VaDEGuide:
    prior = GaussianMixture(settings.num_components, settings.dim)
    network = SharedMLP(settings.widths, init=settings.init)
    return VaDEGuide(VaDE(data.train.shape[1:], prior, Bernoulli(), network, name="digit"))


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "vade")
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    flags = {
        "init": INIT_FLAG,
        "epochs": {"help": "passes over the data"},
        "held_out": {"help": "training rows to keep for curves of each epoch"},
    }
    add_setting_flags(parser, Settings(), **TRAINING_FLAGS, **START_FLAGS, **flags)
    args = parser.parse_args(argv)
    return args, resolve(args, Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data, held_out = hold_out(  # before anything is written
        load("digits" if args.smoke else args.dataset, args.data_root), settings.held_out
    )
    out = open_run_folder(args, settings, data)
    pyro.set_rng_seed(args.seed)
    guide = build(data, settings)
    start_mixtures(guide, data, settings, args.seed)
    runner = SVIRunner(
        guide.model,
        guide,
        lr=settings.lr,
        seed=args.seed,
        device=args.device,
        precision=settings.precision,
    )
    fit_and_report(
        runner,
        data,
        out,
        settings.epochs,
        settings.batch_size,
        settings.evaluate_every,
        held_out=held_out,
    )


if __name__ == "__main__":
    main()
