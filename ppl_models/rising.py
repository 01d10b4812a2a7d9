"""Sums of logarithms of rising factorials, at the entries of a row that are not 0: the gamma
functions of the others, which are most in a text, cancel, but would take most of a step's time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def log_rising_sums(x: Tensor, start: Tensor) -> Tensor:
    r"""Sums over the last axis of :math:`\log \Gamma(a + x) - \log \Gamma(a)`, for counts x.

    On the CPU only the entries of x that are not 0 are computed; elsewhere all, since their number
    would have to be read back. It is one operation for PyTorch.

    :param x: counts ``[..., D]``; no gradient goes to them.
    :param start: a, positive, ``[..., D]``; both are broadcast.
    :returns: ``[...]``, in 64 bits where the device has such: small differences matter.
    """
    x, start = torch.broadcast_tensors(x.to(start.dtype), start)
    return _sums(x.contiguous(), start.contiguous())


def wide(like: Tensor) -> torch.dtype:
    """The longest floats of the tensor's device."""
    return torch.float32 if like.device.type == "mps" else torch.float64


@torch.library.custom_op("facetvae::log_rising_sums", mutates_args=())
def _sums(x: Tensor, start: Tensor) -> Tensor:
    if x.device.type != "cpu":
        x, start = x.to(wide(x)), start.to(wide(x))
        return ((x + start).lgamma() - start.lgamma()).sum(-1)
    where, number, first = _counted(x, start)
    number, first = number.double(), first.double()
    each = (number + first).lgamma() - first.lgamma()
    sums = each.new_zeros(x.shape[:-1])
    sums.view(-1).index_add_(0, where // x.shape[-1], each)
    return sums


@torch.library.custom_op("facetvae::log_rising_slopes", mutates_args=())
def _slopes(gradient: Tensor, x: Tensor, start: Tensor) -> Tensor:
    """By start."""
    if x.device.type != "cpu":
        return _all_slopes(gradient, x, start)
    where, number, first = _counted(x, start)
    each = (number + first).digamma() - first.digamma()
    slopes = torch.zeros_like(start)
    slopes.view(-1)[where] = each * gradient.reshape(-1)[where // x.shape[-1]]
    return slopes


def _counted(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Places of the entries that are not 0 ``[E]``, and both there."""
    where = x.view(-1).nonzero()[:, 0]
    return where, x.view(-1)[where], start.view(-1)[where]


def _all_slopes(gradient: Tensor, x: Tensor, start: Tensor) -> Tensor:
    return gradient.unsqueeze(-1) * ((x + start).digamma() - start.digamma())


@_sums.register_fake
def _(x: Tensor, start: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=wide(x))


@_slopes.register_fake
def _(gradient: Tensor, x: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(start)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
    # With create_graph=True, by operations that have derivatives themselves.
    slopes = _all_slopes if torch.is_grad_enabled() else _slopes
    x, start = ctx.saved_tensors
    return None, slopes(gradient.to(start).contiguous(), x, start)


_sums.register_autograd(_backward, setup_context=_keep)


def _mapped(operation: Any) -> Any:
    """The same for stacks of arguments, as ``torch.vmap`` calls it."""

    def over(info: Any, axes: tuple[int | None, ...], *arguments: Tensor) -> tuple[Tensor, int]:
        stacks = [
            each.expand(info.batch_size, *each.shape) if axis is None else each.movedim(axis, 0)
            for each, axis in zip(arguments, axes, strict=True)
        ]
        return operation(*(stack.contiguous() for stack in stacks)), 0

    return over


_sums.register_vmap(_mapped(_sums))
_slopes.register_vmap(_mapped(_slopes))
