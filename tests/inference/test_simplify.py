"""Recorded programs with fewer operations: what goes, and what has to stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from inference.training.recording import record

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3)


def operations(function: Callable[..., object], *examples: Tensor) -> list[str]:
    """Names of what is left of a function, whose results must be the same to the last bit."""
    program = record(lambda *given: _listed(function(*given)), examples)
    one, other = ([each.clone() for each in examples] for _ in range(2))
    torch.manual_seed(0)
    expected = function(*one)
    torch.manual_seed(0)
    for a, b in zip(
        [*_listed(expected), *one], [*_listed(program.run(*other)), *other], strict=True
    ):
        assert torch.equal(a, b)
    *nodes, output = program.graph.nodes
    own = {n for n in output.args[0] if n.target is aten.clone.default}  # results are no arguments
    return [n.target.__name__ for n in nodes if n.op == "call_function" and n not in own]


def _listed(results: object) -> Sequence[Tensor]:
    return results if isinstance(results, list | tuple) else [results]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x * torch.ones(3).select(0, 1).clamp(min=0.1), []),
        (lambda x: x * torch.full((3,), 2.0).log(), ["mul.Tensor"]),
        (lambda x: (x.t().t() + 1, (x + 1).detach()), ["add.Tensor"]),
        (lambda x: torch.ones_like(x.exp()) / 4, []),
        (lambda x: x.clone() + x.clone(), ["add.Tensor"]),
        (lambda x: (torch.randn(3), x)[1] + torch.randn(3), ["randn.default"] * 2 + ["add.Tensor"]),
    ],
    ids=["weight of one", "constant", "twice", "filled", "copies", "draws"],
)
def test_what_is_left(function: Callable[[Tensor], object], left: list[str]) -> None:
    assert operations(function, X) == left


def changed_between(x: Tensor) -> tuple[Tensor, Tensor]:
    before = x * 1
    x.add_(1)
    return before, x * 1


def changed_through_a_view(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 0.5
    first = y.exp()
    y.view(-1)[0] = 7.0
    return first, y.exp(), y.clone()


def changed_constant(x: Tensor) -> Tensor:
    total = torch.ones(2)
    total.select(0, 1).add_(x.sum())
    return total.log()


@pytest.mark.parametrize(
    "function",
    [changed_between, changed_through_a_view, changed_constant],
    ids=lambda function: function.__name__,
)
def test_what_changes_in_place_stays(function: Callable[[Tensor], object]) -> None:
    """Where the value before the change and the one after it must not be taken for one another;
    :func:`operations` compares the results.
    """
    assert len(operations(function, X)) >= 3
