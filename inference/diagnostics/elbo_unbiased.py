"""One call that tests the value and the gradient of any ELBO estimator, with a stated power."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from scipy.stats import norm
from torch import Tensor

from inference.diagnostics.directions import Directions, flattened
from inference.diagnostics.enumeration import exact_elbo
from inference.diagnostics.programs import (
    ElboCall,
    check_program,
    is_estimator,
    isolated,
    streams,
)
from inference.diagnostics.sampling import (
    PILOT,
    ROUNDING,
    Known,
    Sampled,
    Statistics,
    settle,
)
from ppl_models.given.checks import check_positive, check_seed, check_size, number

__all__ = ["Comparison", "ElboReport", "assert_elbo_unbiased"]

# Quadrature points a dimension of the exact reference, and fewer of them, whose difference is
# taken for its error.
POINTS, FEWER_POINTS = 20, 15


@dataclass(frozen=True)
class Comparison:
    """One number of the estimator against the reference.

    :ivar name: what is compared.
    :ivar estimate: mean over the draws: of the loss in nats, or of the gradient of the loss along
        a direction of length 1 in the space of unconstrained parameters.
    :ivar reference: what it should be.
    :ivar error: standard error of the difference, the reference's own included.
    :ivar detectable: the bias that would have been found with the report's power.
    :ivar num_draws: of the estimator.
    """

    name: str
    estimate: float
    reference: float
    error: float
    detectable: float
    num_draws: int

    @property
    def z(self) -> float:
        return (self.estimate - self.reference) / self.error

    def __str__(self) -> str:
        return (
            f"{self.name}: estimate {self.estimate:.6g}, reference {self.reference:.6g}, standard "
            f"error {self.error:.2g}, z = {self.z:.1f}; detectable {self.detectable:.2g} "
            f"({self.num_draws:,} draws)"
        )


@dataclass(frozen=True)
class ElboReport:
    """What :func:`assert_elbo_unbiased` compared.

    :ivar comparisons: one for each number that was tested.
    :ivar threshold: the z-score beyond which one of them fails.
    :ivar level: probability that any of them fails for a right estimator, at most.
    :ivar power: probability that a bias of :attr:`Comparison.detectable` is found.
    """

    comparisons: tuple[Comparison, ...]
    threshold: float
    level: float
    power: float

    @property
    def biased(self) -> tuple[Comparison, ...]:
        """The comparisons that fail."""
        return tuple(c for c in self.comparisons if not abs(c.z) <= self.threshold)

    def __str__(self) -> str:
        return "\n".join(map(str, self.comparisons))


@dataclass(frozen=True)
class _Test:
    """What is to be found, how surely, and in which precision."""

    bias: float
    gradient_bias: float
    level: float
    power: float
    max_draws: int
    seed: int
    epsilon: float = torch.finfo(torch.float32).eps

    def threshold(self, count: int) -> float:
        """Bonferroni's, for so many comparisons."""
        return float(norm.isf(self.level / 2 / count))

    def reach(self, count: int) -> float:
        """The bias that is found with the power, in standard errors."""
        return self.threshold(count) + float(norm.isf(1 - self.power))


