"""A function of tensors as a recorded program: its operations alone, without the Python between.

The operations are recorded once, by running the function on examples, and simplified without
changing a rounding. The program is then replayed.
"""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from inference.randomness import seeded
from inference.training.simplify import has_an_effect, simplify
from inference.training.straight import straight
from ppl_models.networks.dense import use_faster_products

#: Maps a function's tensors to its results.
TensorFunction = Callable[..., Sequence[Tensor]]

# Of a program against the function that it was recorded from, in single precision.
RELATIVE_ERROR = 1e-2
# Functions that change gradients, as PyTorch calls them.
RULES_FOR_GRADIENTS = {"_set_grad_enabled", "data", "detach_", "grad", "register_hook"}


def record(function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> GraphModule:
    """The operations of ``function`` on tensors like ``examples``.

    :raises RuntimeError: if the function reads a tensor's value.
    """
    program = _traced(function, examples)
    simplify(program)
    return program


def with_gradient(
    function: Callable[..., Tensor], learning: int, has: list[bool]
) -> Callable[..., list[Tensor]]:
    """A function that also gives the gradient of the sum of its values.

    :param learning: number of leading tensors to differentiate by.
    :param has: filled with which of these have a gradient; those alone are given.
    """

    def both(*tensors: Tensor) -> list[Tensor]:
        leaves = [each.detach().requires_grad_() for each in tensors[:learning]]
        values = function(*leaves, *tensors[learning:])
        gradients = torch.autograd.grad(values.sum(), leaves, allow_unused=True)
        has[:] = [gradient is not None for gradient in gradients]
        return [values.detach(), *(g for g in laid_out(gradients, leaves) if g is not None)]

    return both


def laid_out(
    gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients in their parameters' memory layouts, which fused optimizers rely on."""
    return [
        g if g is None or g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        for g, p in zip(gradients, parameters, strict=True)
    ]


def shortened(
    function: Callable[..., Tensor], learning: int, examples: Sequence[Tensor]
) -> GraphModule:
    """The function's operations, those that it repeats once, to take gradients through.

    :param learning: number of leading tensors to differentiate by.
    :raises ValueError: if the function has rules of its own for gradients that its operations do
        not show, such as ``torch.no_grad()`` or an ``autograd.Function``.
    """
    rules = _RulesForGradients()

    def watched(*tensors: Tensor) -> Tensor:
        leaves = [each.requires_grad_() for each in tensors[:learning]]
        with rules:
            values = function(*leaves, *tensors[learning:])
        rules.check(values.grad_fn)
        return values

    program = _traced(watched, examples)
    _restore_detached(program, rules.detached)
    simplify(program, differentiated=True)
    return program


def replay(program: GraphModule) -> TensorFunction:
    """Run the operations one after the other."""
    program = copy.deepcopy(program)
    use_faster_products(program.graph)
    program.graph.eliminate_dead_code(has_an_effect)
    return straight(program)


def agree(function: TensorFunction, program: TensorFunction, examples: Sequence[Tensor]) -> bool:
    """Whether a program has a function's results and effects, on equal draws, up to rounding."""
    results = []
    for run in (function, program):
        given = _copies(examples)
        with seeded(1, examples[0].device):
            found = [each.double() for each in run(*given)]
        changes = [now.double() - then.double() for now, then in zip(given, examples, strict=True)]
        results.append([*found, *changes])
    if len(results[0]) != len(results[1]):
        return False
    return all(_close(one, other) for one, other in zip(*results, strict=True))


def _restore_detached(program: GraphModule, number: int) -> None:
    """Let a program stop gradients where its function does: PyTorch from 2.14 on records an alias.

    :param number: how often the function does.
    :raises ValueError: if it cannot be told where.
    """
    aten = torch.ops.aten
    nodes = partial(program.graph.find_nodes, op="call_function")
    if len(nodes(target=aten.detach.default)) >= number:
        return
    # The others are what PyTorch keeps for gradients of its own, which a program takes anew.
    if len(aliases := [node for node in nodes(target=aten.alias.default) if node.users]) != number:
        raise ValueError("it stops gradients where they cannot be told")
    for node in aliases:
        node.target = aten.detach.default


class _RulesForGradients(TorchFunctionMode):
    """Within this context a function must not change gradients, but by ``detach()``.

    :ivar detached: calls of ``detach()``.
    """

    detached = 0

    def check(self, last: Any) -> None:
        """:raises ValueError: if there is an ``autograd.Function`` behind a result."""
        seen, waiting = {None}, [last]
        while waiting:
            if (node := waiting.pop()) not in seen:
                seen.add(node)
                waiting += [before for before, _ in node.next_functions]
                if isinstance(node, torch.autograd.function.BackwardCFunction):
                    raise ValueError(
                        f"it has a rule of its own for gradients ({type(node).__name__})"
                    )

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if function == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            name = "data"
        self.detached += name == "detach"
        starts = name == "_set_grad_enabled" and arguments[0]  # gradients are taken anyway
        if name in RULES_FOR_GRADIENTS and not starts:
            raise ValueError(f"it has a rule of its own for gradients ({name})")
        return function(*arguments, **(options or {}))


def _traced(function: Callable[..., object], examples: Sequence[Tensor]) -> GraphModule:
    """In one mode for all shapes: with one for each operation it takes twice the time."""
    # PyTorch may move them: without them steps run through Pyro.
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    modes = TracingContext(FakeTensorMode(allow_fallback_kernels=True))
    with _without_interrupts(), tracing(modes):
        return make_fx(function)(*_copies(examples))


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the end: within PyTorch's tracing it can leave modes on for good."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[Any] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(*waiting[-1])


def _close(one: Tensor, other: Tensor) -> bool:
    a, b = one.detach(), other.detach()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    apart = (a - b).nan_to_num(0.0, 0.0, 0.0).norm()
    return bool(apart <= RELATIVE_ERROR * a.nan_to_num(0.0, 0.0, 0.0).norm())


def _copies(examples: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As a program may change its tensors, such as running averages."""
    return tuple(tensor.detach().clone() for tensor in examples)
