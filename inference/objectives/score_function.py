"""The ELBO of guides that sample their clusters, with the score-function gradient."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from pyro.poutine import Trace
from torch import Tensor

from inference.objectives.direct import Direct_ELBO, site_densities

# Plates and log-densities of sites.
Terms = dict[str, tuple[str | None, Tensor]]


class ScoreFunction_ELBO(Direct_ELBO):
    r"""A sampled ELBO, with the score-function gradient (REINFORCE) of draws that have none.

    For a sampled site c the gradient of its probabilities is estimated, for each datum, by

    .. math:: \nabla \log q(c \mid x) \, (\mathrm{cost}_c - b(x))

    where the cost is the sum of the terms that c can change: its own and those of the sites, in
    model or guide, that ``infer={"downstream": {...}}`` names (by default all). A baseline b, given
    by ``infer={"cost_baseline": module}``, is called with ``infer["cost_baseline_input"]`` and
    trained by its ``loss``. The value is the plain ELBO of the draw. (The key ``"baseline"`` is
    what Pyro's ``TraceGraph_ELBO`` reads, in another form.)

    Pyro's ``Trace_ELBO`` has the same expectation without baselines; its ``TraceGraph_ELBO`` keeps
    their state in the global store and reads the loss back to the host in every step.

    Example:
        >>> import torch
        >>> from facetvae import AmortizedGuide, GaussianMixture, Loss, ScoreFunction
        >>> from facetvae import ScoreFunction_ELBO, VaDE
        >>> guide = AmortizedGuide(VaDE((6,), GaussianMixture(3, 2)), discrete=ScoreFunction())
        >>> objective = ScoreFunction_ELBO(max_plate_nesting=guide.max_plate_nesting)
        >>> Loss(guide.model, guide, objective)(torch.zeros(5, 6)).shape
        torch.Size([])
    """

    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        log_p, log_q = _by_datum(model_trace), _by_datum(guide_trace)
        elbo = _sum(log_p, log_p) - _sum(log_q, log_q)
        surrogate = elbo.new_zeros(())
        for name, site in site_densities(guide_trace):
            if not site["fn"].has_rsample:
                seen = {name} | set(site["infer"].get("downstream", log_p | log_q))
                cost = _sum(log_q, seen, _plate(site)) - _sum(log_p, seen, _plate(site))
                surrogate = surrogate - _score(site, cost.detach())
        # The surrogate adds its gradient and does not change the value.
        return elbo + surrogate - surrogate.detach()


def _score(site: dict[str, Any], cost: Tensor) -> Tensor:
    """A term to minimize, whose gradient is the score function's, plus the baseline's loss."""
    log_q, infer = site["unscaled_log_prob"], site["infer"]
    if "cost_baseline" not in infer:
        return (log_q * cost).sum()
    guess = infer["cost_baseline"](infer["cost_baseline_input"])
    return (log_q * (cost - guess.detach())).sum() + infer["cost_baseline"].loss(guess, cost)


def _sum(terms: Terms, names: Container[str], plate: str | None = None) -> Tensor:
    """Sum of the terms with these names: a scalar, or of each datum, ``[B]``, of a plate, to each
    of which all terms that are in no plate or in another count.
    """
    chosen = (terms[name] for name in terms if name in names)
    parts = [each if plate and own == plate else each.sum() for own, each in chosen]
    return torch.stack(torch.broadcast_tensors(*parts)).sum(0)


def _by_datum(trace: Trace) -> Terms:
    """Each site's plate and weighted log-density, summed over draws (each counts 1 / L)."""
    return {
        name: (_plate(site), site["log_prob"].sum_to_size(site["log_prob"].shape[-1:]))
        for name, site in site_densities(trace)
    }


def _plate(site: dict[str, Any]) -> str | None:
    """The plate of the data, if the site is in it."""
    return next((f.name for f in site["cond_indep_stack"] if f.dim == -1), None)
