"""Is an estimator unbiased, in value and gradient? As many draws as it takes to say so."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elbocheck.arguments import check_between, check_count, check_positive
from elbocheck.comparisons import ENOUGH, FEWEST, Moments, compared
from elbocheck.programs import (
    GRADIENT,
    Exact,
    Program,
    Sampler,
    as_program,
    columns_of,
    epsilon_of,
    flattened,
)
from elbocheck.reports import Report

# Draws of the pilot, which finds gross faults and says how many draws are needed.
PILOT = 128
# The part of the level that the look at the pilot has.
EARLY = 0.1
# Variances are themselves estimated: so many draws more than they ask for.
RESERVE = 1.1
# Of few draws little is known: at most so many times as many are taken next, so often.
GROWTH, ROUNDS = 8, 8
# Directions beside the reference's own, of the whole gradient and of each parameter.
RANDOM = 4


@dataclass(frozen=True)
class _Test:
    """What is to be found, and how; of arrays no number of draws is asked for.

    :raises ValueError: if a number is out of its range.
    """

    level: float
    power: float
    bias: float = 1.0
    relative_bias: float = 0.0
    gradient_bias: float = 1.0
    max_seconds: float = 1.0
    max_draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("bias", "gradient_bias", "max_seconds"):
            check_positive(name, getattr(self, name))
        check_between("relative_bias", self.relative_bias, 0, math.inf, closed=True)
        check_between("level", self.level, 0, 1)
        check_between("power", self.power, 0, 1)
        check_count("max_draws", self.max_draws)

    def allowed(self, value: float, count: int, lengths: Any = ()) -> np.ndarray:
        """The biases that are to be found: of ``count`` numbers that are to have this value, and of
        the gradient along directions, of which these lengths are the unit.
        """
        own = self.bias + self.relative_bias * abs(value)
        return np.append(np.full(count, own), self.gradient_bias * np.asarray(lengths))


def check(
    program: Any,
    reference: Any = None,
    *,
    bias: float = 0.1,
    relative_bias: float = 0.0,
    gradient_bias: float = 0.1,
    gradient: bool = True,
    level: float = 1e-4,
    power: float = 0.99,
    max_seconds: float = 30.0,
    max_draws: int = 100_000,
    seed: int = 0,
) -> Report:
    """Whether an estimator is unbiased: its mean value, and the mean of the gradient that an
    optimizer is given.

    Compared are each value of a draw; and the gradient along the reference's direction, along its
    part in each parameter, and along random directions, at most four. A pilot finds gross faults,
    and gives the number of draws with which a bias of ``bias + relative_bias * |reference|`` of a
    value, and of ``gradient_bias`` times the norm of the reference's gradient along any of the
    directions (where that is 0, times the standard deviation of one draw), is found with
    probability ``power``. The verdict is "biased"; "unbiased" if these biases would have been
    found; or "undecided" if more time or draws are needed for that, or the draws are too skewed to
    trust a mean of so many.

    :param program: a :class:`Program`, or a function of a seed that returns a value or ``(value,
        gradient)``.
    :param reference: a number; ``(number, gradient)``; an :class:`Exact`; another program that is
        known to be right, which is drawn as often as the program; by default what the program says
        itself.
    :param bias: in the value's unit.
    :param gradient: whether the gradient is tested, too.
    :param level: probability that a right estimator is called biased, at most.
    :param max_seconds: of drawing, after which the draws that there are decide.
    :param max_draws: likewise.
    :raises ValueError: if a number is out of its range, a draw is not finite, or there is no
        reference.

    Example:
        >>> import numpy as np
        >>> from elbocheck import check
        >>> def draw(seed):  # z is drawn from N(m, 1) with m = 2; the value is z squared
        ...     z = 2 + np.random.default_rng(seed).standard_normal()
        ...     return z**2, 2 * z  # and its gradient by m
        >>> check(draw, (5.0, 4.0)).verdict
        'unbiased'
        >>> check(draw, (5.0, -4.0)).verdict
        'biased'
    """
    numbers = level, power, bias, relative_bias, gradient_bias, max_seconds, max_draws
    test = _Test(*numbers, check_count("seed", seed, least=0))
    return _Check(as_program(program), reference, gradient, test).report()


def check_mean(
    draws: Any,
    exact: float,
    *,
    bias: float = 0.1,
    relative_bias: float = 0.0,
    level: float = 1e-4,
    power: float = 0.99,
    name: str = "mean",
) -> Report:
    """Whether the mean of independent draws ``[n]`` is ``exact``; see :func:`check`.

    :raises ValueError: if a number is out of its range, or a draw is not finite.

    Example:
        >>> import numpy as np
        >>> from elbocheck import check_mean
        >>> draws = 3 + np.random.default_rng(0).standard_normal(10_000)
        >>> check_mean(draws, 3.0).verdict, check_mean(draws, 3.2).verdict
        ('unbiased', 'biased')
        >>> check_mean(draws[:100], 3.0).verdict  # too few to find a bias of 0.1
        'undecided'
    """
    values, test = _table(draws, 1), _Test(level, power, bias, relative_bias)
    own, known = Moments.of(values, epsilon_of(draws)), np.array([float(exact)])
    return _of_arrays((name,), own, known, test.allowed(known[0], 1), test)


def check_gradient(
    draws: Any,
    exact: Any,
    *,
    gradient_bias: float = 0.1,
    level: float = 1e-4,
    power: float = 0.99,
    seed: int = 0,
) -> Report:
    """Whether the mean of independent gradients ``[n, P]`` is ``exact``, ``[P]``; see
    :func:`check`.

    :param seed: of the random directions.
    :raises ValueError: if a number is out of its range, or a draw is not finite.
    """
    table, truth = _table(draws, 2), np.asarray(exact, dtype=np.float64).ravel()
    if table.shape[1] != len(truth):
        raise ValueError(f"gradients have {table.shape[1]} entries, and exact has {len(truth)}")
    names, vectors = directions(truth, {GRADIENT: len(truth)}, seed)
    along, test = table @ vectors.T, _Test(level, power, gradient_bias=gradient_bias)
    own, allowed = Moments.of(along, epsilon_of(draws)), test.allowed(0.0, 0, _length(truth, along))
    return _of_arrays(names, own, vectors @ truth, allowed, test)


def directions(
    gradient: np.ndarray, parameters: Mapping[str, int], seed: int
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names, and unit vectors ``[directions, P]``: the gradient's own, its part in each parameter,
    and some random ones.
    """
    names, vectors = [], []
    if gradient.any():
        names.append("gradient along the reference's")
        vectors.append(gradient)
        for name, size in parameters.items():
            part, places = np.zeros_like(gradient), columns_of(parameters, {name: size})
            part[places] = gradient[places]
            if len(parameters) > 1 and part.any():
                names.append(f"gradient of {name!r}")
                vectors.append(part)
    generator = np.random.default_rng(seed)
    for k in range(min(RANDOM, len(gradient) - len(names[:1]))):  # of one entry there is no other
        names.append(f"gradient along random direction {k + 1}")
        vectors.append(generator.standard_normal(len(gradient)))
    table = np.stack(vectors)
    return tuple(names), table / np.linalg.norm(table, axis=1, keepdims=True)


