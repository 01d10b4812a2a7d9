"""What the objectives share: a value that stays a tensor, and traces without surrogates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from pyro.poutine import Trace
from pyro.poutine.util import is_validation_enabled, site_is_subsample
from torch import Tensor

from ppl_models.given.checks import check_count

__all__ = ["Direct_ELBO", "densities", "site_densities"]


class Direct_ELBO(ELBO):
    """An objective whose value and gradient come from one tensor, without reading back to the host.

    Subclasses implement :meth:`estimate`. If Pyro's validation is on, Pyro makes and checks the
    traces; else they are made directly, in a way that ``torch.vmap`` can map over.

    :param max_plate_nesting: plates around the most deeply nested site; the guide's own number.
    :param num_particles: independent draws of the whole objective, computed one after the other.
    :raises ValueError: if a number is below 1.
    """

    def __init__(self, *, max_plate_nesting: int, num_particles: int = 1) -> None:
        check_count("max_plate_nesting", max_plate_nesting)
        check_count("num_particles", num_particles)
        super().__init__(
            max_plate_nesting=max_plate_nesting,
            num_particles=num_particles,
            strict_enumeration_warning=False,  # guides without clusters are right as they are
        )

    @abstractmethod
    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        """The objective to *maximize*, summed over the batch: a scalar, in nats."""

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        traces = self._get_traces if is_validation_enabled() else self._unchecked_traces
        losses = [-self.estimate(*pair) for pair in traces(model, guide, args, kwargs)]
        return torch.stack(losses).mean()

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()
        return float(loss.detach())

    def _get_trace(self, model: Any, guide: Any, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        return get_importance_trace("flat", self.max_plate_nesting, model, guide, args, kwargs)

    def _unchecked_traces(
        self, model: Any, guide: Any, args: tuple, kwargs: dict
    ) -> Iterator[tuple[Trace, Trace]]:
        for _ in range(self.num_particles):
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
            for trace in (guide_trace, model_trace):
                for _, site in site_densities(trace):  # as Trace.compute_log_prob, without sums
                    density = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
                    site["unscaled_log_prob"] = density
                    site["log_prob"] = scale_and_mask(density, site["scale"], site["mask"])
            yield model_trace, guide_trace


def site_densities(trace: Trace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and sites that have a density; a plate's index site has none."""
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and not site_is_subsample(site):
            yield name, site


def densities(trace: Trace) -> Iterator[Tensor]:
    """Log-densities of all sites, scaled by the sites' weights."""
    return (site["log_prob"] for _, site in site_densities(trace))
