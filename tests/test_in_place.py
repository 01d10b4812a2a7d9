"""Recorded programs that write over what is not needed any more: where they may, and may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from inference.training import in_place
from inference.training.in_place import reuse_memory
from inference.training.recording import record, replay, with_gradient
from inference.training.simplify import mutates

X = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LARGE_RESULT", 1)


def written(function: Callable[[Tensor], object]) -> int:
    """Number of operations in place, with the same results to the last bit, and x unchanged."""
    program = make_fx(function)(X)
    expected = program(X.clone())
    reuse_memory(program.graph)
    program.recompile()
    x = X.clone()
    found = program(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(x, X)
    return sum(mutates(node) for node in program.graph.nodes)


def read_later(x: Tensor) -> list[Tensor]:
    y = x.exp()
    return [-y, y + 1]


def read_through_a_view(x: Tensor) -> list[Tensor]:
    y = x.exp()
    first = y[0]
    return [-y, first * 2]


def read_before(x: Tensor) -> list[Tensor]:
    y = x.exp()
    total = y.sum()
    return [-y, total]


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x: x.exp() * 2, 1),
        (lambda x: -((x.exp() + 1) * x).sigmoid(), 4),
        (lambda x: x * 2, 0),
        (lambda x: x.t().neg(), 0),
        (lambda x: x.exp().t() + 1, 0),
        (lambda x: x.exp().sum(0) + x, 0),
        (lambda x: (x > 0) * x, 0),
        (lambda x: x.exp() * x.exp().t().sum(), 1),
        (read_before, 1),
        (read_later, 1),
        (read_through_a_view, 0),
    ],
    ids=[
        "new", "chain", "given", "view of given", "view", "broadcast", "other type", "twice",
        "read before", "read later", "read through a view",
    ],
)  # fmt: skip
def test_where(function: Callable[[Tensor], object], number: int) -> None:
    assert written(function) == number


def test_small_results_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LARGE_RESULT", X.numel() + 1)
    assert written(lambda x: x.exp() * 2) == 0


def test_gradients_through_relu() -> None:
    """The whole way, as steps are recorded: a network's gradient to the last bit."""
    weight, x = torch.randn(4, 4), torch.randn(6, 4)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return ((x @ weight).relu() @ weight).relu().square().sum()

    has: list[bool] = []
    program = record(with_gradient(loss, 1, has), [weight, x])
    replayed = replay(program, [weight, x])
    reuse_memory(program.graph)
    written = torch.ops.aten.threshold_backward.grad_input
    assert any(node.target is written for node in program.graph.nodes)
    for run in (replayed, program):
        torch.testing.assert_close(
            list(run(weight, x)), with_gradient(loss, 1, has)(weight, x), rtol=0, atol=0
        )
