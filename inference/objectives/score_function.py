"""The ELBO of guides that draw their clusters, with the score function's gradient."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from pyro.poutine import Trace
from torch import Tensor

from inference.objectives.direct import Direct_ELBO, site_densities

__all__ = ["ScoreFunction_ELBO"]


class ScoreFunction_ELBO(Direct_ELBO):
    r"""The drawn ELBO, its gradient by the score function where a draw has no gradient of its own
    (REINFORCE).

    For a drawn site c the gradient of its probabilities is estimated, datum by datum, by

    .. math:: \nabla \log q(c \mid x) \, (\mathrm{cost}_c - b(x))

    where the cost is made of the terms that c can change: its own and those of the sites that
    ``infer={"downstream": {...}}`` names (all, if it does not). A baseline b,
    ``infer={"cost_baseline": module}``, is called with ``infer["cost_baseline_input"]`` and trained
    by its ``loss``. The value is the plain ELBO of the draw. (The key ``"baseline"`` is what Pyro's
    ``TraceGraph_ELBO`` reads, in a form of its own.)

    Pyro's ``Trace_ELBO`` has the same expectation without baselines. Its ``TraceGraph_ELBO`` has
    baselines too, but keeps their state in the global parameter store and reads the loss back to
    the host in every step.
    """

    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        log_p, log_q = _by_datum(model_trace), _by_datum(guide_trace)
        elbo = (_sum(log_p, log_p) - _sum(log_q, log_q)).sum()
        surrogate = elbo.new_zeros(())
        for name, site in site_densities(guide_trace):
            if not site["fn"].has_rsample:
                seen = {name} | set(site["infer"].get("downstream", log_p))
                cost = _sum(log_q, seen) - _sum(log_p, seen)
                surrogate = surrogate - _score(site, cost.detach())
        # The surrogate gives its gradient and leaves the value alone.
        return elbo + surrogate - surrogate.detach()


def _score(site: dict[str, Any], cost: Tensor) -> Tensor:
    """A term to be minimised, whose gradient is the score function's, and the baseline's loss
    with it.
    """
    log_q, infer = site["unscaled_log_prob"], site["infer"]
    if "cost_baseline" not in infer:
        return (log_q * cost).sum()
    guess = infer["cost_baseline"](infer["cost_baseline_input"])
    return (log_q * (cost - guess.detach())).sum() + infer["cost_baseline"].loss(guess, cost)


def _sum(terms: Mapping[str, Tensor], names: Container[str]) -> Tensor:
    """Sum of those terms that are there: ``[B]``."""
    return torch.stack([terms[name] for name in terms if name in names]).sum(0)


def _by_datum(trace: Trace) -> dict[str, Tensor]:
    """Each site's weighted log-density, draws summed (each counts 1 / L): ``[B]``."""
    return {
        name: site["log_prob"].sum_to_size(site["log_prob"].shape[-1:])
        for name, site in site_densities(trace)
    }