def _length(gradient: np.ndarray, along: np.ndarray) -> Any:
    """What a gradient's bias is a fraction of: its norm, or where that is 0 a draw's deviation."""
    norm, spread = float(np.linalg.norm(gradient)), along.std(0)
    return np.where(norm > 1e-9 * (1 + spread), norm, spread + 1e-12)


class _Check:
    """A test under way.

    :param wanted: whether the gradient is tested.
    """

    def __init__(self, program: Program, reference: Any, wanted: bool, test: _Test) -> None:
        self.test, self.started = test, time.perf_counter()
        self.own = Sampler(program, test.seed, wanted)
        self.truth: Sampler | None = None
        given = program.reference() if reference is None else as_reference(reference)
        first = self.own.next(1)  # which tells names and sizes of the gradient's parameters
        self.names = tuple(first.values)
        has = wanted and first.gradient is not None
        self.gradient: np.ndarray | None = None
        self.direction_names: tuple[str, ...] = ()
        if isinstance(given, Program):
            self._drawn_reference(given, has)
        else:
            self._exact_reference(given, has)
        self.own.keep(first)
        self.columns = (*self.names, *self.direction_names)

    def _exact_reference(self, given: Exact, has: bool) -> None:
        errors = np.array([given.error] * len(self.names))
        mean = np.array([given.value] * len(self.names))
        if has and given.gradient:
            gradient = flattened(given.gradient)
            self._directed(gradient, {name: np.size(of) for name, of in given.gradient.items()})
            vectors = self.own.directions
            assert vectors is not None
            mean = np.concatenate([mean, vectors @ gradient])
            wrong = flattened(given.gradient_error or {n: 0 * g for n, g in given.gradient.items()})
            errors = np.concatenate([errors, np.abs(vectors) @ np.abs(wrong)])
        self.known = Moments.exact(mean, errors)

    def _drawn_reference(self, given: Program, has: bool) -> None:
        self.truth = Sampler(given, self.test.seed + 1, has, copies=len(self.names))
        pilot = [self.truth.next(PILOT)]
        if has and pilot[0].gradient is not None:
            deadline = self.deadline(0.3)
            while sum(map(len, [each.gradient for each in pilot])) < PILOT:  # type: ignore[arg-type]
                if time.perf_counter() > deadline and len(pilot) > 1:
                    break
                pilot.append(self.truth.next(PILOT))
            theirs = self.own.program.parameters
            common = {n: size for n, size in given.parameters.items() if n in theirs}
            self.truth.columns = columns_of(given.parameters, common)
            parts = [np.asarray(each.gradient, np.float64) for each in pilot]
            rows = np.concatenate(parts)[:, self.truth.columns]
            mean = rows.mean(0)
            self._directed(mean, common)
            # Without what the draws' noise adds to its norm.
            squared = max(mean @ mean - rows.var(0).sum() / len(rows), 0.0)
            self.gradient = mean * math.sqrt(squared / max(mean @ mean, 1e-300))
            self.truth.directions = self.own.directions
            pilot = []  # what chose the directions would favor its own
        for each in pilot:
            self.truth.keep(each)

    def _directed(self, gradient: np.ndarray, sizes: Mapping[str, int]) -> None:
        """Take directions by the reference's gradient, of parameters of these sizes."""
        self.gradient = gradient
        self.own.columns = columns_of(self.own.program.parameters, sizes)
        self.direction_names, self.own.directions = directions(gradient, sizes, self.test.seed)

    def deadline(self, part: float = 1.0) -> float:
        return self.started + part * self.test.max_seconds

    def report(self) -> Report:
        test, most, late = self.test, self.test.max_draws, (1 - EARLY) * self.test.level
        self._extend(min(PILOT, most))
        report = self._report(EARLY * test.level)
        if report.biased:
            return report
        for _ in range(ROUNDS):
            wanted = self._wanted(self._report(late))
            enough = math.isinf(wanted) or min(wanted, most) <= self.own.count
            if enough or time.perf_counter() > self.deadline():
                break
            self._extend(math.ceil(min(wanted, GROWTH * self.own.count, most)))
        report = self._report(late)
        return replace(report, advice=self._advice(report))

    def _wanted(self, report: Report) -> float:
        """How many draws it takes, as far as these tell, whatever their means; infinite if no
        number will do, as an error stays that does not fall with it.
        """
        if any(comparison.doubtful for comparison in report.comparisons):
            return ENOUGH
        own, known = self._moments()
        fixed = known.rounding**2 if self.truth else known.squared_error
        stays, wide = np.sqrt(fixed + own.rounding**2), 0.0
        for comparison, error in zip(report.comparisons, stays):
            found = comparison.detectable(self.test.power)
            if error / comparison.error * found > comparison.allowed:
                return math.inf
            tails = FEWEST / max(comparison.effective, 1e-9)
            wide = max(wide, (found / comparison.allowed) ** 2, tails)
        return RESERVE * wide * self.own.count if wide > 1 else 0

    def _extend(self, count: int) -> None:
        for sampler in (self.own, self.truth):
            if sampler:
                sampler.extend(count, self.deadline())

    def _moments(self) -> tuple[Moments, Moments]:
        return self.own.moments(), self.truth.moments() if self.truth else self.known

    def _report(self, level: float) -> Report:
        own, known = self._moments()
        values = len(self.names)
        lengths: Any = ()
        if self.gradient is not None:
            lengths = _length(self.gradient, self.own.table[:, values:])
        allowed = self.test.allowed(float(known.mean[0]), values, lengths)
        comparisons = compared(self.columns, own, known, allowed, level)
        seconds = time.perf_counter() - self.started
        return Report(comparisons, self.test.level, self.test.power, seconds)

    def _advice(self, report: Report) -> str:
        if report.verdict != "undecided":
            return ""
        count = self._wanted(report)
        if math.isinf(count):
            return (
                "no number of draws decides: the reference's error or the rounding is too large; "
                "allow a larger bias, or compute in double precision"
            )
        seconds = count * self.own.seconds / max(self.own.count, 1)
        return (
            f"it takes about {count:,.0f} draws, {seconds:,.0f} s: give max_seconds and max_draws, "
            "allow a larger bias, or average several particles side by side "
            "(vectorize_particles=True), whose mean is as unbiased and less noisy"
        )


