"""N-VAE: what belongs to a class, and what all classes share (Antoran and Miguel, 2019).

python -m lab.protocols.nvae --dataset mnist --data-root DATA
python -m lab.protocols.nvae --dataset mnist --data-root DATA --labels 600
python -m lab.protocols.nvae --dataset shapes

With --labels, that many training images keep their label (equally many of each class); the others
are summed over all classes, and a classifier trained on the labeled images alone is scored for
comparison. --objective dirichlet is the exact bound (Eq. 3), sampled the same with pi drawn (Eq.
2), simplified the paper's (Eq. 6, a looser bound). --model cvae and vae are the baselines,
built from the same parts; --beta makes a beta-VAE of the latter.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
from sklearn.neural_network import MLPClassifier

from facetvae.datasets import Dataset
from guides import ClassifierGuide, ConditionalGuide, FacetGuide, VaDEGuide
from inference import Checkpoints, Constant, GuideEnum_ELBO, SVIRunner, kl_by_dimension
from inference.callbacks import JSONLines
from inference.figures.training import training_curves
from inference.metrics import probe_accuracy
from inference.randomness import seeded
from lab.figures.classes import (
    STEPS,
    class_latents,
    class_samples,
    class_traversals,
    kl_by_class,
    kl_of_blocks,
    latent_scatter,
    shared_latents,
    shared_traversals,
    traversed,
)
from lab.protocols.common import (
    TRAINING_FLAGS,
    add_setting_flags,
    build_parser,
    checkpointing,
    fabric_on,
    first_goes_on,
    load_data,
    once,
    open_run_folder,
    resolve,
    runner_options,
    write_json,
)
from ppl_models import CVAE, MLP, NVAE, VAE, StridedConvNet
from ppl_models.networks import Architecture

# The label that classes are made of, by data set.
CLASS_OF = {
    "mnist": "digit",
    "digits": "digit",
    "shapes": "shape",
    "fashion-mnist": "article",
    "yale": "person",
    "folders": "group",
}
OBJECTIVES = ("simplified", "dirichlet", "sampled")
MODELS = ("nvae", "cvae", "vae")
PROBED = 10_000  # images of a split, at most, whose latents a classifier reads


@dataclass(frozen=True)
class Settings:
    """The paper gives beta_c alone; sizes, networks, rate and epochs are our choice.

    With many shared latents the classes' own say nothing: what several classes can tell is cheaper
    told by all. The baselines have as many latents as N-VAE's decoder sees of one datum.
    """

    class_dim: int = 4
    shared_dim: int = 4
    widths: tuple[int, ...] = (512, 256)
    beta_c: float = 2.0  # of the classes' latents (Eq. 7)
    beta: float = 1.0  # of the baselines' latents
    batch_size: int = 256
    lr: float = 1e-3
    epochs: int = 40
    precision: str = "float32"
    labels: int = 0  # training images whose label is known; 0 for all
    label_weight: float = (
        100.0  # of log q(y | x) in the simplified objective where some labels are unknown
    )
    labeled_share: float = 0.1  # of the rows of a pass: labeled rows are repeated to make so many


IMAGES = replace(Settings(), widths=(32, 64, 128), epochs=20)
LARGER = dict.fromkeys(("shapes", "yale", "folders"), IMAGES)
SMOKE = replace(Settings(), widths=(32,), epochs=3, class_dim=2, shared_dim=2)


def network(data: Dataset, settings: Settings) -> Architecture:
    if data.train.ndim == 2:
        return MLP(settings.widths, "relu", dropout=0)
    return StridedConvNet(settings.widths, hidden=128)


def build(
    model: str,
    objective: str,
    data: Dataset,
    num_classes: int,
    settings: Settings,
    class_bias: bool = True,
) -> FacetGuide:
    x_shape, parts = data.train.shape[1:], {"network": network(data, settings)}
    dim = settings.shared_dim + settings.class_dim
    if model == "vae":
        return VaDEGuide(VAE(x_shape, dim, **parts))
    if model == "cvae":
        return ConditionalGuide(CVAE(x_shape, num_classes, dim, **parts))
    concentration = None if objective == "simplified" else 1.0
    dims = (num_classes, settings.class_dim, settings.shared_dim)
    weight = settings.label_weight if settings.labels and objective == "simplified" else None
    return ClassifierGuide(
        NVAE(x_shape, *dims, **parts, concentration=concentration, class_bias=class_bias),
        label_weight=weight,
    )


def make_runner(
    guide: FacetGuide, objective: str, settings: Settings, seed: int, device: str = "cpu"
) -> SVIRunner:
    divides = isinstance(guide, ClassifierGuide)
    return SVIRunner(
        guide.model,
        guide,
        objective=GuideEnum_ELBO(max_plate_nesting=1) if objective == "sampled" else None,
        schedule=Constant({"z_class": settings.beta_c} if divides else settings.beta),
        **runner_options(settings, seed, device),
    )


def trained(
    model: str,
    data: Dataset,
    label: np.ndarray,
    settings: Settings,
    seed: int,
    folder: Path,
    about: Mapping[str, Any],
    checkpoints: Checkpoints,
    device: str = "cpu",
    start: Path | None = None,
) -> Path:
    """The folder of a run of the simplified objective; one that is there ``about`` the same stays.

    :param label: of each training image, or -1.
    :param start: folder of a run whose weights it begins with.
    """

    def train() -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        pyro.set_rng_seed(seed)
        guide = build(model, "simplified", data, int(label.max()) + 1, settings)
        if start is not None:
            guide.load_state_dict(SVIRunner.load(start).guide.state_dict())
        runner = make_runner(guide, "simplified", settings, seed, device)
        options = {"callbacks": [JSONLines(folder / "metrics.jsonl")], "checkpoints": checkpoints}
        runner.fit(data.train, settings.epochs, settings.batch_size, label=label, **options)
        runner.save(folder)
        return {"history": runner.history}

    once(folder / "results.json", about, train)
    return folder


def some_labels(
    label: np.ndarray, known: int, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a pass, their labels (-1 where unknown), and which rows are labeled: repeated to
    make up ``share``.

    :raises ValueError: if there are fewer labels than classes, or more than data.
    """
    classes = np.unique(label)
    if not len(classes) <= known <= len(label):
        raise ValueError(
            f"--labels must be from {len(classes)}, the number of classes, to {len(label)}, got "
            f"{known}"
        )
    order = np.random.default_rng(seed).permutation(len(label))
    place = np.empty(len(label), int)  # of each row among those of its class
    for k in classes:
        own = order[label[order] == k]
        place[own] = np.arange(len(own))
    labeled = order[np.argsort(place[order], kind="stable")][
        :known
    ]  # as many of each class as can be
    repeated = np.resize(labeled, max(known, round(share / (1 - share) * (len(label) - known))))
    rows = np.concatenate([np.setdiff1d(np.arange(len(label)), labeled), repeated])
    return rows, np.concatenate([np.full(len(label) - known, -1), label[repeated]]), labeled


