"""Which clusters rows belong to, and guides that improve their posterior in rows with gaps."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from facetvae.table_rules.rows import in_parts, is_missing
from guides import FacetGuide, Refined
from inference.runner import SVIRunner
from ppl_models import Mixture
from ppl_models.modes import evaluating

# Chosen on simulated tables with gaps.
IMPROVED = partial(Refined, num_steps=20, num_points=8, rate=0.4)
# Entries that are improved at once.
ENTRIES = 2**17
# The share of a row's entries beyond which an encoder knows too little of those that are there.
MANY_GAPS = 0.25


class ImprovedInGaps:
    """A fitted guide as a reader of rows: where a row has a gap, its posterior is improved by steps
    on the row's own bound (:class:`~guides.Refined`), since an encoder sees too few rows of each
    pattern of gaps. One that sees rows filled by what is there tells clusters as well without them.

    :ivar filled: whether it does, so that only what is imputed is improved.
    """

    def __init__(self, guide: FacetGuide) -> None:
        self.guide, self.model = guide, guide.model
        self.filled = getattr(guide.model.likelihood, "by_others", None) is not None
        self.improved = copy.copy(guide)
        self.improved.family = IMPROVED(guide.family)

    def embed(self, x: np.ndarray, **given: Any) -> dict[str, np.ndarray]:
        """As the guide's: ``{name: [N, d]}``."""
        latents = self.guide.embed(x, **given)
        for rows in () if self.filled else self._improved_at_once(x):
            for name, z in self.improved.embed(x[rows]).items():
                latents[name][rows] = z
        return latents

    def reconstruct(self, x: np.ndarray, **given: Any) -> np.ndarray:
        """As the guide's: ``[N, *x_shape]``."""
        means = self.guide.reconstruct(x, **given)
        for rows in self._improved_at_once(x):
            means[rows] = self.improved.reconstruct(x[rows])
        return means

    def _improved_at_once(self, x: np.ndarray) -> Iterator[np.ndarray]:
        rows = rows_with_gaps(x)
        most = max(1, ENTRIES // x[:1].size)
        return (rows[start : start + most] for start in range(0, len(rows), most))


class AtCenters:
    """A fitted guide as a reader of rows: where a row has many gaps, clusters are told by what is
    there alone, as the decoder has it at their centers. An encoder gives such a row latents between
    centers, and the nearest one would seem sure.
    """

    def __init__(self, guide: FacetGuide) -> None:
        self.guide, self.model = guide, guide.model
        self.embed, self.reconstruct = guide.embed, guide.reconstruct

    def log_joint(self, x: np.ndarray, z: Mapping[str, np.ndarray], name: str) -> Tensor:
        """log p(x, c given the other facets' latents) of a facet's components: ``[N, K]``."""
        prior, data = self.model.mixtures[name], self.guide.observed(x, {}).x.to(self.model.gates)
        latents = {other: torch.as_tensor(each).to(data) for other, each in z.items()}
        centers = prior.components().mean
        each = [latents | {name: center.expand_as(latents[name])} for center in centers]
        with evaluating(self.model):
            told = [self.model.decode(own).log_prob(data) for own in each]
        return torch.stack(told, 1) + prior.component().probs.log()


def rows_with_gaps(x: np.ndarray, share: float = 0.0) -> np.ndarray:
    """The numbers of the rows of ``x`` ``[N, ...]`` that miss more than this share of entries."""
    return np.flatnonzero(is_missing(x).reshape(len(x), -1).mean(1) > share)


#: What rows are read by: their latents, and what these reconstruct.
Reads = FacetGuide | ImprovedInGaps | AtCenters


@torch.no_grad()
def log_joints(guide: Reads, x: np.ndarray) -> dict[str, np.ndarray]:
    """log p(c, z) of each facet's components at the means of its latents: ``{facet: [N, K]}``."""
    mixtures, device = guide.model.mixtures, guide.model.gates.device
    latents = guide.embed(x)
    found = {
        name: prior.log_joint(torch.as_tensor(latents[name], device=device)).cpu().numpy()
        for name, prior in mixtures.items()
    }
    if isinstance(guide, AtCenters) and len(rows := rows_with_gaps(x, MANY_GAPS)):
        there = {name: z[rows] for name, z in latents.items()}
        for name, joint in found.items():
            joint[rows] = guide.log_joint(x[rows], there, name).cpu().numpy()
    return found


def most_probable(guide: Reads, x: np.ndarray, numbers: Sequence[int] = ()) -> np.ndarray:
    """The most probable component of each facet ``[N, J]``, of its first ``numbers`` if given."""

    def of_part(part: np.ndarray) -> np.ndarray:
        found = zip_longest(log_joints(guide, part).values(), numbers)
        return np.stack([joint[:, :number].argmax(-1) for joint, number in found], 1)

    return in_parts(of_part, x)


def by_size(component: np.ndarray) -> np.ndarray:
    """The components that rows ``[N]`` are in, from the largest to the smallest."""
    sizes = np.bincount(component)
    return np.argsort(-sizes, kind="stable")[: (sizes > 0).sum()]


@torch.no_grad()
def renumber(runner: SVIRunner, prior: Mixture, order: np.ndarray) -> None:
    """Give a mixture's components other numbers, also where the optimizer knows them."""
    for parameter in prior.parameters():
        of_each = runner.optimizer.state.get(parameter, {}).values()
        for tensor in (parameter, *of_each):
            if isinstance(tensor, torch.Tensor) and tensor.shape == parameter.shape:
                tensor.copy_(tensor[torch.as_tensor(order, device=tensor.device)])


def probabilities(guide: Reads, numbers: Sequence[int], x: np.ndarray) -> np.ndarray:
    """Probabilities of so many clusters of each facet, ``[N, J, K]``; 0 beyond a facet's own."""

    def of_part(part: np.ndarray) -> np.ndarray:
        found = zip(log_joints(guide, part).values(), numbers, strict=True)
        each = [softmax(log_joint[:, :number], axis=-1) for log_joint, number in found]
        return np.stack([np.pad(p, ((0, 0), (0, max(numbers) - p.shape[1]))) for p in each], 1)

    return in_parts(of_part, x)
