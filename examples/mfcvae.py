"""MFCVAE on MNIST, as in the paper (Falck et al., 2021; Tables 3 and 4), or on the bundled 8x8 digits.

python -m examples.mfcvae --dataset mnist --data-root DATA
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import pyro

from examples.common import build_parser, format_scores, open_run_folder, score_facets
from examples.datasets import Dataset, digits, mnist
from guides import VaDEGuide
from inference import ProgressiveFadeIn, SVIRunner, cold_start
from inference.callbacks import Evaluate, JSONLines
from inference.figures import save_figures
from inference.metrics import probe_accuracy
from ppl_models import MFCVAE, Bernoulli, GaussianMixture, MLPLadder


@dataclass(frozen=True)
class Settings:
    """Table 3 and 4, and how long to train."""

    num_components: int = 25
    dim: int = 5
    widths: tuple[int, int] = (500, 2000)
    init: str = "pytorch"  # what the authors' code does; the paper says Glorot normal
    batch_size: int = 512
    lr: float = 5e-4
    epochs: tuple[int, int] = (201, 201)
    fade_steps: int = 15_000
    evaluate_every: int = 20


SMOKE = Settings(10, 5, (64, 128), batch_size=256, epochs=(2, 3), fade_steps=12, evaluate_every=5)


def load(args: argparse.Namespace) -> Dataset:
    return mnist(args.data_root) if args.dataset == "mnist" and not args.smoke else digits(args.seed)


def build(data: Dataset, settings: Settings) -> VaDEGuide:
    prior = {name: GaussianMixture(settings.num_components, settings.dim) for name in ("style", "digit")}
    model = MFCVAE(data.train.shape[1:], prior, Bernoulli(), MLPLadder(settings.widths, init=settings.init))
    return VaDEGuide(model)


def probes(guide: VaDEGuide, data: Dataset, seed: int) -> dict[str, float]:
    """Table 1: how well a classifier reads the label from each facet's latent vector alone."""
    train, test = guide.embed(data.train), guide.embed(data.test)
    return {
        facet: probe_accuracy(train[facet], data.train_labels, test[facet], data.test_labels, seed) for facet in train
    }


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "mfcvae")
    defaults = Settings()
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--epochs", type=int, nargs=2, default=defaults.epochs, help="of each phase, deep facet first")
    parser.add_argument("--fade-steps", type=int, default=defaults.fade_steps, help="steps to let the second facet in")
    parser.add_argument("--lr", type=float, default=defaults.lr, help="Adam's rate")
    parser.add_argument("--init", choices=("pytorch", "glorot_normal"), default=defaults.init, help="of the networks")
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of the networks")
    parser.add_argument("--evaluate-every", type=int, default=defaults.evaluate_every, help="epochs between scores")
    args = parser.parse_args(argv)
    settings = Settings(
        init=args.init,
        batch_size=args.batch_size,
        lr=args.lr,
        epochs=tuple(args.epochs),
        fade_steps=args.fade_steps,
        evaluate_every=args.evaluate_every,
    )
    return args, SMOKE if args.smoke else settings


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load(args)  # before anything is written: it may not be there
    out = open_run_folder(args)
    pyro.set_rng_seed(args.seed)
    guide = build(data, settings)
    cold_start(guide, data.train, seed=args.seed)
    runner = SVIRunner(
        guide.model,
        guide,
        lr=settings.lr,
        schedule=ProgressiveFadeIn(settings.epochs, settings.fade_steps),
        seed=args.seed,
        device=args.device,
        precision=args.precision,
    )

    def accuracies(runner: SVIRunner) -> dict[str, float]:
        scores = score_facets(guide, data)
        return {f"accuracy_{facet}": values["accuracy"] for facet, values in scores.items()}

    runner.fit(
        data.train,
        epochs=sum(settings.epochs),
        batch_size=settings.batch_size,
        callbacks=[Evaluate(accuracies, settings.evaluate_every), JSONLines(out / "metrics.jsonl")],
    )
    runner.save(out)
    scores = score_facets(guide, data)
    for facet, accuracy in probes(guide, data, args.seed).items():
        scores[facet]["probe"] = accuracy
    (out / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    save_figures(out / "figures", guide, data.test, runner.history, data.image_shape)
    print(format_scores(scores))


if __name__ == "__main__":
    main()
