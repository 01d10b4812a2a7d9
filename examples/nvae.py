"""N-VAE: what belongs to a class, and what all classes share (Antoran and Miguel, Disentangling and
Learning Robust Representations with Natural Clustering, 2019).

    python -m examples.nvae --data-root DATA                             # MNIST
    python -m examples.nvae --dataset fashion-mnist --data-root DATA
    python -m examples.nvae --dataset digits                             # 8x8 digits; no files

Every class has latents of its own beside the shared ones; labels of all training images are known,
and the guide's classifier is trained with the rest. Printed are its test error, how well the class
is told by the shared latents, which should not, and the nats in every latent: the right class's
should carry some, the other classes' none. Few labels, baselines and traversals:
`python -m lab.protocols.nvae --help`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyro

from examples.common import load_data, parse, save_run
from facetvae import MLP, NVAE, ClassifierGuide, Constant, SVIRunner, kl_by_dimension
from facetvae.datasets import Dataset
from inference.metrics import probe_accuracy

PROBED = 10_000  # training images, at most, that the classifier of shared latents learns from


@dataclass(frozen=True)
class Settings:
    """The paper gives beta_c alone; sizes, networks, rate and epochs are our choice.

    With many shared latents the classes' own say nothing: what several classes can tell is cheaper
    told by all.
    """

    class_dim: int = 4
    shared_dim: int = 4
    widths: tuple[int, ...] = (512, 256)
    beta_c: float = 2.0  # weight of the classes' latents (Eq. 7)
    batch_size: int = 256
    lr: float = 1e-3
    epochs: int = 40


SMOKE = replace(Settings(), widths=(32,), epochs=3, class_dim=2, shared_dim=2)


def score(guide: ClassifierGuide, data: Dataset, of: str, seed: int) -> dict[str, Any]:
    """Test error, the accuracy of a classifier of the shared latents alone, and nats of every
    latent: shared ones, those of the right class and those of the others.
    """
    x, label = data.test, data.test_labels[of]
    known, shared = data.train_labels[of][:PROBED], guide.embed(data.train[:PROBED])["shared"]
    kl, blocks = kl_by_dimension(guide, x), guide.model.blocks
    by_block = kl["class"].reshape(len(x), blocks.num_components, blocks.block_dim)
    own = np.arange(blocks.num_components) == label[:, None]
    return {
        "error": float((guide.predict(x)["class"] != label).mean()),
        "class_told_by_shared": probe_accuracy(
            shared, known, guide.embed(x)["shared"], label, seed
        ),
        "kl": {
            "shared": kl["shared"].mean(0).tolist(),
            "right class": by_block[own].mean(0).tolist(),
            "other classes": by_block[~own].mean(0).tolist(),
        },
    }


def main(argv: list[str] | None = None) -> None:
    args = parse("nvae", __doc__, argv, ("mnist", "fashion-mnist", "digits"))
    s = SMOKE if args.smoke else Settings()
    data = load_data(args)
    (of,) = data.train_labels  # digit, or article
    pyro.set_rng_seed(args.seed)
    sizes = (len(np.unique(data.train_labels[of])), s.class_dim, s.shared_dim)
    network = MLP(s.widths, "relu", dropout=0)
    model = NVAE(data.train.shape[1:], *sizes, network=network, concentration=None)
    guide = ClassifierGuide(model)
    schedule = Constant({"z_class": s.beta_c})
    options = {"lr": s.lr, "seed": args.seed, "device": args.device}
    runner = SVIRunner(model, guide, schedule=schedule, **options)
    runner.fit(data.train, s.epochs, s.batch_size, log_every=5, label=data.train_labels[of])
    scores = score(guide, data, of, args.seed)
    print(f"test error {scores['error']:.4f}")
    print(f"class told by shared latents {scores['class_told_by_shared']:.4f}")
    for name, kl in scores["kl"].items():
        print(f"KL of {name}: {sum(kl):.3f} nats in {len(kl)} latents")
    save_run(runner, data, scores, args.out)


if __name__ == "__main__":
    main()
