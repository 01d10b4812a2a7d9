"""MFCVAE as in the paper (Falck et al., 2021; Tables 3 to 5): on MNIST, 3DShapes, SVHN, or digits
that stand in for it.

    python -m lab.protocols.mfcvae --dataset mnist --data-root DATA
    python -m lab.protocols.mfcvae --dataset shapes3d-1

MNIST, 3DShapes and SVHN have the paper's settings; the lengths of their phases, which the paper
does not give, are those of the authors' code. On MNIST the decoder, the networks' first weights and
what the mixtures start from are its as well, where it departs from the paper's text, since this
reproduces the paper's results. The text has `--init glorot_normal --start draws --start-rows 0
--merge concatenate --layers-after-merge 0`. The small data sets have shorter phases. 3DShapes is
drawn by this project unless DATA has 3dshapes.h5.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyro

from facetvae.datasets import Dataset
from guides import FacetGuide
from inference import (
    Constant,
    NeighborGraph,
    ProgressiveFadeIn,
    SVIRunner,
    data_dependent_start,
    fit_mixtures,
    fit_neighbors,
    warm_start,
)
from inference.run import Callback, Run
from inference.schedules import Schedule
from lab.protocols.common import (
    INIT_FLAG,
    LOSS_FLAG,
    LOSSES,
    ROWS_FLAG,
    START_FLAGS,
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
    start_mixtures,
    train_first,
)
from lab.protocols.neighbors import graph_of, known_start
from ppl_models import (
    MFCVAE,
    Bernoulli,
    ConvLadder,
    GaussianMixture,
    Mixture,
    MLPLadder,
    NeighborMixture,
    Normal,
    SharedMLP,
)
from ppl_models.networks import Architecture


@dataclass(frozen=True)
class Settings:
    """Tables 3 and 4 for MNIST, by the paper's text but for the first weights and the rows of the
    start, and how long to train. Pairs are shallow facet, deep facet; phases are deep first.
    """

    facets: tuple[str, str] = ("style", "digit")
    num_components: tuple[int, int] = (25, 25)
    dim: tuple[int, int] = (5, 5)
    covariance: str = "diag"
    weights: str = "learned"
    scale: float = 0.0  # of a Normal likelihood; 0 stands for Bernoulli
    bounded: bool = False  # whether a Normal's mean is a sigmoid
    convolutional: bool = False
    network: str = "ladder"  # or "shared", Table 6's
    widths: tuple[int, int] = (500, 2000)
    init: str = "pytorch"  # what the authors' code does; the paper says Glorot normal for MNIST
    merge: str = "concatenate"  # Eq. 79
    layers_after_merge: int = 0  # of the decoder; Eq. 79 has none
    start: str = "draws"  # what the mixtures are fitted to (D.4)
    start_rows: int = 20_000  # most rows that they are fitted to; 0 for all
    batch_size: int = 512
    lr: float = 5e-4
    epochs: tuple[int, int] = (201, 201)
    schedule: str = "progressive"  # or "together": both facets in from the start (Fig. 10)
    fade_steps: int = 15_000
    waiting_weight: float = 0.0  # of the second facet's KL terms before it is faded in
    # phases of a warm start, after which both facets are in; the paper has none
    warm_epochs: tuple[int, int] = (0, 0)
    neighbors: str = ""  # a facet whose clusters neighbors share
    neighbor_epochs: tuple[int, int] = (0, 0)  # phases in which it is given those of their graph
    loss: str = "primary"  # the objective's form (C.3)
    # fits of the deep facet's mixture when the second is faded in, or of both after a warm start
    restarts: int = 0
    final_fits: int = 0  # of both mixtures when training has ended; the paper has none
    temperature: float = 1.0  # of drawn samples; the paper's tau multiplies variances
    precision: str = "float32"  # of the networks
    evaluate_every: int = 20
    train_rows: int = 0  # most training images; 0 for all


MNIST = Settings(start="means", start_rows=0, merge="gated_add", layers_after_merge=1)
SHAPES = Settings(
    facets=("shape", "color"),
    num_components=(60, 20),
    dim=(20, 2),
    covariance="full",
    weights="uniform",
    scale=0.6,
    convolutional=True,
    widths=(64, 128),
    batch_size=150,
    lr=3e-4,
    epochs=(101, 301),
    fade_steps=2000,
    temperature=0.3**0.5,
)
SVHN = replace(
    SHAPES,
    facets=("digit", "background"),
    num_components=(200, 50),
    dim=(22, 7),
    scale=0.3,
    bounded=True,
    lr=5e-4,
    fade_steps=15_000,
)
SETTINGS = {
    "digits": Settings(batch_size=64, epochs=(60, 240), fade_steps=4000),
    "mnist": MNIST,
    "fashion-mnist": replace(MNIST, facets=("style", "article")),
    "shapes3d-1": SHAPES,
    "shapes3d-2": SHAPES,
    "svhn": SVHN,
    "color-digits": replace(SVHN, batch_size=50, epochs=(60, 140), fade_steps=3000),
    "color-mnist": SVHN,
}
SMOKE = {
    "num_components": (10, 10),
    "dim": (5, 5),
    "batch_size": 64,
    "epochs": (2, 3),
    "fade_steps": 12,
}


def ladder(settings: Settings) -> Architecture:
    return (ConvLadder if settings.convolutional else MLPLadder)(
        settings.widths,
        init=settings.init,
        merge=settings.merge,
        layers_after_merge=settings.layers_after_merge,
    )


NETWORKS: dict[str, Callable[[Settings], Architecture]] = {
    "ladder": ladder,
    "shared": lambda s: SharedMLP(s.widths, init=s.init),
}
# From the phases and the settings.
SCHEDULES: dict[str, Callable[[tuple[int, int], Settings], Schedule]] = {
    "progressive": lambda phases, s: ProgressiveFadeIn(phases, s.fade_steps, s.waiting_weight),
    "together": lambda phases, s: Constant(),
}


def build(data: Dataset, settings: Settings) -> FacetGuide:
    priors: dict[str, Mixture] = {
        name: GaussianMixture(K, d, settings.covariance, settings.weights)  # type: ignore[arg-type]
        for name, K, d in zip(settings.facets, settings.num_components, settings.dim, strict=True)
    }
    if settings.neighbors:
        priors[settings.neighbors] = NeighborMixture(priors[settings.neighbors])
    likelihood = Normal(settings.scale, settings.bounded) if settings.scale else Bernoulli()
    network = NETWORKS[settings.network](settings)
    return LOSSES[settings.loss](MFCVAE(data.train.shape[1:], priors, likelihood, network))


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "mfcvae")
    parser.add_argument("--dataset", choices=SETTINGS, default="mnist")
    flags = {
        "init": INIT_FLAG,
        "loss": LOSS_FLAG,
        "num_components": {"help": "of each facet, shallow one first"},
        "dim": {"help": "of each facet's latents"},
        "network": {
            "help": "a ladder, or one shared by both facets (Table 6)",
            "choices": tuple(NETWORKS),
        },
        "widths": {"help": "of the network's two levels"},
        "schedule": {
            "help": "whether the second facet is faded in later, or both are in from the start",
            "choices": tuple(SCHEDULES),
        },
        "epochs": {"help": "of each phase, deep facet first"},
        "fade_steps": {"help": "to let the second facet in"},
        "waiting_weight": {"help": "of the second facet's KL terms before that"},
        "warm_epochs": {
            "help": "of each phase under standard normal priors, before mixtures are fitted"
        },
        "neighbors": {
            "help": "a facet with a prior over neighbors: in --neighbor-epochs the clusters of "
            "their graph are known, then they are inferred",
            "metavar": "FACET",
        },
        "neighbor_epochs": {"help": "of each of these phases"},
        "restarts": {
            "help": "fits of the deep facet's mixture when the second is faded in, or after a warm "
            "start of both"
        },
        "final_fits": {"help": "fits of both mixtures when training has ended, the likeliest kept"},
        "merge": {"help": "of the decoder's rungs", "choices": ("concatenate", "gated_add")},
        "layers_after_merge": {"help": "hidden layers of the decoder after each merge"},
        "train_rows": ROWS_FLAG,
    }
    add_setting_flags(parser, Settings(), **TRAINING_FLAGS, **START_FLAGS, **flags)
    args = parser.parse_args(argv)
    if args.smoke:
        args.dataset = "digits"
    smoke = replace(MNIST, widths=(64, 128), evaluate_every=5, **SMOKE)
    settings = resolve(args, SETTINGS[args.dataset], smoke)
    for conflict in conflicts(settings, args.dataset):
        parser.error(conflict)
    return args, settings


def conflicts(settings: Settings, dataset: str) -> Iterator[str]:
    """What of the settings does not go together, and what to do about it."""
    warm, neighbors = any(settings.warm_epochs), any(settings.neighbor_epochs)
    if warm and neighbors:
        yield "--warm-epochs and --neighbor-epochs are two starts: give one of them"
    if settings.neighbors and settings.neighbors not in settings.facets:
        yield (
            f"--neighbors {settings.neighbors}: the facets of {dataset} are "
            f"{' and '.join(settings.facets)}"
        )
    if bool(settings.neighbors) != neighbors:
        yield (
            "--neighbors and --neighbor-epochs, the phases in which its clusters take shape, go "
            "together: give both, such as --neighbors digit --neighbor-epochs 2 6"
        )
    if neighbors and settings.loss == "alternate":
        yield (
            "--neighbor-epochs teach responsibilities, which --loss alternate sums out: leave one "
            "of them out"
        )
    if settings.network == "shared" and settings.convolutional:
        yield (
            f"--network shared is fully connected (Table 6), and {dataset} has a "
            "convolutional ladder: leave it out"
        )
    if settings.schedule == "together" and settings.restarts and not warm:
        yield (
            "--restarts are fits when the second facet is faded in, which --schedule together does "
            "at the start: leave one out, or give --warm-epochs"
        )


def starts(
    settings: Settings, graph: NeighborGraph | None
) -> tuple[tuple[int, int], Callable[..., SVIRunner] | None]:
    """Phases in which facets are faded in, and the start that they belong to, if any."""
    how = {"batch_size": settings.batch_size}
    if any(
        settings.warm_epochs
    ):  # both facets under standard normal priors, and mixtures fitted to them
        phases = settings.warm_epochs
        return phases, partial(
            warm_start, epochs=sum(phases), restarts=max(settings.restarts, 1), **how
        )
    if settings.neighbors:
        phases = settings.neighbor_epochs
        return phases, partial(
            known_start,
            epochs=sum(phases),
            facet=settings.neighbors,
            graph=graph,
            restarts=settings.restarts,
            **how,
        )
    return settings.epochs, None


def refitting(
    data: Dataset, epoch: int, restarts: int, facets: Sequence[str] | None = None
) -> Callback:
    """Fits mixtures anew, at the first record after an epoch: that one component has two groups
    is not undone by gradient descent.
    """

    def refit(runner: Run, record: dict[str, Any]) -> None:
        before = runner.history[-2]["epoch"] if runner.history[1:] else 0
        if before < epoch <= record["epoch"]:
            how = {"facets": facets, "n_init": restarts}
            fit_mixtures(runner.guide, data.train, seed=runner.seed, **how)

    return refit


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load_data(args.dataset, args, settings.train_rows)
    pyro.set_rng_seed(args.seed)
    guide = build(data, settings)
    graph = graph_of(data) if settings.neighbors else None
    phases, start = starts(settings, graph)
    schedule = SCHEDULES[settings.schedule](phases, settings)
    check_schedule(schedule, guide.model, data, sum(phases), settings.batch_size)
    check_start(data, settings, settings.num_components)
    out = open_run_folder(args, settings, data)  # nothing is written before all is known to fit
    if settings.convolutional:
        data_dependent_start(guide, data.train, seed=args.seed)
    options = runner_options(settings, args.seed, args.device)
    refit: list[Callback] = []
    if start is not None:  # after which both facets are in
        runner = train_first(start, guide, data, out, schedule, **options)
    else:  # the paper's start (D.4) and schedule (D.3)
        start_mixtures(guide, data, settings, args.seed)
        runner = SVIRunner(guide.model, guide, schedule=schedule, **options)
        if settings.restarts:
            deep = [settings.facets[1]]
            refit += [refitting(data, settings.epochs[0], settings.restarts, deep)]
    if settings.final_fits:
        refit += [refitting(data, sum(settings.epochs), settings.final_fits)]
    fit_and_report(
        runner,
        data,
        out,
        settings,
        sum(settings.epochs),
        refit,
        settings.temperature,
        SVIRunner.fit if graph is None else partial(fit_neighbors, graph=graph),
    )


if __name__ == "__main__":
    main()
