"""Importance weights: how far a fitted posterior is from the true one."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from guides.base import FacetGuide, check_guide
from ppl_models.given.checks import check_size
from ppl_models.given.observed import Observed, as_observed
from ppl_models.ivae import Labeled
from ppl_models.modes import evaluating
from ppl_models.vqvae import VQVAE

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
    ``elbocheck.importance_weighted_bounds`` and ``elbocheck.pareto_k`` take them.

    :param x: ``[N, *x_shape]``.
    :param given: the label, for models conditioned on one.
    :raises ValueError: if ``x`` or a keyword does not fit the model, ``num_draws`` is below 1, or
        the guide's facets depend on one another given x (``LadderGuide``) or on other data
        (``GroupedGuide``), are points (``FlowGuide``, ``PointGuide``) or codes: then the density
        of its draws is not available.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SharedMLP, VaDEGuide
        >>> from inference.evaluation import log_importance_weights
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
