"""Which clusters rows belong to: the components of each facet's mixture at the means of its
latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from facetvae.estimators.gaps import Reads
from facetvae.table_rules.rows import in_parts


@torch.no_grad()
def log_joints(guide: Reads, x: np.ndarray) -> dict[str, np.ndarray]:
    """log p(c, z) of each facet's components at the means of its latents: ``{facet: [N, K]}``."""
    mixtures, device = guide.model.mixtures, guide.model.gates.device
    return {
        name: mixtures[name].log_joint(torch.as_tensor(z, device=device)).cpu().numpy()
        for name, z in guide.embed(x).items()
        if name in mixtures
    }


def components(
    guide: Reads, x: np.ndarray, done: Callable[[int], Any] = lambda rows: None
) -> np.ndarray:
    """The most probable component of each facet's mixture: ``[N, J]``.

    :param done: called with the number of rows of each part that is done.
    """

    def most_probable(part: np.ndarray) -> np.ndarray:
        return np.stack([each.argmax(-1) for each in log_joints(guide, part).values()], 1)

    return in_parts(most_probable, x, done)


def by_size(component: np.ndarray) -> np.ndarray:
    """The components that rows ``[N]`` are in, from the largest to the smallest."""
    sizes = np.bincount(component)
    return np.argsort(-sizes, kind="stable")[: (sizes > 0).sum()]


def probabilities(guide: Reads, clusters: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """Probabilities among the components in use ``[N, J, K]``; 0 beyond a facet's own.

    :param clusters: for each facet, the component of each cluster.
    """
    return in_parts(lambda part: _probabilities(guide, clusters, part), x)


def predicted(guide: Reads, clusters: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """The most probable cluster of each facet ``[N, J]``."""
    return in_parts(lambda part: _probabilities(guide, clusters, part).argmax(-1), x)


def _probabilities(guide: Reads, clusters: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    found = zip(log_joints(guide, x).values(), clusters, strict=True)
    each = [softmax(log_joint[:, ours], axis=-1) for log_joint, ours in found]
    widest = max(map(len, clusters))
    return np.stack([np.pad(p, ((0, 0), (0, widest - p.shape[1]))) for p in each], 1)