def assert_elbo_unbiased(
    model: Callable,
    guide: Callable,
    elbo: Any,
    *args: Any,
    reference: Any = None,
    bias: float = 0.1,
    gradient_bias: float = 0.1,
    level: float = 1e-4,
    power: float = 0.99,
    gradient: bool = True,
    max_draws: int = 100_000,
    seed: int = 0,
    **kwargs: Any,
) -> ElboReport:
    """Fail if an estimator of the ELBO of any Pyro model and guide is biased, in value or gradient.

    Compared are, by two-sided z-tests with Bonferroni's correction: the mean of ``elbo.loss``; the
    mean of the loss that comes with the gradient (``differentiable_loss``, or ``loss_and_grads``
    where there is none); and the mean gradient along the reference's direction, along the
    reference's direction within each parameter, and along four random ones. A pilot gives the
    number of draws with which a bias of ``bias`` nats, and of ``gradient_bias`` times the norm of
    the reference's gradient along any of these directions, is found with probability ``power``.

    Gradients are by unconstrained parameters, those that the reference depends on: the parameters
    of a learned baseline are not among them. Bias in the optimization of these is not seen.

    The parameter store, random streams, gradients and validation are left as they were; modules
    run in evaluation mode. Parameters that the store does not have start from their initial values.

    >>> import torch
    >>> import pyro, pyro.distributions as dist
    >>> from pyro.infer import Trace_ELBO
    >>> def model(x):
    ...     z = pyro.sample("z", dist.Normal(0.0, 1.0))
    ...     pyro.sample("x", dist.Normal(z, 1.0), obs=x)
    >>> def guide(x):
    ...     loc = pyro.param("loc", torch.tensor(0.0))
    ...     pyro.sample("z", dist.Normal(loc, 0.7))
    >>> x = torch.tensor(1.0)
    >>> report = assert_elbo_unbiased(model, guide, Trace_ELBO(), x, bias=0.2, gradient_bias=0.4)
    >>> report.biased
    ()

    :param elbo: any of Pyro's ELBOs, an object with their methods, or a function
        ``elbo(model, guide, *args, **kwargs)`` that returns the loss.
    :param args: of model and guide, as are ``kwargs``.
    :param reference: where not given, :func:`exact_elbo`, with an error by its convergence; an
        ELBO known to be right, which is drawn as often as it takes, its error included; or a
        function like :func:`exact_elbo` that returns the exact ELBO.
    :param bias: of the loss, in nats of all data together.
    :param gradient_bias: as a fraction of the norm of the reference's gradient.
    :param level: probability of failing a right estimator.
    :param gradient: whether the gradient is tested too.
    :param max_draws: of the estimator, and of a reference that is drawn.
    :param seed: of the draws and of the random directions.
    :raises ValueError: if a number is out of its range, the exact value is out of reach (see
        :func:`exact_elbo`), a draw is not finite, the gradient is 0 within its noise, rounding is
        too large, or more than ``max_draws`` draws are needed.
    :raises AssertionError: if the estimator is biased; with estimate, reference, standard error,
        z-score and what could have been found.
    """
    test = _checked(_Test(bias, gradient_bias, level, power, max_draws, seed))
    program = check_program(model, guide, elbo, args, kwargs)
    with isolated(model, guide):
        with streams(0, program.device()):
            parameters = program.parameters()  # the first run creates them
            test = replace(test, epsilon=program.epsilon())
        with streams(seed, program.device()), pyro.validation_enabled(False):
            report = _compare(program, reference, parameters, test, gradient)
    if report.biased:
        failed = "\n".join(f"  {comparison}" for comparison in report.biased)
        raise AssertionError(
            f"biased: {len(report.biased)} of {len(report.comparisons)} comparisons are beyond "
            f"z = {report.threshold:.1f}\n{failed}\n(a bias as large as 'detectable' is found with "
            f"probability {power:g}, and a right estimator fails with probability {level:g})"
        )
    return report


@dataclass(frozen=True)
class _Group:
    """Numbers that come from the same draws, and what they should be."""

    names: tuple[str, ...]
    sampled: Sampled
    known: Statistics
    biases: Tensor

    def comparisons(self, reach: float, max_draws: int) -> Iterator[Comparison]:
        """Draw as often as it takes, and compare."""
        settle(self.sampled, self.known, self.biases / reach, max_draws)
        errors = (self.sampled.squared_error + self.known.squared_error).sqrt()
        rows = zip(self.names, self.sampled.mean, self.known.mean, errors, strict=True)
        for name, *numbers in rows:
            estimate, truth, error = map(float, numbers)
            yield Comparison(name, estimate, truth, error, reach * error, self.sampled.count)


@dataclass(frozen=True)
class _Truth:
    """The reference: its value, and its gradient along some directions.

    :ivar gradient: the loss, and the gradient along each direction.
    :ivar norm: of the whole gradient.
    """

    value: Statistics
    gradient: Statistics | None = None
    directions: Directions | None = None
    norm: float = 0.0


def _compare(
    program: ElboCall, reference: Any, parameters: Mapping[str, Tensor], test: _Test, gradient: bool
) -> ElboReport:
    truth = _truth(program, reference, parameters, test, gradient)
    groups = []
    if program.has_own_loss or not gradient:
        groups.append(_value_group(program, truth, test))
    if truth.directions is not None and truth.gradient is not None:
        groups.append(
            _gradient_group(program, parameters, truth.directions, truth.gradient, truth.norm, test)
        )
    count = sum(len(group.names) for group in groups)
    reach = test.reach(count)
    comparisons = [c for group in groups for c in group.comparisons(reach, test.max_draws)]
    return ElboReport(tuple(comparisons), test.threshold(count), test.level, test.power)


def _truth(
    program: ElboCall, reference: Any, parameters: Mapping[str, Tensor], test: _Test, gradient: bool
) -> _Truth:
    """:raises ValueError: if the reference has no gradient."""
    if is_estimator(reference):
        return _drawn_truth(program, reference, parameters, test, gradient)
    if reference is not None and not callable(reference):
        raise ValueError(
            "reference must be an ELBO, or a function like exact_elbo, or be left out, got "
            f"{reference!r}"
        )
    return _exact_truth(program, reference, parameters, test, gradient)


