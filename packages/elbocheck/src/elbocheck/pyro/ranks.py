"""Simulation-based calibration of Pyro programs: amortized guides, and guides that are refitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.poutine import Trace
from pyro.poutine.runtime import Message
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from torch import Tensor

from elbocheck.arguments import check_count
from elbocheck.pyro.isolation import isolated
from elbocheck.pyro.program import check_callable
from elbocheck.pytorch import device_of
from elbocheck.ranks import CalibrationReport, rank_test


def calibration(
    model: Callable,
    guide: Callable,
    *args: Any,
    arguments: Callable[[dict[str, Tensor]], tuple] | None = None,
    fit: Callable[..., Any] | None = None,
    num_simulations: int = 100,
    num_draws: int = 99,
    bins: int = 10,
    level: float = 1e-3,
    power: float = 0.99,
    seed: int = 0,
    **kwargs: Any,
) -> CalibrationReport:
    """Compare a guide's posterior with the model's, on data that the model generates.

    Each simulation runs the model with its observations drawn instead of given, and the guide
    ``num_draws`` times on these. The members of a plate that is around all of the model's latents
    are so many simulations of their own. Latents that are ranked are those of the guide that the
    model has too. Ties, as of discrete latents, are broken at random.

    A guide that does not read the data, such as an autoguide, is fitted to each simulation's data
    by ``fit`` (VSBC; Yao et al., 2018, Algorithm 1); then ``level`` and ``power`` are of the
    posterior that the fits end at.

    Each dimension's ranks alone are tested: that two latents depend on each other in a wrong way
    is not seen, nor a posterior that is the prior whatever the data.

    :param args: of model and guide, as are ``kwargs``; the data among them give shapes alone.
    :param arguments: positional arguments for the guide, from the drawn observations by site; by
        default the only observation replaces the only tensor of its shape in ``args``.
    :param fit: called with those arguments, with the parameter store empty, to fit the guide; may
        return the guide that it has fitted.
    :param num_simulations: runs of the model.
    :param num_draws: of the guide for each; ``num_draws + 1`` must be a multiple of ``bins``.
    :param bins: of the ranks' histogram.
    :param level: probability that an exact posterior fails.
    :param power: of which the report says what is found with it; above ``level``.
    :param seed: of all draws; the caller's random state is left as it was.
    :raises ValueError: if a number is out of its range, the bins would expect fewer than 5 ranks
        each, the guide has no latent of the model's, the observation's place is not clear, or the
        guide does not read the data and ``fit`` is not given.

    Example:
        >>> import torch
        >>> import pyro, pyro.distributions as dist
        >>> from elbocheck.pyro import calibration
        >>> def model(x):
        ...     with pyro.plate("data", len(x)):
        ...         z = pyro.sample("z", dist.Normal(0.0, 1.0))
        ...         pyro.sample("x", dist.Normal(z, 1.0), obs=x)
        >>> def guide(x, scale=0.5**0.5):
        ...     with pyro.plate("data", len(x)):
        ...         pyro.sample("z", dist.Normal(x / 2, scale))
        >>> x = torch.zeros(100)
        >>> calibration(model, guide, x, num_simulations=10).miscalibrated
        ()
        >>> def narrow(x):
        ...     guide(x, scale=0.7 * 0.5**0.5)
        >>> calibration(model, narrow, x, num_simulations=10).miscalibrated
        ('z[0]',)
    """
    check_count("num_simulations", num_simulations)
    check_callable(model=model, guide=guide)
    rank_test({"": np.zeros((5 * bins, 1), int)}, num_draws, bins=bins, level=level, power=power)
    found: dict[str, list[Tensor]] = {}
    device = device_of((model, guide), args, kwargs)
    with isolated(check_count("seed", seed, least=0), device, model, guide), torch.no_grad():
        for _ in range(num_simulations):
            with _DrawnData():
                truth = poutine.trace(model).get_trace(*args, **kwargs)
            given = _arguments(truth, args, arguments)
            if fit is None:
                posterior = guide
                _check_reads(guide, args, given, kwargs)
            else:
                pyro.clear_param_store()
                with torch.enable_grad():
                    posterior = fit(*given, **kwargs) or guide
            draws = [poutine.trace(posterior).get_trace(*given, **kwargs) for _ in range(num_draws)]
            for name, each in _ranks(truth, draws).items():
                found.setdefault(name, []).append(each)
    ranks = {name: torch.cat(of).cpu().numpy() for name, of in found.items()}
    return rank_test(ranks, num_draws, bins=bins, level=level, power=power)


def _check_reads(guide: Callable, args: tuple, given: tuple, kwargs: dict) -> None:
    """:raises ValueError: if the guide's distributions are the same whatever the data."""
    apart = [(a, b) for a, b in zip(args, given) if isinstance(a, Tensor) and not torch.equal(a, b)]
    if not apart:
        return
    sites = []
    for each in (args, given):
        with poutine.block(), isolated(0, torch.device("cpu"), guide):
            sites.append(_latents(poutine.trace(guide).get_trace(*each, **kwargs)))
    if (
        sites[0]
        and sites[0].keys() == sites[1].keys()
        and all(torch.equal(sites[0][name]["value"], sites[1][name]["value"]) for name in sites[0])
    ):
        raise ValueError(
            "the guide draws the same whatever the data, so it is no posterior of those that are "
            "drawn here: give fit=, which fits it to them"
        )


