"""Weights of sites, from outside the programs: ``poutine.scale``, site by site."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.scale_messenger import ScaleMessenger
from torch import Tensor

from ppl_models.given.checks import check_kind


class ScaleSites(ScaleMessenger):
    """``poutine.scale`` of some sites, each by a factor of its own.

    A context for all programs that run within, such as model and guide in ``svi.step``: so one
    facet's KL has the weight w where its sites are scaled by w in both.

    :param scales: by the site's name, numbers or scalar tensors of at least 0; other sites stay as
        they are.
    :param required: whether programs that run within must have all of these sites.
    :raises ValueError: if ``scales`` is no mapping; at the end, if a required site was not met.

    Example:
        >>> import pyro
        >>> import pyro.distributions as dist
        >>> import torch
        >>> from pyro import poutine
        >>> from ppl_models import ScaleSites
        >>> def program():
        ...     return pyro.sample("z", dist.Delta(torch.tensor(0.0), log_density=-2.0))
        >>> with ScaleSites({"z": 0.5}):
        ...     print(poutine.trace(program).get_trace().log_prob_sum())
        tensor(-1.)
    """

    def __init__(self, scales: Mapping[str, Tensor | float], required: bool = True) -> None:
        Messenger.__init__(self)  # a factor of 0 is allowed, and no tensor is read
        self.scales = check_kind(
            "scales", scales, Mapping, 'factors by site, such as {"z_digit": 0.5}'
        )
        self.required, self.met = required, set[str]()

    def _process_message(self, msg: Any) -> None:
        if msg["type"] != "sample":
            return
        self.met.add(msg["name"])
        if msg["name"] in self.scales:
            self.scale = self.scales[msg["name"]]
            super()._process_message(msg)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        missed = [site for site in self.scales if site not in self.met]
        if self.required and kind is None and self.met and missed:
            known = sorted(self.met)
            raise ValueError(f"no program had the site {missed[0]!r} to scale: they have {known}")


def site_scale(site: str) -> Tensor | float:
    """The product of a site's factors in all contexts of :class:`ScaleSites` around the call."""
    around = (each.scales for each in _PYRO_STACK if isinstance(each, ScaleSites))
    return prod(scales[site] for scales in around if site in scales)
