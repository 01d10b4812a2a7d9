"""ML-VAE: what the members of a group share, and what is particular to each (Bouchacourt et al.,
2018).

python -m lab.protocols.mlvae --dataset mnist --data-root DATA
python -m lab.protocols.mlvae --dataset shapes --factor object
python -m lab.protocols.mlvae --dataset folders --data-root FOLDER --evidence 1 2

MNIST is grouped by digit, the drawn shapes by one of their factors, and images of your own by the
folder that they are in, one for each person or object. Of shapes and folders about two fifths of
the groups are held out, so that they are never seen in training. Test images are then classified by
content and by style, with evidence accumulated over k images (the paper's Fig. 6c). --model vae is
the paper's baseline, whose evidence is accumulated afterwards; --model svi has no encoder in
training: posteriors of test images are fitted to them (3.2), and then read by an encoder that
learns from the model's own draws (SVI-Encode, supplement 8).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyro
import torch
from pyro.optim import Adam as PyroAdam
from pyro.optim import PyroOptim

from facetvae.datasets import Dataset
from guides import (
    FacetGuide,
    GroupedGuide,
    MixtureOfNormals,
    ProductOfNormals,
    SimilarContentGuide,
    TableGuide,
    VaDEGuide,
)
from inference import Constant, CoolDown, Groups, Rows, SVIRunner, learn_to_encode
from inference.callbacks import Evaluate, JSONLines
from inference.figures.training import training_curves
from inference.randomness import seeded
from inference.run import Run
from inference.schedules import Schedule
from inference.training.batching import Batching
from lab.figures.groups import (
    evidence_reconstructions,
    group_generations,
    latent_interpolation,
    style_swaps,
)
from lab.protocols.accumulation import Encoded, Inferred, Reader, check_evidence, evaluate
from lab.protocols.common import (
    TRAINING_FLAGS,
    add_setting_flags,
    build_parser,
    checkpointing,
    fabric_on,
    first_goes_on,
    load_data,
    open_run_folder,
    resolve,
    runner_options,
    write_json,
)
from lab.protocols.shapes import FACTORS
from ppl_models import (
    MLP,
    MLVAE,
    VAE,
    Bernoulli,
    HeteroscedasticNormal,
    Likelihood,
    Normal,
    StridedConvNet,
)
from ppl_models.networks import Architecture

LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "normal": HeteroscedasticNormal,
    "normal_1": partial(Normal, 1.0),
    "normal_0.3": partial(Normal, 0.3),
    "bernoulli": Bernoulli,
}


@dataclass(frozen=True)
class Settings:
    """The paper's network and sizes for MNIST, where it has a Normal likelihood and 2,000 epochs.

    Batches, Bernoulli and the cooling are our choice: within a hundred epochs the style, which
    tells of each image what no other latent does, learns the digit as well and is slow to forget
    it, unless it is dear at first.
    """

    content_dim: int = 10
    style_dim: int = 10
    likelihood: str = "bernoulli"
    widths: tuple[int, ...] = (500,)
    batch_size: int = 256
    max_members: int = 26  # rows of a group that are looked at together
    lr: float = 1e-3
    epochs: int = 100
    style_weight: float = (
        20.0  # of the style's KL in the first step; it falls to 1 over four fifths of the run
    )
    evaluate_every: int = 10
    precision: str = "float32"
    penalty: float = 1.0  # lambda of Eq. 18, of the model "similar"
    # Of the model "svi": Adam's rate for the tables. Each row of them has one gradient in a pass,
    # and moves on by its momentum in the steps between.
    table_lr: float = 0.02
    # Its passes over the test images that posteriors are fitted in, and those of the encoder that
    # learns from as many draws as there are training images.
    inference_epochs: int = 500
    encoder_epochs: int = 20
    evidence: tuple[int, ...] = (
        1,
        2,
        5,
        10,
        100,
    )  # k; the last one is K, which the classifier is trained with
    trials: int = 5


SETTINGS = {
    "mnist": Settings(),
    "shapes": replace(Settings(), widths=(32, 64, 128), epochs=30, evidence=(1, 2, 5, 10, 50)),
    "folders": replace(Settings(), widths=(32, 64, 128), epochs=30, evidence=(1, 2)),
    "digits": replace(Settings(), evidence=(1, 2, 5, 10)),
}
SMOKE = replace(
    Settings(),
    widths=(32,),
    epochs=3,
    evaluate_every=2,
    evidence=(1, 2),
    trials=2,
    inference_epochs=3,
    encoder_epochs=2,
)


def network(data: Dataset, settings: Settings) -> Architecture:
    if data.train.ndim == 2:
        return MLP(settings.widths, "tanh", dropout=0)
    return StridedConvNet(settings.widths, hidden=128)


def vae(data: Dataset, settings: Settings, group: np.ndarray) -> FacetGuide:
    likelihood, dim = LIKELIHOODS[settings.likelihood](), settings.content_dim + settings.style_dim
    return VaDEGuide(VAE(data.train.shape[1:], dim, likelihood, network(data, settings)))


def mlvae(data: Dataset, settings: Settings) -> MLVAE:
    return MLVAE(
        data.train.shape[1:],
        settings.content_dim,
        settings.style_dim,
        LIKELIHOODS[settings.likelihood](),
        network(data, settings),
    )


def parts(group: np.ndarray, most: int) -> np.ndarray:
    """Groups of at most ``most`` rows, drawn at random from those of ``group`` ``[N]``, as batches
    of the other models have; once, since each has a content of its own.
    """
    part, rng, number = np.zeros(len(group), int), np.random.default_rng(0), 0
    for each in np.unique(group):
        rows = rng.permutation(np.flatnonzero(group == each))
        for some in np.array_split(rows, -(-len(rows) // most)):
            part[some], number = number, number + 1
    return part


# From the data, the settings and the group of each training image.
MODELS: dict[str, Callable[[Dataset, Settings, np.ndarray], FacetGuide]] = {
    "product": lambda data, s, group: GroupedGuide(mlvae(data, s), evidence=ProductOfNormals()),
    "mixture": lambda data, s, group: GroupedGuide(mlvae(data, s), evidence=MixtureOfNormals()),
    "similar": lambda data, s, group: SimilarContentGuide(mlvae(data, s), penalty=s.penalty),
    "vae": vae,
    "svi": lambda data, s, group: TableGuide(mlvae(data, s), parts(group, s.max_members)),
}


def encoder_for(guide: TableGuide, settings: Settings, seed: int) -> GroupedGuide:
    """SVI-Encode: an encoder for a model that was trained without one."""
    with seeded(seed, torch.device("cpu")):
        reads = GroupedGuide(guide.model)
    learn_to_encode(
        reads,
        len(guide.group_of_row),
        settings.encoder_epochs,
        settings.lr,
        seed,
        batch_size=settings.batch_size,
    )
    return reads


def rates(guide: FacetGuide, settings: Settings) -> PyroOptim | None:
    """An optimizer with a rate of their own for tables."""
    if not isinstance(guide, TableGuide):
        return None

    def arguments(module: str, name: str) -> dict[str, Any]:
        return {"lr": settings.table_lr if "tables" in name else settings.lr, "fused": True}

    return PyroAdam(arguments)


def schedule(
    guide: FacetGuide, x: np.ndarray, given: Mapping, settings: Settings, batches: Batching
) -> Schedule:
    """The style's cooling, for models that have one."""
    if not guide.takes or settings.style_weight == 1:
        return Constant()
    steps = settings.epochs * batches.steps(guide.observed(x, given), settings.batch_size)
    return CoolDown({"z_style": settings.style_weight}, max(1, 4 * steps // 5))


def held_out(data: Dataset, factor: str) -> tuple[Dataset, Dataset]:
    """The data whose factor has a value that is seen, and the test data of all others: of five
    values, two between.

    :raises ValueError: if it has fewer than four values, so that one of both would have a single
        group, which nothing could be told from.
    """
    if (count := len(np.unique(data.train_labels[factor]))) < 4:
        raise ValueError(
            f"{data.name} has {count} groups, but 4 or more are needed, so that two can be held out"
        )

    def rows(labels: dict[str, np.ndarray], seen: bool) -> np.ndarray:
        return np.isin(labels[factor] % 5, (0, 2, 4)) == seen

    train = rows(data.train_labels, True)
    seen, unseen = (data.rows(train, rows(data.test_labels, each)) for each in (True, False))
    return seen, unseen


def reader(guide: FacetGuide, x: np.ndarray, settings: Settings, seed: int) -> Reader:
    """What a guide says of test images; one of tables is fitted to them."""
    if isinstance(guide, TableGuide):
        return Inferred(guide.model, x, settings.inference_epochs, seed)
    return Encoded(guide, x)


def scored(
    guide: FacetGuide, splits: Mapping[str, Dataset], factor: str, settings: Settings, seed: int
) -> dict[str, dict[str, dict[str, float]]]:
    """What :func:`~lab.protocols.accumulation.evaluate` finds in each split's test images."""
    return {
        name: evaluate(
            reader(guide, part.test, settings, seed),
            part.test_labels[factor],
            settings.evidence,
            settings.trials,
            seed,
        )
        for name, part in splits.items()
    }


def watch_labels(data: Dataset, factor: str, settings: Settings, seed: int) -> Evaluate:
    """Adds to some records how well each latent tells the label, with evidence of K test images."""

    def accuracies(run: Run) -> dict[str, float]:
        known = reader(run.guide, data.test, settings, seed)
        found = evaluate(known, data.test_labels[factor], settings.evidence[-1:], 1, seed)
        return {
            f"accuracy_{name.split(',')[0]}": score["accuracy"] for name, score in found.items()
        }

    return Evaluate(accuracies, settings.evaluate_every)


def format_table(scores: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [f"{'images of':24s}{'latent, k':16s}{'accuracy':>10s}{'entropy, bits':>16s}"]
    for split, of in scores.items():
        for name, score in of.items():
            lines.append(
                f"{split:24s}{name:16s}{score['accuracy']:10.3f}"
                f"{score['conditional_entropy']:16.3f}"
            )
    return "\n".join(lines)


def draw(guide: GroupedGuide, data: Dataset, label: np.ndarray, out: Any) -> None:
    """The figures of Fig. 4 to 6, with evidence of ten images, where a group has so many."""
    rng = np.random.default_rng(0)
    classes, sizes = np.unique(label, return_counts=True)
    count = min(10, *sizes[:10])
    rows = np.concatenate(
        [rng.choice(np.flatnonzero(label == c), count, replace=False) for c in classes[:10]]
    )
    x, group = data.test[rows], label[rows]
    styles = data.test[rng.choice(len(data.test), min(8, len(data.test)), replace=False)]
    pair = data.test[rng.choice(len(data.test), 2, replace=False)]
    figures = {
        "swaps": style_swaps(guide, styles, x, group, data.image_shape),
        "interpolation": latent_interpolation(guide, pair, data.image_shape),
        "generation": group_generations(guide, x, group, data.image_shape),
        "evidence": evidence_reconstructions(guide, x[group == group[-1]], data.image_shape),
    }
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=130)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "mlvae")
    parser.add_argument("--dataset", choices=tuple(SETTINGS), default="mnist")
    parser.add_argument(
        "--factor",
        choices=tuple(FACTORS),
        default="object",
        help="factor that shapes are grouped by",
    )
    parser.add_argument(
        "--model",
        choices=tuple(MODELS),
        default="product",
        help="how evidence is combined, or a baseline",
    )
    flags = {
        "epochs": {"help": "passes over the data"},
        "style_weight": {"help": "of the style's KL at first; 1 for none but the ELBO's"},
        "likelihood": {"help": "of an image", "choices": tuple(LIKELIHOODS)},
        "evidence": {
            "help": "images k of a group that are read together; each divides the last",
            "nargs": "+",
        },
        **TRAINING_FLAGS,
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    return args, resolve(args, SETTINGS[args.dataset], SMOKE)


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load_data("digits" if args.smoke else args.dataset, args)
    factor = args.factor if args.factor in data.train_labels else next(iter(data.train_labels))
    seen, unseen = (data, None) if factor == "digit" else held_out(data, factor)
    splits = {"seen groups": seen} | ({"unseen groups": unseen} if unseen is not None else {})
    for part in splits.values():
        check_evidence(part.test_labels[factor], settings.evidence)
    out = open_run_folder(args, settings, seen)
    pyro.set_rng_seed(args.seed)
    label = seen.train_labels[factor]
    guide = MODELS[args.model](seen, settings, label)
    given = {"group": label} if guide.takes else {}
    if isinstance(guide, TableGuide):
        given = {"group": guide.group_of_row.numpy()}
    batches: Batching = Groups(settings.max_members) if guide.takes else Rows()
    runner = SVIRunner(
        guide.model,
        guide,
        schedule=schedule(guide, seen.train, given, settings, batches),
        optimizer=rates(guide, settings),
        **runner_options(settings, args.seed, args.device),
    )
    callbacks = [watch_labels(seen, factor, settings, args.seed), JSONLines(out / "metrics.jsonl")]
    runner.fit(
        seen.train,
        settings.epochs,
        settings.batch_size,
        callbacks=callbacks,
        batches=batches,
        checkpoints=checkpointing(out),
        fabric=fabric_on(runner.device.type),
        **given,
    )
    first_goes_on()
    runner.save(out)
    scores, encoder = scored(guide, splits, factor, settings, args.seed), guide
    if isinstance(guide, TableGuide):
        encoder = encoder_for(guide, settings, args.seed)
        found = scored(encoder, splits, factor, settings, args.seed)
        scores |= {f"{name}, encoder": score for name, score in found.items()}
    write_json(out / "scores.json", scores)
    print(format_table(scores))
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    training_curves(runner.history, list(guide.model.priors)).savefig(
        figures / "training.png", dpi=130
    )
    if isinstance(encoder, GroupedGuide) and encoder.content != "untied":  # with evidence to draw
        last = list(splits.values())[-1]
        draw(encoder, last, last.test_labels[factor], figures)


if __name__ == "__main__":
    main()
