"""The optimiser of a run: fused Adam, a factory of torch's, or one of Pyro's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from typing import Any

import torch
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import nn
from torch.optim import Optimizer

from inference.objectives import Loss

#: Called with parameters and ``lr=``, such as ``torch.optim.SGD``.
OptimizerFactory = Callable[..., Optimizer]


def build_optimizer(
    optimizer: OptimizerFactory | PyroOptim | None, loss: Loss, lr: float
) -> Optimizer:
    """The optimiser of the parameters of ``loss``, also of those that are frozen now.

    :param optimizer: fused Adam where not given. One of Pyro's brings its own rates.
    :raises ValueError: if it is neither, or one of Pyro's that does more than take steps.
    """
    parameters = list(loss.parameters())
    if optimizer is None:
        return torch.optim.Adam(parameters, lr=lr, fused=True)
    if isinstance(optimizer, PyroOptim):
        return _of_pyro(optimizer, loss)
    built = optimizer(parameters, lr=lr) if callable(optimizer) else optimizer
    if isinstance(built, Optimizer) and built is not optimizer:
        closure = signature(built.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise ValueError(
                f"{type(built).__name__} computes the loss several times a step, which the runner "
                "does not: give one that takes a gradient, such as torch.optim.SGD"
            )
        return built
    raise ValueError(
        f"optimizer must be called with parameters and lr= and give one of torch's, got "
        f"{optimizer!r}: give a class such as torch.optim.SGD, or "
        "functools.partial(torch.optim.AdamW, weight_decay=0.1)"
    )


def _of_pyro(optimizer: PyroOptim, loss: Loss) -> Optimizer:
    if isinstance(optimizer, PyroLRScheduler):
        raise ValueError(
            f"{optimizer!r} schedules its rate by calls of its own step(): give the optimiser "
            "alone and the callback ReduceOnPlateau, or train with pyro.infer.SVI"
        )
    if any(optimizer.pt_clip_args.values() if isinstance(optimizer.pt_clip_args, dict) else ()):
        raise ValueError(
            f"the runner's guard clips gradients: in place of clip_args={optimizer.pt_clip_args} "
            "give guard=Guard(max_norm=...)"
        )
    groups = [
        {"params": [parameter], **_arguments(optimizer.pt_optim_args, module, name)}
        for module, name, parameter in _named(loss)
    ]
    return optimizer.pt_optim_constructor(groups)


def _named(loss: Loss) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Parameters by the names that plain SVI knows them by."""
    for program in (loss.model, loss.guide):
        for name, parameter in program.own_parameters():
            yield type(program).__name__, name, parameter


def _arguments(arguments: Any, module: str, name: str) -> dict[str, Any]:
    """A parameter's own, as Pyro's optimisers take them."""
    if not callable(arguments):
        return dict(arguments)
    both = len(signature(arguments).parameters) == 2
    return arguments(module, name) if both else arguments(f"{module}$$${name}")
