"""A function of tensors as a recorded program: its operations alone, without the Python between.

The operations are recorded once, by running the function on examples, and simplified without
changing a rounding. The program is then replayed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import Node

from inference.checkpoints.periodic import listening
from inference.randomness import seeded
from inference.training.program import Program, simplify

aten = torch.ops.aten
#: Maps a function's tensors to its results.
TensorFunction = Callable[..., Sequence[Tensor]]

# Of a program against the function that it was recorded from, in single precision.
RELATIVE_ERROR = 1e-2


def recorded(function: TensorFunction, examples: Sequence[Tensor]) -> Program:
    """A function's program, which has the function's results on the examples.

    :raises ValueError: if there is none.
    :raises RuntimeError: if the function reads a tensor's value.
    """
    with seeded(0, examples[0].device):
        program = record(function, examples)
    agrees = agree(function, program.run, examples)
    # On other values as well, by which what was computed from tensors out of sight is found.
    others = [each * 1.25 if each.is_floating_point() else each for each in examples]
    try:
        expected = _outcome(function, others)
    except Exception:  # they may be none that it takes
        expected = None
    if not agrees or (expected is not None and not _alike(expected, _outcome(program.run, others))):
        raise ValueError("it depends on something besides its tensors and random draws")
    return program


def record(function: TensorFunction, examples: Sequence[Tensor]) -> Program:
    """The operations of ``function`` on tensors like ``examples``.

    :raises RuntimeError: if the function reads a tensor's value.
    """
    # It rests on names that PyTorch may move: without them steps run through Pyro.
    from inference.training.tape import Tape

    given = _copies(examples)
    waiting: list[int] = []
    try:  # Ctrl-C is held back, as it can leave PyTorch's modes on for good
        with listening(waiting.append), (tape := Tape(given)):
            results = function(*given)
    finally:
        for number in waiting:
            signal.raise_signal(number)
    tape.graph.output([tape.node(each) for each in results])
    simplify(tape.program)
    _give_no_tensor_twice(tape.program)
    return tape.program


def _give_no_tensor_twice(program: Program) -> None:
    """Results are tensors of their own, which a caller may change."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results: list[Node] = []
    with program.graph.inserting_before(output):
        for each in output.args[0]:
            own = each.op == "call_function" and each not in results
            copied = None if own else program.graph.call_function(aten.clone.default, (each,))
            results.append(copied or each)
    output.args = (results,)


def agree(function: TensorFunction, program: TensorFunction, examples: Sequence[Tensor]) -> bool:
    """Whether a program has a function's results and effects, on equal draws, up to rounding."""
    return _alike(_outcome(function, examples), _outcome(program, examples))


def _outcome(run: TensorFunction, examples: Sequence[Tensor]) -> list[Tensor]:
    """Results, and changes of what was given, as floating-point numbers."""
    given = _copies(examples)
    with seeded(1, examples[0].device):
        found = [_real(each) for each in run(*given)]
    return found + [_real(now) - _real(then) for now, then in zip(given, examples, strict=True)]


def _real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


def _alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(_close, one, other))


def _close(one: Tensor, other: Tensor) -> bool:
    a, b = one.detach(), other.detach()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    apart = (a - b).nan_to_num(0.0, 0.0, 0.0).norm()
    return bool(apart <= RELATIVE_ERROR * a.nan_to_num(0.0, 0.0, 0.0).norm())


def _copies(examples: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As a program may change its tensors, such as running averages."""
    return tuple(tensor.detach().clone() for tensor in examples)
