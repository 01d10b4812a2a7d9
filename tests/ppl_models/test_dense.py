"""Fully connected layers whose large products oneDNN takes, against PyTorch's own."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ppl_models.networks import dense
from ppl_models.networks.dense import Linear

needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="PyTorch is built without oneDNN"
)
pytestmark = needs_onednn


@pytest.fixture(autouse=True)
def on_such_a_processor(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every product is large, and noted."""
    taken: list[int] = []
    original = dense.product

    def noted(*arguments: Tensor) -> Tensor:
        taken.append(1)
        return original(*arguments)

    monkeypatch.setattr(dense, "mkl_is_slower", lambda: True)
    monkeypatch.setattr(dense, "LARGE_PRODUCT", 1)
    monkeypatch.setattr(dense, "product", noted)
    return taken


def layers(bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    ours, theirs = Linear(20, 30, bias), nn.Linear(20, 30, bias)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("shape", [(7,), (3, 7), (0,), (2, 1, 7), ()], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_values_and_gradients_are_pytorchs(
    shape: tuple[int, ...], bias: bool, on_such_a_processor: list[int]
) -> None:
    x = torch.randn(*shape, 20)
    found = []
    for layer in layers(bias):
        rows = x.clone().requires_grad_()
        out = layer(rows)
        (out.tanh() * torch.arange(30.0) / 30).sum().backward()
        found.append([out, rows.grad, *(p.grad for p in layer.parameters())])
        assert layer.weight.grad.is_contiguous()  # as fused optimizers need it
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    assert len(on_such_a_processor) == (3 if x.numel() else 0)


def test_frozen_weights_cost_no_products(on_such_a_processor: list[int]) -> None:
    layer, _ = layers()
    layer.requires_grad_(False)
    layer(torch.randn(7, 20, requires_grad=True)).sum().backward()
    assert len(on_such_a_processor) == 2


def test_derivatives_of_derivatives() -> None:
    second = []
    for layer in layers():
        x = torch.linspace(-1, 1, 140).reshape(7, 20).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
        first.square().sum().backward()
        second.append(layer.weight.grad)
    torch.testing.assert_close(*second, rtol=1e-4, atol=1e-5)


def test_functions_of_functions_take_pytorchs_products(on_such_a_processor: list[int]) -> None:
    """Transforms know nothing of oneDNN's operation."""
    layer, other = layers()
    x = torch.randn(4, 7, 20)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, weights, x).tanh().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)
    assert not on_such_a_processor
    other(x[1]).tanh().sum().backward()
    torch.testing.assert_close(gradients["weight"][1], other.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_take_pytorchs_products(
    dtype: torch.dtype, on_such_a_processor: list[int]
) -> None:
    layer, _ = layers()
    layer.to(dtype)(torch.randn(7, 20, dtype=dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(torch.randn(7, 20)).dtype == torch.bfloat16
    assert not on_such_a_processor


def test_without_a_name_that_is_not_public_products_are_pytorchs(
    on_such_a_processor: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch._C._functorch", None)
    layer, other = layers()
    x = torch.randn(7, 20)
    assert torch.equal(layer(x), other(x))
    assert not on_such_a_processor
