"""A function of tensors as a recorded program: its operations alone, without the Python between.

The operations are recorded once, by running the function on examples, and simplified without
changing a rounding. The program is then replayed by the fastest executor that can run it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from inference.randomness import seeded
from inference.training.in_place import reuse_memory
from inference.training.products import use_faster_products
from inference.training.simplify import has_an_effect, simplify
from inference.training.torchscript import torchscript

__all__ = [
    "Program",
    "agree",
    "inductor",
    "laid_out",
    "record",
    "replay",
    "shortened",
    "with_gradient",
]

#: Maps a function's tensors to its results.
Program = Callable[..., Sequence[Tensor]]

# Of a program against the function that it was recorded from, in single precision.
RELATIVE_ERROR = 1e-2


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
    """Gradients in their parameters' memory layouts, which fused optimisers rely on."""
    return [
        g if g is None or g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        for g, p in zip(gradients, parameters, strict=True)
    ]


def shortened(function: Callable[..., Tensor], examples: Sequence[Tensor]) -> GraphModule:
    """The function's operations, those that it repeats once, to take gradients through.

    Its own rules for gradients are not seen, such as ``torch.no_grad()`` or an
    ``autograd.Function``: compare gradients with the function's.
    """
    program = _traced(function, examples)
    simplify(program, differentiated=True)
    return program


def replay(program: GraphModule, examples: Sequence[Tensor]) -> Program:
    """Run the operations one after the other: in C++ if TorchScript can, else from Python."""
    program = copy.deepcopy(program)
    use_faster_products(program.graph)
    program.graph.eliminate_dead_code(has_an_effect)
    reuse_memory(program.graph)
    program.recompile()
    try:
        script = torchscript(program)
        return script if agree(program, script, examples) else program
    except RuntimeError:  # an operation with arguments that TorchScript does not have
        return program


def inductor(program: GraphModule, examples: Sequence[Tensor]) -> Program:
    """Compile the operations into fused loops, which takes from seconds to a minute.

    :raises Exception: if there is no compiler.
    """
    compiled = torch.compile(program, options={"fallback_random": True})
    compiled(*_copies(examples))
    return compiled


def agree(function: Program, program: Program, examples: Sequence[Tensor]) -> bool:
    """Whether a program has a function's results, and changes its tensors alike, on one random
    stream, up to rounding.
    """
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


def _traced(function: Callable[..., object], examples: Sequence[Tensor]) -> GraphModule:
    """Shapes of all results in one mode: ``make_fx`` would make one for each operation, which takes
    more than half of its time.
    """
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        return make_fx(function)(*_copies(examples))


def _close(one: Tensor, other: Tensor) -> bool:
    a, b = one.detach(), other.detach()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    apart = (a - b).nan_to_num(0.0, 0.0, 0.0).norm()
    return bool(apart <= RELATIVE_ERROR * a.nan_to_num(0.0, 0.0, 0.0).norm())


def _copies(examples: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As a program may change its tensors, such as running averages."""
    return tuple(tensor.detach().clone() for tensor in examples)
