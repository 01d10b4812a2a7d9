"""How well latents tell the label, with evidence accumulated over k images (ML-VAE, supplement 3):
of an encoder, or of posteriors that are fitted to each set of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.distributions import Distribution

from guides import FacetGuide, GroupedGuide, ProductOfNormals
from inference import infer_tables
from inference.randomness import seeded
from ppl_models import MLVAE
from ppl_models.distributions import DiagonalNormal

Posteriors = dict[str, Distribution]


class Reader(Protocol):
    """What is believed of images that come in groups."""

    def posteriors(self, rows: np.ndarray, k: int) -> Posteriors:
        """By latent, a distribution for each of these rows, which are in groups of k one after the
        other: batch ``[N]``, event ``[d]``.
        """


class Encoded:
    """What an encoder says of each row alone, and the evidence of its group combined: by the
    guide's rule where it has one, else (the VAE, and rows with contents of their own) by the
    product, after the fact.
    """

    def __init__(self, guide: FacetGuide, x: np.ndarray) -> None:
        self.guide, self.said = guide, _said(guide, x)

    def posteriors(self, rows: np.ndarray, k: int) -> Posteriors:
        group = torch.arange(len(rows)) // k
        return {
            name: self._combined(name, *(part[rows].cpu() for part in said), group)
            for name, said in self.said.items()
        }

    def _combined(
        self, name: str, loc: Tensor, log_variance: Tensor, group: Tensor
    ) -> Distribution:
        if name == "style":
            return DiagonalNormal(loc, (0.5 * log_variance).exp())
        combines = isinstance(self.guide, GroupedGuide) and self.guide.content != "untied"
        rule = self.guide.evidence if combines else ProductOfNormals()
        return rule.by_member(loc, log_variance, group)


def _said(guide: FacetGuide, x: np.ndarray) -> dict[str, tuple[Tensor, Tensor]]:
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


class Inferred:
    """Tables that are fitted to the rows and their groups, without an encoder: SVI's inference at
    test time (3.2).
    """

    def __init__(self, model: MLVAE, x: np.ndarray, epochs: int, seed: int) -> None:
        self.model, self.x, self.epochs, self.seed = model, x, epochs, seed

    def posteriors(self, rows: np.ndarray, k: int) -> Posteriors:
        x, group = self.x[rows], np.arange(len(rows)) // k
        fitted = infer_tables(
            self.model,
            x,
            group,
            self.epochs,
            seed=self.seed,
            batch_size=len(rows),
            log_every=self.epochs,
            progress=False,
        )
        return dict(fitted.posterior(x, group=group))


def check_evidence(label: np.ndarray, evidence: Sequence[int]) -> int:
    """K, the last value of k.

    :raises ValueError: if a k does not divide K, or a class has fewer than 2 K rows.
    """
    K = evidence[-1]
    if any(K % k for k in evidence):
        raise ValueError(
            f"every k must divide the last one, K, so that no group has two classes: {evidence}"
        )
    if (fewest := np.unique(label, return_counts=True)[1].min()) < 2 * K:
        raise ValueError(
            f"evidence={evidence} needs {2 * K} images of each class, half of them to train the "
            f"classifier, but one has {fewest}: give smaller k, or more images"
        )
    return K


def evaluate(
    reader: Reader, label: np.ndarray, evidence: Sequence[int], trials: int, seed: int
) -> dict[str, dict[str, float]]:
    """Accuracy and conditional entropy of the label, by latent and k: means over trials.

    A trial takes 2 K images of each class: with K the classifier is trained, all of a class as one
    group; the others are tested in groups of k. Every image has a draw of its own from its group's
    posterior.

    :param label: ``[N]``, of the reader's rows.
    :param evidence: values of k; the last one is K.
    :raises ValueError: if a k does not divide K, or a class has fewer than 2 K rows.
    """
    K = check_evidence(label, evidence)
    found: dict[str, list[dict[str, float]]] = {}
    for trial in range(trials):
        train, test = _rows(label, K, np.random.default_rng([seed, trial]))
        read = [reader.posteriors(train, K), *(reader.posteriors(test, k) for k in evidence)]
        for name in read[0]:
            with seeded(seed + trial, torch.device("cpu")):
                train_z, *tests = (q[name].sample().cpu().numpy() for q in read)
            labeled = [(z, label[test]) for z in tests]
            for k, score in zip(
                evidence,
                classifier_scores(train_z, label[train], labeled, seed + trial),
                strict=True,
            ):
                found.setdefault(f"{name}, {k}", []).append(score)
    return {
        name: {measure: mean(score[measure] for score in scores) for measure in scores[0]}
        for name, scores in found.items()
    }


def _rows(label: np.ndarray, K: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """K rows of each class to train a classifier with, and K others to test it with."""
    chosen = np.stack(
        [rng.choice(np.flatnonzero(label == c), 2 * K, replace=False) for c in np.unique(label)]
    )
    return chosen[:, :K].ravel(), chosen[:, K:].ravel()


def classifier_scores(
    train_z: ArrayLike,
    train_labels: ArrayLike,
    test: Sequence[tuple[ArrayLike, ArrayLike]],
    seed: int = 0,
) -> list[dict[str, float]]:
    """A classifier's scores on several test sets, after ML-VAE's supplement 3: ``accuracy``, the
    share that it classifies correctly, and ``conditional_entropy``, its cross-entropy in bits, an
    upper bound on H(label given z).

    The classifier has two hidden layers of 256 units, tanh, and a softmax (the paper's "two linear
    layers" may also be read as one hidden layer). It is scikit-learn's ``MLPClassifier``, with
    latents scaled to the training set's mean and deviation, trained until its loss stops falling;
    there is no validation set.

    :param train_z: latents ``[N, d]``.
    :param test: latents ``[M, d]`` and labels ``[M]`` of each test set; every label must occur in
        the training set.

    Example:
        >>> import numpy as np
        >>> from lab.protocols.accumulation import classifier_scores
        >>> labels = np.arange(40) % 2
        >>> z = labels[:, None] + np.random.default_rng(0).normal(0, 0.01, (40, 1))
        >>> (scores,) = classifier_scores(z[:30], labels[:30], [(z[30:], labels[30:])])
        >>> scores["accuracy"]
        1.0
    """
    known = np.unique(np.asarray(train_labels)).tolist()
    network = MLPClassifier((256, 256), activation="tanh", max_iter=1000, random_state=seed)
    classifier = make_pipeline(StandardScaler(), network).fit(train_z, train_labels)
    scores = []
    for z, labels in test:
        # Of a single class nothing is unknown, and scikit-learn refuses it.
        nats = log_loss(labels, classifier.predict_proba(z), labels=known) if known[1:] else 0.0
        accuracy = float(classifier.score(z, labels))
        scores.append({"accuracy": accuracy, "conditional_entropy": float(nats / np.log(2))})
    return scores