def _drawn_truth(
    program: ElboCall, elbo: Any, parameters: Mapping[str, Tensor], test: _Test, gradient: bool
) -> _Truth:
    known = check_program(program.model, program.guide, elbo, program.args, dict(program.kwargs))
    value = _loss_of(known, test)
    if not gradient:
        return _Truth(value, None, None, 0.0)
    pilot = [known.gradient(parameters)[1] for _ in range(PILOT)]
    flat = torch.stack([flattened(g, g) for g in pilot])
    noise = float(flat.var(0).sum()) / PILOT
    length = math.sqrt(max(float(flat.mean(0).square().sum()) - noise, 0.0))
    mean = {name: torch.stack([g[name] for g in pilot]).mean(0) for name in parameters}
    mean = {name: g for name, g in mean.items() if bool(g.any())}
    directions = _directions(mean, test)
    drawn = Sampled(_drawer(known, parameters, directions), test.epsilon)
    return _Truth(value, drawn, directions, length)


def _loss_of(program: ElboCall, test: _Test) -> Sampled:
    return Sampled(lambda: torch.tensor([program.loss()], dtype=torch.float64), test.epsilon)


def _exact_truth(
    program: ElboCall,
    reference: Callable | None,
    parameters: Mapping[str, Tensor],
    test: _Test,
    gradient: bool,
) -> _Truth:
    values, gradients = zip(*_exact_losses(program, reference, parameters), strict=True)
    spread = torch.tensor([values[0] - values[-1]], dtype=torch.float64)
    exact = torch.tensor([values[0]], dtype=torch.float64)
    value = Known(exact, spread.square())
    if not gradient:
        return _Truth(value, None, None, 0.0)
    directions = _directions(gradients[0], test)
    rows = [torch.cat([exact, directions.project(g)]) for g in (gradients[0], gradients[-1])]
    along = Known(rows[0], torch.cat([spread, (rows[0] - rows[1])[1:]]).square())
    return _Truth(value, along, directions, float(flattened(gradients[0], gradients[0]).norm()))


def _exact_losses(
    program: ElboCall, reference: Callable | None, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """The loss and its gradient by the reference; the default one once more with fewer points."""
    for points in (POINTS, FEWER_POINTS):
        options = {"points": points} if reference is None else {}
        with torch.enable_grad():
            exact = (reference or exact_elbo)(
                program.model, program.guide, *program.args, **program.kwargs, **options
            )
            yield -float(exact.detach()), _exact_gradient(-exact, parameters)
        if reference is not None:
            return


def _exact_gradient(loss: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not loss.requires_grad or not parameters:
        return {}
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return {name: gradient for name, gradient in pairs if gradient is not None}


def _directions(gradient: Mapping[str, Tensor], test: _Test) -> Directions:
    if not any(bool(g.any()) for g in gradient.values()):
        raise ValueError(
            "the reference's gradient is 0 by every parameter: there is nothing to compare with; "
            "give gradient=False"
        )
    return Directions.of(gradient, test.seed)


def _drawer(
    program: ElboCall, parameters: Mapping[str, Tensor], directions: Directions
) -> Callable[[], Tensor]:
    compared = {name: parameters[name] for name in directions.parameters}

    def draw() -> Tensor:
        loss, gradient = program.gradient(compared)
        return torch.cat([torch.tensor([loss], dtype=torch.float64), directions.project(gradient)])

    return draw


def _value_group(program: ElboCall, truth: _Truth, test: _Test) -> _Group:
    biases = torch.tensor([test.bias], dtype=torch.float64)
    return _Group(("loss",), _loss_of(program, test), truth.value, biases)


def _gradient_group(
    program: ElboCall,
    parameters: Mapping[str, Tensor],
    directions: Directions,
    known: Statistics,
    length: float,
    test: _Test,
) -> _Group:
    if length <= ROUNDING * test.epsilon:
        raise ValueError(
            "the reference's gradient is 0 within its noise: there is nothing to compare with; "
            "move the parameters, or give gradient=False"
        )
    biases = torch.full((1 + len(directions.names),), test.gradient_bias * length)
    biases[0] = test.bias
    sampled = Sampled(_drawer(program, parameters, directions), test.epsilon)
    names = ("loss that comes with the gradient", *directions.names)
    return _Group(names, sampled, known, biases.double())


def _checked(test: _Test) -> _Test:
    check_positive("bias", test.bias)
    check_positive("gradient_bias", test.gradient_bias)
    for name, value in (("level", test.level), ("power", test.power)):
        if not 0 < number(value) < 1:
            raise ValueError(f"{name} must be within (0, 1), got {value!r}")
    check_size("max_draws", test.max_draws)
    check_seed("seed", test.seed)
    return test