def classifier_alone(
    x: np.ndarray, label: np.ndarray, settings: Settings, seed: int
) -> MLPClassifier:
    """A fully connected classifier of the same widths, trained on these images alone, to a loss
    that stands still.
    """
    return MLPClassifier(settings.widths, max_iter=5000, random_state=seed).fit(flat(x), label)


def flat(x: np.ndarray) -> np.ndarray:
    return (x / 255 if x.dtype == np.uint8 else x).reshape(len(x), -1).astype(np.float32)


def class_told(guide: FacetGuide, data: Dataset, of: str, seed: int) -> float:
    """How well a classifier tells the class from draws of the shared latents, or of a baseline's:
    accuracy on test images, trained on ``PROBED`` of the others.
    """
    sets = [(data.train, data.train_labels[of]), (data.test, data.test_labels[of])]
    read: list[np.ndarray] = []
    with seeded(seed, guide.model.gates.device):
        for x, label in ((x[:PROBED], label[:PROBED]) for x, label in sets):
            q = guide.posterior(x, **beside(guide, label))
            z = q.get("shared", next(iter(q.values()))).sample()
            read += [z.cpu().numpy(), label]
    return probe_accuracy(*read, seed=seed)


def score(guide: FacetGuide, data: Dataset, of: str, seed: int) -> dict[str, Any]:
    """Test error, and nats of every latent: shared ones, those of the right class and those of the
    others.
    """
    told = {"class_told_by_latents": class_told(guide, data, of, seed)}
    x, label = data.test, data.test_labels[of]
    if not isinstance(guide, ClassifierGuide):
        return told | {
            "kl": {
                name: kl.mean(0).tolist()
                for name, kl in kl_by_dimension(guide, x, **beside(guide, label)).items()
            }
        }
    kl, blocks = kl_by_dimension(guide, x), guide.model.blocks  # type: ignore[union-attr]
    by_block = kl["class"].reshape(len(x), blocks.num_components, blocks.block_dim)
    own = np.arange(blocks.num_components) == label[:, None]
    return told | {
        "error": float((guide.predict(x)["class"] != label).mean()),
        **traversals_keep_class(guide),
        "kl": {
            "shared": kl["shared"].mean(0).tolist(),
            "right class": by_block[own].mean(0).tolist(),
            "other classes": by_block[~own].mean(0).tolist(),
        },
    }


def traversals_keep_class(guide: ClassifierGuide) -> dict[str, float]:
    """Share of the traversals' images, from -3 to 3, that the guide's classifier takes for the
    class they are of.
    """
    blocks, shared = guide.model.blocks, guide.model.prior("shared")  # type: ignore[union-attr]
    of = {
        "class_traversals_keep_class": [class_latents(guide, j) for j in range(blocks.block_dim)],
        "shared_traversals_keep_class": [shared_latents(guide, j) for j in range(shared.dim)],
    }
    wanted = np.arange(blocks.num_components).repeat(STEPS)
    return {
        name: float(
            np.mean(
                [
                    guide.predict(np.concatenate(traversed(guide, z)))["class"] == wanted
                    for z in latents
                ]
            )
        )
        for name, latents in of.items()
    }


