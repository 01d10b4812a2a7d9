"""The ELBO of guides that enumerate their clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from pyro.infer import TraceEnum_ELBO
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor

from inference.objectives.direct import Direct_ELBO, densities, site_densities
from ppl_models.distributions import Component, mark_enumerated


class GuideEnum_ELBO(Direct_ELBO, TraceEnum_ELBO):
    r"""``TraceEnum_ELBO`` for guides whose discrete sites are all enumerated *in the guide*.

    The value and gradient are those of :class:`~pyro.infer.TraceEnum_ELBO`:

    .. math:: \sum_s \mathbb{E}_{q(c)} [\log p_s] - \mathbb{E}_{q(c)} [\log q_s]

    summed over the sites s; each expectation is a product with the enumerated probabilities that
    its term depends on. Pyro's own objective also covers sampled discrete sites by a surrogate
    (Dice) that reads tensors back to the host in every step; here every continuous site is
    reparameterized, so no correction is needed.

    :raises NotImplementedError: if the guide samples a site without a reparameterized draw, or the
        model enumerates sites itself: use Pyro's objective then.

    Example:
        >>> import torch
        >>> from facetvae import GaussianMixture, GuideEnum_ELBO, Loss, VaDE, VaDEGuide
        >>> guide = VaDEGuide(VaDE((6,), GaussianMixture(3, 2)))
        >>> objective = GuideEnum_ELBO(max_plate_nesting=guide.max_plate_nesting)
        >>> Loss(guide.model, guide, objective)(torch.zeros(5, 6)).shape
        torch.Size([])
    """

    def estimate(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        probs = enumerated_probs(model_trace, guide_trace)
        return expected_sum(densities(model_trace), densities(guide_trace), probs)

    def _get_trace(self, model: Any, guide: Any, args: tuple, kwargs: dict) -> tuple[Trace, Trace]:
        return TraceEnum_ELBO._get_trace(self, model, guide, args, kwargs)

    def _unchecked_traces(
        self, model: Any, guide: Any, args: tuple, kwargs: dict
    ) -> Iterator[tuple[Trace, Trace]]:
        enumerating = _EnumerateSites(first_dim=-1 - self.max_plate_nesting)
        return super()._unchecked_traces(model, enumerating(guide), args, kwargs)


class _EnumerateSites(Messenger):
    """Gives each site marked for enumeration all values at once, in a new dimension left of plates.

    Pyro's own handler also follows values through the model's enumerated sites, which is not needed
    here, and reads tensors in ways that torch.vmap does not support.
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
        values = values.reshape(len(values), *[1] * (-self.dim - 1), *msg["fn"].event_shape)
        msg["value"] = mark_enumerated(values) if isinstance(msg["fn"], Component) else values
        msg["infer"]["_enumerate_dim"] = self.dim
        msg["done"] = True
        self.dim -= 1


def enumerated_probs(model_trace: Trace, guide_trace: Trace) -> dict[int, Tensor]:
    """Probabilities of each enumerated guide site, by its dimension from the right, in order."""
    probs = {}
    for name, site in site_densities(guide_trace):
        if "_enumerate_dim" in site["infer"]:
            probs[site["infer"]["_enumerate_dim"]] = site["unscaled_log_prob"].exp()
        elif not site["fn"].has_rsample:
            raise NotImplementedError(
                f"guide site {name!r} is neither enumerated nor reparameterized"
            )
    for name, site in site_densities(model_trace):
        if not site["is_observed"] and name not in guide_trace.nodes:
            raise NotImplementedError(f"model site {name!r} is not in the guide")
    return probs


def expected_sum(
    added: Iterable[Tensor], subtracted: Iterable[Tensor], probs: Mapping[int, Tensor]
) -> Tensor:
    """Sum of terms over all their dimensions, with enumerated ones weighted by their probabilities.

    Terms of one shape are added first, so that each probability enters once.

    :param probs: by dimension; each may depend on the sites before it.
    """
    terms = _by_shape(added)
    for shape, term in _by_shape(subtracted).items():
        terms[shape] = terms[shape] - term if shape in terms else -term
    return torch.stack([_expectation(term, probs) for term in terms.values()]).sum()


def _by_shape(terms: Iterable[Tensor]) -> dict[torch.Size, Tensor]:
    """The sum of the terms of each shape."""
    sums: dict[torch.Size, Tensor] = {}
    for term in terms:
        sums[term.shape] = sums[term.shape] + term if term.shape in sums else term
    return sums


def _expectation(term: Tensor, probs: Mapping[int, Tensor]) -> Tensor:
    # The last site first: where its probabilities depend on an earlier site, the term then does.
    for dim, prob in reversed(tuple(probs.items())):
        if term.dim() >= -dim and term.shape[dim] > 1:
            term = term * prob
    return term.sum()
