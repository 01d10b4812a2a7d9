"""Two clusterings of scikit-learn's bundled handwritten digits: what is written, and how.

    python -m examples.quickstart

Needs no files. On so few data a mixture that is trained from random initial values collapses into
one cluster. So the digit facet is pretrained on nearest-neighbour pseudo-labels, while the style
facet is faded in for the remaining variation; then both are fine-tuned without pseudo-labels.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import pyro

from examples.common import (
    add_setting_flags,
    build_parser,
    checkpointing,
    fabric_on,
    first_goes_on,
    format_scores,
    open_run_folder,
    resolve,
    score_facets,
    write_json,
)
from examples.datasets import Dataset, digits
from guides import VaDEGuide
from inference import ProgressiveFadeIn, SVIRunner, neighbor_start
from inference.figures.facets import save_figures
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, Normal


@dataclass(frozen=True)
class Settings:
    """Sizes and lengths; the digit facet is deep, the style facet shallow."""

    num_components: tuple[int, int] = (8, 25)  # style, digit
    dim: int = 5
    widths: tuple[int, int] = (200, 400)
    scale: float = 0.15  # of the likelihood; pixels are within [0, 1]
    batch_size: int = 64
    lr: float = 1e-3
    label_weight: float = 30.0  # of the neighbours' clusters
    start_epochs: tuple[int, int] = (40, 160)  # with them: the digit facet alone, and both
    fade_steps: int = 3000
    epochs: int = 100


SMOKE = Settings((2, 3), 2, (16, 16), start_epochs=(1, 2), fade_steps=20, epochs=1)


def train(
    data: Dataset,
    settings: Settings,
    seed: int,
    device: str,
    progress: bool = True,
    out: Path | None = None,
) -> SVIRunner:
    """The whole recipe; returns the runner, its history holding both stages.

    :param out: a run folder for checkpoints.
    """
    pyro.set_rng_seed(seed)
    style, digit = (GaussianMixture(k, settings.dim) for k in settings.num_components)
    model = MFCVAE(
        data.train.shape[1:],
        {"style": style, "digit": digit},
        likelihood=Normal(settings.scale),
        network=MLPLadder(settings.widths),
    )
    guide = VaDEGuide(model, label_weight=settings.label_weight)
    schedule = ProgressiveFadeIn(settings.start_epochs, settings.fade_steps)
    first = SVIRunner(model, guide, lr=settings.lr, schedule=schedule, seed=seed, device=device)
    fabric = fabric_on(first.device.type)
    options = {
        "batch_size": settings.batch_size,
        "log_every": 5,
        "progress": progress,
        "fabric": fabric,
    }
    kept = [None if out is None else checkpointing(out, phase) for phase in ("start", "training")]
    neighbor_start(
        first, data.train, sum(settings.start_epochs), seed=seed, checkpoints=kept[0], **options
    )
    runner = SVIRunner(model, guide, lr=settings.lr, seed=seed, device=device)
    runner.history = first.history
    return runner.fit(data.train, settings.epochs, checkpoints=kept[1], **options)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "quickstart")
    add_setting_flags(
        parser,
        Settings(),
        start_epochs={
            "help": "with the clusters of neighbours, the digit facet alone and both facets"
        },
        epochs={"help": "after these, without them"},
        lr={"help": "Adam's rate"},
    )
    args = parser.parse_args(argv)
    return args, resolve(args, Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = digits()
    out = open_run_folder(args, settings, data)
    runner = train(data, settings, args.seed, args.device, out=out)
    first_goes_on()
    runner.save(out)
    scores = score_facets(runner.guide, data)
    for facet in scores:
        scores[facet]["digit"]["mutual_information"] = runner.history[-1][
            f"mutual_information_{facet}"
        ]
    write_json(out / "scores.json", scores)
    paths = save_figures(out / "figures", runner.guide, data.test, runner.history, data.image_shape)
    print(
        f"\n{len(data.test)} test images; how well each facet's clusters match the digit that was "
        "written:"
    )
    print(format_scores(scores))
    print("figures:", *paths, sep="\n  ")


if __name__ == "__main__":
    main()
