"""Networks that start from the linear maps of a table's subspaces, set or fitted to them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, mse_loss

from facetvae.estimators.base import Chosen
from facetvae.table_rules.rows import MANY, some_rows
from facetvae.table_rules.subspaces import Subspaces
from guides import FacetGuide
from inference.progress import progress_bar
from inference.randomness import seeded
from ppl_models import FacetModel, GaussianMixture, Prior
from ppl_models.distributions import raw_log_variance
from ppl_models.given.observed import Observed
from ppl_models.modes import evaluating, training
from ppl_models.turns import yield_lock

# Rate of the encoder's training at its first epoch, in learning rates.
FIRST_RATE = 3.0
# Batches that are made what encoders read at a time.
AT_ONCE = 32
# Most rows that a decoder is fitted to, and its curvature is measured in; most steps of the fit.
DECODED, BENT, DECODER_STEPS = 2000, 500, 30
# Cost of squared changes of a likelihood's own parameters, in nats a column.
HELD = 1e-3
# Deviation of the decoder's weights beforehand: with few rows, codes would want infinite ones.
WEIGHT = 15.0


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
def set_best_widths(guide: FacetGuide, x: np.ndarray) -> None:
    """Give all data's posteriors the variances by which the bound is largest: inverses of the
    precision within the prior's components and the mean curvature of log p(x given z) together.
    """
    model, rows = guide.model, some_rows(x, most=BENT)
    data = guide.observed(rows, {}).x.to(model.gates.device)
    means = {name: torch.as_tensor(z, device=data.device) for name, z in guide.embed(rows).items()}
    sizes = [z.shape[1] for z in means.values()]
    precision = torch.cat([_precision(prior) for prior in model.priors.values()])

    def mean_log_density(shift: Tensor) -> float:
        moved = zip(means.items(), shift.split(sizes), strict=True)
        p = model.decode({name: z + own for (name, z), own in moved})
        return float(p.log_prob(data).cpu().double().mean())

    found = []
    with evaluating(model):
        here = mean_log_density(torch.zeros(len(precision)).to(data))
        for step in (torch.eye(len(precision)).to(precision) * precision.rsqrt() / 2).to(data):
            bend = mean_log_density(step) + mean_log_density(-step) - 2 * here
            found.append(max(0.0, -bend / float(step.square().sum())))
    set_widths(guide, 1 / (precision.cpu().numpy() + np.array(found)))


def _precision(prior: Prior) -> Tensor:
    """Within a prior's components on average ``[d]``."""
    if not isinstance(prior, GaussianMixture):
        return torch.ones(prior.dim, dtype=torch.double)
    factor, weights = prior.scale_tril.double(), prior.component().probs.double()
    within = torch.einsum("k,kij,klj->il", weights, factor, factor)
    return torch.linalg.inv(within).diagonal()


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


@torch.no_grad()
def _set_last(layer: nn.Linear, weight: np.ndarray, bias: np.ndarray) -> None:
    """The layer's first outputs, as a linear map of its last inputs."""
    outputs, inputs = weight.shape
    layer.weight[:outputs] = 0
    layer.weight[:outputs, -inputs:] = torch.as_tensor(weight)
    layer.bias[:outputs] = torch.as_tensor(bias)


def fit_networks(
    guide: FacetGuide, data: Observed, sources: Tensor, epochs: int, chosen: Chosen
) -> None:
    """Train a guide's encoder on given latents, and set its decoder to the linear map from these
    latents that makes the data likeliest. The rate falls linearly from three times the learning
    rate towards 0, from epoch to epoch, or of more than 20,000 rows from step to step.

    :param data: x ``[N, D]``, encoded, on the guide's device.
    :param sources: all facets' latents side by side ``[N, m]``.
    """
    dims = [prior.dim for prior in guide.model.priors.values()]
    sources = sources.to(guide.model.gates)
    optimizer = torch.optim.Adam(guide.parameters(), chosen.learning_rate, fused=True)
    steps = -(-len(data) // chosen.batch_size)
    bar = progress_bar(epochs * steps, chosen.verbose)
    with seeded(chosen.seed, data.x.device), training(guide), bar:
        for epoch in range(epochs):
            batches = _shuffled(guide.model, data, sources, chosen.batch_size)
            for step, (x, z) in enumerate(batches):
                if step == 0 or len(data) > MANY:  # of many rows there are few passes
                    left = 1 - (epoch + step / steps) / epochs
                    optimizer.param_groups[0]["lr"] = FIRST_RATE * chosen.learning_rate * left
                optimizer.zero_grad(set_to_none=True)
                apart = zip(cast(Any, guide.encoder)(x), z.split(dims, -1), strict=True)
                misfit: Any = sum(mse_loss(head[:, : own.shape[1]], own) for head, own in apart)
                misfit.backward()
                optimizer.step()
                bar.update()
                yield_lock()
    optimizer.zero_grad(set_to_none=True)
    few = torch.as_tensor(some_rows(np.arange(len(data)), most=DECODED))
    _fit_decoder(guide, data[few].x, sources[few])


def _shuffled(
    model: FacetModel, data: Observed, sources: Tensor, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one pass over the data, as encoders read them, and of their latents; many at a
    time are made such, which takes about as long as one.
    """
    for rows in torch.randperm(len(data), device=data.x.device).split(AT_ONCE * size):
        seen = model.seen(data[rows].x).detach()
        yield from zip(seen.split(size), sources[rows].split(size), strict=True)


def _fit_decoder(guide: FacetGuide, x: Tensor, z: Tensor) -> None:
    """The likeliest linear map from latents ``[N, m]`` to the data, as generalized linear models
    are fitted: a convex problem for most likelihoods.
    """
    model, layer = guide.model, cast(Any, guide.model.decoder).trunk[-2]
    weight = layer.weight.new_zeros(len(layer.weight), z.shape[1]).requires_grad_()
    bias = layer.bias.detach().clone().requires_grad_()
    own = list(model.likelihood.parameters())
    first, parts = [part.detach().clone() for part in own], [*own, weight, bias]
    steps = torch.optim.LBFGS(parts, max_iter=DECODER_STEPS, line_search_fn="strong_wolfe")
    best: tuple[float, list[Tensor]] = (inf, [])

    def misfit() -> Tensor:
        nonlocal best
        steps.zero_grad()
        loss = model.likelihood.misfit(model.likelihood(linear(z, weight, bias), 1), x)
        for part, start in zip(own, first, strict=True):  # some are best at infinity
            loss = loss + HELD * (part - start).square().sum()
        loss = loss + weight.square().sum() / (2 * WEIGHT**2 * len(x))
        if loss < best[0]:
            best = float(loss.detach()), [part.detach().clone() for part in parts]
        loss.backward()
        return loss

    try:
        steps.step(misfit)
    except ValueError:  # a step so long that a parameter is not finite
        if not best[1]:
            raise
    steps.zero_grad(set_to_none=True)
    with torch.no_grad():
        for part, value in zip(parts, best[1], strict=True):
            part.copy_(value)
    _set_last(layer, weight.detach().cpu().numpy(), bias.detach().cpu().numpy())
