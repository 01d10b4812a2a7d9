"""Objectives: what is minimised, in nats per datum, and its terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO, TraceEnum_ELBO
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import is_validation_enabled, site_is_subsample
from torch import Tensor, nn

from guides.base import FacetGuide
from ppl_models.base import FacetModel

__all__ = ["GuideEnum_ELBO", "Loss", "default_objective"]


class GuideEnum_ELBO(TraceEnum_ELBO):
    r"""``TraceEnum_ELBO`` for guides whose discrete sites are all enumerated *in the guide*.

    The value and gradient are those of :class:`~pyro.infer.TraceEnum_ELBO`:

    .. math:: \sum_s \mathbb{E}_{q(c)} [\log p_s] - \mathbb{E}_{q(c)} [\log q_s]

    summed over the sites s, each expectation being a product with the enumerated probabilities that its term
    depends on. Pyro's own also covers sampled discrete sites by a surrogate (Dice) that reads tensors back to the
    host in every step; here every continuous site is reparameterised, so there is nothing to correct for.

    :param max_plate_nesting: plates around the deepest site: a guide's ``max_plate_nesting``.
    :param num_particles: independent draws of the whole objective, one after the other.
    :raises NotImplementedError: for a guide with a sampled site that has no reparameterised draw, or a model that
        enumerates sites itself: use Pyro's objective for those.
    """

    def __init__(
        self, *, max_plate_nesting: int, num_particles: int = 1, strict_enumeration_warning: bool = False
    ) -> None:
        super().__init__(
            num_particles=num_particles,
            max_plate_nesting=max_plate_nesting,
            strict_enumeration_warning=strict_enumeration_warning,
        )

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        traces = self._get_traces if is_validation_enabled() else self._unchecked_traces
        losses = [-_enumerated_elbo(*pair) for pair in traces(model, guide, args, kwargs)]
        return torch.stack(losses).mean()

    def _unchecked_traces(self, model: Any, guide: Any, args: tuple, kwargs: dict) -> Iterator[tuple[Trace, Trace]]:
        """The traces that Pyro would make, without its checks and without what only its surrogate needs."""
        for _ in range(self.num_particles):
            with _EnumerateSites(first_dim=-1 - self.max_plate_nesting):
                guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
            for trace in (guide_trace, model_trace):
                trace.compute_log_prob(_is_density)
            yield model_trace, guide_trace

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()
        return float(loss.detach())


class _EnumerateSites(Messenger):
    """Give each site marked for enumeration all its values at once, along a new dimension left of the plates.

    Pyro's own handler also follows values through the model's enumerated sites, by reading tensors in ways that
    torch.vmap refuses; a guide that enumerates its own sites needs none of that.
    """

    def __init__(self, first_dim: int) -> None:
        super().__init__()
        self.first_dim = first_dim

    def __enter__(self) -> Any:
        self.dim = self.first_dim
        return super().__enter__()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["done"] or msg["infer"].get("enumerate") != "parallel":
            return
        values = msg["fn"].enumerate_support(expand=False)
        msg["value"] = values.reshape(len(values), *[1] * (-self.dim - 1), *msg["fn"].event_shape)
        msg["infer"]["_enumerate_dim"] = self.dim
        msg["done"] = True
        self.dim -= 1


def _is_density(name: str, site: dict[str, Any]) -> bool:
    """Whether a site has a density to score: a plate's own index site has none."""
    return site["type"] == "sample" and not site_is_subsample(site)


def _enumerated_elbo(model_trace: Trace, guide_trace: Trace) -> Tensor:
    probs = _enumerated_probs(model_trace, guide_trace)
    log_p = [_expectation(term, probs) for term in _log_probs(model_trace)]
    log_q = [_expectation(term, probs) for term in _log_probs(guide_trace)]
    return torch.stack(log_p).sum() - torch.stack(log_q).sum()


