"""VLAC, its one-layer baseline GM-DGM, VLAE without clusters, and MFCVAE on the same convolutional
ladder (Willetts et al., 2019).

    python -m lab.protocols.vlac --model vlac --dataset color-mnist --data-root DATA

All are trained in the same way: first with a standard normal instead of every mixture, then
mixtures are fitted to the latents, then the model's own objective is trained. In the first stage
MFCVAE fades its facets in one after the other, and the others have all layers from the start, both
as in their papers; --schedule changes this. VLAC's paper gives neither the sizes of the networks
nor the length of training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyro

from facetvae.datasets import Dataset
from guides import FacetGuide, GumbelSoftmax, LadderGuide, VaDEGuide
from inference import (
    Constant,
    NeighborGraph,
    ProgressiveFadeIn,
    SVIRunner,
    data_dependent_start,
    fit_neighbors,
    warm_start,
)
from lab.protocols.common import (
    ROWS_FLAG,
    TRAINING_FLAGS,
    add_setting_flags,
    build_parser,
    check_schedule,
    check_start,
    fit_and_report,
    load_data,
    open_run_folder,
    resolve,
    runner_options,
    train_first,
)
from lab.protocols.datasets import DATASETS
from lab.protocols.neighbors import graph_of, known_start
from ppl_models import GMDGM, MFCVAE, VLAC, VLAE, ConvLadder, NeighborMixture, Normal


@dataclass(frozen=True)
class Settings:
    """Four layers, shallow to deep, the first one plain; sizes are ours.

    On SVHN the paper has K = (1, 1, 50, 1) and (1, 5, 50, 1).
    """

    num_components: tuple[int, ...] = (1, 20, 50, 20)
    dim: tuple[int, ...] = (5, 5, 10, 5)
    widths: tuple[int, ...] = (16, 32, 64, 128)
    scale: float = 0.2  # of the likelihood; pixels are within [0, 1]
    temperature: float = 0.5  # of the relaxed clusters
    train_rows: int = 6000  # of the training images, at most
    batch_size: int = 50
    lr: float = 1e-3
    phases: tuple[int, ...] = (
        5,
        6,
        6,
        6,
    )  # of a progressive first stage, deepest facet first; their sum for all
    fade_steps: int = 600
    epochs: int = 8  # of the second stage
    neighbors: str = ""  # a layer whose clusters neighbors share
    precision: str = "float32"  # of the networks
    evaluate_every: int = 4


SMOKE: dict[str, Any] = {
    "widths": (4, 4, 4, 4),
    "num_components": (1, 4, 5, 4),
    "train_rows": 80,
    "batch_size": 16,
    "phases": (1, 1, 1, 1),
    "fade_steps": 5,
    "epochs": 1,
}
WITHOUT_CHANNELS = ("digits", "mnist", "fashion-mnist")  # which its networks do not read
RESTARTS = 3  # fits of each mixture
LAYER = 2  # of GM-DGM: VLAC's third, where the paper found the digit


def ladder(data: Dataset, s: Settings) -> MFCVAE:
    likelihood, network = Normal(s.scale), ConvLadder(s.widths)
    model = VLAC(data.image_shape, s.num_components, s.dim, likelihood, network)
    if not s.neighbors:
        return model
    priors = dict(model.priors)
    priors[s.neighbors] = NeighborMixture(model.mixtures[s.neighbors])
    return MFCVAE(data.image_shape, priors, likelihood, network)


def vlac(data: Dataset, s: Settings) -> FacetGuide:
    """Clusters from networks, relaxed."""
    return LadderGuide(ladder(data, s), discrete=GumbelSoftmax(s.temperature))


def gmdgm(data: Dataset, s: Settings) -> FacetGuide:
    """VLAC without all layers but the third, whose networks stay as they are."""
    network = ConvLadder(s.widths, rungs=[LAYER])
    model = GMDGM(data.image_shape, s.num_components[LAYER], s.dim[LAYER], Normal(s.scale), network)
    return LadderGuide(model, discrete=GumbelSoftmax(s.temperature))


def vlae(data: Dataset, s: Settings) -> FacetGuide:
    """VLAC with a standard normal prior in every layer (Zhao et al., 2017)."""
    return LadderGuide(VLAE(data.image_shape, s.dim, Normal(s.scale), ConvLadder(s.widths)))


def mfcvae(data: Dataset, s: Settings) -> FacetGuide:
    """VLAC's model with responsibilities as the clusters' posterior."""
    return VaDEGuide(ladder(data, s))


MODELS = {"vlac": vlac, "vlae": vlae, "gmdgm": gmdgm, "mfcvae": mfcvae}


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "vlac")
    parser.add_argument(
        "--dataset",
        choices=[name for name in DATASETS if name not in WITHOUT_CHANNELS],
        default="color-mnist",
    )
    parser.add_argument("--model", choices=MODELS, default="vlac")
    parser.add_argument(
        "--schedule",
        choices=("together", "progressive"),
        help="of the layers (default: the paper's)",
    )
    flags = {
        "num_components": {"help": "of each layer, shallow to deep; 1 for a plain one"},
        "widths": {"help": "of the network's levels"},
        "train_rows": ROWS_FLAG,
        "fade_steps": {"help": "to let a facet in"},
        "epochs": {"help": "of the second stage"},
        "neighbors": {
            "help": "a layer with a prior over neighbors: in the first stage the clusters of "
            "their graph are known, then they are inferred",
            "metavar": "LAYER",
        },
    }
    add_setting_flags(parser, Settings(), **TRAINING_FLAGS, **flags)
    args = parser.parse_args(argv)
    if args.smoke:
        args.dataset = "color-digits"
    settings = resolve(args, Settings(), replace(Settings(), **SMOKE))
    clustered = [f"layer_{n}" for n, K in enumerate(settings.num_components, 1) if K > 1]
    if settings.neighbors and (
        args.model in ("gmdgm", "vlae") or settings.neighbors not in clustered
    ):
        parser.error(
            f"--neighbors {settings.neighbors} --model {args.model}: the layers with clusters are "
            f"{', '.join(clustered)}, of vlac and mfcvae"
        )
    return args, settings


def first_stage(settings: Settings, graph: NeighborGraph | None) -> Callable[..., SVIRunner]:
    """Under standard normal priors, or with a layer's clusters known from its neighbors."""
    how: dict[str, Any] = {
        "epochs": sum(settings.phases),
        "batch_size": settings.batch_size,
        "restarts": RESTARTS,
    }
    if graph is None:
        return partial(warm_start, **how)
    return partial(known_start, **how, facet=settings.neighbors, graph=graph)


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load_data(args.dataset, args, settings.train_rows)
    pyro.set_rng_seed(args.seed)
    guide = MODELS[args.model](data, settings)
    progressive = args.schedule == "progressive" or (
        args.schedule is None and args.model == "mfcvae"
    )
    schedule = (
        ProgressiveFadeIn(settings.phases, settings.fade_steps) if progressive else Constant()
    )
    check_schedule(schedule, guide.model, data, sum(settings.phases), settings.batch_size)
    check_start(data, settings, [prior.num_components for prior in guide.model.mixtures.values()])
    out = open_run_folder(args, settings, data)  # nothing is written before all is known to fit
    data_dependent_start(guide, data.train, seed=args.seed)
    options = runner_options(settings, args.seed, args.device)
    graph = graph_of(data) if settings.neighbors else None
    start = first_stage(settings, graph)
    runner = train_first(start, guide, data, out, schedule, **options)
    fit = SVIRunner.fit if graph is None else partial(fit_neighbors, graph=graph)
    fit_and_report(runner, data, out, settings, settings.epochs, fit=fit)


if __name__ == "__main__":
    main()