def as_reference(reference: Any) -> Exact | Program:
    """:raises ValueError: if it is no reference."""
    if isinstance(reference, (Exact, Program)):
        return reference
    if isinstance(reference, tuple) and len(reference) == 2:
        value, gradient = reference
        named = gradient if isinstance(gradient, Mapping) else {GRADIENT: np.asarray(gradient)}
        return Exact(float(value), named)
    if callable(reference):
        return as_program(reference)
    try:
        return Exact(float(reference))
    except (TypeError, ValueError):
        raise ValueError(
            "reference must be a number, (number, gradient), an Exact or a program that is known "
            f"to be right, got {reference!r}"
        ) from None


def _of_arrays(
    names: tuple[str, ...], own: Moments, exact: np.ndarray, allowed: np.ndarray, test: _Test
) -> Report:
    known = Moments.exact(exact, np.zeros_like(exact))
    return Report(compared(names, own, known, allowed, test.level), test.level, test.power)


def _table(draws: Any, dims: int) -> np.ndarray:
    """``[n, columns]`` in double precision."""
    values = np.asarray(draws)
    if values.ndim != dims or len(values) < 2:
        form = "[n]" if dims == 1 else "[n, P]"
        raise ValueError(f"draws must be {form} with at least two of them, got {values.shape}")
    return values.reshape(len(values), -1).astype(np.float64)
