"""Models with clusters by number, for tools of Pyro's that cannot enumerate one-hot sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
from pyro import poutine
from pyro.infer.reparam.reparam import Reparam
from torch.nn.functional import one_hot

from ppl_models.distributions import Component
from ppl_models.program import ENUMERATE


def index_clusters(model: Callable[..., Any]) -> Callable[..., Any]:
    """The same model with a site ``c_NAME_index``, integers ``[B]``, for each cluster that is not
    observed.

    ``c_NAME`` stays as a one-hot site that follows from it. ``pyro.infer.infer_discrete`` needs
    this: it takes the axis of a one-hot value for that of a plate. Weights of terms do not apply to
    the new sites, and ``infer_discrete`` does not use weights.

    Example::

        by_number = poutine.condition(index_clusters(model), data=latents)
        infer_discrete(by_number, first_available_dim=-2, temperature=0)(x)

    :param model: a model, or a program made of one by Pyro's handlers.
    :raises ValueError: if that cannot be called.
    """
    if not callable(model):
        raise ValueError(f"model must be a program, such as MFCVAE(...), got {model!r}")
    return poutine.reparam(model, config=_index_of_cluster)


class _ClusterIndex(Reparam):
    """A one-hot choice made by number."""

    def apply(self, msg: Any) -> Any:
        component, name = msg["fn"], f"{msg['name']}_index"
        by_number = dist.Categorical(logits=component.logits)
        index = pyro.sample(name, by_number, infer=ENUMERATE)
        value = one_hot(index, component.event_shape[0]).to(component.logits)
        # Not 0 where the component's weights do not sum to 1.
        rest = component.log_prob(value) - by_number.log_prob(index)
        chosen = dist.Delta(value, log_density=rest, event_dim=1)
        return {"fn": chosen, "value": value, "is_observed": True}


def _index_of_cluster(site: Any) -> Reparam | None:
    is_cluster = isinstance(site["fn"], Component) and not site["is_observed"]
    return _ClusterIndex() if is_cluster and site["value"] is None else None