class _DrawnData(UnconditionMessenger):
    """Draws observations anew; ``pyro.deterministic`` makes no data, but keeps what it computes."""

    def _pyro_sample(self, msg: Message) -> None:
        if not msg["infer"].get("_deterministic"):
            super()._pyro_sample(msg)


def _arguments(
    truth: Trace, args: tuple, arguments: Callable[[dict[str, Tensor]], tuple] | None
) -> tuple:
    """The guide's arguments, with the drawn observations in the place of the data."""
    observed = {
        name: site["value"]
        for name, site in truth.nodes.items()
        if site["type"] == "sample" and site["infer"].get("was_observed")
    }
    if arguments is not None:
        return tuple(arguments(observed))
    values = list(observed.values())
    places = [
        k
        for k, v in enumerate(args)
        if len(values) == 1 and isinstance(v, Tensor) and v.shape == values[0].shape
    ]
    if len(places) != 1:
        raise ValueError(
            f"the model observes {list(observed)}, and which argument of the guide that is, is not "
            'clear: give arguments=, such as lambda drawn: (drawn["x"],)'
        )
    return tuple(values[0] if k == places[0] else v for k, v in enumerate(args))


def _ranks(truth: Trace, draws: list[Trace]) -> dict[str, Tensor]:
    """Of each latent, ``[plate members, dimensions]``."""
    names = [name for name in _latents(draws[0]) if name in truth.nodes]
    if not names:
        raise ValueError("the guide has no latent of the model's: there is nothing to rank")
    common = _common_plates(list(_latents(truth).values()))
    ranks = {}
    for name in names:
        value = truth.nodes[name]["value"]
        drawn = torch.stack([trace.nodes[name]["value"] for trace in draws])
        below, ties = (drawn < value).sum(0), (drawn == value).sum(0)
        rank = below + (torch.rand(value.shape, device=value.device) * (ties + 1)).long()
        ranks[name] = _members_first(rank, truth.nodes[name], common)
    return ranks


def _latents(trace: Trace) -> dict[str, dict]:
    """The sites that are neither observed nor indices of a subsample."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not site["infer"].get("was_observed")
        and not isinstance(site["fn"], _Subsample)
    }


def _common_plates(sites: list[dict]) -> list[int]:
    """Dimensions of the plates that are around all latents: of others, members may share one."""
    plates = [{(f.name, f.dim) for f in site["cond_indep_stack"] if f.vectorized} for site in sites]
    return sorted(dim for _, dim in set.intersection(*plates))


def _members_first(rank: Tensor, site: dict, plates: list[int]) -> Tensor:
    """``[members of the common plates, all other dimensions]``."""
    dims = [rank.dim() - site["fn"].event_dim + plate for plate in plates]
    moved = rank.movedim(dims, list(range(len(dims))))
    members = moved.shape[: len(dims)].numel()
    return moved.reshape(members, -1)
