"""How far a fitted posterior is from the true one: importance-weighted bounds and tails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from arviz_stats.base import array_stats
from numpy.typing import ArrayLike
from torch import Tensor

from guides.base import FacetGuide, check_guide
from ppl_models.given.checks import check_kind, check_size, is_index
from ppl_models.given.observed import Observed, as_observed
from ppl_models.ivae import Labeled
from ppl_models.modes import evaluating
from ppl_models.vqvae import VQVAE

__all__ = ["importance_weighted_bounds", "log_importance_weights", "pareto_k"]

# Draws and data to decode at once.
CHUNK, BATCH = 16, 1024


@torch.no_grad()
def log_importance_weights(
    guide: FacetGuide, x: ArrayLike | Tensor, num_draws: int, **given: Any
) -> Tensor:
    r"""log p(x, z) - log q(z given x) for draws of z from a guide, with clusters summed out:
    ``[num_draws, N]``, in nats.

    The mean over draws estimates the ELBO with clusters summed out; the log of the mean of their
    exponentials estimates log p(x), or log p(x given u) of a model that is given a label u.

    :param x: ``[N, *x_shape]``.
    :param given: the label, for models conditioned on one.
    :raises ValueError: if ``x`` or a keyword does not fit the model, ``num_draws`` is below 1, or
        the guide's facets depend on one another given x (``LadderGuide``) or on other data
        (``GroupedGuide``), are points (``FlowGuide``, ``PointGuide``) or codes: then the density
        of its draws is not available.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference.diagnostics import log_importance_weights
        >>> from ppl_models import VAE, SharedMLP
        >>> guide = VaDEGuide(VAE((6,), 2, network=SharedMLP((8,))))
        >>> log_importance_weights(guide, np.random.default_rng(0).random((20, 6)), 100).shape
        torch.Size([100, 20])
    """
    check_guide(guide)
    check_size("num_draws", num_draws)
    model = guide.model
    draws = guide.factorizes and not guide.deterministic and not isinstance(model, VQVAE)
    if not draws or (guide.takes and not isinstance(model, Labeled)):
        raise ValueError(
            f"{type(guide).__name__} has no density of z given x alone with its clusters summed out"
        )
    data = as_observed(x, given, model)
    with evaluating(guide), model.annealed(gates=torch.ones_like(model.gates)):
        return torch.cat([_log_weights(guide, batch, num_draws) for batch in data.split(BATCH)], 1)


def _log_weights(guide: FacetGuide, batch: Observed, num_draws: int) -> Tensor:
    model, parts = guide.model, []
    there = batch.to(model.gates.device)
    posterior = guide.encode(there.x, **there.given)
    for chunk in torch.arange(num_draws).split(CHUNK):
        z = {name: q.sample(torch.Size([len(chunk)])) for name, q in posterior.items()}
        log_q = sum(q.log_prob(z[name]) for name, q in posterior.items())
        parts.append(model.log_joint(model.prepare(there.x), z, **there.given) - log_q)
    return torch.cat(parts)


def importance_weighted_bounds(log_weights: Tensor, sizes: Sequence[int]) -> dict[int, float]:
    """IWAE's bound for each number of draws in ``sizes``, in nats per datum (Burda et al., 2016,
    Eq. 8).

    The gain from one draw to many shows how much the posterior loses. For each size the draws are
    split into as many groups as possible, so small sizes are averages over many groups.

    :param log_weights: ``[num_draws, N]``, from :func:`log_importance_weights`.
    :raises ValueError: if there are fewer draws than a size asks for.

    Example:
        >>> import torch
        >>> from inference.diagnostics import importance_weighted_bounds
        >>> log_weights = torch.log(torch.tensor([[1.0], [3.0]]))  # two draws for one sample
        >>> bounds = importance_weighted_bounds(log_weights, [1, 2])
        >>> {size: round(bound, 3) for size, bound in bounds.items()}
        {1: 0.549, 2: 0.693}
    """
    _check_log_weights(log_weights)
    num_draws = len(log_weights)
    fits = isinstance(sizes, Sequence) and all(
        is_index(size, num_draws + 1) and size > 0 for size in sizes
    )
    if not fits or not sizes:
        raise ValueError(
            f"sizes must be between 1 and the number of draws, {num_draws}, got {sizes!r}"
        )
    groups = {
        size: log_weights[: num_draws // size * size].unflatten(0, (-1, size)) for size in sizes
    }
    return {
        size: float((group.logsumexp(1) - math.log(size)).mean()) for size, group in groups.items()
    }


def pareto_k(log_weights: Tensor) -> np.ndarray:
    """Shape of the Pareto tail of each datum's importance weights: ``[N]`` (ArviZ's PSIS; Vehtari
    et al., 2024).

    Up to about 0.7, importance sampling from the guide's posterior works; above 1 the weights have
    no finite mean: the posterior misses mass of the true one. Infinite where the largest weights
    differ by more than a float64 can hold, e to the 708: a few draws then outweigh all others. 0
    where all weights of the tail are equal, as they are from the true posterior.

    :param log_weights: ``[num_draws, N]``, at least 100 draws.
    :raises ValueError: if there are fewer draws.

    Example:
        >>> import torch
        >>> from inference.diagnostics import pareto_k
        >>> log_weights = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> pareto_k(log_weights).shape
        (3,)
    """
    _check_log_weights(log_weights)
    if len(log_weights) < 100:
        raise ValueError(f"a tail needs at least 100 draws, got {len(log_weights)}")
    values = log_weights.mT.double().cpu()
    values = values - values.amax(-1, keepdim=True)
    num_tail = int(min(len(log_weights) / 5, 3 * math.sqrt(len(log_weights))))  # the paper's
    tail = values.topk(num_tail).values  # [N, num_tail], the largest first
    # The fit measures the tail by its lower quartile. ArviZ goes on if that has become 0 by
    # underflow, and returns the prior's small k; tails without any spread it refuses.
    held = tail[:, -int(num_tail / 4 + 0.5)] >= math.log(torch.finfo(torch.float64).tiny)
    flat = tail[:, 0] == tail[:, -1]
    k = torch.where(flat, 0.0, torch.inf).double().numpy()
    fits = (held & ~flat).numpy()
    if fits.any():
        # ArviZ takes log-likelihoods, whose inverses are the weights in leave-one-out.
        with np.errstate(all="ignore"):
            k[fits] = array_stats.psislw(-values.numpy()[fits], axis=-1)[1]
    return k


def _check_log_weights(log_weights: Tensor) -> None:
    check_kind(
        "log_weights", log_weights, Tensor, "a tensor [num_draws, N], of log_importance_weights"
    )
    if log_weights.dim() != 2 or not log_weights.numel() or bool(log_weights.isnan().any()):
        raise ValueError(
            f"log_weights must be [num_draws, N] without NaN, got shape {list(log_weights.shape)} "
            f"with {int(log_weights.isnan().sum())} of them"
        )
