"""Is an estimator unbiased, in value and gradient? As many draws as it takes to say so."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elbocheck.arguments import check_between, check_count, check_positive
from elbocheck.comparisons import ENOUGH, FEWEST, Comparison, Moments, compared
from elbocheck.programs import (
    GRADIENT,
    Draws,
    Exact,
    Program,
    Sampler,
    as_program,
    columns_of,
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
    bias: float
    relative_bias: float
    gradient_bias: float
    level: float
    power: float
    max_seconds: float
    max_draws: int
    seed: int

    def allowed(self, value: float, names: Sequence[str], length: float, count: int) -> np.ndarray:
        """The biases that are to be found, of values and then of the gradient's directions."""
        own = self.bias + self.relative_bias * abs(value)
        directions = count - len(names)
        return np.array([own] * len(names) + [self.gradient_bias * length] * directions)


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
    for name, value in (("bias", bias), ("gradient_bias", gradient_bias)):
        check_positive(name, value)
    check_positive("max_seconds", max_seconds)
    check_between("relative_bias", relative_bias, 0, math.inf, closed=True)
    check_between("level", level, 0, 1)
    check_between("power", power, 0, 1)
    check_count("max_draws", max_draws)
    test = _Test(
        bias, relative_bias, gradient_bias, level, power, max_seconds, max_draws, check_seed(seed)
    )
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
    values = _table(draws, 1)
    test = _of_arrays(bias, relative_bias, 1.0, level, power)
    allowed = test.allowed(float(exact), (name,), 0.0, 1)
    return _of(values, _epsilon(draws), (name,), np.array([float(exact)]), allowed, test)


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
    along, test = table @ vectors.T, _of_arrays(1.0, 0.0, gradient_bias, level, power)
    length = np.array(_length(truth, along))
    allowed = test.allowed(0.0, (), 1.0, len(names)) * length
    return _of(along, _epsilon(draws), names, vectors @ truth, allowed, test)


def check_seed(seed: Any) -> int:
    return check_count("seed", seed, least=0)


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
        start = 0
        for name, size in parameters.items():
            part = np.zeros_like(gradient)
            part[start : start + size] = gradient[start : start + size]
            start += size
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
        self.mean = np.array([given.value] * len(self.names))
        if has and given.gradient:
            gradient = flattened(given.gradient)
            self._directed(gradient, {name: np.size(of) for name, of in given.gradient.items()})
            vectors = self.own.directions
            assert vectors is not None
            self.mean = np.concatenate([self.mean, vectors @ gradient])
            wrong = flattened(given.gradient_error or {n: 0 * g for n, g in given.gradient.items()})
            errors = np.concatenate([errors, np.abs(vectors) @ np.abs(wrong)])
        self.error = errors

    def _drawn_reference(self, given: Program, has: bool) -> None:
        self.truth = Sampler(given, self.test.seed + 1, has)
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
            self.truth.keep(self._named(each))

    def _named(self, draws: Draws) -> Draws:
        """A reference's draws, whose value is what all values of the program are to have."""
        value = next(iter(draws.values.values()))
        return draws._replace(values={name: value for name in self.names})

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
        return replace(report, level=test.level, advice=self._advice(report))

    def _wanted(self, report: Report) -> float:
        """How many draws it takes, as far as these tell, whatever their means; infinite if no
        number will do, as an error stays that does not fall with it.
        """
        if any(comparison.doubtful for comparison in report.comparisons):
            return ENOUGH
        own, known = self._moments()
        fixed = known.squared_error if self.truth is None else known.rounding**2
        stays, wide = np.sqrt(fixed + own.rounding**2), 0.0
        for comparison, error in zip(report.comparisons, stays):
            found = comparison.detectable(self.test.power)
            if error / comparison.error * found > comparison.allowed:
                return math.inf
            tails = FEWEST / max(comparison.effective, 1e-9)
            wide = max(wide, (found / comparison.allowed) ** 2, tails)
        return RESERVE * wide * self.own.count if wide > 1 else 0

    def _extend(self, count: int) -> None:
        self.own.extend(count, self.deadline())
        if self.truth is not None:
            while self.truth.count < count and (
                time.perf_counter() < self.deadline() or self.truth.count < 2
            ):
                self.truth.keep(self._named(self.truth.next(count - self.truth.count)))

    def _moments(self) -> tuple[Moments, Moments]:
        if self.truth is None:
            return self.own.moments(), Moments.exact(self.mean, self.error)
        return self.own.moments(), self.truth.moments()

    def _allowed(self, known: Moments) -> np.ndarray:
        """The biases that are to be found."""
        values, rest = len(self.names), len(self.direction_names)
        allowed = self.test.allowed(float(known.mean[0]), self.names, 1.0, values + rest)
        if self.gradient is not None:
            allowed[values:] *= _length(self.gradient, self.own.table[:, values:])
        return allowed

    def _report(self, level: float) -> Report:
        own, known = self._moments()
        comparisons = compared(self.columns, own, known, self._allowed(known), level)
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
    bias: float, relative_bias: float, gradient_bias: float, level: float, power: float
) -> _Test:
    check_positive("bias", bias)
    check_positive("gradient_bias", gradient_bias)
    check_between("relative_bias", relative_bias, 0, math.inf, closed=True)
    check_between("level", level, 0, 1)
    check_between("power", power, 0, 1)
    return _Test(bias, relative_bias, gradient_bias, level, power, math.inf, 1, 0)


def _of(
    table: np.ndarray, epsilon: float, names: tuple[str, ...], exact: np.ndarray,
    allowed: np.ndarray, test: _Test,
) -> Report:  # fmt: skip
    known = Moments.exact(exact, np.zeros_like(exact))
    own = Moments.of(table, epsilon)
    comparisons: tuple[Comparison, ...] = compared(names, own, known, allowed, test.level)
    return Report(comparisons, test.level, test.power)


def _table(draws: Any, dims: int) -> np.ndarray:
    """``[n, columns]`` in double precision."""
    values = np.asarray(draws)
    if values.ndim != dims or len(values) < 2:
        form = "[n]" if dims == 1 else "[n, P]"
        raise ValueError(f"draws must be {form} with at least two of them, got {values.shape}")
    return values.reshape(len(values), -1).astype(np.float64)


def _epsilon(draws: Any) -> float:
    kind = np.asarray(draws).dtype
    return float(np.finfo(kind).eps) if kind.kind == "f" else 0.0
