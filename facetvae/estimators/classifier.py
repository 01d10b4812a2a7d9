"""A classifier that also learns from data without labels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from facetvae.estimators.arrays import plain_labels
from facetvae.estimators.base import FacetEstimator, restore_on_error
from facetvae.estimators.defaults import STEPS, default_plain_network, epochs_of
from facetvae.estimators.training import check_trained
from facetvae.estimators.words import plain_values
from guides import ClassifierGuide
from ppl_models import NVAE
from ppl_models.turns import exclusive

# scikit-learn compares labels as integers of 64 bits.
LARGEST_LABEL = 2.0**63


@dataclass(kw_only=True, eq=False, repr=False)
class SemiSupervisedClassifier(ClassifierMixin, FacetEstimator):
    """A classifier and a generative model of the data that it classifies (N-VAE,
    :class:`~ppl_models.nvae.NVAE`).

    Data without a label (-1, as in scikit-learn's semi-supervised estimators) count as members of
    every class, weighted by its probability. Settings that are not given are chosen from the data
    as in :class:`~facetvae.estimators.MultiFacetClustering`, and stored in ``settings_``.

    :param class_dim: length of each class's own latents.
    :param shared_dim: length of the latents that all classes share.
    :param label_weight: weight of a known label's log-probability in the objective; by default the
        number of entries of a datum, so that the reconstruction does not outweigh the labels.
    :param likelihood: such as ``ppl_models.Normal(0.3)``; the data are then used unchanged, except
        that 8-bit values are divided by 255.
    :param network: such as ``ppl_models.SharedMLP((200, 400))``.
    :param epochs: passes over the data; by default about 4,000 optimizer steps.
    :param batch_size: by default about a twentieth of the data, between 16 and 512.
    :param learning_rate: Adam's learning rate.
    :param random_state: for networks, draws and shuffling.
    :param device: where to train, such as ``"cuda"``.
    :param verbose: whether to print the chosen settings, and show progress with the time left.

    :ivar classes_: the sorted labels seen in training, without -1.

    Example:
        >>> import numpy as np
        >>> from facetvae.estimators import SemiSupervisedClassifier
        >>> X = np.random.default_rng(0).normal(size=(60, 4))
        >>> y = np.where(np.arange(60) < 10, X[:, 0] > 0, -1)  # 50 labels are unknown
        >>> classifier = SemiSupervisedClassifier(epochs=2, random_state=0).fit(X, y)
        >>> classifier.classes_, classifier.predict_proba(X).shape
        (array([0, 1]), (60, 2))
    """

    class_dim: int | None = None
    shared_dim: int | None = None
    label_weight: float | None = None

    @exclusive()
    @restore_on_error
    def fit(self, X: Any, y: Any) -> SemiSupervisedClassifier:
        """Learn from data and their labels.

        :param X: ``[N, D]``, or images; NaN where missing.
        :param y: ``[N]``, labels of any type, -1 where unknown, as are masked entries,
            ``pandas.NA``, and None and NaN among whole numbers or strings; to combine -1 with
            strings, use an array of dtype object.
        :raises ValueError: before training, if an argument does not fit, or there is one class.
        :raises FloatingPointError: if training diverges.
        """
        X, y = self._newly_checked(X, plain_labels(y))
        self.classes_, label = _classes(y)
        x = self._newly_encoded(X)
        class_dim, shared_dim = self._dims_of(x, "class_dim", "shared_dim")
        chosen = self._chosen(x, class_dim + shared_dim, default_plain_network(x.shape[1:]))
        epochs = chosen.epochs or epochs_of(STEPS, len(x), chosen.batch_size)
        weight = float(prod(x.shape[1:])) if self.label_weight is None else self.label_weight
        dims = {"class_dim": class_dim, "shared_dim": shared_dim}
        self._state_settings(chosen, **dims, label_weight=weight, epochs=epochs)
        runner = chosen.runner(
            lambda likelihood, network: NVAE(
                x.shape[1:], len(self.classes_), class_dim, shared_dim, likelihood, network
            ),
            lambda model: ClassifierGuide(model, label_weight=weight),
        )
        runner.fit(x, epochs, chosen.batch_size, epochs, progress=self.verbose, label=label)
        check_trained(runner.guide, x, self.learning_rate, label=label)
        self.runner_ = runner
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each of ``classes_``: ``[N, L]``."""
        x = self.encode(X)  # which says so if nothing was fitted
        return self._precise().predict_proba(x)["class"]

    def export(self, path: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write :meth:`predict_proba`, with the means of the latents, as a program that runs
        without this library; see ``MultiFacetClustering.export``.

        :param path: the file, which ends in ``.pt2``.
        :param dtype: what the networks compute in, ``torch.float32`` or ``torch.float64``.
        :raises ValueError: if the path has another ending or no folder, or ``dtype`` is neither.

        ``["class"]["probabilities"]`` of its result are of ``classes_``, which the file
        ``about.json`` in it lists.
        """
        check_is_fitted(self)
        self._export(path, dtype, about={"classes": plain_values(self.classes_)})

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class ``[N]``."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def score(  # type: ignore[override]
        self, X: Any, y: Any, sample_weight: Any = None
    ) -> float:
        """The accuracy of :meth:`predict` for the rows whose label is known.

        :param y: ``[N]``, labels as :meth:`fit` takes them.
        :raises ValueError: if none is known, or an argument does not fit.
        """
        found, y = self.predict(X), column_or_1d(plain_labels(y))
        check_consistent_length(found, y, sample_weight)
        known = ~_unknown(y)
        if not known.any():
            raise ValueError("y has no known label to compare with")
        if y.dtype.kind == "f" and not (np.abs(y[known]) < LARGEST_LABEL).all():
            raise ValueError(
                "y has entries that are NaN, infinite or beyond 2**63, which no class is: leave "
                "these rows out of X and y"
            )
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(y[known], found[known], sample_weight=weight))


def _classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and the index of each label's class ``[N]``, -1 where unknown."""
    if y.dtype.kind in "US" and (y.astype(str) == "-1").any():
        raise ValueError(
            "y has the string '-1': give strings and the number -1 in an array of dtype=object"
        )
    unknown = _unknown(y)
    known = y[~unknown]
    if y.dtype == object and not all(isinstance(label, str) for label in known):
        kinds = sorted({type(label).__name__ for label in known})
        raise ValueError(f"y must hold numbers or strings, besides -1 for unknown, got {kinds}")
    with np.errstate(invalid="ignore"):  # a float beyond any integer is no class either
        check_classification_targets(known)
    classes, label = np.unique(known, return_inverse=True)
    if len(classes) < 2:
        plural = "class" if len(classes) == 1 else "classes"
        raise ValueError(
            f"y has {len(classes)} {plural}, but at least two are needed, besides -1 for unknown"
        )
    labels = np.full(len(y), -1)
    labels[~unknown] = label
    return classes, labels


def _unknown(y: np.ndarray) -> np.ndarray:
    """Which labels ``[N]`` are -1."""
    return np.array([isinstance(label, Number) and label == -1 for label in y.tolist()], bool)
