"""Clusters that have data, and the data that belong to each with the highest probability."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ppl_models.base import FacetModel

__all__ = ["latents_of_cluster", "surest"]


def latents_of_cluster(
    model: FacetModel,
    facet: str,
    cluster: int | None,
    n: int,
    temperature: float = 1.0,
    held: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Latents ``[n, d]`` of all facets: one's from a cluster, others fixed or from their prior.

    :param cluster: a cluster of ``facet``; ``None`` for its whole prior.
    :param held: fixed latents ``[1, d]`` of the other facets, used in every draw.
    """
    others = [name for name in model.priors if name != facet]
    if held is not None:
        z = {name: held[name].expand(n, -1) for name in others}
    else:
        z = {name: model.priors[name].sample(n, temperature=temperature) for name in others}
    return {**z, facet: model.prior(facet).sample(n, cluster, temperature)}


def surest(chosen: np.ndarray, certainty: np.ndarray, n: int) -> np.ndarray:
    """Indices of the ``n`` chosen data with the highest certainty, in descending order."""
    members = np.flatnonzero(chosen)
    return members[np.argsort(-certainty[members], kind="stable")][:n]
