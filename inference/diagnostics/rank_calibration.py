"""Simulation-based calibration of an amortized guide: is its posterior as wide as it should be?

A latent drawn from the model's prior, and data drawn given it, are a draw from the joint. If the
guide's posterior given these data is the true one, the rank of the latent among draws of the
posterior is uniform (Talts et al., 2018, arXiv:1804.06788).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.poutine import Trace
from pyro.poutine.runtime import Message
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2, norm
from torch import Tensor

from inference.diagnostics.programs import check_program, isolated, streams
from ppl_models.given.checks import check_count, check_seed, check_size, number

__all__ = ["CalibrationReport", "calibration"]


@dataclass(frozen=True)
class CalibrationReport:
    """Ranks of the true latents among the guide's draws, and a test that they are uniform.

    :ivar ranks: ``{latent: [ranks, dimensions]}``, each from 0 to ``num_draws``.
    :ivar p_values: ``{latent: [dimensions]}``, of chi-square tests of the binned ranks.
    :ivar histograms: ``{latent: [dimensions, bins]}``; high at both ends: the posterior is too
        narrow; high in the middle: too wide; higher at one end: shifted.
    :ivar level: probability that any dimension fails for an exact posterior, at most: each is
        tested at the level divided by their number (Bonferroni).
    :ivar power: probability that the deviations below are found.
    :ivar deviation: relative deviation of the bins' frequencies, root mean square, that is found.
    :ivar narrow: a Normal posterior whose scale is at most this part of the true one is found.
    """

    ranks: dict[str, np.ndarray]
    p_values: dict[str, np.ndarray]
    histograms: dict[str, np.ndarray]
    level: float
    power: float
    deviation: float
    narrow: float

    @property
    def miscalibrated(self) -> tuple[str, ...]:
        """The latents, with their dimensions, whose ranks are not uniform."""
        count = sum(map(len, self.p_values.values()))
        return tuple(
            f"{name}[{d}]"
            for name, values in self.p_values.items()
            for d, p in enumerate(values)
            if not p >= self.level / count
        )

    def check(self) -> None:
        """:raises AssertionError: if any dimension's ranks are not uniform."""
        if self.miscalibrated:
            smallest = min(float(values.min()) for values in self.p_values.values())
            raise AssertionError(
                f"not calibrated: ranks of {', '.join(self.miscalibrated)} are not uniform, "
                f"smallest p = {smallest:.2g} (level {self.level:g}; found with probability "
                f"{self.power:g}: a deviation of the bins of {self.deviation:.0%}, or a Normal "
                f"posterior with {self.narrow:.2f} times the true scale)"
            )


def calibration(
    model: Callable,
    guide: Callable,
    *args: Any,
    arguments: Callable[[dict[str, Tensor]], tuple] | None = None,
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

    Each dimension's ranks alone are tested: that two latents depend on each other in a wrong way
    is not seen, nor a posterior that is the prior whatever the data.

    >>> import torch
    >>> import pyro, pyro.distributions as dist
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

    :param args: of model and guide, as are ``kwargs``; the data among them give shapes alone.
    :param arguments: positional arguments for the guide, from the drawn observations by site; by
        default the only observation replaces the only tensor of its shape in ``args``.
    :param num_simulations: runs of the model.
    :param num_draws: of the guide for each; ``num_draws + 1`` must be a multiple of ``bins``.
    :param bins: of the ranks' histogram.
    :param level: probability that an exact posterior fails.
    :param power: of which the report says what is found with it; above ``level``.
    :param seed: of all draws; the caller's random state is left as it was.
    :raises ValueError: if a number is out of its range, the bins would expect fewer than 5 ranks
        each, the guide has no latent of the model's, or the observation's place is not clear.
    """
    _check_numbers(num_simulations, num_draws, bins, level, power, seed)
    program = check_program(model, guide, calibration, args, kwargs)
    found: dict[str, list[Tensor]] = {}
    with (
        isolated(model, guide),
        streams(seed, program.device()),
        pyro.validation_enabled(False),
        torch.no_grad(),
    ):
        for _ in range(num_simulations):
            with _DrawnData():
                truth = poutine.trace(model).get_trace(*args, **kwargs)
            given = _arguments(truth, args, arguments)
            draws = [poutine.trace(guide).get_trace(*given, **kwargs) for _ in range(num_draws)]
            for name, ranks in _ranks(truth, draws).items():
                found.setdefault(name, []).append(ranks)
    return _report(
        {n: torch.cat(r).cpu().numpy() for n, r in found.items()}, num_draws, bins, level, power
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


def _report(
    ranks: dict[str, np.ndarray], num_draws: int, bins: int, level: float, power: float
) -> CalibrationReport:
    count = sum(r.shape[1] for r in ranks.values())
    total = min(len(r) for r in ranks.values())
    if total < 5 * bins:
        raise ValueError(
            f"{total} ranks in {bins} bins are too few for a test: take at least {5 * bins} "
            "simulations, or a plate with more members"
        )
    width = (num_draws + 1) // bins
    histograms = {
        name: np.stack([np.bincount(column // width, minlength=bins) for column in r.T])
        for name, r in ranks.items()
    }
    p_values = {}
    for name, table in histograms.items():
        expected = table.sum(1, keepdims=True) / bins
        p_values[name] = chi2.sf(((table - expected) ** 2 / expected).sum(1), bins - 1)
    deviation = _detectable(total, bins, level / count, power)
    return CalibrationReport(
        ranks, p_values, histograms, level, power, deviation, _narrow(deviation, bins)
    )


def _detectable(total: int, bins: int, level: float, power: float) -> float:
    """Root mean square of the bins' relative deviations that the test finds with the power."""
    threshold = chi2.isf(level, bins - 1)
    noncentrality = brentq(lambda v: ncx2.sf(threshold, bins - 1, v) - power, 1e-6, 1e5)
    return float(np.sqrt(noncentrality / total))


def _narrow(deviation: float, bins: int) -> float:
    """The widest of the too narrow Normal posteriors that deviate as much, in true scales."""
    edges = norm.ppf(np.linspace(0, 1, bins + 1))

    def deviates(scale: float) -> float:
        frequencies = np.diff(norm.cdf(scale * edges)) * bins
        return float(np.sqrt(((frequencies - 1) ** 2).mean())) - deviation

    return brentq(deviates, 1e-6, 1.0) if deviates(1e-6) > 0 else 0.0


def _check_numbers(
    num_simulations: int, num_draws: int, bins: int, level: float, power: float, seed: int
) -> None:
    check_size("num_simulations", num_simulations)
    check_size("num_draws", num_draws)
    if check_count("bins", bins) < 2 or (num_draws + 1) % bins:
        raise ValueError(
            f"num_draws + 1 must be a multiple of bins, at least 2, got {num_draws} and {bins}"
        )
    for name, value in (("level", level), ("power", power)):
        if not 0 < number(value) < 1:
            raise ValueError(f"{name} must be within (0, 1), got {value!r}")
    if level >= power:
        raise ValueError(
            f"level must be below power, got {level!r} and {power!r}: a test finds a fault more "
            "often than it fails an exact posterior"
        )
    check_seed("seed", seed)
