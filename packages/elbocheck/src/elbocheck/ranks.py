"""Simulation-based calibration: ranks of true values among a posterior's draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2, norm

from elbocheck.arguments import check_between, check_count


@dataclass(frozen=True)
class CalibrationReport:
    """Ranks of true values among draws, and a test that they are uniform.

    :ivar ranks: ``{latent: [simulations, dimensions]}``, each from 0 to the number of draws.
    :ivar p_values: ``{latent: [dimensions]}``, of chi-square tests of the binned ranks.
    :ivar histograms: ``{latent: [dimensions, bins]}``; high at both ends: the posterior is too
        narrow; high in the middle: too wide; higher at one end: shifted.
    :ivar level: probability that any dimension fails for an exact posterior, at most: each is
        tested at the level divided by their number (Bonferroni).
    :ivar power: probability that the deviations below are found.
    :ivar deviation: relative deviation of the bins' frequencies, root mean square, that is found.
    :ivar narrow: a normal posterior whose scale is at most this part of the true one is found.
    """

    ranks: Mapping[str, np.ndarray]
    p_values: Mapping[str, np.ndarray]
    histograms: Mapping[str, np.ndarray]
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

    def assert_calibrated(self) -> CalibrationReport:
        """This report, if all ranks are uniform.

        :raises AssertionError: if any dimension's are not.
        """
        if self.miscalibrated:
            raise AssertionError(str(self))
        return self

    def __str__(self) -> str:
        smallest = min(float(values.min()) for values in self.p_values.values())
        found = f"ranks of {', '.join(self.miscalibrated)} are not uniform"
        return (
            f"{f'not calibrated: {found}' if self.miscalibrated else 'calibrated'}, smallest p = "
            f"{smallest:.2g} (level {self.level:g}; found with probability {self.power:g}: a "
            f"deviation of the bins of {self.deviation:.0%}, or a normal posterior with "
            f"{self.narrow:.2f} times the true scale)"
        )


def sbc(
    truths: Any,
    draws: Any,
    *,
    bins: int = 10,
    level: float = 1e-3,
    power: float = 0.99,
    seed: int = 0,
) -> CalibrationReport:
    """Rank true values among a posterior's draws, and test that the ranks are uniform (Talts et
    al., 2018).

    Each dimension's ranks alone are tested: that two latents depend on each other in a wrong way
    is not seen, nor a posterior that is the prior whatever the data. Ties are broken at random.

    :param truths: ``[S]`` or ``[S, d]``, drawn from the prior; or such arrays by name.
    :param draws: ``[S, L]`` or ``[S, L, d]``, from the posterior given data of each; likewise.
    :param bins: of the ranks' histogram; ``L + 1`` must be a multiple.
    :param seed: of the ties.
    :raises ValueError: if shapes or numbers do not fit, or there are fewer than five simulations
        for each bin.

    Example:
        >>> import numpy as np
        >>> from elbocheck import sbc
        >>> rng = np.random.default_rng(0)
        >>> z = rng.standard_normal(1000)
        >>> x = z + rng.standard_normal(1000)
        >>> noise = rng.standard_normal((1000, 99))
        >>> sbc(z, x[:, None] / 2 + 0.5**0.5 * noise).miscalibrated
        ()
        >>> sbc(z, x[:, None] / 2 + 0.5 * noise).miscalibrated
        ('value[0]',)
    """
    if not isinstance(truths, Mapping):
        truths, draws = {"value": truths}, {"value": draws}
    generator = np.random.default_rng(check_count("seed", seed, least=0))
    ranks = {}
    for name, truth in truths.items():
        true, drawn = np.asarray(truth), np.asarray(draws[name])
        if drawn.shape[:1] + drawn.shape[2:] != true.shape or drawn.ndim < 2:
            raise ValueError(
                f"draws must be [S, L] or [S, L, d] with truths [S] or [S, d], got {drawn.shape} "
                f"and {true.shape} for {name!r}"
            )
        below = (drawn < true[:, None]).sum(1)
        ties = (drawn == true[:, None]).sum(1)
        ranks[name] = (below + generator.integers(0, ties + 1)).reshape(len(true), -1)
        number = drawn.shape[1]
    return rank_test(ranks, number, bins=bins, level=level, power=power)


def rank_test(
    ranks: Mapping[str, np.ndarray],
    num_draws: int,
    *,
    bins: int = 10,
    level: float = 1e-3,
    power: float = 0.99,
) -> CalibrationReport:
    """Test that ranks, ``[S, d]`` by name, each among ``num_draws``, are uniform.

    :raises ValueError: as :func:`sbc`.
    """
    check_count("num_draws", num_draws)
    if check_count("bins", bins) < 2 or (num_draws + 1) % bins:
        raise ValueError(
            f"the number of draws and 1 must be a multiple of bins, at least 2, got {num_draws} "
            f"and {bins}"
        )
    check_between("level", level, 0, 1)
    check_between("power", power, level, 1)
    count = sum(of.shape[1] for of in ranks.values())
    total = min(len(of) for of in ranks.values())
    if total < 5 * bins:
        raise ValueError(
            f"{total} ranks in {bins} bins are too few for a test: take at least {5 * bins} "
            "simulations, or a plate with more members"
        )
    width = (num_draws + 1) // bins
    histograms = {
        name: np.stack([np.bincount(column // width, minlength=bins) for column in of.T])
        for name, of in ranks.items()
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
    """The widest of the too narrow normal posteriors that deviate as much, in true scales."""
    edges = norm.ppf(np.linspace(0, 1, bins + 1))

    def deviates(scale: float) -> float:
        frequencies = np.diff(norm.cdf(scale * edges)) * bins
        return float(np.sqrt(((frequencies - 1) ** 2).mean())) - deviation

    return brentq(deviates, 1e-6, 1.0) if deviates(1e-6) > 0 else 0.0
