"""Networks that start from the linear maps of a table's subspaces, set or fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from facetvae.estimators.base import Chosen
from facetvae.table_rules.rows import MANY
from facetvae.table_rules.subspaces import Subspaces
from guides import FacetGuide
from inference.progress import progress_bar
from inference.randomness import seeded
from ppl_models.distributions import raw_log_variance
from ppl_models.given.observed import Observed
from ppl_models.modes import training
from ppl_models.turns import yield_lock

# Rate of the networks' training at its first epoch, in learning rates.
FIRST_RATE = 3.0


@torch.no_grad()
def set_widths(guide: FacetGuide, variances: np.ndarray) -> None:
    """Give all data's posteriors the variances ``[m]`` of all facets' latents side by side."""
    rungs = cast(Any, guide.encoder).rungs
    ends = np.cumsum([len(rung.bias) // 2 for rung in rungs])[:-1]
    for rung, variance in zip(rungs, np.split(variances, ends), strict=True):
        width = len(variance)
        rung.weight[width:] = 0
        rung.bias[width:] = raw_log_variance(torch.as_tensor(variance).log())


@torch.no_grad()
def set_linear(guide: FacetGuide, subspaces: Subspaces, x: np.ndarray) -> None:
    """Set a guide's networks to linear maps: the encoder to the subspaces', the decoder to the way
    back that leaves least of the data.

    :param guide: with a facet for each subspace, and an :class:`~ppl_models.networks.MLP` whose
        heads and last layer read the input, too.
    :param x: complete data ``[N, D]``, as the encoder reads them.
    """
    for rung, turn in zip(cast(Any, guide.encoder).rungs, subspaces.maps, strict=True):
        _set_last(rung, turn, -turn @ subspaces.loc)
    sources = subspaces.sources(x)
    back = np.linalg.lstsq(np.column_stack([sources, np.ones(len(x))]), x, rcond=None)[0].T
    _set_last(cast(Any, guide.model.decoder).trunk[-2], back[:, :-1], back[:, -1])


def _set_last(layer: nn.Linear, weight: np.ndarray, bias: np.ndarray) -> None:
    """The layer's first outputs, as a linear map of its last inputs."""
    outputs, inputs = weight.shape
    layer.weight[:outputs] = 0
    layer.weight[:outputs, -inputs:] = torch.as_tensor(weight)
    layer.bias[:outputs] = torch.as_tensor(bias)


def fit_networks(
    guide: FacetGuide, data: Observed, sources: Tensor, epochs: int, chosen: Chosen
) -> None:
    """Train a guide's networks: the encoder on the subspaces' maps, the decoder on the way back to
    the data. The rate falls linearly from three times the learning rate towards 0, from epoch to
    epoch, or of more than 20,000 rows from step to step.

    :param data: x ``[N, D]``, encoded, on the guide's device.
    :param sources: all facets' latents side by side ``[N, m]``.
    """
    dims = [prior.dim for prior in guide.model.priors.values()]
    sources = sources.to(guide.model.gates)
    optimizer = torch.optim.Adam(guide.parameters(), chosen.learning_rate, fused=True)
    steps = -(-len(data) // chosen.batch_size)
    bar = progress_bar(epochs * steps, "step", chosen.verbose)
    with seeded(chosen.seed, data.x.device), training(guide), bar:
        for epoch in range(epochs):
            order = torch.randperm(len(data), device=data.x.device)
            for step, rows in enumerate(order.split(chosen.batch_size)):
                if step == 0 or len(data) > MANY:  # of many rows there are few passes
                    left = 1 - (epoch + step / steps) / epochs
                    for group in optimizer.param_groups:
                        group["lr"] = FIRST_RATE * chosen.learning_rate * left
                optimizer.zero_grad(set_to_none=True)
                batch = chosen.view.network_input(data[rows].x)
                _distance(guide, batch, sources[rows].split(dims, -1)).backward()
                optimizer.step()
                bar.update()
                yield_lock()
    optimizer.zero_grad(set_to_none=True)


def _distance(guide: FacetGuide, x: Tensor, sources: Sequence[Tensor]) -> Tensor:
    """Squared distance of posterior means from the sources, and of data from what these decode."""
    priors, posteriors = guide.model.priors, guide.encode(x).values()
    apart = [(q.mean - z).square().mean() for q, z in zip(posteriors, sources, strict=True)]
    back = guide.model.decode(dict(zip(priors, sources, strict=True)))
    return torch.stack([*apart, guide.model.likelihood.misfit(back, x)]).sum()
