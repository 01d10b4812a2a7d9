"""Objectives: what is minimised, in nats per datum, and its terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.infer import ELBO, TraceEnum_ELBO
from pyro.poutine import Trace
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

    :raises NotImplementedError: for a guide with a sampled site that has no reparameterised draw, or a model that
        enumerates sites itself: use Pyro's objective for those.
    """

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        losses = [
            -_enumerated_elbo(model_trace, guide_trace)
            for model_trace, guide_trace in self._get_traces(model, guide, args, kwargs)
        ]
        return torch.stack(losses).mean()

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()
        return float(loss.detach())


def _enumerated_elbo(model_trace: Trace, guide_trace: Trace) -> Tensor:
    probs = _enumerated_probs(model_trace, guide_trace)
    log_p = [_expectation(term, probs) for term in _log_probs(model_trace)]
    log_q = [_expectation(term, probs) for term in _log_probs(guide_trace)]
    return torch.stack(log_p).sum() - torch.stack(log_q).sum()


def _enumerated_probs(model_trace: Trace, guide_trace: Trace) -> dict[str, Any]:
    """Probabilities of each enumerated guide site, by the symbol of its dimension."""
    probs = {}
    for name, site in guide_trace.nodes.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if "_enumerate_symbol" in site["infer"]:
            log_prob = site["packed"]["unscaled_log_prob"]
            probs[site["infer"]["_enumerate_symbol"]] = _with_dims(log_prob.exp(), log_prob._pyro_dims)
        elif not site["fn"].has_rsample:
            raise NotImplementedError(f"guide site {name!r} is neither enumerated nor reparameterised")
    for name, site in model_trace.nodes.items():
        if site["type"] == "sample" and not site["is_observed"] and name not in guide_trace.nodes:
            raise NotImplementedError(f"model site {name!r} is not in the guide")
    return probs


def _log_probs(trace: Trace) -> list[Any]:
    """Scaled log-densities of all sites but the plates, each with its dimensions' symbols in ``_pyro_dims``."""
    packed = [site.get("packed", {}) for site in trace.nodes.values() if site["type"] == "sample"]
    return [entry["log_prob"] for entry in packed if "log_prob" in entry]


def _expectation(term: Any, probs: Mapping[str, Any]) -> Tensor:
    """Sum over all dimensions of ``term`` weighted by the probabilities of the enumerated ones."""
    factors = [prob for symbol, prob in probs.items() if symbol in term._pyro_dims]
    if not factors:
        return term.sum()
    equation = ",".join(tensor._pyro_dims for tensor in (*factors, term))
    return torch.einsum(f"{equation}->", *factors, term)


def _with_dims(tensor: Any, dims: str) -> Any:
    tensor._pyro_dims = dims
    return tensor


def default_objective(guide: FacetGuide) -> ELBO:
    """The objective that suits ``guide``."""
    return GuideEnum_ELBO(max_plate_nesting=guide.max_plate_nesting, strict_enumeration_warning=False)


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
        if guide.enumerates and not isinstance(objective, TraceEnum_ELBO):
            raise ValueError(
                f"{type(guide).__name__} enumerates its clusters, which {type(objective).__name__} would sample "
                "once and score wrongly: use pyro.infer.TraceEnum_ELBO, or leave the objective out"
            )
        self.elbo = objective(model, guide)

    @property
    def model(self) -> FacetModel:
        return self.elbo.model

    @property
    def guide(self) -> FacetGuide:
        return self.elbo.guide

    def forward(self, x: Tensor) -> Tensor:
        """Objective for a batch ``[B, *x_shape]``: a scalar in nats per datum, to be minimised."""
        return self.elbo(self.model.likelihood.prepare(x), num_samples=self.guide.num_samples) / len(x)

    def terms(self, x: Tensor) -> dict[str, Tensor]:
        """The ELBO of a batch and its terms with every weight at 1, in nats per datum.

        The objective is linear in the terms' weights, so each term is its derivative by that weight; they add up by
        construction, whatever guide and objective are in use.

        :returns: ``elbo``, ``reconstruction``, ``kl_z_NAME`` for every facet and ``kl_c_NAME`` for every mixture.
        """
        kl_weights = torch.ones_like(self.model.kl_weights).requires_grad_()
        with torch.enable_grad(), self.model.weights_set_to(kl_weights):
            loss = self(x)
            (kl,) = torch.autograd.grad(loss, kl_weights)
        terms = {"elbo": -loss.detach(), "reconstruction": kl.sum() - loss.detach()}
        for j, (name, prior) in enumerate(self.model.priors.items()):
            terms[f"kl_z_{name}"] = kl[j, 0]
            if prior.is_mixture:
                terms[f"kl_c_{name}"] = kl[j, 1]
        return terms
