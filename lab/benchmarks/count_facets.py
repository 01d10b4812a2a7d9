"""What MFCVAE's figures show, counted: swapped facets, and samples of clusters (Falck et al., 2021;
4.2, 4.4, Fig. 5 and 6); and how many labels a point in place of Eq. 12's expectation changes.

    python -m lab.benchmarks.count_facets runs/mfcvae --data-root DATA --out runs/counted

The run is one of ``lab.protocols.mfcvae`` or ``vade``. A network that has only seen real training
images reads the label of a made image; clusters are the model's own, of this image. Shares are in
percent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.stats import entropy
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from facetvae.datasets import Dataset
from guides import FacetGuide
from inference import SVIRunner
from inference.evaluation.clusters import latents_of_cluster
from inference.metrics import cluster_accuracy
from inference.randomness import seeded
from lab.protocols.datasets import DATASETS, load
from lab.protocols.nvae import flat
from lab.run_lines import described_by
from ppl_models import GaussianMixture
from ppl_models.modes import evaluating

Found = dict[str, float]
PER_CLUSTER = 200  # samples


def reader_of(data: Dataset, label: str, seed: int) -> MLPClassifier:
    """A classifier of real training images ``[N, D]`` in [0, 1]."""
    reader = MLPClassifier((500,), early_stopping=True, random_state=seed)
    return reader.fit(flat(data.train), data.train_labels[label])


def share(one: np.ndarray, other: np.ndarray) -> float:
    return 100 * float(np.mean(one == other))


@torch.no_grad()
def made(guide: FacetGuide, z: Mapping[str, Tensor]) -> np.ndarray:
    """Mean images ``[N, *x_shape]`` of latents."""
    with evaluating(guide):
        parts = zip(*(of.split(2000) for of in z.values()), strict=True)
        images = [guide.model.decode(dict(zip(z, part, strict=True))).mean.cpu() for part in parts]
    return torch.cat(images).numpy()


def swaps(guide: FacetGuide, data: Dataset, label: str, reader: MLPClassifier, seed: int) -> Found:
    """Test images with one facet of another one, drawn at random: whose label is read, and whose
    cluster in the other facets is found.
    """
    shallow, deep = guide.model.priors
    means = {name: q.mean for name, q in guide.posterior(data.test).items()}
    partner = np.random.default_rng(seed).permutation(len(data.test))
    own, cluster = data.test_labels[label], guide.predict(data.test)[shallow]
    kept = made(guide, means)
    found = {
        "reader, real images": share(reader.predict(flat(data.test)), own),
        "label read, reconstructions": share(reader.predict(flat(kept)), own),
        f"{shallow} cluster found, reconstructions": share(guide.predict(kept)[shallow], cluster),
        "same label by chance": share(own[partner], own),
        f"same {shallow} cluster by chance": share(cluster[partner], cluster),
    }
    for facet in (shallow, deep):
        image = made(guide, {**means, facet: means[facet][torch.as_tensor(partner)]})
        read, at = reader.predict(flat(image)), guide.predict(image)[shallow]
        for whose, of in {"own": slice(None), "other's": partner}.items():
            found[f"{facet} swapped, {whose} label read"] = share(read, own[of])
            found[f"{facet} swapped, {whose} {shallow} cluster"] = share(at, cluster[of])
    return found


def samples(guide: FacetGuide, data: Dataset, reader: MLPClassifier, seed: int) -> Found:
    """What is in samples of each cluster that has test images, and in these, by their number."""
    assigned, found = guide.predict(data.test), {}
    real = reader.predict(flat(data.test))
    for facet in guide.model.priors:
        clusters, sizes = np.unique(assigned[facet], return_counts=True)
        rows = []
        for k in clusters.tolist():
            with seeded(seed + k, guide.model.gates.device), torch.no_grad():
                z = latents_of_cluster(guide.model, facet, k, PER_CLUSTER)
            image, there = made(guide, z), assigned[facet] == k
            again = guide.predict(image)
            drawn = mixed(reader.predict(flat(image)), again, facet)
            drawn["own cluster"] = 100 * float(np.mean(again[facet] == k))
            kept = mixed(real[there], {name: at[there] for name, at in assigned.items()}, facet)
            kinds = {"samples": drawn, "test images": kept}
            rows.append({f"{of}, {name}": kinds[of][name] for of in kinds for name in kinds[of]})
        for name in rows[0]:
            mean = np.average([row[name] for row in rows], weights=sizes)
            found[f"{facet}: {name}"] = float(mean)
    return found


def mixed(labels: np.ndarray, assigned: Mapping[str, np.ndarray], facet: str) -> Found:
    """The share of the most common label; how many labels, and clusters of each other facet."""
    most = np.unique_counts(labels).counts.max() / len(labels)
    others = {f"{name} clusters": number(at) for name, at in assigned.items() if name != facet}
    return {"most common label": 100 * float(most), "labels": number(labels), **others}


def number(values: np.ndarray) -> float:
    """How many values are about equally common: the exponential of their entropy."""
    return float(np.exp(entropy(np.unique_counts(values).counts)))


def expected(prior: GaussianMixture, z: Tensor, variance: Tensor) -> Tensor:
    """Of Eq. 12 in closed form: E_q log p(z, c), ``[N, K]``. A quadratic's expectation is its value
    at the mean less half the trace of precision times variance.
    """
    if prior.covariance == "diag":
        precision = prior.scale**-2
    else:
        precision = torch.linalg.inv(prior.scale_tril @ prior.scale_tril.mT).diagonal(0, -2, -1)
    return prior.log_joint(z) - variance @ precision.mT / 2


@torch.no_grad()
def assignments(guide: FacetGuide, data: Dataset, label: str) -> Found:
    """Test images whose cluster differs between a facet's mean and Eq. 12, and both accuracies."""
    found = {}
    for facet, q in guide.posterior(data.test).items():
        prior = guide.model.priors[facet]
        both = prior.log_joint(q.mean), expected(prior, q.mean, q.variance)
        point, mean = (each.argmax(-1).cpu().numpy() for each in both)
        found[f"{facet}: images that differ"] = float((point != mean).sum())
        for way, clusters in {"at the mean": point, "by Eq. 12": mean}.items():
            score = cluster_accuracy(data.test_labels[label], clusters)
            found[f"{facet}: accuracy {way}"] = 100 * score
    return found


def main(argv: list[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--dataset", choices=DATASETS, default="mnist")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    data = load(args.dataset, args.data_root)
    guide = SVIRunner.load(args.run, device=args.device).guide
    label = next(iter(data.test_labels))
    reader = reader_of(data, label, args.seed)
    found = {
        "samples": samples(guide, data, reader, args.seed),
        "assignments": assignments(guide, data, label),
    }
    if len(guide.model.priors) > 1:
        found["swaps"] = swaps(guide, data, label, reader, args.seed)
    print(json.dumps(found, indent=1))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scores.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
