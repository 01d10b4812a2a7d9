"""What is tested: anything that gives draws of a value, and of the gradient that comes with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from elbocheck.comparisons import Moments

# Draws at once, and numbers of their gradients.
MOST, NUMBERS = 1024, 2**22
# Of a gradient that names no parameters.
GRADIENT = "gradient"


class Draws(NamedTuple):
    """Independent draws.

    :ivar values: by name, ``[n]`` each: of whatever is to have the reference's value.
    :ivar gradient: ``[n, P]``, what an optimizer is given; ``None`` if there is none.
    """

    values: Mapping[str, np.ndarray]
    gradient: np.ndarray | None = None


@dataclass(frozen=True)
class Exact:
    """A known value, and its gradient, with the error of each.

    :ivar gradient: arrays by the parameter's name; what it lacks is not compared.
    :ivar error: of the value, if it is known by quadrature.
    :ivar gradient_error: of each entry likewise.
    """

    value: float
    gradient: Mapping[str, np.ndarray] | None = None
    error: float = 0.0
    gradient_error: Mapping[str, np.ndarray] | None = None


class Program:
    """An estimator to test. A subclass gives :meth:`draw`; adapters for Pyro, NumPyro and PyTorch
    are in :mod:`elbocheck.pyro`, :mod:`elbocheck.numpyro` and :mod:`elbocheck.pytorch`.

    :ivar parameters: number of entries by name, in the order of the gradient's.
    """

    parameters: Mapping[str, int] = {}

    def draw(self, num_draws: int, seed: int, gradient: bool = True) -> Draws:
        """So many independent draws, the same for the same seed and number.

        :param gradient: whether their gradients are needed.
        """
        raise NotImplementedError

    def reference(self) -> Exact | Program:
        """What its mean should be, where no reference is given.

        :raises ValueError: if that is not known.
        """
        raise ValueError(
            f"what {self!r} should have as its mean is not known: give reference=, a value, or an "
            "estimator that is known to be right"
        )

    def __repr__(self) -> str:
        return type(self).__name__


@dataclass(repr=False)
class FunctionProgram(Program):
    """A function of a seed, which returns a value, or a value and its gradient: an array, or
    arrays by the parameter's name.
    """

    function: Callable[[int], Any]

    def draw(self, num_draws: int, seed: int, gradient: bool = True) -> Draws:
        seeds = np.random.SeedSequence(seed).generate_state(num_draws)
        results = [self.function(int(each)) for each in seeds]
        if not isinstance(results[0], tuple):
            return Draws({"value": np.array(results)})
        values, gradients = zip(*results)
        if not isinstance(gradients[0], Mapping):
            gradients = tuple({GRADIENT: each} for each in gradients)
        self.parameters = {name: np.size(each) for name, each in gradients[0].items()}
        rows = [np.concatenate([np.ravel(g[n]) for n in self.parameters]) for g in gradients]
        return Draws({"value": np.array(values)}, np.stack(rows))


def columns_of(parameters: Mapping[str, int], names: Mapping[str, int]) -> np.ndarray:
    """Places of some parameters' entries among those of all.

    :param names: the parameters that are asked for, and their sizes.
    :raises ValueError: if one is missing, or of another size.
    """
    start, places = 0, {}
    for name, size in parameters.items():
        places[name] = np.arange(start, start + size)
        start += size
    for name, size in names.items():
        if parameters.get(name) != size:
            raise ValueError(
                f"the reference's gradient has {size} entries of {name!r}, and the program's has "
                f"{dict(parameters)}"
            )
    return np.concatenate([places[name] for name in names])


def flattened(gradient: Mapping[str, np.ndarray]) -> np.ndarray:
    rows = [np.ravel(np.asarray(of, np.float64)) for of in gradient.values()]
    return np.concatenate(rows or [np.zeros(0)])


def epsilon_of(draws: Any) -> float:
    """The precision of floating-point numbers; 0 of integers, which are exact."""
    kind = np.asarray(draws).dtype
    return float(np.finfo(kind).eps) if kind.kind == "f" else 0.0


def as_program(program: Any) -> Program:
    """A program as it is, or one of a function of a seed.

    :raises ValueError: if it is neither.
    """
    if isinstance(program, Program):
        return program
    if callable(program) and not isinstance(program, type):
        return FunctionProgram(program)
    raise ValueError(
        "the program must be an elbocheck Program, such as elbocheck.pyro.Program(model, guide, "
        f"elbo, data), or a function of a seed that returns a draw, got {program!r}"
    )


class Sampler:
    """Draws of a program that are kept as a table of numbers: its values, and its gradient along
    some directions.

    The draws depend on the seed and on nothing else; how many there are may depend on time.

    :param copies: columns of a reference's first value, which all values of a program are to have;
        by default each value has one.
    :ivar columns: the gradient's entries that the directions are of.
    :ivar rows: ``[n, columns]`` in parts.
    :ivar epsilon: of the draws' own precision.
    """

    def __init__(self, program: Program, seed: int, gradient: bool, copies: int = 0) -> None:
        self.program, self.seed, self.gradient, self.copies = program, seed, gradient, copies
        self.directions: np.ndarray | None = None
        self.columns: np.ndarray | slice = slice(None)
        self.rows: list[np.ndarray] = []
        self.count, self.calls = 0, 0
        self.seconds = 0.0
        self.epsilon = 0.0
        self.known: Moments | None = None

    def next(self, most: int) -> Draws:
        """Some draws: few at first, as nobody knows yet how long they take."""
        entries = max(sum(self.program.parameters.values()), 1)
        size = min(2 ** max(self.calls - 1, 0), MOST, max(NUMBERS // entries, 1), most)
        seed = int(np.random.SeedSequence([self.seed, self.calls]).generate_state(1)[0])
        start = time.perf_counter()
        draws = self.program.draw(size, seed, self.gradient)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return draws

    def extend(self, count: int, deadline: float) -> None:
        """Draw until there are ``count``, or until the deadline, by ``time.perf_counter``."""
        while self.count < count and (time.perf_counter() < deadline or self.count < 2):
            self.keep(self.next(count - self.count))

    def keep(self, draws: Draws) -> None:
        columns = [np.asarray(each).reshape(-1, 1) for each in draws.values.values()]
        self.epsilon = max(self.epsilon, epsilon_of(columns[0]))
        columns = columns[:1] * self.copies or columns
        if self.directions is not None and draws.gradient is not None:
            gradient = np.asarray(draws.gradient)[:, self.columns].astype(np.float64)
            columns.append(gradient @ self.directions.T)
        self.rows.append(np.concatenate([each.astype(np.float64) for each in columns], 1))
        self.count += len(self.rows[-1])

    def moments(self) -> Moments:
        """Of all draws so far."""
        if self.known is None or self.known.count != self.count:
            self.known = Moments.of(self.table, self.epsilon)
        return self.known

    @property
    def table(self) -> np.ndarray:
        if len(self.rows) > 1:
            self.rows = [np.concatenate(self.rows)]
        return self.rows[0]
