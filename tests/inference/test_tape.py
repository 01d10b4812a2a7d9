"""What a recorded program must not take for a constant, and what it must not leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from inference.training.recording import recorded

X = torch.tensor([1.0, 2.0, -3.0, 4.0])


def branched(x: Tensor, written: Tensor) -> list[Tensor]:
    return [x if written.sum() > 0 else -x]


def by_index(x: Tensor) -> list[Tensor]:
    b = torch.zeros(2)
    b[0] = x.sum()
    return branched(x, b)


def by_several(x: Tensor) -> list[Tensor]:
    b = torch.zeros(4)
    torch._foreach_add_([b], [x])
    return branched(x, b)


def by_an_earlier_view(x: Tensor) -> list[Tensor]:
    b = torch.zeros(4)
    v = b.view(2, 2)
    b.copy_(x)
    return branched(x, v)


READING = {
    "an item": lambda x: [x * float(x[0])],
    "an element that was written": by_index,
    "a list that was written": by_several,
    "a view of what was written": by_an_earlier_view,
    "a mask's shape": lambda x: [x[x > 0].sum() / x[x > 0].shape[0]],
    "places of what is not 0": lambda x: [x * len(x.relu().nonzero())],
    "different values": lambda x: [x * x.unique().numel()],
}


@pytest.mark.parametrize("name", READING)
def test_values_that_are_read_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="it reads a tensor's value"):
        recorded(READING[name], [X])


# Made of tensors that are given, out of the tape's sight.
HIDDEN: dict[str, Callable[[Tensor], Any]] = {
    "torch.tensor": lambda x: [x * torch.tensor([x[0], x[1], 1, 1])],
    "as_tensor": lambda x: [x * torch.as_tensor([x.sum()])],
    "a parameter": lambda x: [x * nn.Parameter(x)],
    "a list": lambda x: [x * sum(x.tolist())],
    "an array": lambda x: [x * torch.as_tensor(x.numpy().sum())],
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_made_of_tensors_out_of_sight_is_refused(name: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"it depends on something|it reads"):
        recorded(HIDDEN[name], [X])


def test_other_constants_are_kept() -> None:
    """Values of constants may be read, and integers choose."""
    held, places = torch.tensor([0.0, 2.0]), torch.tensor([0, 2])

    def function(x: Tensor) -> list[Tensor]:
        return [
            x[places] * float(held.sum()),
            x * torch.tensor(3.0).item(),
            x * len(held.nonzero()),
        ]

    program = recorded(function, [X]).run
    torch.testing.assert_close(list(program(X + 1)), function(X + 1), rtol=0, atol=0)


def test_checks_that_return_nothing_are_kept() -> None:
    program = recorded(lambda x: [torch.linalg.cholesky(x)], [2 * torch.eye(2)]).run
    with pytest.raises(torch.linalg.LinAlgError):
        program(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


def test_running_averages_are_read_before_they_are_written() -> None:
    def function(x: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
        before = mean.clone()
        return [before, batch_norm(x, mean, variance, training=True, momentum=1e-3)]

    given = [torch.randn(8, 3), torch.full((3,), 9.0), torch.ones(3)]
    program = recorded(function, given).run
    assert torch.equal(program(given[0], given[1].clone(), given[2].clone())[0], given[1])


def test_results_are_tensors_of_their_own() -> None:
    def slopes(p: Tensor, q: Tensor) -> list[Tensor]:
        p, q = (each.detach().requires_grad_() for each in (p, q))
        return list(torch.autograd.grad((p * q).sum() + p.sum() * 0, [p, q]))

    program = recorded(slopes, [X, X + 1]).run
    p, q = X.clone(), X + 1
    for each in program(p, q):
        each.mul_(0)
    assert torch.equal(p, X)
    assert torch.equal(program(p, q)[0], X + 1)


def test_arguments_that_are_no_tensors_are_named() -> None:
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(RuntimeError, match="on a Generator"):
        recorded(lambda x: [x + torch.rand(4, generator=generator)], [X])
