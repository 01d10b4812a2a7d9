"""The result of a test: a verdict, what was compared, and what could have been found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elbocheck.comparisons import FEWEST, Comparison

BIASED, UNBIASED, UNDECIDED = "biased", "unbiased", "undecided"


@dataclass(frozen=True)
class Report:
    """What a test of an estimator found.

    :ivar comparisons: one for each number.
    :ivar level: probability that a right estimator is called biased, at most.
    :ivar power: with which the biases that were to be found would have been.
    :ivar seconds: that drawing took.
    :ivar advice: what would lead to a decision, where there is none.
    """

    comparisons: tuple[Comparison, ...]
    level: float
    power: float
    seconds: float = 0.0
    advice: str = ""

    @property
    def biased(self) -> tuple[Comparison, ...]:
        """The comparisons that fail."""
        return tuple(c for c in self.comparisons if c.biased)

    @property
    def undecided(self) -> tuple[Comparison, ...]:
        """Those that would not have found the bias that they were to find."""
        return tuple(
            c
            for c in self.comparisons
            if c.doubtful or c.effective < FEWEST or not c.detectable(self.power) <= c.allowed
        )

    @property
    def verdict(self) -> str:
        """``"biased"``, ``"unbiased"`` or ``"undecided"``."""
        return BIASED if self.biased else UNDECIDED if self.undecided else UNBIASED

    @property
    def p_value(self) -> float:
        """Of all comparisons together (Bonferroni)."""
        return min(1.0, len(self.comparisons) * min(c.p_value for c in self.comparisons))

    def power_curve(self, biases: np.ndarray) -> dict[str, np.ndarray]:
        """Probability that biases of these sizes would have been found, by comparison."""
        return {
            c.name: np.array([c.power(float(bias)) for bias in np.atleast_1d(biases)])
            for c in self.comparisons
        }

    def assert_unbiased(self) -> Report:
        """This report, if the verdict is "unbiased".

        :raises AssertionError: with the report, if it is another.
        """
        if self.verdict != UNBIASED:
            raise AssertionError(str(self))
        return self

    def __str__(self) -> str:
        verdict = self.verdict
        shown = self.biased or self.undecided or self.comparisons
        lines = [f"{verdict}: {len(shown)} of {len(self.comparisons)} comparisons"]
        for c in shown:
            lines.append(f"  {c}")
            if verdict == UNDECIDED:
                few = f"; as sure as {c.effective:.0f} draws of a normal"
                lines[-1] += (
                    f": finds {c.detectable(self.power):.2g}, and {c.allowed:.2g} is to be found"
                    f"{few if c.effective < FEWEST else ''}"
                )
        if self.advice and verdict == UNDECIDED:
            lines.append(self.advice)
        lines.append(
            f"({self.seconds:.1f} s; a right estimator is called biased with probability "
            f"{self.level:g}, a bias that is to be found is found with probability {self.power:g})"
        )
        return "\n".join(lines)
