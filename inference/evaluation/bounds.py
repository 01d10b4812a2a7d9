"""Numbers that measure how well a fitted model and guide describe data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from pyro import poutine
from scipy.stats import entropy
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from guides.base import EVALUATION_BATCH, FacetGuide, check_guide
from inference.objectives.loss import Loss
from ppl_models import StandardNormal
from ppl_models.base import FacetModel
from ppl_models.given.checks import check_size
from ppl_models.given.observed import Observed
from ppl_models.modes import evaluating


@torch.no_grad()
def elbo(
    model: FacetModel, guide: FacetGuide, x: ArrayLike | Tensor, num_draws: int = 100, **given: Any
) -> tuple[float, float]:
    """Monte-Carlo estimate of the ELBO of ``x``, every weight and gate at 1: mean, standard error.

    Both are in nats per datum. The error is due to the draws of the latents; the data are fixed.

    :param x: ``[N, *x_shape]``.
    :param num_draws: independent draws of the whole estimate, at least 2.
    :param given: inputs of the model other than x, one entry per datum.
    :raises ValueError: if the data do not fit the model or ``num_draws`` is below 2.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SharedMLP, VaDEGuide, elbo
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> bound, error = elbo(model, VaDEGuide(model), x, num_draws=10)
        >>> bound < 0 < error
        True
    """
    check_size("num_draws", num_draws, least=2)  # to give a standard error
    loss = Loss(model, guide)
    data = guide.observed(x, given).to(model.gates.device)
    with _as_evaluated(guide):
        draws = torch.stack([_mean_elbo(loss, data) for _ in range(num_draws)])
    return float(draws.mean()), float(draws.std() / math.sqrt(num_draws))


@torch.no_grad()
def elbo_per_datum(
    model: FacetModel, guide: FacetGuide, x: ArrayLike | Tensor, num_draws: int = 100, **given: Any
) -> np.ndarray:
    """Monte-Carlo estimate of each datum's ELBO ``[N]``, in nats, every weight and gate at 1.

    Its mean over data is that of :func:`elbo` on the same draws. To compare two models, take the
    difference for each datum and the standard error of its mean: the difference is known far better
    than each model's ELBO.

    :param x: ``[N, *x_shape]``.
    :param num_draws: independent draws of the whole estimate, at least 1.
    :param given: inputs of the model other than x, one entry per datum.
    :raises ValueError: if the data do not fit the model, ``num_draws`` is below 1, or the members
        of a group share a latent, whose terms belong to no single datum.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SharedMLP, VaDEGuide, elbo_per_datum
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> elbo_per_datum(model, VaDEGuide(model), x, num_draws=10).shape
        (20,)
    """
    check_size("num_draws", num_draws)
    loss = Loss(model, guide)
    if not model.priors:
        raise ValueError(
            "functions may have latents that all data share, which have no bound of each datum: "
            "take elbo"
        )
    if model.shared:
        raise ValueError(
            f"{type(model).__name__} has one latent of facet {model.shared[0]!r} for all members "
            "of a group, so a datum has no ELBO of its own: use inference.elbo on whole groups"
        )
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "each datum's ELBO takes a gradient, which torch.inference_mode() rules out: call it "
            "outside that context, or use torch.no_grad()"
        )
    data = guide.observed(x, given).to(model.gates.device)
    with _as_evaluated(guide):
        # A running sum: a hundred draws of many data would fill the memory.
        total = torch.zeros(len(data), dtype=model.gates.dtype, device=model.gates.device)
        for _ in range(num_draws):
            total += torch.cat(
                [_elbo_by_datum(loss, batch) for batch in data.split(EVALUATION_BATCH)]
            )
    return (total / num_draws).cpu().numpy()


@contextmanager
def _as_evaluated(guide: FacetGuide) -> Iterator[None]:
    """Within this context the objective is the ELBO: no dropout, relaxation or closed gate."""
    model = guide.model
    open_gates = model.annealed(gates=torch.ones_like(model.gates))
    with evaluating(guide), guide.without_relaxation(), open_gates:
        yield


def _mean_elbo(loss: Loss, data: Observed) -> Tensor:
    batches = data.whole_groups(EVALUATION_BATCH)
    parts = [-loss(batch.x, **batch.given) * len(batch) for batch in batches]
    return torch.stack(parts).sum() / len(data)


def _elbo_by_datum(loss: Loss, batch: Observed) -> Tensor:
    """One draw of each datum's ELBO: ``[B]``.

    The ELBO is linear in a common weight of a datum's terms, so each datum's ELBO is the derivative
    by that weight, whatever the objective sums over or enumerates.
    """
    weights = torch.ones(
        len(batch), dtype=loss.model.gates.dtype, device=batch.x.device, requires_grad=True
    )
    with torch.enable_grad(), poutine.scale(scale=weights):
        value = -loss(batch.x, **batch.given) * len(batch)
        (by_datum,) = torch.autograd.grad(value, weights)
    return by_datum


def mutual_information(guide: FacetGuide, x: ArrayLike | Tensor, **given: Any) -> dict[str, float]:
    """I(x; c_j) of each mixture facet, nats: entropy of mean responsibilities minus mean entropy.

    It is 0 if a facet has died (its latent ignores x) *and* if all data share one cluster; the
    entropy of the mean responsibilities alone would not detect the first case. Clusters that are
    given, not inferred from x, have no such number.

    :param x: ``[N, *x_shape]``.
    :param given: inputs of the model other than x, one entry per datum.
    :raises ValueError: if ``x`` does not fit the model.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide, mutual_information
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> 0 <= mutual_information(VaDEGuide(model), x)["cluster"] < 1.1  # at most log 3
        True
    """
    check_guide(guide)
    # In float64: means of a million rows in float32 are wrong in the third digit.
    return {
        name: max(
            0.0,
            float(entropy(proba.mean(0, dtype=float)) - entropy(proba, axis=-1).mean(dtype=float)),
        )
        for name, proba in (guide.predict_proba(x, **given) if guide.model.inferred else {}).items()
    }


@torch.no_grad()
def kl_by_dimension(
    guide: FacetGuide, x: ArrayLike | Tensor, **given: Any
) -> dict[str, np.ndarray]:
    """KL(q(z given x) || p(z)) of every latent dimension: ``{name: [N, d]}``, nats.

    Only of facets with a standard normal prior, with or without a class, and diagonal posterior.

    :param x: ``[N, *x_shape]``.
    :param given: inputs of the model other than x, one entry per datum.
    :raises ValueError: if ``x`` does not fit the model.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SharedMLP, VaDEGuide, kl_by_dimension
        >>> guide = VaDEGuide(VAE((6,), 2, network=SharedMLP((8,))))
        >>> kl_by_dimension(guide, np.random.default_rng(0).random((20, 6)))["layer_1"].shape
        (20, 2)
    """
    check_guide(guide)
    return {
        name: kl_divergence(q.base_dist, guide.model.priors[name].latent().base_dist).cpu().numpy()
        for name, q in guide.posterior(x, **given).items()
        if isinstance(q, Independent) and isinstance(guide.model.priors[name], StandardNormal)
    }
