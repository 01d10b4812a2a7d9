"""How runs of the protocols are scored: clusters and latents against labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from pyro.distributions import TorchDistribution
from scipy.stats import entropy
from torch import Tensor

from examples.common import Scores
from facetvae.datasets import Dataset
from guides import FacetGuide
from inference.metrics import probe_accuracy
from inference.randomness import seeded
from inference.run import Run


def count_clusters(guide: FacetGuide, x: ArrayLike | Tensor) -> dict[str, float]:
    """Of each facet: how many clusters are some datum's most probable one (``clusters_in_use_``),
    and the exponential of the mean responsibilities' entropy (``effective_clusters_``).
    """
    found: dict[str, float] = {}
    for facet, proba in guide.predict_proba(x).items():
        found[f"clusters_in_use_{facet}"] = len(np.unique(proba.argmax(-1)))
        found[f"effective_clusters_{facet}"] = float(np.exp(entropy(proba.mean(0, dtype=float))))
    return found


class WatchClusters:
    """A callback that adds :func:`count_clusters` of data to the first records and to some later
    ones.

    :param x: ``[N, *x_shape]``.
    :param every: epochs between these later ones.
    :param early: the first ones, by epoch. On MNIST in batches of 512 these are steps 118 and
        1,062.
    """

    def __init__(self, x: ArrayLike | Tensor, every: int, early: Sequence[int] = (1, 9)) -> None:
        self.x, self.every, self.early = x, every, early

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        if record["epoch"] in self.early or record["epoch"] % self.every == 0:
            record.update(count_clusters(runner.guide, self.x))


# What probes read, by the name of their scores: Table 1's have draws of the latents.
PROBED: dict[str, Callable[[TorchDistribution], Tensor]] = {
    "probe": lambda q: q.sample(),
    "probe_means": lambda q: q.mean,
}
JOINT = "joint"  # the facets' latents together, the last row of Table 1


def probe_facets(guide: FacetGuide, data: Dataset, seed: int) -> Scores:
    """How well a classifier reads each label from each facet's latent vector alone, and from all of
    them together where there are several (MFCVAE, Table 1): ``probe`` from draws, as in the table,
    ``probe_means`` from posterior means.
    """
    found: Scores = {}
    for name, latents_of in PROBED.items():
        with seeded(seed, guide.model.gates.device):
            train, test = (_latents(guide, x, latents_of) for x in (data.train, data.test))
        for facet, label in product(train, data.train_labels):
            found.setdefault(facet, {}).setdefault(label, {})[name] = probe_accuracy(
                train[facet], data.train_labels[label], test[facet], data.test_labels[label], seed
            )
    return found


def _latents(
    guide: FacetGuide, x: ArrayLike | Tensor, latents_of: Callable[[TorchDistribution], Tensor]
) -> dict[str, np.ndarray]:
    """Of each facet, and of all together where there are several: ``[N, d]``."""
    z = {facet: latents_of(q).cpu() for facet, q in guide.posterior(x).items()}
    if len(z) > 1:
        z[JOINT] = torch.cat([*z.values()], -1)
    return {name: values.numpy() for name, values in z.items()}
