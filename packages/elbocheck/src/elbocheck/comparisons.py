"""A mean against what it should be, from few or skewed draws, with what the test could detect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

# The skewness of heavy tails is larger than that of their draws.
SKEWNESS_RESERVE = 1.5
# A variance is known well enough from so many draws of a normal, or from more of another form.
FEWEST = 30
# So many equal draws hide an event of 1 % with probability 4e-5.
ENOUGH = 1000
# Relative error of a mean by rounding, in machine epsilons.
ROUNDING = 8


@dataclass(frozen=True)
class Comparison:
    """One number of an estimator against the reference.

    Rejected is what is beyond :attr:`lower` or :attr:`upper`, in standard errors: quantiles of
    Student's t with the degrees of freedom that the draws' fourth moment leaves their variance
    (Satterthwaite), moved outwards as far as the draws' skewness asks for (Hall, 1992, "On the
    removal of skewness by transformation", Eq. 2.2).

    :ivar name: what is compared.
    :ivar estimate: mean over the draws.
    :ivar reference: what it should be.
    :ivar error: standard error of the difference, the reference's own and rounding included.
    :ivar num_draws: of the estimator.
    :ivar effective: draws of a normal from which the variance would be known as well.
    :ivar skewness: of the difference: that of a draw, divided by the root of their number.
    :ivar allowed: the bias that was to be found.
    :ivar level: probability that this comparison alone rejects a right estimator, at most.
    :ivar equal: whether all draws are equal, and so few that an event of 1 % may be to come, so
        that nothing is rejected.
    """

    name: str
    estimate: float
    reference: float
    error: float
    num_draws: int
    effective: float
    skewness: float
    allowed: float
    level: float
    equal: bool = False

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return (self.estimate - self.reference) / self.error

    @property
    def p_value(self) -> float:
        """Probability that a right estimator is as far off."""
        if self.equal:
            return 1.0
        a, z = SKEWNESS_RESERVE * self.skewness / 3, self.z
        moved = z if abs(a) < 1e-9 else ((1 + a * z) ** 3 - 1) / (3 * a) + a / 2
        least = min(abs(z), abs(moved)) if moved * z > 0 else 0.0
        return float(2 * student.sf(least, max(self.effective, 1.0)))

    @property
    def upper(self) -> float:
        """The z above which the estimator is biased."""
        return self._limit(1.0)

    @property
    def lower(self) -> float:
        """The z below which the estimator is biased."""
        return -self._limit(-1.0)

    @property
    def biased(self) -> bool:
        return not self.equal and not self.lower <= self.z <= self.upper

    @property
    def doubtful(self) -> bool:
        """Whether equal draws would be rejected if they were more."""
        return self.equal and not self.lower <= self.z <= self.upper

    def power(self, bias: float) -> float:
        """Probability that a bias of this size, of the less visible sign, is found."""
        return float(min(norm.sf(limit - bias / self.error) for limit in (self.upper, -self.lower)))

    def detectable(self, power: float) -> float:
        """The bias that is found with this probability, of either sign."""
        return (max(self.upper, -self.lower) + float(norm.isf(1 - power))) * self.error

    def _limit(self, sign: float) -> float:
        quantile = float(student.isf(self.level / 2, max(self.effective, 1.0)))
        a = sign * SKEWNESS_RESERVE * self.skewness / 3
        if abs(a) < 1e-9:
            return quantile
        return max(quantile, (float(np.cbrt(1 + 3 * a * (quantile - a / 2))) - 1) / a)

    def __str__(self) -> str:
        return (
            f"{self.name}: estimate {self.estimate:.6g}, reference {self.reference:.6g}, standard "
            f"error {self.error:.2g}, z = {self.z:.4g} (within {self.lower:.1f} and "
            f"{self.upper:.1f}), {self.num_draws:,} draws"
        )


@dataclass(frozen=True)
class Moments:
    """Of draws ``[n, C]``: what a comparison needs of each column, ``[C]``.

    :ivar rounding: error of the means by the draws' precision.
    """

    count: int
    mean: np.ndarray
    variance: np.ndarray
    skewness: np.ndarray
    kurtosis: np.ndarray
    rounding: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray, epsilon: float) -> Moments:
        """:raises ValueError: if a draw is not finite."""
        if not np.isfinite(draws).all():
            wrong = int((~np.isfinite(draws)).any(1).sum())
            raise ValueError(f"{wrong} of {len(draws)} draws are not finite")
        mean = draws.mean(0)
        rounding = ROUNDING * epsilon * (1 + np.abs(mean))
        centered = draws - mean
        variance = np.square(centered).sum(0) / max(len(draws) - 1, 1)
        spread = np.sqrt(np.square(centered).mean(0))
        scaled = centered / np.where(spread > rounding, spread, np.inf)
        third, fourth = (scaled**3).mean(0), (scaled**4).mean(0)
        return cls(len(draws), mean, variance, third, fourth, rounding)

    @classmethod
    def exact(cls, mean: np.ndarray, error: np.ndarray) -> Moments:
        """Of known values, with the error of each."""
        zero = np.zeros_like(mean)
        return cls(1, mean, error**2, zero, zero, zero)

    @property
    def squared_error(self) -> np.ndarray:
        return self.variance / self.count + self.rounding**2

    @property
    def effective(self) -> np.ndarray:
        """Degrees of freedom of each variance."""
        spread = self.kurtosis > 0
        freedom = 2 * self.count / np.maximum(self.kurtosis - 1, 1e-3)
        return np.where(spread, freedom, float(self.count))

    @property
    def equal(self) -> np.ndarray:
        return (self.kurtosis == 0) & (self.count < ENOUGH)


def compared(
    names: tuple[str, ...], own: Moments, known: Moments, allowed: np.ndarray, level: float
) -> tuple[Comparison, ...]:
    """Each column against what it should be, all together at this level (Bonferroni).

    :param known: of the reference.
    :param allowed: the bias that is to be found, of each.
    """
    squared = own.squared_error + known.squared_error
    error = np.sqrt(squared)
    thirds = [m.skewness * (m.variance / m.count) ** 1.5 / np.sqrt(m.count) for m in (own, known)]
    skewness = (thirds[0] - thirds[1]) / np.maximum(error**3, 1e-300)
    effective = own.effective
    if (known.kurtosis > 0).any():
        effective = np.minimum(effective, known.effective)
    columns = (own.mean, known.mean, error, effective, skewness, allowed, own.equal)
    return tuple(
        Comparison(
            name,
            estimate=float(mean),
            reference=float(truth),
            error=float(e),
            num_draws=own.count,
            effective=float(n),
            skewness=float(third),
            allowed=float(most),
            level=level / len(names),
            equal=bool(equal),
        )
        for name, mean, truth, e, n, third, most, equal in zip(names, *columns)
    )
