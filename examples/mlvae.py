"""ML-VAE: what the members of a group share, and what is particular to each (Bouchacourt et al.,
2018).

python -m examples.mlvae --dataset mnist --data-root DATA
python -m examples.mlvae --dataset shapes --factor object

MNIST is grouped by digit. The drawn shapes are grouped by one of their factors, and about two
fifths of its values are held out, so that their groups are never seen in training. Test images are
then classified by content and by style, with evidence accumulated over k images (the paper's Fig.
6c). --model vae is the paper's baseline, whose evidence is accumulated afterwards.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

from examples.common import (
    TRAINING_FLAGS,
    add_setting_flags,
    build_parser,
    checkpointing,
    fabric_on,
    first_goes_on,
    open_run_folder,
    resolve,
    write_json,
)
from examples.datasets import Dataset, load
from examples.shapes import FACTORS
from guides import (
    FacetGuide,
    GroupedGuide,
    MixtureOfNormals,
    ProductOfNormals,
    SimilarContentGuide,
    VaDEGuide,
)
from guides.evidence import product_of_normals
from inference import Constant, CoolDown, Groups, Rows, SVIRunner
from inference.callbacks import Evaluate, JSONLines
from inference.figures.groups import (
    evidence_reconstructions,
    group_generations,
    latent_interpolation,
    style_swaps,
)
from inference.figures.training import training_curves
from inference.metrics import classifier_scores
from inference.randomness import seeded
from inference.run import Run
from inference.schedules import Schedule
from inference.training.batching import Batching
from ppl_models import MLP, MLVAE, VAE, Bernoulli, HeteroscedasticNormal, Likelihood, StridedConvNet
from ppl_models.networks import Architecture

LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "normal": HeteroscedasticNormal,
    "bernoulli": Bernoulli,
}
MODELS = ("product", "mixture", "similar", "vae")


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
    evidence: tuple[int, ...] = (
        1,
        2,
        5,
        10,
        100,
    )  # k; the last one is K, which the classifier is trained with
    trials: int = 5


SHAPES = replace(Settings(), widths=(32, 64, 128), epochs=30, evidence=(1, 2, 5, 10, 50))
SMOKE = replace(
    Settings(), widths=(32,), epochs=3, evaluate_every=2, evidence=(1, 2, 5, 10), trials=2
)


def network(data: Dataset, settings: Settings) -> Architecture:
    if data.train.ndim == 2:
        return MLP(settings.widths, "tanh", dropout=0)
    return StridedConvNet(settings.widths, hidden=128)


def build(model: str, data: Dataset, settings: Settings) -> FacetGuide:
    likelihood, x_shape = LIKELIHOODS[settings.likelihood](), data.train.shape[1:]
    if model == "vae":
        return VaDEGuide(
            VAE(
                x_shape,
                settings.content_dim + settings.style_dim,
                likelihood,
                network(data, settings),
            )
        )
    grouped = MLVAE(
        x_shape, settings.content_dim, settings.style_dim, likelihood, network(data, settings)
    )
    if model == "similar":
        return SimilarContentGuide(grouped)
    return GroupedGuide(
        grouped, evidence=MixtureOfNormals() if model == "mixture" else ProductOfNormals()
    )


def schedule(
    guide: FacetGuide, data: Dataset, settings: Settings, batches: Batching, factor: str
) -> Schedule:
    """The style's cooling, for models that have one."""
    if not guide.takes or settings.style_weight == 1:
        return Constant()
    rows = guide.observed(data.train, {"group": data.train_labels[factor]})
    steps = settings.epochs * batches.steps(rows, settings.batch_size)
    return CoolDown({"z_style": settings.style_weight}, max(1, 4 * steps // 5))


def held_out(data: Dataset, factor: str) -> tuple[Dataset, Dataset]:
    """The data whose factor has a value that is seen, and the test data of all others: of five
    values, two between.
    """

    def rows(labels: dict[str, np.ndarray], seen: bool) -> np.ndarray:
        return np.isin(labels[factor] % 5, (0, 2, 4)) == seen

    def part(train: np.ndarray, test: np.ndarray) -> Dataset:
        return replace(
            data,
            train=data.train[train],
            test=data.test[test],
            train_labels={name: labels[train] for name, labels in data.train_labels.items()},
            test_labels={name: labels[test] for name, labels in data.test_labels.items()},
        )

    train = rows(data.train_labels, True)
    return part(train, rows(data.test_labels, True)), part(train, rows(data.test_labels, False))


def latents(guide: FacetGuide, x: np.ndarray) -> dict[str, tuple[Tensor, Tensor]]:
    """What each row says alone: mean and log-variance of each latent, ``[N, d]``."""
    beside = {"group": np.arange(len(x))} if guide.takes else {}
    alone = {
        name: (q.mean, 2 * q.stddev.log())
        for name, q in _alone(guide).posterior(x, **beside).items()
    }
    return alone if guide.takes else {"latent": next(iter(alone.values()))}


def _alone(guide: FacetGuide) -> FacetGuide:
    """The same encoder, with Normals for posteriors whatever the rule for groups is."""
    if not isinstance(guide, GroupedGuide):
        return guide
    twin = GroupedGuide(guide.model)
    twin.encoder = guide.encoder
    return twin


def evaluate(
    guide: FacetGuide, x: np.ndarray, label: np.ndarray, settings: Settings, seed: int
) -> dict[str, dict[str, float]]:
    """Accuracy and conditional entropy of the label, by latent and k (supplement 3): means over
    trials.

    A trial takes 2 K images of each class: with K the classifier is trained, all of a class as one
    group; the others are tested in groups of k. Every image has a draw of its own from its group's
    posterior: by the guide's rule of evidence where it has one, else (the VAE, and rows with
    contents of their own) by the product, after the fact.

    :raises ValueError: if a k does not divide K.
    """
    if any(settings.evidence[-1] % k for k in settings.evidence):
        raise ValueError(
            "every k must divide the last one, K, so that no group has two classes: "
            f"{settings.evidence}"
        )
    classes, K = np.unique(label), settings.evidence[-1]
    said = latents(guide, x)
    found: dict[str, list[tuple[float, float]]] = {}
    for trial in range(settings.trials):
        rng = np.random.default_rng([seed, trial])
        chosen = np.stack(
            [rng.choice(np.flatnonzero(label == c), 2 * K, replace=False) for c in classes]
        )
        train, test = chosen[:, :K].ravel(), chosen[:, K:].ravel()
        for name, normals in said.items():
            with seeded(seed + trial, torch.device("cpu")):
                train_z = _features(guide, name, normals, train, K)
                tests = [
                    (_features(guide, name, normals, test, k), label[test])
                    for k in settings.evidence
                ]
            scores = classifier_scores(train_z, label[train], tests, seed + trial)
            for k, score in zip(settings.evidence, scores, strict=True):
                found.setdefault(f"{name}, {k}", []).append(
                    (score.accuracy, score.conditional_entropy)
                )
    return {
        name: {
            "accuracy": mean(a for a, _ in values),
            "conditional_entropy": mean(h for _, h in values),
        }
        for name, values in found.items()
    }


def watch_labels(data: Dataset, factor: str, settings: Settings, seed: int) -> Evaluate:
    """Adds to some records how well each latent tells the label, with evidence of K test images."""
    look = replace(settings, evidence=settings.evidence[-1:], trials=1)

    def accuracies(run: Run) -> dict[str, float]:
        found = evaluate(run.guide, data.test, data.test_labels[factor], look, seed)
        return {
            f"accuracy_{name.split(',')[0]}": score["accuracy"] for name, score in found.items()
        }

    return Evaluate(accuracies, settings.evaluate_every)


def _features(
    guide: FacetGuide, name: str, normals: tuple[Tensor, Tensor], rows: np.ndarray, k: int
) -> np.ndarray:
    """A draw for each of these rows, in groups of k one after the other."""
    loc, log_variance = (part[rows].cpu() for part in normals)
    if name == "style":
        k = 1
    group = torch.arange(len(rows)) // k
    if isinstance(guide, GroupedGuide) and name == "content" and guide.content != "untied":
        return guide.evidence.by_member(loc, log_variance, group).sample().numpy()
    loc, log_variance = (part[group] for part in product_of_normals(loc, log_variance, group))
    return (loc + (0.5 * log_variance).exp() * torch.randn_like(loc)).numpy()


def format_table(scores: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [f"{'images of':18s}{'latent, k':16s}{'accuracy':>10s}{'entropy, bits':>16s}"]
    for split, of in scores.items():
        for name, score in of.items():
            lines.append(
                f"{split:18s}{name:16s}{score['accuracy']:10.3f}"
                f"{score['conditional_entropy']:16.3f}"
            )
    return "\n".join(lines)


def draw(guide: GroupedGuide, data: Dataset, label: np.ndarray, out: Any) -> None:
    """The figures of Fig. 4 to 6, with evidence of ten images where it is accumulated."""
    rng = np.random.default_rng(0)
    classes = np.unique(label)[:10]
    rows = np.concatenate(
        [rng.choice(np.flatnonzero(label == c), 10, replace=False) for c in classes]
    )
    x, group = data.test[rows], label[rows]
    styles = data.test[rng.choice(len(data.test), 8, replace=False)]
    pair = data.test[rng.choice(len(data.test), 2, replace=False)]
    figures = {
        "swaps": style_swaps(guide, styles, x, group, data.image_shape),
        "interpolation": latent_interpolation(guide, pair, data.image_shape),
        "generation": group_generations(guide, x, group, data.image_shape),
        "evidence": evidence_reconstructions(guide, x[group == classes[-1]], data.image_shape),
    }
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=130)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "mlvae")
    parser.add_argument("--dataset", choices=("mnist", "shapes", "digits"), default="mnist")
    parser.add_argument(
        "--factor",
        choices=tuple(FACTORS),
        default="object",
        help="factor that shapes are grouped by",
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="product",
        help="how evidence is combined, or the baseline",
    )
    flags = {
        "epochs": {"help": "passes over the data"},
        "style_weight": {"help": "of the style's KL at first; 1 for none but the ELBO's"},
        "likelihood": {"help": "of an image", "choices": tuple(LIKELIHOODS), "metavar": None},
        **TRAINING_FLAGS,
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    return args, resolve(args, SHAPES if args.dataset == "shapes" else Settings(), SMOKE)


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    data = load("digits" if args.smoke else args.dataset, args.data_root)
    factor = "digit" if "digit" in data.train_labels else args.factor
    seen, unseen = (data, None) if factor == "digit" else held_out(data, factor)
    out = open_run_folder(args, settings, seen)
    pyro.set_rng_seed(args.seed)
    guide = build(args.model, seen, settings)
    batches: Batching = Groups(settings.max_members) if guide.takes else Rows()
    runner = SVIRunner(
        guide.model,
        guide,
        lr=settings.lr,
        schedule=schedule(guide, seen, settings, batches, factor),
        seed=args.seed,
        device=args.device,
        precision=settings.precision,
    )
    group = {"group": seen.train_labels[factor]} if guide.takes else {}
    callbacks = [
        watch_labels(seen, factor, settings, args.seed),
        JSONLines(out / "metrics.jsonl"),
    ]
    runner.fit(
        seen.train,
        settings.epochs,
        settings.batch_size,
        callbacks=callbacks,
        batches=batches,
        checkpoints=checkpointing(out),
        fabric=fabric_on(runner.device.type),
        **group,
    )
    first_goes_on()
    runner.save(out)
    splits = {"seen groups": seen} | ({"unseen groups": unseen} if unseen is not None else {})
    scores = {
        name: evaluate(guide, part.test, part.test_labels[factor], settings, args.seed)
        for name, part in splits.items()
    }
    write_json(out / "scores.json", scores)
    print(format_table(scores))
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    training_curves(runner.history, list(guide.model.priors)).savefig(
        figures / "training.png", dpi=130
    )
    if (
        isinstance(guide, GroupedGuide) and guide.content != "untied"
    ):  # which has no evidence to draw
        last = list(splits.values())[-1]
        draw(guide, last, last.test_labels[factor], figures)


if __name__ == "__main__":
    main()
