"""Draws of the loss, and of the gradient that SVI gives its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer import RenyiELBO
from torch import Tensor, nn

from elbocheck import programs
from elbocheck.programs import Draws, Exact, flattened
from elbocheck.pyro.exact import exact_bound, exact_elbo
from elbocheck.pyro.isolation import isolated, own_gradients
from elbocheck.pytorch import array, device_of

# Quadrature points a dimension of the exact reference, and more of them where these are too few.
FEWEST_POINTS, MORE_POINTS = 10, (20, 60)
# Of a value or gradient, at most: its error by quadrature.
CONVERGED = 1e-3
LOSS, OWN = "loss", "loss that comes with the gradient"


class Program(programs.Program):
    """A Pyro model and guide with an ELBO, and the arguments that they are called with.

    A draw has two values, which are to be the same in the mean: of ``elbo.loss``, where there is
    one, and of what comes with the gradient. The gradient is by unconstrained parameters, those of
    the store, as one run meets them, and those of modules; it is that of ``loss_and_grads``, which
    SVI gives its optimizer, or where there is none of ``differentiable_loss`` or of a function.

    Losses are in the ELBO's unit, nats of all data together for Pyro's. The parameter store, random
    streams, gradients and validation are left as they were; modules run in evaluation mode.
    Parameters that the store does not have start from their initial values.

    :param elbo: any of Pyro's ELBOs, an object with their methods, or a function
        ``elbo(model, guide, *args, **kwargs)`` that returns the loss, such as SVI takes.
    :param inputs: of model and guide, as are ``named``.
    :raises ValueError: if a part cannot be called.

    Example:
        >>> import torch
        >>> import pyro, pyro.distributions as dist
        >>> from pyro.infer import Trace_ELBO
        >>> from elbocheck import check
        >>> from elbocheck.pyro import Program
        >>> def model(x):
        ...     z = pyro.sample("z", dist.Normal(0.0, 1.0))
        ...     pyro.sample("x", dist.Normal(z, 1.0), obs=x)
        >>> def guide(x):
        ...     loc = pyro.param("loc", torch.tensor(0.0))
        ...     pyro.sample("z", dist.Normal(loc, 0.7))
        >>> program = Program(model, guide, Trace_ELBO(), torch.tensor(1.0))
        >>> check(program, bias=0.2, gradient_bias=0.4).verdict
        'unbiased'
    """

    def __init__(
        self, model: Callable, guide: Callable, elbo: Any, *inputs: Any, **named: Any
    ) -> None:
        check_callable(model=model, guide=guide)
        if isinstance(elbo, type) or not (_is_estimator(elbo) or callable(elbo)):
            raise ValueError(
                "the ELBO must be an instance such as Trace_ELBO(), or a function of model, guide "
                f"and their arguments that returns the loss, got {elbo!r}"
            )
        self.model, self.guide = model, guide
        self.elbo = copy.copy(elbo)  # Pyro's ELBOs note the number of plates on themselves
        self.inputs, self.named = inputs, named
        self.device = device_of((model, guide), inputs, named)
        with isolated(0, self.device, model, guide):
            self.kind = self._kind()  # first, as some guides are set up by their first run
            self.parameters = {name: p.numel() for name, p in self._leaves().items()}

    def draw(self, num_draws: int, seed: int, gradient: bool = True) -> Draws:
        separate = callable(getattr(self.elbo, "loss", None))
        values: dict[str, list[float]] = {LOSS: []} if separate else {}
        values |= {} if separate and not gradient else {OWN: []}
        rows = []
        with isolated(0, self.device, self.model, self.guide):
            held = self._leaves()  # new parameters of the store start from the same values
            with isolated(seed, self.device, self.model, self.guide):
                for _ in range(num_draws):
                    if separate:
                        with torch.no_grad():
                            values[LOSS].append(_as_float(self._call(self.elbo.loss)))
                    if OWN in values:
                        value, row = self._gradient(list(held.values()))
                        values[OWN].append(value)
                        rows.append(row)
        found = {name: np.array(of, self.kind) for name, of in values.items()}
        return Draws(found, np.stack(rows) if rows and self.parameters else None)

    def reference(self) -> Exact:
        """The exact ELBO, or for :class:`pyro.infer.RenyiELBO` its own bound.

        :raises ValueError: if it is out of reach; see :func:`exact_elbo`.
        """
        found = self._exact(FEWEST_POINTS)
        for points in MORE_POINTS:
            if _converged(found):
                break
            try:
                found = self._exact(points)
            except ValueError:  # too many
                break
        return found

    def _exact(self, points: int) -> Exact:
        """By so many points a dimension; the difference to fewer of them is taken for the error."""
        pairs = []
        for number in (points, points - points // 4):
            with isolated(0, self.device, self.model, self.guide):
                held = self._leaves()
                bound, options = exact_elbo, {**self.named, "points": number}
                if isinstance(self.elbo, RenyiELBO):
                    bound = exact_bound
                    options |= {"alpha": self.elbo.alpha, "num_particles": self.elbo.num_particles}
                found = bound(self.model, self.guide, *self.inputs, **options)
                pairs.append((-float(found.detach()), _gradient_of(-found, held)))
        (value, gradient), (coarse, other) = pairs
        apart = {name: np.abs(of - other[name]) for name, of in gradient.items()}
        return Exact(value, gradient, abs(value - coarse), apart)

    def __repr__(self) -> str:
        return f"Program of {type(self.elbo).__name__}"

    def _call(self, method: Any) -> Any:
        return method(self.model, self.guide, *self.inputs, **self.named)

    def _gradient(self, held: list[Tensor]) -> tuple[float, np.ndarray]:
        """One draw of what SVI takes."""
        steps = getattr(self.elbo, "loss_and_grads", None)
        with torch.enable_grad():
            if callable(steps):
                with own_gradients(held) as kept:
                    value = _as_float(self._call(steps))
                    found = [p.grad for p in kept]
            else:
                loss = self._call(getattr(self.elbo, "differentiable_loss", self.elbo))
                value, found = _as_float(loss), _derivatives(loss, held)
        given = [torch.zeros_like(p) if g is None else g for p, g in zip(held, found)]
        return value, np.concatenate([array(g).ravel() for g in given] or [np.zeros(0)])

    def _leaves(self) -> dict[str, Tensor]:
        """Unconstrained parameters by name: of the store, as one run meets them, and of modules."""
        with poutine.trace(param_only=True) as met:
            if callable(getattr(self.elbo, "loss", None)):
                with torch.no_grad():
                    self._call(self.elbo.loss)
            else:
                self._gradient([])
        store = pyro.get_param_store()
        named = {name: site["value"].unconstrained() for name, site in met.trace.nodes.items()}
        stored = {name: p for name, p in named.items() if name in store}
        # Whatever has no name in the store goes by its module's, or by what its site is called.
        found: dict[int, tuple[str, Tensor]] = {}
        for parameters in (stored, self._of_modules(), named):
            for name, p in parameters.items():
                found.setdefault(id(p), (name, p))
        return {name: p for name, p in found.values() if p.requires_grad}

    def _of_modules(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}": p
            for prefix, part in (("model", self.model), ("guide", self.guide))
            if isinstance(part, nn.Module)
            for name, p in part.named_parameters()
        }

    def _kind(self) -> Any:
        """The precision of the coarsest log-density of model and guide, which run once."""
        with torch.no_grad():
            guide = poutine.trace(self.guide).get_trace(*self.inputs, **self.named)
            replayed = poutine.replay(self.model, trace=guide)
            try:
                traces = guide, poutine.trace(replayed).get_trace(*self.inputs, **self.named)
                for trace in traces:
                    trace.compute_log_prob()
            except (RuntimeError, ValueError):  # of a program that runs under its ELBO alone
                return np.float32
        terms = (site.get("log_prob") for trace in traces for site in trace.nodes.values())
        kinds = {t.dtype for t in terms if isinstance(t, Tensor) and t.is_floating_point()}
        widest = max((torch.finfo(kind).eps for kind in kinds), default=0.0)
        return np.float64 if kinds and widest < 1e-10 else np.float32


def _converged(found: Exact) -> bool:
    gradient, apart = (flattened(of or {}) for of in (found.gradient, found.gradient_error))
    size = CONVERGED * (1 + float(np.linalg.norm(gradient)))
    return found.error <= CONVERGED * (1 + abs(found.value)) and bool((apart <= size).all())


def check_callable(**parts: Any) -> None:
    """:raises ValueError: naming the part that cannot be called."""
    for name, part in parts.items():
        if not callable(part) or isinstance(part, type):
            raise ValueError(f"the {name} must be a function or module, got {part!r}")


def _is_estimator(elbo: Any) -> bool:
    names = ("differentiable_loss", "loss_and_grads")
    if any(callable(getattr(elbo, name, None)) for name in names):
        return True
    if callable(getattr(elbo, "loss", None)):
        raise ValueError(
            f"{type(elbo).__name__} has neither differentiable_loss nor loss_and_grads, and so no "
            "gradient"
        )
    return False


def _gradient_of(loss: Tensor, held: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Of the parameters that the loss depends on."""
    pairs = zip(held.items(), _derivatives(loss, list(held.values())))
    return {name: array(g).astype(np.float64) for (name, _), g in pairs if g is not None}


def _derivatives(loss: Any, held: list[Tensor]) -> list[Tensor | None]:
    if not isinstance(loss, Tensor) or not loss.requires_grad or not held:
        return [None] * len(held)
    return list(torch.autograd.grad(loss, held, allow_unused=True))


def _as_float(loss: Any) -> float:
    if isinstance(loss, tuple):
        raise ValueError("the ELBO returns several losses, and a test is about one")
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