def beside(guide: FacetGuide, label: np.ndarray) -> dict[str, np.ndarray]:
    return {"label": label} if guide.takes else {}


def draw(
    guide: FacetGuide,
    runner: SVIRunner,
    data: Dataset,
    of: str,
    name: str,
    found: dict,
    folder: Path,
) -> None:
    folder.mkdir(exist_ok=True)
    x, label, shape = data.test, data.test_labels[of], data.image_shape
    figures = {
        "training": training_curves(runner.history, list(guide.model.priors)),
        "kl": kl_of_blocks(name, found["kl"]),
    }
    latents = guide.embed(x, **beside(guide, label))
    figures["scatter"] = latent_scatter(latents.get("shared", next(iter(latents.values()))), label)
    if guide.model.decodes:
        figures |= {
            f"samples_{scale:g}": class_samples(guide, shape, scale=scale) for scale in (1.0, 1.4)
        }
    if isinstance(guide, ClassifierGuide):
        blocks, kl = guide.model.blocks, kl_by_dimension(guide, x)  # type: ignore[union-attr]
        figures["kl_by_class"] = kl_by_class(kl["class"], label, blocks.block_dim)
        telling = np.argsort(found["kl"]["shared"])[::-1]
        by_class = kl["class"].reshape(len(x), blocks.num_components, blocks.block_dim)
        own = np.stack([by_class[label == k, k].mean(0) for k in range(blocks.num_components)])
        most = np.argsort(-own, 1)  # of each class its latents, the most telling first
        figures |= {
            f"class_{j + 1}": class_traversals(guide, most[:, j], shape)
            for j in range(blocks.block_dim)
        }
        figures |= {f"shared_{j + 1}": shared_traversals(guide, int(j), shape) for j in telling[:4]}
    for file, figure in figures.items():
        figure.savefig(folder / f"{file}.png", dpi=130)


def format_table(found: dict[str, Any]) -> str:
    lines = [
        f"{name.replace('_', ' '):28s}{value:8.4f}"
        for name, value in found.items()
        if isinstance(value, float)
    ]
    lines += [
        f"{f'KL of {name}':28s}{sum(kl):8.3f} nats in {len(kl)} latents"
        for name, kl in found["kl"].items()
    ]
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, Settings]:
    parser = build_parser(__doc__, "nvae")
    parser.add_argument("--dataset", choices=tuple(CLASS_OF), default="mnist")
    parser.add_argument("--model", choices=MODELS, default="nvae", help="N-VAE or a baseline")
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="simplified",
        help="how known labels enter the objective",
    )
    parser.add_argument(
        "--no-class-bias", action="store_true", help="the decoder does not see the class (Fig. 10)"
    )
    flags = {
        "epochs": {"help": "passes over the data"},
        "class_dim": {"help": "latents of each class"},
        "shared_dim": {"help": "latents that all classes share; a baseline has as many as both"},
        "labels": {"help": "training images whose label is known (default: all)"},
        "beta_c": {"help": "weight of the classes' latents"},
        "beta": {"help": "weight of the baselines' latents"},
        **{name: flag for name, flag in TRAINING_FLAGS.items() if name != "evaluate_every"},
    }
    add_setting_flags(parser, Settings(), **flags)
    args = parser.parse_args(argv)
    settings = resolve(args, LARGER.get(args.dataset, Settings()), SMOKE)
    if settings.labels and args.model != "nvae":
        parser.error("--labels is for --model nvae: the baselines are given all labels, or none")
    if args.model != "nvae" and (args.no_class_bias or args.objective != "simplified"):
        parser.error("--objective and --no-class-bias are for --model nvae")
    return args, settings


def main(argv: list[str] | None = None) -> None:
    args, settings = parse(argv)
    name = "digits" if args.smoke else args.dataset
    data, of = load_data(name, args), CLASS_OF[name]
    label = data.train_labels[of]
    rows, given = np.arange(len(label)), label
    if settings.labels:
        rows, given, labeled = some_labels(
            label, settings.labels, settings.labeled_share, args.seed
        )
    out = open_run_folder(args, settings, data)
    pyro.set_rng_seed(args.seed)
    guide = build(
        args.model, args.objective, data, int(label.max()) + 1, settings, not args.no_class_bias
    )
    runner = make_runner(guide, args.objective, settings, args.seed, args.device)
    callbacks = [JSONLines(out / "metrics.jsonl")]
    options = {
        "callbacks": callbacks,
        "checkpoints": checkpointing(out),
        "fabric": fabric_on(runner.device.type),
    }
    runner.fit(
        data.train[rows], settings.epochs, settings.batch_size, **options, **beside(guide, given)
    )
    first_goes_on()
    runner.save(out)
    found = score(guide, data, of, args.seed)
    if settings.labels:
        alone = classifier_alone(data.train[labeled], label[labeled], settings, args.seed)
        found["error_of_a_classifier_alone"] = float(
            1 - alone.score(flat(data.test), data.test_labels[of])
        )
    write_json(out / "scores.json", found)
    print(format_table(found))
    draw(guide, runner, data, of, args.model, found, out / "figures")


if __name__ == "__main__":
    main()
