"""Estimators that are PyTorch modules: from a batch to a loss."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from elbocheck import programs
from elbocheck.programs import Draws, Exact

# Rows to pass through a module at once: enough to keep the device busy, few enough for its memory.
ROWS = 16_384


class Program(programs.Program):
    """A module's loss, and its gradient by the parameters that require one.

    Draws are computed side by side (``torch.vmap``), in evaluation mode; the random state and the
    parameters' gradients stay as they were.

    :param loss: returns a scalar.
    :param inputs: of its ``forward``, as are ``named``.
    :param side_by_side: whether draws can be mapped over; a module that reads values back cannot.

    Example:
        >>> import torch
        >>> from elbocheck import check
        >>> from elbocheck.pytorch import Program
        >>> class Squared(torch.nn.Module):  # the mean of the square of N(m, 1)
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.m = torch.nn.Parameter(torch.tensor(2.0))
        ...     def forward(self, noise):
        ...         return (self.m + torch.randn_like(noise)).square().mean()
        >>> program = Program(Squared(), torch.zeros(1000))
        >>> check(program, (5.0, {"m": 4.0})).verdict
        'unbiased'
    """

    def __init__(
        self, loss: nn.Module, *inputs: Any, side_by_side: bool = True, **named: Any
    ) -> None:
        if not isinstance(loss, nn.Module):
            raise ValueError(f"the loss must be a module, got {loss!r}")
        self.loss, self.inputs, self.named = loss, inputs, named
        self.side_by_side = side_by_side
        self.learning = {n: p for n, p in loss.named_parameters() if p.requires_grad}
        self.parameters = {name: p.numel() for name, p in self.learning.items()}

    def draw(self, num_draws: int, seed: int, gradient: bool = True) -> Draws:
        values = {name: p.detach() for name, p in self.learning.items()}

        def one(_: Any) -> tuple[dict[str, Tensor], Tensor]:
            def loss(held: dict[str, Tensor]) -> Tensor:
                return functional_call(self.loss, held, self.inputs, self.named)

            return grad_and_value(loss)(values) if gradient else ({}, loss(values).detach())

        with drawing(seed, self.device, self.loss):
            if self.side_by_side:
                mapped = vmap(one, randomness="different", chunk_size=self.chunk)
                gradients, losses = mapped(torch.empty(num_draws, device=self.device))
            else:
                each = [one(None) for _ in range(num_draws)]
                losses = torch.stack([loss for _, loss in each])
                gradients = {n: torch.stack([g[n] for g, _ in each]) for n in each[0][0]}
        rows = [of.reshape(num_draws, -1) for of in gradients.values()]
        flat = torch.cat(rows, 1) if rows else torch.zeros(num_draws, 0)
        return Draws({"loss": array(losses)}, array(flat) if rows else None)

    @property
    def device(self) -> torch.device:
        return device_of([self.loss], self.inputs, self.named)

    @property
    def chunk(self) -> int:
        """Draws at once."""
        first = next((v for v in self.inputs if isinstance(v, Tensor) and v.dim()), None)
        return max(1, ROWS // max(1, 1 if first is None else len(first)))

    def __repr__(self) -> str:
        return f"Program({type(self.loss).__name__})"


def exact(value: Tensor, loss: nn.Module, error: float = 0.0) -> Exact:
    """A known value that can be differentiated, with its gradient by a module's parameters; those
    that it does not depend on are not compared.
    """
    named = {name: p for name, p in loss.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    found = {n: array(g) for n, g in zip(named, gradients) if g is not None}
    return Exact(float(value.detach()), found, error)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def device_of(programs: Iterable[Any], inputs: tuple, named: Mapping[str, Any]) -> torch.device:
    """Where the first tensor is that the programs are given or have."""
    given = [v for v in (*inputs, *named.values()) if isinstance(v, Tensor)]
    return next(iter([*given, *leaves(programs)]), torch.empty(())).device


def leaves(programs: Iterable[Any]) -> list[Tensor]:
    return [p for part in programs if isinstance(part, nn.Module) for p in part.parameters()]


@contextmanager
def drawing(seed: int, device: torch.device, *modules: Any) -> Iterator[None]:
    """Random numbers from this seed, and modules in evaluation mode; afterwards all is as it was.

    Pyro's checks of values, which read them back, are off if it is imported.
    """
    given = [module for module in modules if isinstance(module, nn.Module)]
    parts = [part for module in given for part in module.modules()]
    training = [part.training for part in parts]
    devices = [device] if device.type == "cuda" else []
    pyro = sys.modules.get("pyro")
    unchecked = pyro.validation_enabled(False) if pyro else nullcontext()
    with torch.random.fork_rng(devices), torch.enable_grad(), unchecked:
        torch.manual_seed(seed)
        for part in parts:
            part.training = False
        try:
            yield
        finally:
            for part, was in zip(parts, training):
                part.training = was
