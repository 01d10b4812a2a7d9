"""Several estimators of one value compared: bias, noise and cost."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from elbocheck.arguments import check_count
from elbocheck.checks import as_reference
from elbocheck.programs import Draws, Exact, Program, Sampler, as_program, columns_of, flattened

# Single gradients that are timed; the median counts.
REPEATS = 21


@dataclass(frozen=True)
class GradientMoments:
    """Mean and variance of a gradient ``[P]`` over independent draws.

    :ivar parameters: entries by name, in their order.
    :ivar variance: of one draw.
    """

    parameters: Mapping[str, int]
    mean: np.ndarray
    variance: np.ndarray
    num_draws: int

    @property
    def trace(self) -> float:
        """Variance of the whole gradient: the trace of its covariance."""
        return float(self.variance.sum())

    @property
    def norm(self) -> float:
        """Norm of the mean gradient, corrected for the noise of the draws."""
        squared = float(np.square(self.mean).sum()) - self.trace / self.num_draws
        return math.sqrt(max(squared, 0.0))

    @property
    def signal_to_noise(self) -> float:
        """Norm of the mean gradient divided by the square root of :attr:`trace`."""
        return self.norm / math.sqrt(max(self.trace, 1e-300))

    def of(self, parameters: Mapping[str, int]) -> GradientMoments:
        """The moments of these parameters alone."""
        places = columns_of(self.parameters, parameters)
        return GradientMoments(parameters, self.mean[places], self.variance[places], self.num_draws)

    def cosine(self, reference: GradientMoments) -> float:
        """Cosine between the mean gradient and that of ``reference`` over the same parameters.

        Both norms are corrected for the noise of the draws, so that an unbiased gradient has a
        cosine of about 1.
        """
        return float(self.mean @ reference.mean) / max(self.norm * reference.norm, 1e-300)


@dataclass(frozen=True)
class EstimatorReport:
    """One estimator compared with a reference, in the value's unit.

    :ivar bias: of the value; :attr:`bias_error` is its standard error, including the reference's.
    :ivar variance: of one draw of the value.
    :ivar gradient_variance: trace of the covariance of one draw of the gradient.
    :ivar signal_to_noise: norm of the mean gradient divided by the square root of that trace.
    :ivar cosine: between the mean gradient and the reference's.
    :ivar milliseconds: median time of one gradient.
    :ivar efficiency: 1 / (gradient variance x seconds): the precision gained per second.
    """

    bias: float
    bias_error: float
    variance: float
    gradient_variance: float
    signal_to_noise: float
    cosine: float
    milliseconds: float
    efficiency: float


def moments(program: Any, num_draws: int, seed: int = 0) -> GradientMoments:
    """Moments of a program's gradient over independent draws, a part at a time.

    :raises ValueError: if there are fewer than two draws, or the program gives no gradient.

    Example:
        >>> import numpy as np
        >>> from elbocheck import moments
        >>> def draw(seed):
        ...     z = 2 + np.random.default_rng(seed).standard_normal()
        ...     return z**2, 2 * z
        >>> found = moments(draw, 2000)
        >>> round(float(found.mean[0])), round(float(found.variance[0]))
        (4, 4)
    """
    return _moments(as_program(program), num_draws, seed)[1]


def compare_estimators(
    programs: Mapping[str, Any], reference: Any, num_draws: int = 10_000, seed: int = 0
) -> dict[str, EstimatorReport]:
    """Bias, variance, gradient and cost of several estimators of one value.

    Gradients are compared over the reference's parameters; those of a learned baseline are left
    out.

    :param programs: by name; each as for :func:`check`.
    :param reference: what they estimate: exact, as for :func:`check`, with a gradient; or, if that
        cannot be had, a program, of which ten times as many draws are taken.
    :param num_draws: of each; a tenth as many of its gradient.
    :raises ValueError: if there are no programs, or a gradient is missing.
    """
    if not isinstance(programs, Mapping) or not programs:
        raise ValueError(
            f'programs must be estimators by name, such as {{"a": f}}, got {programs!r}'
        )
    check_count("num_draws", num_draws, least=2)
    known = as_reference(reference)
    if isinstance(known, Exact):
        if not known.gradient:
            raise ValueError("the reference has no gradient: give (value, gradient), or a program")
        sizes = {name: np.size(of) for name, of in known.gradient.items()}
        flat = flattened(known.gradient)
        truth = GradientMoments(sizes, flat, np.zeros_like(flat), 1)
        value, error = known.value, known.error
    else:
        drawn = _values(known, 10 * num_draws, seed + 1)
        value, error = float(drawn.mean()), float(drawn.std(ddof=1)) / math.sqrt(len(drawn))
        truth = _moments(known, num_draws, seed + 1)[1]
    return {
        name: _report(as_program(each), value, error, truth, num_draws, seed)
        for name, each in programs.items()
    }


def _report(
    program: Program, value: float, error: float, truth: GradientMoments, num_draws: int, seed: int
) -> EstimatorReport:
    found, gradient = _moments(program, max(num_draws // 10, 2), seed)
    draws = _values(program, num_draws, seed) if num_draws > len(found) else found
    common = {n: k for n, k in truth.parameters.items() if n in program.parameters}
    gradient = gradient.of(common)
    times = []
    for k in range(REPEATS):
        started = time.perf_counter()
        program.draw(1, seed + k)
        times.append(time.perf_counter() - started)
    milliseconds = 1e3 * sorted(times)[REPEATS // 2]
    return EstimatorReport(
        bias=float(draws.mean()) - value,
        bias_error=math.hypot(float(draws.std(ddof=1)) / math.sqrt(len(draws)), error),
        variance=float(draws.var(ddof=1)),
        gradient_variance=gradient.trace,
        signal_to_noise=gradient.signal_to_noise,
        cosine=gradient.cosine(truth.of(common)),
        milliseconds=milliseconds,
        efficiency=1e3 / (gradient.trace * milliseconds) if gradient.trace else math.inf,
    )


def _parts(program: Program, num_draws: int, seed: int, gradient: bool) -> Iterator[Draws]:
    sampler = Sampler(program, seed, gradient)
    taken = 0
    while taken < num_draws:
        draws = sampler.next(num_draws - taken)
        taken += len(next(iter(draws.values.values())))
        yield draws


def _values(program: Program, num_draws: int, seed: int) -> np.ndarray:
    parts = _parts(program, num_draws, seed, gradient=False)
    return np.concatenate([np.asarray(next(iter(of.values.values()))) for of in parts])


def _moments(program: Program, num_draws: int, seed: int) -> tuple[np.ndarray, GradientMoments]:
    """Values, and the moments of the gradient, by Chan's update of those of two sets."""
    check_count("num_draws", num_draws, least=2)
    values, count = [], 0
    mean = spread = np.zeros(())
    for draws in _parts(program, num_draws, seed, gradient=True):
        if draws.gradient is None:
            raise ValueError(f"{program!r} gives no gradient")
        values.append(np.asarray(next(iter(draws.values.values()))))
        rows = np.asarray(draws.gradient, dtype=np.float64)
        n, new = len(rows), rows.mean(0)
        delta = new - mean
        spread = spread + np.square(rows - new).sum(0) + delta**2 * count * n / (count + n)
        mean, count = mean + delta * n / (count + n), count + n
    found = GradientMoments(dict(program.parameters), mean, spread / (count - 1), count)
    return np.concatenate(values), found