def _enumerated_probs(model_trace: Trace, guide_trace: Trace) -> dict[int, Tensor]:
    """Probabilities of each enumerated guide site, by the dimension (from the right) that holds its values."""
    probs = {}
    for name, site in guide_trace.nodes.items():
        if not _is_density(name, site):
            continue
        if "_enumerate_dim" in site["infer"]:
            probs[site["infer"]["_enumerate_dim"]] = site["unscaled_log_prob"].exp()
        elif not site["fn"].has_rsample:
            raise NotImplementedError(f"guide site {name!r} is neither enumerated nor reparameterised")
    for name, site in model_trace.nodes.items():
        if _is_density(name, site) and not site["is_observed"] and name not in guide_trace.nodes:
            raise NotImplementedError(f"model site {name!r} is not in the guide")
    return probs


def _log_probs(trace: Trace) -> list[Tensor]:
    """Log-densities of all sites, scaled by their weights."""
    return [site["log_prob"] for name, site in trace.nodes.items() if _is_density(name, site)]


def _expectation(term: Tensor, probs: Mapping[int, Tensor]) -> Tensor:
    """Sum over all dimensions of ``term``, those that are enumerated weighted by their probabilities."""
    for dim, prob in probs.items():
        if term.dim() >= -dim and term.shape[dim] > 1:
            term = term * prob
    return term.sum()


def default_objective(guide: FacetGuide) -> ELBO:
    """The objective that suits ``guide``."""
    return GuideEnum_ELBO(max_plate_nesting=guide.max_plate_nesting)


class Loss(nn.Module):
    """The objective of one model and guide as a module: a batch in, nats per datum out.

    This is the only place where a loss is divided by the number of data.

    :param objective: any of Pyro's ELBOs; the one that suits the guide where not given.
    :raises ValueError: if guide and model, or guide and objective, do not belong together.
    """

    def __init__(self, model: FacetModel, guide: FacetGuide, objective: ELBO | None = None) -> None:
        super().__init__()
        if guide.model is not model:
            raise ValueError("the guide was built for another model: build it anew, for example VaDEGuide(model)")
        objective = objective if objective is not None else default_objective(guide)
        if guide.enumerates and model.mixtures and not isinstance(objective, TraceEnum_ELBO):
            raise ValueError(
                f"{type(guide).__name__} enumerates its clusters, which {type(objective).__name__} would sample "
                "once and score wrongly: use pyro.infer.TraceEnum_ELBO, or leave the objective out"
            )
        self.objective = objective
        # The model is registered once, inside the guide: functional calls need each parameter to have one name.
        self.guide = guide

    @property
    def model(self) -> FacetModel:
        return self.guide.model

    def forward(self, x: Tensor) -> Tensor:
        """Objective for a batch ``[B, *x_shape]``: a scalar in nats per datum, to be minimised."""
        options = self.guide.options
        return self.objective.differentiable_loss(self.model, self.guide, self.model.prepare(x), **options) / len(x)

    def terms(self, x: Tensor) -> dict[str, Tensor]:
        """The ELBO of a batch and its terms with every weight at 1, in nats per datum.

        The objective is linear in the terms' weights, so each term is its derivative by that weight; they add up by
        construction, whatever guide and objective are in use.

        :returns: ``elbo``, ``reconstruction``, ``kl_z_NAME`` for every facet and ``kl_c_NAME`` for every mixture
            (but where the guide sums the clusters out, whose ``kl_z_NAME`` is then that of the whole mixture).
        """
        kl_weights = torch.ones_like(self.model.kl_weights).requires_grad_()
        with torch.enable_grad(), self.model.weights_set_to(kl_weights):
            loss = self(x)
            (kl,) = torch.autograd.grad(loss, kl_weights)
        terms = {"elbo": -loss.detach(), "reconstruction": kl.sum() - loss.detach()}
        for j, (name, prior) in enumerate(self.model.priors.items()):
            terms[f"kl_z_{name}"] = kl[j, 0]
            if prior.is_mixture and not self.guide.options.get("marginal"):
                terms[f"kl_c_{name}"] = kl[j, 1]
        return terms
