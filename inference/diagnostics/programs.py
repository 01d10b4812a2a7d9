"""Any Pyro model and guide with an ELBO: draws of the loss and of its gradient.

Nothing global changes: the parameter store, the random streams, Pyro's validation, gradients and
the modules' training mode are afterwards what they were before.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from inference.objectives.direct import Direct_ELBO
from inference.randomness import seeded, undisturbed
from ppl_models.modes import evaluating


@dataclass(frozen=True)
class ElboCall:
    """One model, guide and ELBO with the arguments that they are called with.

    :ivar elbo: an ELBO of Pyro's, any object with its methods, or a function such as SVI takes:
        ``elbo(model, guide, *args, **kwargs)`` returns the loss, which can be differentiated.
    """

    model: Callable
    guide: Callable
    elbo: Any
    args: tuple = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss has a method apart from the one that gives the gradient."""
        return callable(getattr(self.elbo, "loss", None))

    def loss(self) -> float:
        """One draw of the loss, in nats: of ``elbo.loss`` where there is one."""
        with torch.no_grad():
            return _as_float(self._call(self.elbo.loss if self.has_own_loss else self._gradual()))

    def gradient(self, parameters: Mapping[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
        """One draw of the loss that comes with a gradient, and that gradient.

        By ``differentiable_loss`` where the ELBO has it, else by ``loss_and_grads``.
        """
        leaves = list(parameters.values())
        with torch.enable_grad():
            if self._gradual() is None:
                value, gradients = self._collected(leaves)
            else:
                loss = self._call(self._gradual())
                value, gradients = _as_float(loss), list(_derivatives(loss, leaves))
        pairs = zip(parameters.items(), gradients, strict=True)
        return value, {n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs}

    def parameters(self) -> dict[str, Tensor]:
        """Unconstrained parameters by name: of the store, as one run meets them, and of modules."""
        with poutine.trace(param_only=True) as met:
            self.loss() if self.has_own_loss or self._gradual() else self._collected(())
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

    def mappable(self) -> bool:
        """Whether ``torch.vmap`` can map over draws: no parameter is in the store, and the ELBO is
        one of ours. Pyro's own read tensors back to the host.
        """
        modules = isinstance(self.model, nn.Module) and isinstance(self.guide, nn.Module)
        if not (modules and isinstance(self.elbo, Direct_ELBO)):
            return False
        with _Parameters() as asked:
            self.loss()
        return not asked.names

    def device(self) -> torch.device:
        """Where the first tensor is that the program was given or has."""
        given = [v for v in (*self.args, *self.kwargs.values()) if isinstance(v, Tensor)]
        tensors = [*given, *_leaves((self.model, self.guide))]
        return tensors[0].device if tensors else torch.device("cpu")

    def epsilon(self) -> float:
        """The relative rounding of the coarsest log-density of model and guide, which run once."""
        with torch.no_grad():
            guide = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
            replayed = poutine.replay(self.model, trace=guide)
            traces = guide, poutine.trace(replayed).get_trace(*self.args, **self.kwargs)
            for trace in traces:
                trace.compute_log_prob()
        terms = (site.get("log_prob") for trace in traces for site in trace.nodes.values())
        kinds = {t.dtype for t in terms if isinstance(t, Tensor) and t.is_floating_point()}
        return max(torch.finfo(kind).eps for kind in kinds or {torch.get_default_dtype()})

    def _call(self, method: Any) -> Any:
        return method(self.model, self.guide, *self.args, **self.kwargs)

    def _gradual(self) -> Any:
        """The function whose value can be differentiated, if there is one."""
        if hasattr(self.elbo, "differentiable_loss"):
            return self.elbo.differentiable_loss
        if self.has_own_loss and not hasattr(self.elbo, "loss_and_grads"):
            raise ValueError(
                f"{type(self.elbo).__name__} has neither differentiable_loss nor loss_and_grads, "
                "and so no gradient"
            )
        return None if hasattr(self.elbo, "loss_and_grads") else self.elbo

    def _collected(self, leaves: Iterable[Tensor]) -> tuple[float, list[Tensor | None]]:
        with _own_gradients(leaves) as kept:
            value = _as_float(self._call(self.elbo.loss_and_grads))
            return value, [p.grad for p in kept]


class _Parameters(Messenger):
    """Notes which parameters a program asks the store for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def _pyro_param(self, msg: dict) -> None:
        self.names.add(msg["name"])


def is_estimator(elbo: Any) -> bool:
    """Whether it is an ELBO, or has the methods of one."""
    return any(
        callable(getattr(elbo, name, None))
        for name in ("loss", "differentiable_loss", "loss_and_grads")
    )


def check_program(model: Any, guide: Any, elbo: Any, args: tuple, kwargs: Mapping) -> ElboCall:
    """The program, if its parts can be called.

    :raises ValueError: naming the part that cannot.
    """
    for name, part in (("model", model), ("guide", guide)):
        if not callable(part) or isinstance(part, type):
            raise ValueError(f"the {name} must be a function or module, got {part!r}")
    if isinstance(elbo, type) or not (is_estimator(elbo) or callable(elbo)):
        raise ValueError(
            "the ELBO must be an instance such as Trace_ELBO(), or a function of model, guide and "
            f"their arguments that returns the loss, got {elbo!r}"
        )
    # Pyro's ELBOs note the number of plates on themselves.
    return ElboCall(model, guide, copy.copy(elbo), args, kwargs)


@contextmanager
def isolated(*programs: Callable) -> Iterator[None]:
    """Within this context the store, gradients and training mode can change without a trace.

    Modules among ``programs`` are in evaluation mode. Parameters that the store does not have yet
    start from the same values every time, and are gone afterwards.
    """
    store = pyro.get_param_store()
    state = store.get_state()
    known = [*state["params"].values(), *_leaves(programs)]
    with ExitStack() as stack:
        for part in programs:
            if isinstance(part, nn.Module):
                stack.enter_context(evaluating(part))
        stack.enter_context(_own_gradients(known))
        try:
            yield
        finally:
            held = {id(p) for p in known}
            for p in store.get_state()["params"].values():
                if id(p) not in held:
                    p.grad = None
            store.clear()
            store.set_state(state)


@contextmanager
def streams(seed: int, device: torch.device) -> Iterator[None]:
    """Within this context torch, NumPy and Python draw from ``seed``."""
    with undisturbed(), seeded(seed, device):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        yield


@contextmanager
def _own_gradients(leaves: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients start empty inside; afterwards they are what they were."""
    tensors = list(leaves)
    kept = [p.grad for p in tensors]
    for p in tensors:
        p.grad = None
    try:
        yield tensors
    finally:
        for p, gradient in zip(tensors, kept, strict=True):
            p.grad = gradient


def _leaves(programs: Iterable[Any]) -> list[Tensor]:
    return [p for part in programs if isinstance(part, nn.Module) for p in part.parameters()]


def _derivatives(loss: Any, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    if not isinstance(loss, Tensor) or not loss.requires_grad or not leaves:
        return (None,) * len(leaves)
    return torch.autograd.grad(loss, leaves, allow_unused=True)


def _as_float(loss: Any) -> float:
    if isinstance(loss, tuple):
        raise ValueError("the ELBO returns several losses, and a test is about one")
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
